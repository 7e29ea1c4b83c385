# A session of `instance exec` at a terminal of the instance's own stands in nobody's way: what is saved, restored and migrated beside it comes
# back with the numbers of its terminals, and the session ends with the instance it was in, or goes on with one that is left running. What has
# the session's terminal open cannot be saved, which is said beforehand. Such a session may be its user's own (`--me`).
# takes: 30
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
needs_criu
cd /home/alice
daemons
own_disks
output() { echo "/tmp/skiff-alice/instance/sim/output"; }
goes_on() { # NODE
    local before
    before=$(on "$1" grep -c right "$(output)" || true)
    eventually 20 on "$1" sh -c "[ \$(grep -c right $(output)) -gt $((before + 3)) ]"
}
session() { # a person at a terminal, who leaves it alone; the session's words are in /shared/session
    login alice
    on n1 "${login[@]}" script -qefc 'skiff instance exec sim -- sh -c "tty; exec sleep 4713"' /shared/session </dev/null >/dev/null 2>&1 3>&- &
    person=$!
    eventually 10 grep -q /dev/pts /shared/session
    seat=$(grep -ao '/dev/pts/[0-9]*' /shared/session)
}
over() { # the session has ended, with exit code $1, and left nothing
    try wait "$person"
    equal "$code" "$1" 'the session'
    eventually 5 on n1 sh -c '! pgrep -u alice -f "4713|instance exec"'
}

# Makes terminals one after the other, as often as it is told, and always tries all that it has.
install -d -m 1777 /shared/go
cat >/shared/seats.py <<'X2'
import os, time, tty
pairs = []
while True:
    if os.path.exists(f'/shared/go/{len(pairs)}'):
        pairs.append(os.openpty())
        tty.setraw(pairs[-1][1])
        print('made', os.ttyname(pairs[-1][1]), flush=True)
    for master, slave in pairs:
        os.write(master, b'word')
        assert os.read(slave, 4) == b'word'
    print('right', *(os.ttyname(slave) for _, slave in pairs), flush=True)
    time.sleep(0.02)
X2
ok at n1 alice skiff instance start --checkpoint host sim python3 /shared/seats.py
# One of its terminals is from before the session, one from meanwhile.
touch /shared/go/0
eventually 10 on n1 grep -q 'made /dev/pts/0' "$(output)"
session
equal "$seat" /dev/pts/1 'the terminal of the session'
touch /shared/go/1
eventually 10 on n1 grep -q 'made /dev/pts/2' "$(output)"
ok at n1 alice skiff checkpoint save sim --dry-run
ok at n1 alice skiff checkpoint save sim --leave-running
has "$err" 'a session is open'
goes_on n1
ok on n1 pgrep -u alice -f 'sleep 4713'
# Two at once: one waits for the other, and the session is in the way of neither.
login alice
saving=()
for name in one two; do
    on n1 "${login[@]}" skiff checkpoint save sim --leave-running --name $name >/shared/saved.$name 2>&1 3>&- &
    saving+=($!)
done
for number in 0 1; do
    try wait "${saving[number]}"
    equal "$code" 0 "save $number: $(cat /shared/saved.*)"
done
goes_on n1
ok on n1 pgrep -u alice -f 'sleep 4713'
ok at n1 alice skiff checkpoint save sim
has "$err" 'a session is open'
over 137
for name in one two; do
    ok at n1 alice skiff checkpoint restore $name again
    eventually 20 on n1 grep -q right /tmp/skiff-alice/instance/again/output
    ok at n1 alice skiff instance rm --force again
    ok at n1 alice skiff checkpoint delete $name
done
ok at n1 alice skiff checkpoint restore sim
goes_on n1
ok on n1 tail -n 1 "$(output)"
equal "$out" 'right /dev/pts/0 /dev/pts/2' 'its terminals'
# The number that was the session's is free.
rm /shared/session
session
equal "$seat" /dev/pts/1 'the terminal of the next session'

ok at n1 alice skiff migrate sim n2
over 137
goes_on n2
ok on n2 tail -n 1 "$(output)"
equal "$out" 'right /dev/pts/0 /dev/pts/2' 'its terminals on another node'
ok at n2 alice skiff instance exec sim -- script -qc tty /dev/null
has "$out" /dev/pts/1
# Who wants to be themselves in it is, though its root is open to nobody outside its user namespace.
for words in 'instance exec --me sim --' 'exec --me sim'; do
    ok at n2 alice skiff $words sh -c 'id -un; pwd; touch /tmp/by-me; stat -c %U:%G /tmp/by-me; rm /tmp/by-me; grep CapPrm /proc/self/status'
    equal "$out" $'alice\n/home/alice\nalice:alice\nCapPrm:\t0000000000000000' "$words"
done
ok at n2 alice script -qc 'skiff instance exec --me sim -- tty' /dev/null
has "$out" /dev/pts/1
ok at n2 alice skiff instance rm --force sim

# A process of the instance's that has the session's terminal open.
ok at n1 alice skiff instance start --checkpoint host sim sh -c \
    'until (exec 3</dev/pts/0) 2>/dev/null; do sleep 0.05; done; exec 3</dev/pts/0; echo right; exec sleep 4714'
rm /shared/session
session
eventually 10 on n1 grep -q right "$(output)"
why='terminal /dev/pts/0 (open), operated by what is not saved'
fails 1 at n1 alice skiff checkpoint save sim --dry-run
has "$out" "$why"
for words in 'checkpoint save sim' 'migrate sim n2'; do
    fails 125 at n1 alice skiff $words
    has "$err" "$why" "$words"
done
ok on n1 pgrep -u alice -x -f 'sleep 4714'
ok on n1 pgrep -u alice -x -f 'sleep 4713'
ok at n1 alice skiff instance rm --force sim
over 137
