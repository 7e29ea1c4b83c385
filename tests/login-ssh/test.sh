# bed: --ssh-force-command "/usr/bin/skiff login"
# takes: 35
# Logging in with OpenSSH's ForceCommand: shells and commands, terminal, exit status, files both ways, the end of sessions.
. "$(dirname "$0")/../lib.sh"
config=$SKIFF_TESTBED_SSH_CONFIG
remote() { timeout -k 2 25 ssh -F "$config" "$@"; }
nobody_left() { ! pgrep -u alice; }
alice=/home/alice

# Commands.
ok remote alice@ctl 'id -u; pwd; echo $0; tty; cat /proc/1/comm; ls -d /run/skiff'
equal "$out" $'0\n/home/alice\nbash\nnot a tty\nskiff-init\n/run/skiff' 'a command by ssh'
fails 7 remote alice@ctl exit 7
fails 127 remote alice@ctl no-such-command
ok remote alice@ctl 'echo "two  words" | { read -r a; echo "$a" >&2; echo '"'quoted \$HOME'"'; }'
equal "$out" 'quoted $HOME'
equal "$err" 'two  words'
ok remote bob@ctl whoami
equal "$out" root
ok remote bob@ctl 'stat -c %u ~; touch ~/here'
equal "$(stat -c %U /home/bob/here)" bob
# A command that dies by a signal: sshd tells the client so, as without Skiff.
fails 255 remote alice@ctl 'kill -9 $$'
# Input and output of any length and any bytes.
head -c 3000000 /dev/urandom >random
sum=$(sha256sum <random)
equal "$(remote alice@ctl 'sha256sum' <random)" "$sum" 'bytes to a command'
equal "$(remote alice@ctl 'cat' <random | sha256sum)" "$sum" 'bytes through a command'

# The environment stays from session to session, and one's own user manager finds it.
ok remote alice@ctl 'echo "made by the first" >/etc/marker; mkdir /opt/by-ssh'
ok remote alice@ctl 'cat /etc/marker'
equal "$out" 'made by the first'
[ ! -e /etc/marker ] || fail 'a login has changed the host'
ok as alice skiff env list --json
equal "$(json "$out" '[e["name"] for e in d]')" "['default']"

# A login shell, and what it reads.
echo 'export FROM_PROFILE=yes' >$alice/.bash_profile
fails 5 remote -T alice@ctl <<<'echo $FROM_PROFILE $0 $(id -un); exit 5'
equal "$out" 'yes -bash root' 'a login shell'

# Files both ways.
mkdir tree && cp random tree/random && mkdir -p 'tree/with space' && ln -s random tree/link && echo x >'tree/with space/x'
chmod 750 tree/random
chmod 755 .
ok scp -F "$config" -q random alice@ctl:/opt/by-ssh/scp
ok scp -F "$config" -O -q random alice@ctl:/opt/by-ssh/scp-old
ok scp -F "$config" -q -r alice@ctl:/opt/by-ssh .
equal "$(sha256sum <by-ssh/scp)$(sha256sum <by-ssh/scp-old)" "$sum$sum" 'files by scp, there and back'
ok sftp -F "$config" -q -b - alice@ctl <<END
cd /opt/by-ssh
put random sftp
mkdir dir
rename sftp dir/sftp
get dir/sftp sftp.back
ls -l dir
END
equal "$(sha256sum <sftp.back)" "$sum" 'a file by sftp, there and back'
ok rsync -a -e "ssh -F $config" tree/ alice@ctl:/opt/by-ssh/tree/
ok rsync -a --delete -e "ssh -F $config" alice@ctl:/opt/by-ssh/tree/ tree.back/
diff -r tree tree.back || fail 'files by rsync'
equal "$(stat -c %a tree.back/random)$(readlink tree.back/link)" 750random
ok rsync -a --itemize-changes -e "ssh -F $config" tree/ alice@ctl:/opt/by-ssh/tree/
equal "$out" '' 'rsync a second time'
[ ! -e /opt/by-ssh ] || fail 'files came to the host'

# Skiff in a shell's text: that is the shell's inside, where `skiff` is answered outside.
ok remote alice@ctl 'skiff env list | wc -l; skiff env diff | grep -c "by-ssh$"; skiff run -- false || echo no'
equal "$out" $'2\n1\nno'

