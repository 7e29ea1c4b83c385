# bed: --nodes 2 --slurm-conf KillWait=2
# takes: 22
# Whatever ends a job, and whatever is killed: no process, mount or directory of it stays on a node, and the next one runs.
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
inside alice dev 'echo x >/etc/marker'
cd /home/alice

# A job on n1: a script, two steps at once, children in sessions of their own, changes outside the home.
begin() {
    rm -f up.*
    ok as alice sbatch --parsable -w n1 -n2 --environment=dev -o out --wrap '
        cat /etc/marker; echo y >/usr/changed; setsid sleep 1001 &
        srun -n1 --exact sh -c "setsid sleep 1002 & touch up.1; sleep 1003; exit 0" &
        until [ -e up.1 ]; do sleep 0.05; done
        srun -n1 --exact sh -c "touch up.2; sleep 1004" &
        touch up.0; wait; echo over'
    job=$out
    eventually 15 sh -c 'test -e up.0 -a -e up.1 -a -e up.2'
}

# The processes that keep it, by what they are on the node.
ours() { on n1 pgrep -f '^(/usr/bin/skiff slurm step-begin|skiff-env .*)$'; }
space() { on n1 readlink "/proc/$1/ns/mnt"; }
keeper() { for p in $(ours); do [ "$(space "$p")" != "$(space 1)" ] || echo "$p"; done; }
child() { on n1 pgrep -P "$1"; }
stepd() { on n1 pgrep -f "slurmstepd: \[$job.$1\]"; }
watcher() { # STEP: the one that has an open directory of that name
    for p in $(ours); do ! on n1 sh -c "readlink /proc/$p/fd/*" | grep -q "step.$1\$" || echo "$p"; done
}
runs() { on n1 pgrep -f "^sleep $1\$"; }
gone() { eventually 5 sh -c "! on n1 pgrep -f '^sleep $1\$'"; }
clean() {
    scancel "$job" 2>/dev/null || true
    idle
    ok as alice srun -w n1 -n1 --environment=dev sh -c 'cat /etc/marker; ls /usr/changed 2>&1 || true'
    equal "$out" $'x\nls: cannot access \'/usr/changed\': No such file or directory'
}

begin
equal "$(runs 100[1-4] | wc -l)" 4
clean # scancel
# The script's sruns have ended with their steps: had they been killed first, the steps would have tried for two seconds to reach them.
ok cat "$SKIFF_TESTBED_DIR/logs/slurmd.n1.log"
has "$out" "StepId=$job"
equal "$(grep -F "[$job." <<<"$out" | grep -F 'Failed to send MESSAGE_TASK_EXIT' || true)" ''

begin
on n1 kill -9 "$(stepd 0)"
gone 100[23]
runs 1004 && runs 1001 || fail 'the other step, the script'
clean

begin
on n1 kill -9 "$(stepd batch)" "$(stepd 0)" "$(stepd 1)"
gone 100[1-4]
clean

begin
on n1 kill -9 "$(watcher 0)"
gone 100[23]
runs 1004 && runs 1001 || fail 'the other step, the script'
clean

begin
on n1 kill -9 "$(child "$(watcher 0)")"
gone 100[23]
eventually 5 grep -q 'Killed' out
clean

# Without the keeper those who are in go on; the next step gets a root of its own, made anew.
for what in keeper root; do
    begin
    pid=$(keeper)
    [ $what = keeper ] || pid=$(child "$pid")
    on n1 kill -9 "$pid"
    ok as alice srun --jobid="$job" --overlap -n1 cat /etc/marker
    equal "$out" x
    equal "$(runs 100[1-4] | wc -l)" 4
    clean
done

# A task's wrapper, and the witness of its signals.
begin
on n1 kill -9 "$(on n1 pgrep -P "$(stepd 1)" | head -1)"
gone 1004
begin_witness=$(on n1 pgrep -P "$(on n1 pgrep -P "$(stepd 0)" | head -1)" | head -1)
on n1 kill -9 "$begin_witness"
scancel -s TERM "$job"
gone 100[23]
clean

# slurmd ends and comes back: the job goes on; one that ends meanwhile is cleaned up then.
begin
node-restart n1
eventually 10 sh -c '[ "$(squeue -h -o %T)" = RUNNING ]'
equal "$(runs 100[1-4] | wc -l)" 4
ok as alice srun --jobid="$job" --overlap -n1 cat /usr/changed
slurmd-kill n1
scancel "$job"
on n1 pkill -f '^sleep 100'
gone 1001
slurmd-start n1
clean

# The node loses its power.
begin
node-crash n1
node-boot n1
eventually 20 sh -c '[ "$(sinfo -h -n n1 -o %t)" = idle ] || ! scontrol update node=n1 state=resume'
clean

# What an epilog that never ran has left is shown to root, and removed.
begin
on n1 mount --bind /bin/true /usr/bin/skiff
scancel "$job"
eventually 10 sh -c '[ -z "$(squeue -h)" ]'
on n1 umount /usr/bin/skiff
test -n "$(keeper)" || fail 'nothing is left over'
ok on n1 skiff sweep --dry-run
equal "$out" "left over job /run/skiff/jobs/$job"
begin # of a job that runs nothing is shown
ok on n1 skiff sweep
has "$out" 'removed job /run/skiff/jobs/'
equal "$(wc -l <<<"$out")" 1
equal "$(runs 100[1-4] | wc -l)" 4
clean
