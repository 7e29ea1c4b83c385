# `skiff checkpoint`: instances are saved and made again by their user, and come to the same result as one that nobody disturbed; what
# cannot be saved is named and goes on; what is damaged, cut, forged or somebody else's is refused, and nothing is left of the attempt.
# takes: 11
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
needs_criu
gone() { ! pgrep -u alice; }
lines() { [ "$(wc -l </home/alice/.local/share/skiff/instance/"$1"/output)" -ge "$2" ]; }
state() { ok as alice skiff instance list --json; json "$out" "[i['state'] + ' ' + str(i.get('exit_code', '')) for i in d if i['name'] == '$1'][0]"; }
is() { [ "$(state "$1")" = "$2" ]; }

# A computation with all that a program has: threads, a pipe to a child and a terminal back, files on disk, in /tmp and in /dev/shm, one without a name,
# shared memory; each step depends on all before, with a pause after each until a file says that it is to be quick.
cat >/shared/work.py <<'X'
import hashlib, mmap, os, sys, threading, time, tty
steps, pause, quick = int(sys.argv[1]), float(sys.argv[2]), '/shared/quick.' + sys.argv[-1]
down, (master, slave) = os.pipe(), os.openpty()
tty.setraw(slave)
shared = mmap.mmap(-1, 4096)
if os.fork() == 0:
    while block := os.read(down[0], 32):
        shared[:32] = block
        os.write(slave, hashlib.sha256(block).digest())
    os._exit(0)
ticks = []
def tick():
    while True:
        time.sleep(0.01)
        ticks.append(1)
threading.Thread(target=tick, daemon=True).start()
open('/tmp/old', 'w').write('old'); nameless = open('/tmp/old'); os.unlink('/tmp/old')
memory = bytearray(os.urandom(1) * 0 + b'\7' * (8 << 20))
kept, fast = open('/etc/changed', 'w+b'), open('/dev/shm/fast', 'w+b')
state = b'\0' * 32
for step in range(steps):
    os.write(down[1], state)
    state = b''
    while len(state) < 32: state += os.read(master, 32 - len(state))
    assert shared[:32] != state
    memory[step * 97 % len(memory)] ^= state[0]
    for file in kept, fast:
        file.seek(32 * (step % 100)); file.write(state); file.flush()
    print(step, flush=True)
    os.path.exists(quick) or time.sleep(pause)
kept.seek(0); fast.seek(0); nameless.seek(0)
print('result', hashlib.sha256(state + bytes(memory) + kept.read() + fast.read()).hexdigest(), nameless.read(), bool(ticks), os.isatty(slave))
X
work=(python3 /shared/work.py 300)
ok as alice skiff run -- "${work[@]}" 0
result=$(tail -1 <<<"$out")
has "$result" 'old True True' 'an undisturbed run'

# Saved once and let go on, then saved again and ended; made again twice.
ok as alice skiff instance start --checkpoint host calc "${work[@]}" 0.06 calc
eventually 10 lines calc 20
fits as alice skiff checkpoint save calc --dry-run --json
ok as alice skiff checkpoint save calc --dry-run
has "$out" 'python3 (2 threads' 'what would be saved'
fits as alice skiff checkpoint save calc --name first --leave-running --json
equal "$(json "$out" '(d["processes"], d["left_running"], d["bytes"] > 8 << 20)')" '(3, True, True)'
steps=$(grep -c . /home/alice/.local/share/skiff/instance/calc/output)
eventually 10 lines calc $((steps + 20))
equal "$(state calc)" 'running '
ok as alice skiff checkpoint save calc
has "$err" 'has ended'
equal "$(state calc)" 'saved '
eventually 5 gone
fits as alice skiff checkpoint list --json
equal "$(json "$out" '[(c["name"], c["instance"], c["processes"], c["readable"]) for c in d]')" \
    "[('calc', 'calc', 3, True), ('first', 'calc', 3, True)]"
fits as alice skiff checkpoint show calc --json
ok as alice skiff checkpoint show calc
for part in 'CRIU 4.' 'python3 (2 threads' '0 sockets)' 'network      host' 'in memory, /dev/shm' 'its own tmp' 'what it has changed'; do has "$out" "$part"; done