# git, both ways; a jump through this login to another user's.
export GIT_SSH_COMMAND="ssh -F $config" GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
ok remote alice@ctl 'git init -q --bare /opt/by-ssh/repo.git'
git -c init.defaultBranch=main init -q work
git -C work -c user.name=a -c user.email=a@b commit -q --allow-empty -m 'made outside'
ok git -C work push -q alice@ctl:/opt/by-ssh/repo.git main
ok git clone -q -b main alice@ctl:/opt/by-ssh/repo.git clone
equal "$(git -C clone log --format=%s)" 'made outside'
ok remote -J alice@ctl bob@localhost 'id -u; stat -c %u ~/here'
equal "$out" $'0\n0'

# As editors on another computer do it (VS Code, JetBrains): a long script on a shell's standard input installs a server and leaves it running.
# A second connection forwards a port to it; a third ends it.
{
    cat <<'END'
set -e; mkdir -p ~/.editor; cd ~/.editor
cat >server.py <<'SERVER'
import http.server
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
open("port.new", "w").write(str(server.server_port))
server.serve_forever()
SERVER
cat >long <<'LONG'
END
    seq -f 'line %g of what is longer than any buffer' 20000
    cat <<'END'
LONG
wc -l <long
nohup python3 server.py >log 2>&1 </dev/null &
echo $! >pid
until [ -s port.new ]; do sleep 0.05; done
echo served >page
echo "listeningOn==$(cat port.new)=="
END
} >install.sh
ok timeout 25 ssh -F "$config" -T alice@ctl bash <install.sh
has "$out" 20000
port=$(sed -n 's/.*listeningOn==\(.*\)==/\1/p' <<<"$out")
ssh -F "$config" -N -o ExitOnForwardFailure=yes -L "4711:127.0.0.1:$port" alice@ctl 3>&- &
forwarding=$!
eventually 10 curl -fsS http://127.0.0.1:4711/page
equal "$(curl -fsS http://127.0.0.1:4711/page)" served
kill $forwarding
ok remote alice@ctl 'kill $(cat ~/.editor/pid); rm -r ~/.editor'

# The client's agent, for as long as the session: as root and as oneself, from two sessions at once, and from an environment within.
eval "$(ssh-agent -a "$PWD/agent")" >agent.log
SSH_AUTH_SOCK=$PWD/agent ssh-add -q "$(sed -n 's/ *IdentityFile //p' "$config")"
with_agent() { SSH_AUTH_SOCK=$PWD/agent remote -A "$@"; }
key=$(SSH_AUTH_SOCK=$PWD/agent ssh-add -l)
ok with_agent alice@ctl 'ssh-add -l; skiff env exec --me default -- ssh-add -l; ls -d /tmp/ssh-*'
equal "$(head -2 <<<"$out")" "$key"$'\n'"$key" 'the agent'
place=$(tail -1 <<<"$out")
ok remote alice@ctl "ls -d $place || echo gone; ssh-add -l 2>&1 || true"
equal "$(head -1 <<<"$out")" gone
lacks "$out" "$key"
ok with_agent alice@ctl 'skiff env create second; skiff env exec second -- ssh-add -l; skiff env rm second; ssh-add -l'
equal "$out" "$key"$'\n'"$key"
# With mounts of all forms; with one over /tmp what is there is the user's affair.
ok with_agent alice@ctl 'skiff env create second -v /srv:/mnt,/usr:/media --mount type=bind,source=/srv,target=/opt; skiff env exec second -- ssh-add -l; skiff env rm second'
equal "$out$err" "$key" 'the agent where there are mounts'
# In a throw-away environment its directory is shown, but not where nothing of the host is to be.
ok with_agent alice@ctl 'skiff run -- ssh-add -l; skiff run --me -- ssh-add -l; skiff run --contain -- ssh-add -l 2>&1 || echo none'
equal "$out" "$key"$'\n'"$key"$'\n'"$(tail -2 <<<"$out")" 'the agent in skiff run'
equal "$(tail -1 <<<"$out")" none
# In instances: of an environment, and for whoever comes by a later login.
ok with_agent alice@ctl 'skiff instance start env:default held sleep 1000; skiff instance exec held -- ssh-add -l; skiff instance start host other sleep 1000; skiff exec other ssh-add -l'
equal "$out" "$key"$'\n'"$key" 'the agent in instances'
for name in held other; do
    ok with_agent alice@ctl "skiff instance exec $name -- ssh-add -l; skiff exec --me $name ssh-add -l"
    equal "$out" "$key"$'\n'"$key" "the agent in instance $name, from a later login"
    ok with_agent alice@ctl "skiff exec $name sh -c 'setpriv --reuid 1000 --regid 1000 --clear-groups ssh-add -l 2>&1 || echo none'"
    equal "$(tail -1 <<<"$out")" none "somebody else in instance $name"
    ok remote alice@ctl "skiff exec $name sh -c 'ssh-add -l 2>&1; find /tmp/ssh-* -type s'; skiff kill $name"
    lacks "$out" "$key" "the agent in instance $name, without one"
    lacks "$out" /tmp/ssh- "sockets in instance $name"
