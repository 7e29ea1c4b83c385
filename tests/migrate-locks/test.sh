# `skiff migrate` with locks on files of the home, which both nodes see: somebody who tries all the time never gets one, wherever the program is and
# whoever is killed on the way; the program has them afterwards. What cannot be handed over is refused beforehand; `restore` never waits for a lock.
# takes: 20
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
needs_criu
cd /home/alice
daemons
own_disks
output() { echo "/tmp/skiff-alice/instance/$1/output"; }
goes_on() { # NODE INSTANCE
    local before
    before=$(on "$1" wc -l "$(output "$2")" | cut -d' ' -f1)
    eventually 20 on "$1" sh -c "[ \$(wc -l <$(output "$2")) -gt $((before + 3)) ]"
}

cat >/shared/locks.py <<'X'
import fcntl, os, struct, sys, time
def of_file(kind, how):
    file = open(f'/home/alice/{kind}.lock', 'a+')
    if kind == 'flock':
        fcntl.flock(file, {'alone': fcntl.LOCK_EX, 'shared': fcntl.LOCK_SH}[how] | fcntl.LOCK_NB)
    elif kind == 'range':
        # F_OFD_SETLK: bytes from 10 on
        mode = {'alone': fcntl.F_WRLCK, 'shared': fcntl.F_RDLCK}[how]
        fcntl.fcntl(file, 37, struct.pack('hhqqi', mode, os.SEEK_SET, 10, 0, 0))
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
    return file
what, how, *kinds = sys.argv[1:]
if what == 'hold':
    held = [of_file(kind, how) for kind in kinds]
    for n in range(1000000):
        print(n, flush=True)
        time.sleep(0.02)
# Tries without a pause until it is told that it is enough.
tries, got = 0, []
end = time.time() + 120
while time.time() < end and not os.path.exists('/shared/enough'):
    for kind in kinds:
        for _ in range(50):
            tries += 1
            try:
                of_file(kind, how).close()
                got.append(kind)
            except BlockingIOError:
                pass
print(tries > 1000, len(got), sorted(set(got)))
X

ok at n1 alice skiff instance start --checkpoint host holds python3 /shared/locks.py hold alone flock range
eventually 10 on n1 grep -q . "$(output holds)"
start alice nice python3 /shared/locks.py try alone flock range >/shared/thief
thief=$started
for move in 'n1 n2 diskless' 'n2 n1 precopy' 'n1 n2 disk'; do
    set -- $move
    ok at $1 alice skiff migrate --mode $3 holds $2
    goes_on $2 holds
done
# Whoever gives it away is killed in that moment, when both sides share the locks: the next command finds out, and it goes on where it is.
login alice
leaving=/tmp/skiff-alice/instance/holds/leaving
for times in {1..10}; do
    rm -f /shared/mover
    on n2 sh -c 'echo $$ >/shared/mover.new; mv /shared/mover.new /shared/mover; exec "$@"' sh "${login[@]}" skiff migrate holds n1 >/dev/null 2>&1 & job=$!
    # One process watches and kills, on the spot.
    on n2 timeout 20 bash -c '
        until [ -s /shared/mover ]; do :; done
        read -r pid </shared/mover
        until [ -e "$1" ]; do [ -e /proc/$pid ] || exit 0; done
        kill -9 $pid' bash "$leaving" || true
    wait $job 2>&- || true
    ! on n2 test -e "$leaving" || break
    # It had gone before.
    ! on n1 pgrep -u alice -x python3 >/dev/null || ok at n1 alice skiff migrate holds n2
done
on n2 test -e "$leaving" || echo 'not tried: in ten moves nobody was killed in that moment'
ok at n2 alice skiff migrate holds n1
goes_on n1 holds
touch /shared/enough
wait $thief
equal "$(cat /shared/thief)" 'True 0 []' 'who wanted them alone'
# Between two exclusive holders others can have a lock that they share, for as long as it takes the two sides to say a word each.
rm /shared/enough
start alice nice python3 /shared/locks.py try shared flock range >/shared/reader
reader=$started
ok at n1 alice skiff migrate holds n2
ok at n2 alice skiff migrate holds n1
goes_on n1 holds
touch /shared/enough
wait $reader
echo "who wanted to share them, in two moves: $(cat /shared/reader)"

# It has them here, and only once it ends they are free.
fails 1 as alice python3 /shared/locks.py hold alone flock
fails 1 as alice python3 /shared/locks.py hold alone range
# A second one cannot have them, and does not wait for them.
ok at n1 alice skiff checkpoint save --leave-running holds
fails 125 at n1 alice skiff checkpoint restore holds twice
has "$err" 'another process has the lock that the instance had'
goes_on n1 holds
ok at n1 alice skiff instance rm --force holds
ok at n1 alice skiff checkpoint restore holds twice
fails 1 as alice python3 /shared/locks.py hold alone flock
ok at n1 alice skiff instance rm --force twice

# A lock of the process's own nobody else can hand over.
ok at n1 alice skiff instance start --checkpoint host own python3 /shared/locks.py hold alone process
eventually 10 on n1 grep -q . "$(output own)"
fails 1 at n1 alice skiff migrate --dry-run own n2
has "$out" 'a lock of its own (fcntl) on /home/alice/process.lock'
fails 125 at n1 alice skiff migrate own n2
has "$err" 'cannot be handed over'
goes_on n1 own
# To be saved and restored it need not be.
ok at n1 alice skiff checkpoint save --leave-running own
fails 125 at n1 alice skiff checkpoint restore own other
has "$err" 'another process has the lock that the instance had'
ok at n1 alice skiff checkpoint save own
ok at n1 alice skiff instance rm own
ok at n1 alice skiff checkpoint restore own
fails 1 as alice python3 /shared/locks.py hold alone process
ok at n1 alice skiff instance rm --force own
ok at n1 alice skiff checkpoint delete own holds