fits as alice skiff checkpoint restore calc --dry-run --json
ok as alice skiff checkpoint restore calc --dry-run
has "$out" 'instance     calc'
equal "$(state calc)" 'saved '
fits as alice skiff checkpoint restore calc --json
equal "$(state calc)" 'running '
ok as alice skiff instance exec calc -- sh -c 'cat /proc/2/comm; ls /dev/shm; ls /run/skiff/output; test -s /etc/changed'
equal "$out" $'python3\nfast\n/run/skiff/output'
# Beside it, from before.
ok as alice skiff checkpoint restore first other
touch /shared/quick.calc
eventually 20 is other 'exited 0'
eventually 20 is calc 'exited 0'
for name in calc other; do
    ok as alice skiff instance logs $name
    equal "$(tail -1 <<<"$out")" "$result" "result of $name"
    equal "$(head -n -1 <<<"$out" | diff - <(seq 0 299) | head -3)" '' "steps of $name"
done
eventually 5 gone

# On another node, which sees the same home but none of the processes.
node=${SKIFF_TESTBED_NODES%% *}
ok as alice skiff instance start --checkpoint host wanders "${work[@]}" 0.06 wanders
eventually 10 lines wanders 20
ok as alice skiff checkpoint save wanders
login alice
ok on "$node" "${login[@]}" SKIFF_STATE=/tmp/state-of-node skiff checkpoint restore wanders
touch /shared/quick.wanders
ok on "$node" "${login[@]}" SKIFF_STATE=/tmp/state-of-node skiff instance logs --follow wanders
equal "$(tail -1 <<<"$out")" "$result" 'result on another node'
ok on "$node" "${login[@]}" SKIFF_STATE=/tmp/state-of-node skiff instance rm wanders
equal "$(state wanders)" 'saved ' 'where it was'

# On a network of its own connections go along.
cp "$here/talk.py" /shared
ok as alice skiff instance start --checkpoint --net none host talk python3 /shared/talk.py
eventually 10 lines talk 10
ok as alice skiff checkpoint save talk
ok as alice skiff checkpoint restore talk
steps=$(lines talk 0; wc -l </home/alice/.local/share/skiff/instance/talk/output)
eventually 10 lines talk $((steps + 20))
ok as alice skiff instance rm --force talk
# On the host's they cannot.
ok as alice skiff instance start --checkpoint host talk python3 /shared/talk.py
eventually 10 lines talk 10
fails 125 as alice skiff checkpoint save talk
has "$err" 'open TCP connection'
equal "$(state talk)" 'running '
ok as alice skiff instance rm --force talk

# Over an image, with the helper and without.
start_registry
make_store
root=$images_tmp/root
skeleton "$root"
push tools/count:1 "$root"
for user in alice bob; do
    [ $user = alice ] || export SKIFF_HELPER=none
    dir=/home/$user/.local/share/skiff/instance/small
    ok as $user skiff instance start --checkpoint --writable $registry/tools/count:1 small \
        /bin/sh -c 'echo made >/etc/made; n=0; while :; do n=$((n+1)); echo $n; echo $n >/tmp/n; sleep 0.01; done'
    eventually 10 sh -c "[ \$(wc -l <$dir/output) -gt 10 ]"
    ok as $user skiff checkpoint save small
    ok as $user skiff rmi $registry/tools/count:1
    ok as $user skiff checkpoint restore small again
    n=$(wc -l <$dir/output)
    eventually 10 sh -c "[ \$(wc -l <${dir%small}again/output) -gt $((n + 20)) ]"
    ok as $user skiff instance exec again -- cat /etc/made
    equal "$out" made "$user: what was changed"
    ok as $user skiff instance logs again
    equal "$(diff <(seq "$(wc -l <<<"$out")") - <<<"$out")" '' "$user: its output"
    ok as $user skiff instance rm --force again