done
# With it from here to another login, by its key alone.
ok with_agent alice@ctl 'ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR bob@localhost whoami'
equal "$out" root
# Further on by the keys and the name that one has on the host, though one is root inside: OpenSSH asks /etc/passwd, and not HOME.
ok remote alice@ctl 'ls -d /root/.ssh/.; ssh-keygen -q -t ed25519 -N "" -f ~/.ssh/id_ed25519
    printf "Host here\n  HostName 127.0.0.1\n" >~/.ssh/config; chmod 600 ~/.ssh/config'
cp -p /run/sshd-authorized-keys keys.before
cat $alice/.ssh/id_ed25519.pub >>/run/sshd-authorized-keys
ok remote alice@ctl 'ssh -o StrictHostKeyChecking=accept-new -o BatchMode=yes here "echo \$SSH_CONNECTION"; cut -d" " -f1 ~/.ssh/known_hosts | head -1'
has "$out" '127.0.0.1' 'a login from inside'
has "$(tail -1 <<<"$out")" '|1|' 'the hosts that alice knows'
ok remote alice@ctl 'ssh -G somewhere | grep "^user "; ssh -G root@somewhere | grep "^user "; skiff run -- ssh -G somewhere | grep "^user "'
equal "$out" $'user alice\nuser root\nuser alice' 'as whom one logs in elsewhere'
ok remote alice@ctl 'skiff run --no-home -- sh -c "ssh -G x | grep \"^user \"; ls -d /run/skiff/ssh* 2>&1"; true'
has "$out" 'user root' 'without the home'
has "$out" 'No such file' 'without the home'
cp -p keys.before /run/sshd-authorized-keys
rm -f $alice/.ssh/id_ed25519* $alice/.ssh/config $alice/.ssh/known_hosts
# Many at once; and nobody else inside has it.
ok with_agent alice@ctl 'for i in $(seq 40); do ssh-add -l & done | sort | uniq -c | sed "s/^ *//"; setpriv --reuid 1000 --regid 1000 --clear-groups ssh-add -l 2>&1 || echo none'
equal "$(head -1 <<<"$out")" "40 $key"
equal "$(tail -1 <<<"$out")" none
ssh-agent -k >/dev/null 2>&1 || kill "$SSH_AGENT_PID"
unset SSH_AUTH_SOCK SSH_AGENT_PID

# X11, to a server of the client's with a key of its own.
export XAUTHORITY=$PWD/xauthority
touch "$XAUTHORITY"
xauth -q add :77 . "$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')"
Xvnc :77 -geometry 1234x567 -auth "$XAUTHORITY" -rfbport 5977 -localhost -SecurityTypes None >xvnc.log 2>&1 3>&- &
server=$!
eventually 10 env DISPLAY=:77 xdpyinfo
ok env DISPLAY=:77 timeout 25 ssh -F "$config" -Y alice@ctl 'echo $DISPLAY; xdpyinfo | grep dimensions'
has "$out" 'localhost:1'
has "$out" '1234x567 pixels'
kill $server

# tmux: what runs in it stays when its session ends.
ok remote alice@ctl 'tmux -L t new-session -d -x 80 -y 24 "tty; id -u; exec cat"'
ok remote alice@ctl 'tmux -L t send-keys typed Enter; sleep 0.3; tmux -L t capture-pane -p | grep .; tmux -L t kill-server'
equal "$(sed 1d <<<"$out")" $'0\ntyped\ntyped'

# At a terminal, and when the connection breaks.
SSH_CONFIG=$config PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$here/terminal_test.py" || fail 'at the terminal'

# `env stop` ends everything, sessions of sshd included.
(trap - ERR; remote alice@ctl 'touch ~/ready; setsid sleep 3000 & exec sleep 3001') &
session=$!
eventually 10 test -e $alice/ready
ok as alice skiff env stop
try wait $session
[ "$code" != 0 ] || fail 'the session ended well though its environment was stopped'
eventually 5 nobody_left

# Skiff's own commands work from outside the environment, however broken that is.
ok remote alice@ctl skiff env exec default -- rm /bin /lib64
try remote alice@ctl true
[ "$code" != 0 ] || fail 'a shell starts without the dynamic loader'
has "$err" 'skiff: ' 'what is said about a broken environment'
ok remote alice@ctl skiff env list --json
has "$out" '"default"'
ok remote alice@ctl skiff env rm --force default
ok remote alice@ctl true
