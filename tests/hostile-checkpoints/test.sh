# mallory and what others save: she connects to each CRIU on the host's network before the processes that it saves do. A save, a repeated save and a
# restore come to the same as without her; where CRIU's calls cannot be answered, CRIU is killed after a time, and the programs go on.
# time: 400
# takes: 125
. "$(dirname "$0")/../lib.sh"
needs_criu
install -m 755 "$here/mallory.py" /tmp/skiff-mallory.py
mallory= told=$(mktemp)
trap '[ -z "$mallory" ] || { kill "$mallory" && wait "$mallory"; } 2>/dev/null || true; rm -f /tmp/skiff-mallory.py "$told"' EXIT
output() { echo "/home/alice/.local/share/skiff/instance/$1/output"; }
lines() { wc -l <"$(output "$1")"; }
goes_on() { # INSTANCE: it says more than it has
    local before
    before=$(lines "$1")
    eventually 20 eval "[ \$(wc -l <$(output "$1")) -gt $before ]"
}
# Many processes: so she has time to come between two of them. None is started later: for a moment it cannot be saved.
counting='import itertools, time
for n in itertools.count(1): print(n, flush=True); time.sleep(0.1)'
count=(sh -c 'for n in $(seq 100); do sleep 1000 & done; exec /usr/bin/python3 -c "$0"' "$counting")
start mallory /usr/bin/python3 /tmp/skiff-mallory.py >"$told"
mallory=$started

# ---- She is sent away ---------------------------------------------------------------------------------------------------------
ok as alice skiff instance start --checkpoint host --net host calc "${count[@]}"
eventually 20 test -s "$(output calc)"
for n in $(seq 20); do
    ok as alice skiff checkpoint save calc --leave-running
    goes_on calc
    [ ! -s "$told" ] || [ "$n" -lt 3 ] || break
done
[ -s "$told" ] || fail 'mallory never came in between'
ok as alice skiff checkpoint save calc
last=$(lines calc)
# Each number comes once and in its turn.
equal "$(seq "$last")" "$(cat "$(output calc)")" 'what has been counted'
ok as alice skiff checkpoint restore calc
goes_on calc

# ---- Where nobody can answer for CRIU ------------------------------------------------------------------------------------------
# Both wait: one for an end by itself, of the other `save` is killed.
ok as alice skiff instance start --checkpoint host --net host other "${count[@]}"
eventually 20 test -s "$(output other)"
declare -A saving
caught() { # INSTANCE: she has been taken for one of its processes, at one of several tries
    local before met
    for n in $(seq 20); do
        met=$(wc -l <"$told")
        /usr/bin/python3 "$here/without-interception.py" alice skiff checkpoint save "$1" --leave-running >"$told.$1" 2>&1 3>&- &
        saving[$1]=$!
        while kill -0 "${saving[$1]}" 2>&-; do
            before=$(lines "$1")
            sleep 2
            [ "$(lines "$1")" != "$before" ] || [ "$(wc -l <"$told")" = "$met" ] || return 0
        done
        wait "${saving[$1]}" || true
    done
    fail "$1: mallory never came in between: $(cat "$told.$1")"
}
caught calc
caught other
pkill -KILL -P "${saving[other]}"
wait "${saving[other]}" && fail 'a save that is killed has succeeded'
goes_on other
eventually 90 eval "! kill -0 ${saving[calc]}"
wait "${saving[calc]}" && fail 'mallory was taken for a process, and the save has succeeded'
has "$(cat "$told.calc")" 'CRIU did nothing for 60 s' 'why it has failed'
goes_on calc
eventually 20 eval '! pgrep -x criu'
rm -f "$told".*
for one in calc other; do
    # Whatever has failed: the next one succeeds.
    ok as alice skiff checkpoint save "$one"
done