done
unset SKIFF_HELPER
# For a System V segment the instance needs a directory: one without, whose root takes no changes, is refused beforehand.
cat >/shared/attach.c <<'X'
#include <stdio.h>
#include <sys/shm.h>
#include <unistd.h>
int main(void) {
    if (shmat(shmget(IPC_PRIVATE, 8192, 0600), 0, 0) == (void *)-1) return 1;
    puts("attached"), fflush(stdout);
    for (;;) pause();
}
X
gcc -static -O1 -o "$root/bin/attach" /shared/attach.c
push tools/attach:1 "$root"
mkdir -m 1777 /shared/cover
covered='-v /home:/home -v /shared/cover:/dev/shm -v /shared/cover:/tmp -v /shared/cover:/var/tmp'
for options in '' "$covered"; do
    ok as alice skiff instance start --checkpoint $options $registry/tools/attach:1 attached /bin/attach
    eventually 10 lines attached 1
    if [ -z "$options" ]; then
        ok as alice skiff checkpoint save --dry-run attached
        ok as alice skiff checkpoint save --leave-running attached
        ok as alice skiff checkpoint delete attached
    else
        fails 1 as alice skiff checkpoint save --dry-run attached
        has "$out" 'attach: System V shared memory: the instance has no directory for the file that stands for it'
        fails 125 as alice skiff checkpoint save attached
        has "$err" 'attach): System V shared memory: the instance has no directory'
        equal "$(state attached)" 'running '
    fi
    ok as alice skiff instance rm --force attached
done
stop_registry

# One that goes on is ended like any other, and its end is told.
ok as alice skiff instance start --checkpoint host ended sh -c 'trap "exit 7" TERM; while :; do sleep 0.1; done'
ok as alice skiff checkpoint save ended
ok as alice skiff checkpoint restore ended
ok as alice skiff instance stop ended
equal "$(state ended)" 'exited 7'

# How the command ends, its reaper says as well; a signal reaches the command's group and no daemon of it; what it leaves ends with it.
# (It says itself when it is one.)
daemons='python3 -c "import os, time; os.fork() or (os.setsid(), os.fork() or (print(1, flush=True), time.sleep(5555)))"'
for end in 'exit 3:exited 3' 'kill -KILL $$:killed 137' 'kill -SEGV $$:killed 139'; do
    ok as alice skiff instance start --checkpoint host ends sh -c "$daemons; while [ ! -e /tmp/go ]; do sleep 0.05; done; ${end%:*}"
    eventually 10 lines ends 1
    ok as alice skiff checkpoint save ends
    ok as alice skiff checkpoint restore ends
    ok as alice skiff checkpoint save --leave-running ends
    ok as alice skiff instance exec ends -- sh -c 'cat /proc/298/comm; pgrep -P 298 | wc -l'
    equal "$out" $'skiff-reaper\n2' 'the command and its daemon'
    # (The end that this begins may come before its own.)
    try as alice skiff instance exec ends -- touch /tmp/go
    eventually 10 is ends "${end#*:}"
    eventually 5 gone
done
ok as alice skiff instance start --checkpoint host ends sh -c "trap 'echo heard' USR1; $daemons; while :; do sleep 0.1; done"
eventually 10 lines ends 1
for turn in before after; do
    ok as alice skiff kill -s USR1 ends
    eventually 10 eval '[ "$(grep -c heard /home/alice/.local/share/skiff/instance/ends/output)" = '$([ $turn = before ] && echo 1 || echo 2)' ]'
    ok as alice skiff instance exec ends -- pgrep -fx 'python3 -c import os.*'
    [ $turn = after ] || { ok as alice skiff checkpoint save ends; ok as alice skiff checkpoint restore ends; }
done
ok as alice skiff instance rm --force ends
ok as alice skiff checkpoint delete ends
eventually 5 gone

# In the foreground: its output and its end are seen as they come, it is ended by a signal, and told when it was saved.
fails 3 as alice skiff run --checkpoint front -- sh -c 'echo seen; exit 3'
equal "$out" seen
until_ready='trap "exit 7" TERM; echo ready; while :; do sleep 0.1; done'
start alice skiff run --checkpoint front -- sh -c "$until_ready" >front
eventually 10 grep -q ready front
kill $started
try wait $started
equal "$code" 7 'exit code of one that was asked to end'
start alice skiff run --checkpoint front -- sh -c "$until_ready" >front 2>said
eventually 10 grep -q ready front
ok as alice skiff checkpoint save front
try wait $started
equal "$code" 125 'exit code of one that was saved'
has "$(cat said)" 'was saved'
fails 125 as alice skiff run --checkpoint front
has "$err" 'cannot be saved'
ok as alice skiff checkpoint delete front

