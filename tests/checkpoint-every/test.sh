# `skiff checkpoint every` and `--checkpoint-every`: an instance is saved while it runs. When its node fails it goes on from the last checkpoint,
# with its log as it was then: no step is missing in it, and none is there twice.
# takes: 70
. "$(dirname "$0")/../lib.sh"
needs_criu
cat >/shared/steps.py <<'X'
import os, sys, time
log = open(sys.argv[1], sys.argv[2])
step = 0
while not os.path.exists('/shared/enough'):
    print(step, file=log, flush=True)
    step += 1
    time.sleep(0.02)
print('end', file=log, flush=True)
X
rm -f /shared/enough
cd /home/alice
instances=.local/share/skiff/instance
checkpoints=.local/share/skiff/checkpoint
steps() { [ "$(wc -l <"$1")" -ge "$2" ]; }
saved() { [ -e $checkpoints/"$1"/checkpoint ]; }
# The number of a checkpoint's record: each new one is another file.
record() { stat -c %i $checkpoints/"$1"/checkpoint; }
newer() { [ "$(record "$1")" != "$2" ]; }
watcher() { pgrep -u alice -f "checkpoint every .* $1\$"; }
nobody_saves() { ! watcher "$1"; }
whole() { # LOG: all steps once, in order
    python3 - "$1" <<'X' || fail "$1: $(tail -3 "$1")"
import sys
*steps, end = open(sys.argv[1]).read().split()
assert end == 'end' and steps == [str(n) for n in range(len(steps))], (len(steps), end)
X
}

# The first save of `auto` is after a minute, which passes beside what follows.
as bob mkdir -p .config/skiff
printf '[checkpoint]\nmtbf_hours = 1\n' | as bob tee .config/skiff/config.toml >/dev/null
ok as bob skiff instance start --checkpoint-every auto host slow sleep 1000
auto_began=$SECONDS

# A log that is appended to, and one that a shell has opened. The instance is killed as a node's failure would end it.
for way in a w; do
    ok as alice skiff instance start --checkpoint-every 1s host sim python3 /shared/steps.py log.$way $way
    eventually 20 saved sim
    first=$(record sim)
    eventually 20 newer sim "$first"
    steps=$(wc -l <log.$way)
    eventually 20 steps log.$way $((steps + 20))
    has "$(cat $instances/sim/checkpoints.log)" ' sim: '
    has "$(cat $instances/sim/checkpoints.log)" 'the next in 1s'
    ok as alice skiff checkpoint show sim
    has "$out" "writes       /home/alice/log.$way, of "
    ok as alice skiff kill sim
    eventually 30 nobody_saves sim
    # The checkpoint may be of the last moment.
    echo more >>log.$way
    # Another file in its place is not cut, nor what a link leads to.
    mv log.$way kept
    for other in 'cp -p kept' 'ln -s kept'; do
        as alice $other log.$way
        fails 125 as alice skiff checkpoint restore --files truncate sim
        has "$err" "/home/alice/log.$way"
        has "$(tail -1 kept)" more
        rm log.$way
    done
    mv kept log.$way
    if [ $way = a ]; then
        # As it is kept otherwise: what was written since is in it twice.
        length=$(stat -c %s log.$way)
        ok as alice skiff checkpoint restore sim other
        has "$err" "/home/alice/log.$way: it has "
        ok as alice skiff kill other
        eventually 30 nobody_saves other
        ok as alice skiff rm other
        # It may have been saved, too.
        rm -rf $checkpoints/other
        [ "$(stat -c %s log.$way)" -ge "$length" ] || fail 'a log was cut'
    else
        fails 125 as alice skiff checkpoint restore --files keep sim
        has "$err" "/home/alice/log.$way has "
        has "$err" 'hint: --files restore'
        # Without a word what was written since is kept beside it.
        cp -p log.$way kept
        has "$(as alice skiff checkpoint show sim)" "/home/alice/log.$way, of "
        has "$(as alice skiff checkpoint restore --dry-run sim other)" "writes       /home/alice/log.$way, of "
        # Who only reads it does not count.
        exec 6<log.$way
        ok as alice skiff checkpoint restore sim other 6<&-
        exec 6<&-
        has "$err" "written since are in /home/alice/log.$way.after-checkpoint"
        ok as alice skiff kill other
        eventually 30 nobody_saves other
        ok as alice skiff rm other
        rm -rf $checkpoints/other
        before=$(stat -c %s log.$way.after-checkpoint)
        has "$(tail -1 log.$way.after-checkpoint)" more
        equal "$(tail -c "$before" kept)" "$(cat log.$way.after-checkpoint)"
        rm log.$way.after-checkpoint
        cat kept >log.$way
        rm kept
        # While somebody has it open it is not cut but by the user's own word.
        exec 6>>log.$way
        fails 125 as alice skiff checkpoint restore sim
        has "$err" "/home/alice/log.$way cannot be changed: another process has it open"
        exec 6>&-
        [ ! -e log.$way.after-checkpoint ] || fail 'something is left of the attempt'
        # The configuration says it for a path.
        as alice mkdir -p .config/skiff
        printf '[checkpoint]\nfiles = ["~/:keep", "~/log.w:refuse"]\n' | as alice tee .config/skiff/config.toml >/dev/null
        fails 125 as alice skiff checkpoint restore sim
        has "$err" "/home/alice/log.$way has "
        rm .config/skiff/config.toml
    fi
    ok as alice skiff checkpoint restore --files truncate sim
    has "$err" "/home/alice/log.$way: cut to the "
    lacks "$(cat log.$way)" more
    # It is saved as before.
    first=$(record sim)
    eventually 20 newer sim "$first"
    touch /shared/enough
    eventually 30 nobody_saves sim
    whole log.$way
    rm /shared/enough log.$way
    ok as alice skiff rm sim
    ok as alice skiff checkpoint delete sim
