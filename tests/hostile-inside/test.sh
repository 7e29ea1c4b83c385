# A program inside sees its user's home, and with it Skiff's own records of them: whatever it puts there, no command hangs, lists show the
# rest, and its user gets in and ends it.
# takes: 30
. "$(dirname "$0")/../lib.sh"
. "$here/../images/lib.sh"
home=/home/alice
state=$home/.local/share/skiff
root=$images_tmp/root
skeleton "$root"
start_registry
make_store
push tools/plain:1 "$root" --config '{"Cmd":["true"]}'
limit=15

ok as alice skiff pull --quiet $registry/tools/plain:1
ok as alice skiff env create dev
ok as alice skiff env create other
ok as alice skiff instance start other web -- sleep 1000
ok as alice skiff instance start other gone -- true
eventually 5 test -e $state/instance/gone/ended.json
inside alice dev 'true'
eventually 5 test -e $state/env/dev/host-state

# ---- A named pipe in the place of each record.
pipe() { # FILE: done inside; `back` undoes it
    record=$1
    cp -p "$record" "$images_tmp/kept"
    # What is written at this moment is written anew, in its place.
    ok as alice skiff env exec other -- sh -c "mkfifo '$record.pipe'; mv '$record.pipe' '$record'"
}
back() {
    rm -f "$record"
    mv "$images_tmp/kept" "$record"
}
for record in packages host-state; do
    [ -e $state/env/dev/$record ] || continue
    pipe $state/env/dev/$record
    ok as alice skiff env exec dev -- true
    ok as alice skiff env stop dev
    ok as alice skiff env exec dev -- true
    rm -f "$images_tmp/kept"
done
ok as alice skiff env stop dev
pipe $state/env/dev/ids
fails 125 as alice skiff env exec dev -- true
has "$err" 'not a regular file' 'ids'
back
# One that is half made.
ok as alice skiff env exec other -- mkfifo $state/env/dev/ids.new
rm $state/env/dev/ids
ok as alice skiff env exec dev -- true
for record in gone/instance.json gone/ended.json; do
    pipe $state/instance/$record
    for words in ps 'ps --all' 'instance list' 'instance list --json'; do
        ok as alice skiff $words
        has "$out" web "$record: skiff $words"
        [ "$words" = ps ] && [ $record = gone/ended.json ] || has "$err" "$record: not a regular file" "skiff $words"
    done
    back
done
record=$(echo $state/images/*plain*.json)
[ -e "$record" ] || record=$(find $home -path '*skiff/images/*.json' | head -1)
pipe "$record"
ok as alice skiff images
has "$err" 'not a regular file' 'skiff images'
back
pipe $state/env/dev/env.toml
for words in 'env list' 'env list --json' ps; do
    ok as alice skiff $words
    has "$out" other "skiff $words"
    has "$err" 'env/dev/env.toml' "skiff $words"
done
back
# An instance that ends notes it, whatever lies in the way.
ok as alice skiff env exec other -- mkfifo $state/instance/web/.ended
ok as alice skiff instance stop -t 1 web
ok as alice skiff instance list --json
equal "$(json "$out" '[i["state"] for i in d if i["name"] == "web"]')" "['killed']"

# ---- Settings that make no sense: the list names them and goes on.
cp -p $state/env/dev/env.toml "$images_tmp/kept"
ok as alice skiff env exec other -- sh -c "echo = >$state/env/dev/env.toml"
for words in 'env list' ps; do
    ok as alice skiff $words
    has "$out" other "skiff $words"
    has "$err" 'env/dev/env.toml' "skiff $words"
done
cp -p "$images_tmp/kept" $state/env/dev/env.toml

# ---- A lock that is held: who holds it is said, and the command goes on when it is free.
ok as alice skiff env stop dev
start alice skiff env exec other -- flock $state/env/dev/lock sleep 8
eventually 5 sh -c "! flock -n $state/env/dev/lock true"
ok as alice skiff env exec dev -- echo in
equal "$out" in
[[ $err =~ another\ command\ is\ busy\ with\ it:\ process\ [0-9]+\ \((flock|sleep)\) ]] || fail "who holds the lock: $err"

# ---- Connections without end to the supervisor's socket: its user gets in, sees it, and ends it.
cat >/shared/flood.py <<'P'
import os, resource, socket, sys
how, path = sys.argv[1:]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for _ in range(3):
    if os.fork() == 0:
        break
held = []
open("/home/alice/floods", "w").close()
while True:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(1)
    try:
        one.connect(path)
        if how == "sessions":
            one.send(b"s")
        held.append(one)
        if len(held) > 2000:
            del held[:1000]
    except OSError:
        pass
P
flood() { # HOW
    rm -f $home/floods
    start alice skiff env exec dev -- python3 /shared/flood.py "$1" $state/env/dev/control.sock
    eventually 10 test -e $home/floods
    sleep 0.5
}
flood silent
for round in 1 2 3; do
    ok as alice skiff env exec dev -- echo in
    equal "$out" in
done
ok as alice skiff ps
has "$out" session
ok as alice skiff env stop dev
ended_all() { ! pgrep -u alice -f flood.py >/dev/null; }
eventually 10 ended_all
flood sessions
ok as alice skiff env stop dev
eventually 10 ended_all
ok as alice skiff env exec dev -- true
# Its socket is taken away, or exchanged for one that never answers.
for how in 'rm control.sock' 'rm -f control.sock lock; mkfifo lock' \
    'rm control.sock; python3 -c "import socket, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(\"control.sock\"); s.listen(); time.sleep(1000)" & sleep 1'; do
    start alice skiff env exec dev -- sh -c "cd $state/env/dev; $how; touch ~/done; exec sleep 1234"
    eventually 10 test -e $home/done
    rm $home/done
    ok as alice skiff env stop dev
    eventually 5 sh -c '! pgrep -u alice -x sleep >/dev/null'
    rm -f $state/env/dev/lock $state/env/dev/control.sock
    ok as alice skiff env exec dev -- echo in
    equal "$out" in "after: $how"
done