# In a job: at a signal it is saved, the job starts again, on another node, and goes on; its output is whole.
cat >/shared/job <<'X'
#!/bin/bash
#SBATCH -N1 -w n1 --requeue --open-mode=append -o job.out
exec skiff job checkpoint-on-signal host sim "$@"
X
ok as alice sbatch --parsable /shared/job "${work[@]}" 0.06 sim
job=$out
printed() { [ "$(grep -cx '[0-9]*' /home/alice/job.out)" -ge "$1" ]; }
eventually 20 printed 20
ok scancel --batch --signal=USR1 $job
waits() { [ "$(squeue -h -j $job -o %T)" = PENDING ]; }
for i in $(seq 400); do waits && break || sleep 0.1; done
waits || fail "$(squeue -h -j $job) $(on n1 pgrep -u alice -la) $(tail -3 /home/alice/job.out)"
ok as alice skiff instance list
lacks "$out" sim 'what is left of it'
# Slurm would wait for two minutes.
touch /shared/quick.sim
ok scontrol update job=$job starttime=now reqnodelist=n2
equal "$(ended $job)" 'COMPLETED 0:0' "$(cat /home/alice/job.out)"
equal "$(grep -vE '^(skiff|slurmstepd.*): ' /home/alice/job.out)" "$(seq 0 299; echo "$result")" 'output of a job that was started twice'
has "$(cat /home/alice/job.out)" 'goes on from its checkpoint'
ok as alice skiff checkpoint list
lacks "$out" sim
# Also when the signal comes while it is being started, and while it is being made again.
for time in first again; do
    start alice env SLURM_JOB_ID=1 skiff job checkpoint-on-signal --no-requeue host prompt sleep 1000
    timeout 10 sh -c "until [ -e /home/alice/.local/share/skiff/instance/prompt ]; do :; done"
    kill -USR1 $started
    try wait $started
    equal "$code" 0 "exit code of the $time"
    ok as alice skiff instance list
    lacks "$out" prompt "what is left of the $time"
    ok as alice skiff checkpoint list
    has "$out" prompt "checkpoints after the $time"
done
ok as alice skiff checkpoint delete prompt
fails 125 as alice skiff job checkpoint-on-signal host sim sleep 1000
has "$err" 'SLURM_JOB_ID'

# So many are kept as are wanted.
ok as alice skiff instance start --checkpoint host many sleep 1000
for keep in 3 3 3 3; do ok as alice skiff checkpoint save many --leave-running --keep $keep; done
kept() { # CHECKPOINTS of instance many
    ok as alice skiff checkpoint list --json
    equal "$(json "$out" '" ".join(c["name"] for c in d if c.get("instance") == "many")')" "$1"
}
kept 'many many@1 many@2'
ok as alice skiff checkpoint save many --leave-running --keep 1h
kept 'many many@1 many@2 many@3'
ok as alice skiff checkpoint save many --leave-running --keep 2,1h
kept 'many many@1'
ok as alice skiff checkpoint save many --leave-running
kept many
fails 125 as alice skiff checkpoint save many --keep 1y
has "$err" 'or an age'
fails 125 as alice skiff checkpoint restore many
has "$err" 'instance many is already running'

# Made beforehand, in memory: what is saved goes there. A full one is said to be, and changes nothing.
shm=/dev/shm/skiff-$(id -u alice)
ok as alice skiff checkpoint create --mem-dir --dry-run fast
equal "$out" "make $shm/fast"
ok as alice skiff checkpoint create --mem-dir fast
ok as alice skiff checkpoint create slow
for word in fast slow; do
    fails 125 as alice skiff checkpoint create $word
    has "$err" 'it is there already'
done
fails 125 as alice skiff instance start --checkpoint=absent host early sleep 1000
has "$err" 'checkpoint absent: there is no such checkpoint'
ok as alice skiff instance start --checkpoint=fast host early sh -c 'head -c 3000000 /dev/urandom >/tmp/some; echo there; exec sleep 1000'
eventually 10 lines early 1
fails 125 as alice skiff checkpoint restore fast again
has "$err" 'nothing has been saved into it yet'
ok as alice skiff checkpoint show slow
equal "$out" "checkpoint   slow, empty"$'\n'"where        /home/alice/.local/share/skiff/checkpoint/slow"
ok as alice skiff checkpoint instance early
equal "$(state early)" 'running ' 'as Apptainer has it'
ok as alice skiff checkpoint list --json
equal "$(json "$out" '[(c["name"], c["empty"], c["path"]) for c in d if c["name"] in ("fast", "slow")]')" \
    "[('fast', False, '$shm/fast'), ('slow', True, '/home/alice/.local/share/skiff/checkpoint/slow')]"