done

# Of one that is written anywhere there is a copy. What was there is kept beside it; without a copy it is not touched, and nothing of the attempt is left.
base() { # LIMIT: saved with copies of files up to that size
    echo begin | as alice tee log >/dev/null
    printf '[checkpoint]\ncopied_file_bytes = %s\n' "$1" | as alice tee .config/skiff/config.toml >/dev/null
    ok as alice skiff instance start --checkpoint host sim python3 /shared/steps.py log r+
    eventually 10 steps log 5
    ok as alice skiff checkpoint save sim
    echo more >>log
    before=$(md5sum log)
}
base 3
has "$err" '/home/alice/log: no copy of it is kept'
for way in truncate restore keep; do
    fails 125 as alice skiff checkpoint restore --files $way sim
    has "$err" '/home/alice/log has '
    lacks "$err" '--files'
    equal "$(md5sum log)" "$before"
done
ok as alice skiff instance list
lacks "$out" sim
ok as alice skiff checkpoint delete sim
base 1000000
ok as alice skiff checkpoint show sim
has "$out" '/home/alice/log, of '
has "$out" 'a copy of it is kept'
fails 125 as alice skiff checkpoint restore --files keep sim
has "$err" '/home/alice/log has '
printf another | as alice tee other >/dev/null
mv log kept
mv other log
fails 125 as alice skiff checkpoint restore sim
has "$err" 'another file now'
has "$err" 'hint: move away a file that has taken the name of another'
equal "$(cat log)" another
rm log
as alice mkfifo log
fails 125 as alice timeout 60 skiff checkpoint restore sim
has "$err" '/home/alice/log is not a regular file now'
rm log kept
touch /shared/enough
ok as alice skiff checkpoint restore sim
has "$err" '/home/alice/log: it was missing'
has_ended() { ok as alice skiff instance list; grep -q 'sim.*exited 0' <<<"$out"; }
eventually 10 has_ended
whole log
rm /shared/enough log
ok as alice skiff rm sim
ok as alice skiff checkpoint delete sim
base 1000000
# Other content is seen where the length is the same, too.
truncate -s -5 log
dd if=/dev/zero of=log bs=1 count=2 conv=notrunc status=none
for way in keep truncate refuse; do
    fails 125 as alice skiff checkpoint restore --files $way sim
    has "$err" '/home/alice/log has other content than it had'
    has "$err" 'hint: --files restore'
