# mallory and what others restore: on the host's network she sees the names of the sockets over which CRIU's processes hand each other descriptors. She takes
# those names, and sends to the sockets. Each restore comes to the same as without her.
# time: 300
# takes: 30
. "$(dirname "$0")/../lib.sh"
needs_criu
install -m 755 "$here/mallory.py" /tmp/skiff-mallory.py
mallory= told=$(mktemp)
trap '[ -z "$mallory" ] || { kill "$mallory" && wait "$mallory"; } 2>/dev/null || true; rm -f /tmp/skiff-mallory.py "$told"' EXIT
output=/home/alice/.local/share/skiff/instance/calc/output
lines() { wc -l <$output; }
goes_on() { # it says more than it has
    local before
    before=$(lines)
    eventually 20 eval "[ \$(lines) -gt $before ]"
}
# Many processes that have descriptors in common, so that she has time; and daemons, which are children of nobody else's after a restore.
counting='import itertools, time
for n in itertools.count(1): print(n, flush=True); time.sleep(0.1)'
count=(sh -c 'for n in $(seq 60); do sleep 1000 & done; for n in 1 2 3; do (setsid sleep 1000 &); done; exec /usr/bin/python3 -c "$0"' "$counting")
ok as alice skiff instance start --checkpoint host --net host calc "${count[@]}"
eventually 20 test -s $output
ok as alice skiff checkpoint save calc
start mallory /usr/bin/python3 /tmp/skiff-mallory.py >"$told"
mallory=$started
for n in $(seq 20); do
    ok as alice skiff checkpoint restore calc
    goes_on
    last=$(lines)
    # Each number comes once and in its turn.
    equal "$(seq "$last")" "$(head -n "$last" $output)" 'what has been counted'
    # What she holds is hers alone: all of it can be saved.
    ok as alice skiff checkpoint save calc
    [ ! -s "$told" ] || [ "$n" -lt 4 ] || break
done
[ -s "$told" ] || fail 'mallory never came in between'
kill $mallory
wait $mallory || true
mallory=
ok as alice skiff checkpoint restore calc
goes_on
eventually 20 eval '! pgrep -x criu'