equal "$(stat -c %a%U $shm)" 700alice
mount -t tmpfs -o size=2m,mode=700,uid=alice,gid=alice none $shm
ok as alice skiff checkpoint create --mem-dir fuller
fails 125 as alice skiff checkpoint save early --name fuller
umount_shm=$err left=$(ls -A $shm $shm/fuller/images)
# What was to write there may still be ending.
eventually 10 umount $shm
has "$umount_shm" 'No space left on device'
equal "$left" "$shm:"$'\n.chunks\n.lock\nfuller\n\n'"$shm/fuller/images:" 'what is left of it'
equal "$(state early)" 'running '
ok as alice skiff checkpoint save early --name slow
ok as alice skiff checkpoint restore fast early
equal "$(state early)" 'running '
ok as alice skiff instance rm --force early

# What is mounted over the instance's own memory is the host's: files there do not go into a checkpoint, and none is put back over newer ones.
as alice mkdir /home/alice/shared-memory
ok as alice skiff instance start --checkpoint --mount /home/alice/shared-memory:/dev/shm host covered sleep 300
as alice tee /home/alice/shared-memory/file <<<before >/dev/null
ok as alice skiff checkpoint save covered
as alice tee /home/alice/shared-memory/file <<<newer >/dev/null
ok as alice skiff checkpoint restore covered
equal "$(cat /home/alice/shared-memory/file)" newer 'a file of the host'
ok as alice skiff instance rm --force covered
ok as alice skiff checkpoint delete covered

# A directory whose mode has changed is named, with the command that changes it back.
as alice install -d -m 750 /home/alice/where
ok as alice skiff instance start --checkpoint host placed sh -c 'cd /home/alice/where; exec sleep 300'
ok as alice skiff checkpoint save placed
as alice chmod 700 /home/alice/where
fails 125 as alice skiff checkpoint restore placed
has "$err" '/home/alice/where: its mode is 700, and was 750'
has "$err" 'restore again: chmod 00750 /home/alice/where'
as alice chmod 750 /home/alice/where
ok as alice skiff checkpoint restore placed
ok as alice skiff instance rm --force placed
ok as alice skiff checkpoint delete placed
ok as alice skiff checkpoint delete fast slow
equal "$(ls -A $shm)" $'.chunks\n.lock'
# Somebody else's directory is not written to, and in nobody's way.
rm -r $shm
ok as bob mkdir -m 777 $shm
fails 125 as alice skiff checkpoint create --mem-dir fast
has "$err" "belongs to uid $(id -u bob)"
ok as alice skiff checkpoint create fast
ok as alice skiff checkpoint delete fast

# Somebody else's is not there; nor are his files to be had.
fails 125 as bob skiff checkpoint save many
has "$err" 'no such instance'
fails 125 as bob skiff checkpoint restore many
has "$err" 'no such checkpoint'
fails 2 as bob ls /home/alice/.local/share/skiff/checkpoint/many
# Killed at whatever moment, saving changes nothing: the instance goes on.
ok as alice skiff instance start --checkpoint host tough "${work[@]}" 0.06 tough
eventually 10 lines tough 5
for moment in 0.01 0.04 0.07 0.1 0.15; do
    start alice skiff checkpoint save tough --name torn --leave-running
    sleep $moment
    kill -9 $started 2>/dev/null || true
    try wait $started
done
touch /shared/quick.tough
eventually 20 is tough 'exited 0'
ok as alice skiff instance logs tough
equal "$(tail -1 <<<"$out")" "$result" 'result of one whose saving was killed'
ok as alice skiff sweep
try as alice skiff checkpoint delete torn
equal "$(find /home/alice/.local/share/skiff/checkpoint -mindepth 1 -maxdepth 1 -name '.*' ! -name .lock ! -name .chunks)" '' 'what is left of it'
ok as alice skiff instance rm --force many