done
before=$(md5sum <log)
touch /shared/enough
ok as alice skiff checkpoint restore sim
has "$err" '/home/alice/log: it is as it was; what was there is in /home/alice/log.before-restore'
eventually 10 has_ended
equal "$(md5sum <log.before-restore)" "$before"
whole log
ok as alice skiff rm sim
ok as alice skiff checkpoint delete sim
rm /shared/enough log log.before-restore .config/skiff/config.toml

# `run` is saved likewise, and ends with 137 where the instance is killed.
start alice skiff run --checkpoint sim --checkpoint-every 1s -- python3 /shared/steps.py log a
eventually 20 saved sim
first=$(record sim)
eventually 20 newer sim "$first"
ok as alice skiff kill sim
try wait $started
equal "$code" 137 "$err"
eventually 30 nobody_saves sim
ok as alice skiff checkpoint restore --files truncate sim
touch /shared/enough
eventually 30 nobody_saves sim
whole log
rm /shared/enough log
ok as alice skiff rm sim
ok as alice skiff checkpoint delete sim

# In the foreground it ends with the instance; two saves at one time wait for each other.
ok as alice skiff instance start --checkpoint host sim python3 /shared/steps.py log a
start alice skiff checkpoint every 1s --keep 3 sim
eventually 20 saved sim@2
for round in 1 2 3; do ok as alice skiff checkpoint save --name other --leave-running sim; done
touch /shared/enough
try wait $started
equal "$code" 0 "$err"
whole log
rm /shared/enough log
ok as alice skiff checkpoint list --json
equal "$(json "$out" '" ".join(c["name"] for c in d)')" 'other sim sim@1 sim@2'
ok as alice skiff checkpoint delete other sim sim@1 sim@2
fails 125 as alice skiff checkpoint every 1s sim
has "$err" 'instance sim has ended'
ok as alice skiff rm sim
ok as alice skiff instance start host plain sleep 1000
fails 125 as alice skiff checkpoint every auto plain
has "$err" 'it was not started so that it can be saved'
ok as alice skiff rm -f plain
for bad in 0s 10 1y ''; do fails 125 as alice skiff checkpoint every "$bad" sim; done

# As one file it goes elsewhere: nothing of a damaged one is left, and what comes of a whole one is the same.
echo begin | as alice tee log >/dev/null
ok as alice skiff instance start --checkpoint host sim python3 /shared/steps.py log a
eventually 10 steps log 5
# A save that is asked to end says what becomes of the instance. Here it waits for another one.
as alice touch $instances/sim/saving
exec 7<$instances/sim/saving
flock 7
start alice sh -c 'exec skiff checkpoint save sim 2>said'
eventually 20 grep -q 'waiting for the end' said
kill -TERM $started
try wait $started
equal "$code" 143 "$(cat said)"
has "$(cat said)" 'interrupted: nothing is saved, and the instance goes on'
rm said
exec 7>&-
[ ! -e $checkpoints/sim ] || fail 'something was saved'
ok as alice skiff checkpoint save sim
ok as alice skiff checkpoint export sim sim.file
has "$err" 'as a file'
equal "$(stat -c %a sim.file)" 600 'memory is for nobody else'
ok as alice skiff checkpoint list --json
[ "$(stat -c %s sim.file)" -lt "$(json "$out" 'd[0]["bytes"]')" ] || fail 'it is not smaller'
fails 125 as alice skiff checkpoint export sim sim.file
has "$err" 'file exists'
fails 125 as alice skiff checkpoint import sim.file
has "$err" 'checkpoint sim already exists'
zero() { dd if=/dev/zero of="$1" bs=1 count=64 seek=$(($(stat -c %s "$1") - 2000)) conv=notrunc status=none; }
for damage in 'truncate -s -1' 'truncate -s 100' zero; do
    cp sim.file bad.file
    chown alice: bad.file
    $damage bad.file
    fails 125 as alice skiff checkpoint import bad.file other
    has "$err" bad.file
    fails 125 as alice skiff checkpoint import /shared/steps.py other
    has "$err" 'not a checkpoint that'
