# takes: 13
# Jupyter and a desktop for the browser: on this machine, in an environment, in an image of a job; who gets in, how it ends.
. "$(dirname "$0")/../lib.sh"
. "$here/../images/lib.sh"
browser() { ok as "$1" /usr/bin/python3 "$here/browser.py" "${@:2}"; }
cd /home/alice

# Starts it in the background; $app has what is printed as JSON, $forward, $port, $socket and $token.
serve() { # USER WORDS...
    : >served && chmod 666 served
    start "$1" sh -c 'exec "$@" >served 2>served.err' - "${@:2}" </dev/null
    eventually 60 python3 -c 'import json; json.load(open("served"))'
    app=$(cat served)
    forward=$(json "$app" 'd["forward"]')
    port=$(json "$app" 'd["port"]')
    socket=$(json "$app" 'd.get("socket")')
    token=$(json "$app" 'd["url"].split("token=" if "token=" in d["url"] else "token%3D")[1]')
}
listening() { ss -Hltn "sport = :$port" | grep -q .; }
# What is printed is typed where the browser is.
forwarder=
forward() {
    ssh -F "$SKIFF_TESTBED_SSH_CONFIG" ${forward#ssh } 3>&- &
    forwarder=$!
    eventually 10 listening
}
gone() { [ ! -e "$socket" ] && ! listening; }
end() { # SIGNAL: it ends, with all that it had started
    kill "-$1" "$started"
    wait "$started" 2>&- || true
    [ -z "$forwarder" ] || { kill "$forwarder" && { wait "$forwarder" || true; } && forwarder=; }
    eventually 10 gone
    eventually 10 sh -c '! pgrep -u alice -f "jupyter|vnc|websockify|xterm"'
}

# ---- A notebook in an environment, with what is installed there
ok as alice skiff env create dev
inside alice dev 'echo "def answer(): return 42" >/usr/lib/python3/dist-packages/mine.py'
serve alice skiff app notebook --json --environment dev
equal "$forward" "ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:$port:$socket alice@ctl"
# It listens on a socket that nobody else gets to.
! listening || fail 'somebody listens on the port'
equal "$(stat -c '%U %a' "${socket%/*}" "$socket")" $'alice 700\nalice 600'
for user in bob mallory; do
    fails 1 as $user /usr/bin/python3 "$here/browser.py" cell "$socket" "$token" 'print(1)'
    has "$err" PermissionError
done
forward
browser alice cell "$port" "$token" 'import mine, getpass; kept = 43; print(mine.answer(), getpass.getuser())'
equal "$out" '42 alice'
# Nobody reads the token off a process; without it nobody gets in.
equal "$(ss -Hltn "sport = :$port" | awk '{print $4}')" "127.0.0.1:$port"
! grep -l "$token" /proc/[0-9]*/cmdline 2>&- || fail 'the token is among the words of a process'
for url in api/kernels "api/kernels?token=guessed"; do
    equal "$(as bob curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/$url")" 403 "$url"
done
fails 1 as bob /usr/bin/python3 "$here/browser.py" cell "$port" guessed 'print(1)'
# A lost connection is no loss: where it is, is said again.
ok as alice skiff app list
has "$out" "    $forward
    http://127.0.0.1:$port/?token=$token"
browser alice again "$socket" "$token" 'print(kept)'
equal "$out" 43
ok as bob skiff app list
equal "$out" ''
fails 13 as bob sh -c 'cat /home/alice/.local/share/skiff/apps/*.json || exit 13'
end TERM
ok as alice skiff app list
equal "$out" ''
as alice skiff env stop dev

# ---- A desktop here: seen through the WebSocket, by whoever has the token
serve alice skiff app desktop --json -- xterm -geometry 80x24+0+0 -bg blue -fg white -e sh -c 'echo hello; exec cat'
forward
drawn() { as alice /usr/bin/python3 "$here/browser.py" screen "$port" "$token" | grep -v ', 1 colours'; }
eventually 10 drawn
browser alice screen "$port" "$token"
has "$out" '1280x800, '
fails 1 as bob /usr/bin/python3 "$here/browser.py" screen "$port" guessed
has "$err" refused
as bob sh -c 'for display in /tmp/.X11-unix/X*; do DISPLAY=:${display##*X} timeout 5 xterm -e true && exit 1; done; exit 0' 2>&- || fail 'bob gets on the display'
# Not even killed does it leave anything.
end KILL
ok as alice skiff app list
equal "$out" ''

# ---- In an image: there is no Jupyter, or its own, in whose place is a web server: what counts is who has started whose, and where.
start_registry
make_store
skeleton "$images_tmp/root"
push tools/plain:1 "$images_tmp/root"
fails 127 as alice skiff app notebook --image "$registry/tools/plain:1"
has "$err" 'no Jupyter here'
mkdir "$images_tmp/root/srv"
echo of the image >"$images_tmp/root/srv/whose"
cat >"$images_tmp/root/usr/bin/jupyter-server" <<'X'
#!/bin/sh
for word; do [ "${word#--port=}" = "$word" ] || exec /bin/busybox httpd -f -p "127.0.0.1:${word#--port=}" -h /srv; done
X
chmod 755 "$images_tmp/root/usr/bin/jupyter-server"
push tools/web:1 "$images_tmp/root"
serve alice skiff app notebook --tcp --json --image "$registry/tools/web:1"
equal "$forward" "ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:$port:127.0.0.1:$port alice@ctl"
equal "$(curl -s "http://127.0.0.1:$port/whose")" 'of the image'
end TERM
stop_registry

# ---- In a job: on its node, and it ends with it
serve alice sbatch --quiet --wait -o served -e served.err -w n2 --wrap 'skiff cluster notebook --json --environment=dev'
equal "$(json "$app" 'd["host"]')" n2
out=$app described skiff app notebook --json
equal "$forward" "ssh -J alice@ctl -N -o ExitOnForwardFailure=yes -L 127.0.0.1:$port:$socket alice@n2"
fits as alice skiff app list --json
equal "$(json "$out" 'd[0]["job"]')" "$(squeue -h -o %i)"
# Where the nodes have it too.
cp "$here/browser.py" /home/alice
on_n2() { on n2 setpriv --reuid alice --regid alice --init-groups env -C /home/alice HOME=/home/alice "$@"; }
ok on_n2 /usr/bin/python3 browser.py cell "$socket" "$token" 'import mine, socket; print(mine.answer(), socket.gethostname())'
equal "$out" '42 n2'
scancel -u alice
idle
# A desktop, likewise.
serve alice sbatch --quiet --wait -o served -e served.err -w n2 --wrap 'skiff cluster desktop --json -- xterm -bg blue'
equal "$(json "$app" 'd["host"]')" n2
drawn_there() { on_n2 /usr/bin/python3 browser.py screen "$socket" "$token" | grep -v ', 1 colours'; }
eventually 15 drawn_there
scancel -u alice
idle
# On a node of a cluster's own Slurm: of one that is in its machine's network. It ends with the cluster.
ok as alice skiff cluster up lab --slurm --nodes 1 --net host
serve alice skiff cluster exec --node n1 lab -- skiff app notebook --json
equal "$(json "$app" '(d["host"], d["forward"])')" "('ctl', 'ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:$port:$socket alice@ctl')"
browser alice cell "$socket" "$token" 'import socket; print(socket.gethostname())'
equal "$out" n1
fails 125 as alice skiff cluster exec lab -- srun skiff app notebook
has "$err" 'hint: start it by `skiff cluster exec --node n1'
ok as alice skiff cluster down lab
# What was killed with its cluster goes with the next list.
listed() { as alice skiff app list | grep -q .; }
eventually 10 eval '! listed'
gone || fail 'the socket is still there'
wait "$started" 2>&- || true
ok as alice skiff cluster up lab --slurm --nodes 1
fails 125 as alice skiff cluster exec lab -- skiff app notebook
has "$err" 'hint: a cluster made with --net host'
ok as alice skiff cluster down lab
# In a cluster over the hosts of a job, on the first.
serve alice sbatch --quiet --wait -N2 -o served -e served.err --wrap 'skiff cluster run -- skiff app notebook --json'
equal "$forward" "ssh -J alice@ctl -N -o ExitOnForwardFailure=yes -L 127.0.0.1:$port:$socket alice@n1"
scancel -u alice
idle
fails 125 as alice skiff cluster notebook
has "$err" 'not in a job'
has "$err" 'hint: '
fails 127 as alice env PATH=/nowhere /usr/bin/skiff app desktop
has "$err" 'apt-get install tigervnc-standalone-server'