# What is in the way is named, and goes on.
fails 125 as alice skiff checkpoint save nothing
has "$err" 'no such instance'
ok as alice skiff instance start host plain sleep 1000
fails 125 as alice skiff checkpoint save plain
has "$err" 'start --checkpoint'
cat >/shared/watch.py <<'X'
import ctypes, time
ctypes.CDLL(None).inotify_init()
print('ready', flush=True)
time.sleep(1000)
X
ok as alice skiff instance start --checkpoint host odd python3 /shared/watch.py
eventually 10 lines odd 1
# What a session leaves behind is no descendant of the command's.
ok as alice skiff instance exec odd -- sh -c 'setsid sleep 1000 >/dev/null 2>&1 </dev/null &'
fails 125 as alice skiff checkpoint save odd
has "$err" 'inotify'
has "$err" 'its parent has ended'
equal "$(state odd)" 'running '
ok as alice skiff checkpoint list --json
equal "$(json "$out" '[c["name"] for c in d if c.get("instance") == "odd"]')" '[]'
ok as alice skiff instance rm --force odd plain
# A GPU: a device with the name of one.
[ -e /dev/nvidia0 ] || { trap 'rm -f /dev/nvidia0; images_cleanup' EXIT; mknod -m 666 /dev/nvidia0 c 1 3; }
ok as alice skiff instance start --checkpoint -v /dev/nvidia0 host gpu sh -c 'exec 3<>/dev/nvidia0; echo ready; exec sleep 1000'
eventually 10 lines gpu 1
fails 125 as alice skiff checkpoint save gpu
has "$err" 'device /dev/nvidia0 (open): the state of a GPU cannot be saved'
equal "$(state gpu)" 'running '
ok as alice skiff instance rm --force gpu

# Without CRIU.
ok as alice skiff instance start --checkpoint host lone sleep 1000
mount --bind /srv /usr/libexec/skiff/criu
for words in 'save lone' 'save --dry-run lone' 'restore ended'; do
    fails 125 as alice skiff checkpoint $words
    has "$err" 'CRIU is not installed' "$words"
done
umount /usr/libexec/skiff/criu
equal "$(state lone)" 'running '
ok as alice skiff instance rm --force lone

# What is mounted in it and missing now is named beforehand.
mkdir /shared/gone
ok as alice skiff instance start --checkpoint -v /shared/gone:/mnt host lone sleep 1000
ok as alice skiff checkpoint save lone
rmdir /shared/gone
for words in '--dry-run lone' lone; do
    fails 125 as alice skiff checkpoint restore $words
    has "$err" 'checkpoint lone: not on this host: /shared/gone, mounted at /mnt' "$words"
done
mkdir /shared/gone
ok as alice skiff checkpoint restore --dry-run lone
rmdir /shared/gone
ok as alice skiff checkpoint delete lone
ok as alice skiff instance rm lone

# What is damaged, cut, forged or from the future is not restored, and nothing is left of it.
all=/home/alice/.local/share/skiff/checkpoint
rm -rf kept && cp -a $all/ended kept
refused() { # WORDS
    fails 125 as alice skiff checkpoint restore ended
    has "$err" "$1"
    equal "$(state ended)" 'exited 7' 'the instance from before'
    rm -rf $all/ended && cp -a kept $all/ended
}
printf '\125\252\125\252\125\252\125\252' | dd of=$all/ended/images/mm-2.img bs=1 seek=50 conv=notrunc status=none
refused 'is damaged'
truncate -s -1 $all/ended/trees/upper
refused 'trees/upper is damaged'
rm $all/ended/images/core-2.img
refused 'core-2.img'
cp $all/ended/images/core-2.img $all/ended/images/core-9999.img
refused 'does not belong'
sed -i 's|"target": "/tmp"|"target": "/etc"|' $all/ended/checkpoint
refused 'record is damaged'
sed -i '1s/skiff-checkpoint [0-9]/skiff-checkpoint 9/' $all/ended/checkpoint
refused 'format 9'
ok as alice skiff checkpoint delete ended first calc many talk small wanders
ok as alice skiff checkpoint list
equal "$(wc -l <<<"$out")" 1 'what is listed'
equal "$(ls -A $all)" $'.chunks\n.lock' 'what is left'
eventually 5 gone