done
ok as alice skiff checkpoint list
lacks "$out" other
equal "$(ls -A $checkpoints | grep -v '^\.')" sim
ok as alice skiff checkpoint import sim.file other
equal "$out" other
ok as alice skiff checkpoint export other other.file
ok cmp <(tail -n +2 sim.file) <(tail -n +2 other.file)
# Through a pipe it is the same.
ok as alice sh -c 'skiff checkpoint export other - | cmp - other.file'
ok as alice sh -c 'skiff checkpoint import - piped <other.file'
[ ! -e - ] || fail 'a file is called -'
ok as alice skiff checkpoint delete piped
# A restore that is asked to end leaves nothing, or an instance that runs.
start alice sh -c 'exec skiff checkpoint restore other asked 2>said'
eventually 20 test -e $instances/asked
kill -TERM $started
try wait $started
equal "$code" 143 "$(cat said)"
ok as alice skiff instance list --json
case $(cat said) in
    *'it was restored before the interruption, and goes on'*) has "$out" '"running"' ;;
    *) has "$(cat said)" 'checkpoint other: interrupted: nothing is restored'; lacks "$out" asked ;;
esac
as alice skiff rm -f asked >/dev/null 2>&1 || true
rm -f said
# What a save that was killed was making goes with the next command.
as alice mkdir -p "$checkpoints/.new.99999999.sim@$(uname -n)/images"
ok as alice skiff checkpoint list
[ -z "$(ls -A $checkpoints | grep '^\.new')" ] || fail 'something is left of a save that was killed'
ok as alice skiff rm sim
ok as alice skiff checkpoint restore other again
touch /shared/enough
ended_well() { ok as alice skiff instance list; grep -q 'again.*exited 0' <<<"$out"; }
eventually 10 ended_well
sed -i 1d log
whole log
rm -f log sim.file bad.file other.file /shared/enough
ok as alice skiff rm again
ok as alice skiff checkpoint delete sim other

# A batch job that Slurm starts again because its node has failed goes on from the last checkpoint.
cat >/shared/job <<'X'
#!/bin/bash
#SBATCH -N1 -w n1 --requeue --open-mode=append -o job.out
exec skiff job checkpoint-on-signal --files truncate --checkpoint-every 1s host sim python3 /shared/steps.py log a
X
ok as alice sbatch --parsable /shared/job
job=$out
eventually 30 saved sim
first=$(record sim)
eventually 20 newer sim "$first"
ok scontrol requeue $job
waits() { [ "$(squeue -h -j $job -o %T)" = PENDING ]; }
eventually 40 waits
touch /shared/enough
ok scontrol update job=$job starttime=now reqnodelist=n2
equal "$(ended $job)" 'COMPLETED 0:0' "$(cat job.out)"
has "$(cat job.out)" 'goes on from its checkpoint'
whole log
ok as alice skiff checkpoint list
lacks "$out" sim
rm -f log job.out /shared/enough

# With one failure an hour and a stop of less than half a second a minute is best; ten times as long as a save takes, where that is more.
first_save() { grep -q 'the next in' /home/bob/.local/share/skiff/instance/slow/checkpoints.log; }
eventually 120 first_save
[ $((SECONDS - auto_began)) -ge 55 ] || fail 'auto has saved at once'
pause=$(grep -o 'the next in .*' /home/bob/.local/share/skiff/instance/slow/checkpoints.log)
case ${pause#the next in } in
*m | 6[0-9]s | [7-9][0-9]s | [1-9][0-9][0-9]s) ;;
*) fail "$pause" ;;
esac
ok as bob skiff rm -f slow
ok as bob skiff checkpoint delete slow
