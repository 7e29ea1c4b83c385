# mallory wants the token of alice's notebook: she listens where alice's browser may go, and tries the socket. She hears nothing.
. "$(dirname "$0")/../lib.sh"
cd /home/alice
as alice mkdir bin
install -m 755 "$here/jupyter.py" bin/jupyter-lab
install -m 644 "$here/listen.py" /home/mallory
port=18888
heard=/home/mallory/heard
path=PATH=/home/alice/bin:/usr/bin:/bin

listen() { # ADDRESS: mallory does; $listener
    rm -f $heard
    start mallory /usr/bin/python3 listen.py "$1" $port heard
    listener=$started
    eventually 5 [ -e $heard ]
}
end() { # PID
    kill "$1" 2>&- || true
    wait "$1" 2>&- || true
}
serve() { # WORDS...: alice does; $app is what she is told
    rm -f served started
    start alice sh -c 'exec "$@" >served 2>served.err' - env $path skiff app notebook --json --port $port "$@" </dev/null
    app=$started
    eventually 10 [ -e started ]
}
told() { python3 -c 'import json; json.load(open("served"))'; }
refused() { ! kill -0 "$app" 2>&-; }

# ---- She listens on the other address of `localhost` before alice's browser goes anywhere.
listen ::1
: >go
serve
eventually 10 told
forward=$(json "$(cat served)" 'd["forward"]')
url=$(json "$(cat served)" 'd["url"]')
socket=$(json "$(cat served)" 'd["socket"]')
ssh -F "$SKIFF_TESTBED_SSH_CONFIG" ${forward#ssh } 3>&- &
forwarder=$!
eventually 5 sh -c "ss -Hltn 'sport = :$port' | grep -q 127.0.0.1"
equal "$(curl -sg "$url")" hers
equal "$(cat $heard)" '' 'what mallory has heard'
end $forwarder
# She does not get to the socket, nor to what says where it is.
for what in 'cat "$1"' 'ls "${1%/*}"' 'python3 -c "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])" "$1"'; do
    try as mallory sh -c "$what" - "$socket"
    [ "$code" != 0 ] || fail "mallory can: $what"
    has "$err" 'ermission denied' "$what"
done
end $listener

# ---- She has the port where the browser is: ssh does not go on without it, so that nothing there looks like alice's.
listen 127.0.0.1
fails 255 timeout 10 ssh -F "$SKIFF_TESTBED_SSH_CONFIG" ${forward#ssh }
equal "$(cat $heard)" ''
end $app
[ ! -e "$socket" ] || fail 'the socket is still there'

# ---- On a port, if alice wants one: not if mallory has either address of it, before or meanwhile.
fails 125 as alice env $path skiff app notebook --tcp --port $port
has "$err" "port $port is in use"
end $listener
listen ::1
fails 125 as alice env $path skiff app notebook --tcp --port $port
has "$err" "port $port is in use"
end $listener
rm go
serve --tcp
listen ::1
: >go
eventually 10 refused
equal "$(cat served)" ''
has "$(cat served.err)" "port $port: user $(id -u mallory) listens on it"
has "$(cat served.err)" 'hint: '
end $listener
equal "$(cat $heard)" ''

# ---- A directory that others get into is not used.
as alice chmod 755 .local/share/skiff/apps
fails 125 as alice env $path skiff app notebook
has "$err" 'hint: it must be a directory of yours: chmod 700'
