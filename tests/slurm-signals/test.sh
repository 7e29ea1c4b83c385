# bed: --nodes 2 --slurm-conf KillWait=2
# takes: 23
# Signals and exit codes come through: every task, and every child of one, gets exactly what it would get on the bare node.
. "$(dirname "$0")/../lib.sh"
ok as alice skiff env create dev
ok as alice skiff env exec dev -- true
cp "$here/../slurm-signals/count.py" /shared
cd /home/alice

# Slurm looks at time limits every half minute; meanwhile the rest is done. It sends both signals in the same moment then, by
# messages that may overtake each other: so who got TERM waits a little before he ends.
for where in ${LIMITS-none dev}; do
    ok as alice sbatch --parsable -n1 --environment=$where --time=1 --signal=B:USR1@50 -o out.limit-$where --wrap "
        trap 'echo USR1' USR1; trap 'sleep 1; echo TERM; exit 3' TERM
        srun -n1 --overlap python3 /shared/count.py limit-$where & while :; do sleep 0.1; done"
    limited+=($out)
    eventually 10 test -e limit-$where.main
    scontrol update jobid="$out" EndTime=now+2
done

heard() { # FILE: what was written down there (signals that wait together come in no order)
    sort "$1" | xargs
}

for where in none dev; do
    # A step: by job, by step, at the end.
    start alice srun -n1 -J step-$where --environment=$where python3 /shared/count.py step-$where 2>/dev/null
    # A batch script: it alone; with all it has started; at the end.
    ok as alice sbatch -Q -n1 -J batch-$where -o /dev/null --environment=$where --wrap "exec python3 /shared/count.py batch-$where"
    # srun's own way: twice Ctrl-C, which it does not hear in 26.05 if it was started as the shell starts what runs beside it.
    start alice env --default-signal=INT srun -n1 --environment=$where python3 /shared/count.py int-$where 2>/dev/null
    declare "int_$where=$started"
done
for name in step-none step-dev batch-none batch-dev int-none int-dev; do
    eventually 15 test -e $name.main -a -e $name.child
done
for where in none dev; do
    kill -INT "$(eval echo "\$int_$where")"
    scancel --signal=USR1 --name=step-$where
    scancel --batch --signal=USR1 --name=batch-$where
done
# Who watches over a step is no task: what reaches it of such signals ends nothing.
watcher='^/usr/bin/skiff slurm step-begin'
reached=
for node in $SKIFF_TESTBED_NODES; do
    on $node pgrep -f "$watcher" >/dev/null || continue
    reached+=" $node"
    # That of a step at its time limit may end meanwhile.
    for signal in INT TERM HUP; do on $node pkill -$signal -f "$watcher" || true; done
done
[ -n "$reached" ] || fail "no process is $watcher"
# srun gives up at a Ctrl-C that comes less than a second after another one.
interrupt() { # PID
    local i
    for i in $(seq 20); do
        kill -INT "$1" 2>&- || return 0
        sleep 0.5
    done
    fail "srun (process $1) goes on after $i times Ctrl-C"
}
for where in none dev; do
    interrupt "$(eval echo "\$int_$where")"
    scancel --signal=USR2 "$(squeue -h -n step-$where -o %i).0"
    scancel --full --signal=USR2 --name=batch-$where
done
sleep 0.3
for where in none dev; do scancel --name=step-$where; scancel --name=batch-$where; done
# A step whose srun is gone tries for 7 s to tell it how its tasks have ended.
eventually 30 sh -c '! squeue -h -o %j | grep -v "^wrap$"'
for case in step batch; do
    for role in main child; do equal "$(heard $case-dev.$role)" "$(heard $case-none.$role)" "$case, $role"; done
done
# After its own Ctrl-C srun kills at once: who ends before that is written down has heard nothing, on the bare node as well.
for file in int-{none,dev}.{main,child}; do
    case $(heard $file | tr ' ' '\n' | uniq | xargs) in
    start | 'SIGINT start') ;;
    *) fail "twice Ctrl-C, $file: $(heard $file)" ;;
    esac
done
# That the comparison is one:
equal "$(heard step-dev.main)" 'SIGCONT SIGTERM SIGUSR1 SIGUSR2 start'
equal "$(heard batch-dev.main)" 'SIGCONT SIGTERM SIGUSR1 SIGUSR2 start'

# Exit codes, and ends by a signal.
for command in 'exit 42' 'kill -USR1 $$' 'kill -KILL $$' 'kill -SEGV $$' 'kill -TERM $$; sleep 5'; do
    try as alice srun -n1 --environment=none sh -c "$command"
    fails $code as alice srun -n1 --environment=dev sh -c "$command"
    try as alice sbatch --parsable -o /dev/null --environment=none --wrap "$command"
    bare=$out
    ok as alice sbatch --parsable -o /dev/null --environment=dev --wrap "$command"
    equal "$(ended "$out")" "$(ended "$bare")" "$command"
done
fails 127 as alice srun -n1 --environment=dev no-such-program
has "$err" 'no-such-program: No such file'
has "$err" 'hint: '
fails 126 as alice srun -n1 --environment=dev /etc/passwd
fails 9 as alice srun -N2 --environment=dev sh -c 'exit $((SLURM_PROCID * 9))'
# Nothing is blocked or ignored that is not so on the bare node.
equal "$(as alice srun -n1 --environment=dev grep -E 'Sig(Blk|Ign)|^NoNewPrivs' /proc/self/status | xargs)" \
    "$(as alice srun -n1 --environment=none grep -E 'Sig(Blk|Ign)' /proc/self/status | xargs) NoNewPrivs: 1" 
# A task that stays when told to end is killed, with all its children.
start alice srun -n1 -J stays --environment=dev sh -c 'trap "" TERM INT; touch stays; setsid sleep 100 & while :; do sleep 0.1; done'
eventually 10 test -e stays
scancel --name=stays
eventually 10 sh -c '[ -z "$(squeue -h -n stays)" ]'
# One that leaves processes behind does not keep the job, even if they hold its output open.
ok as alice srun -n2 --environment=dev sh -c 'setsid sleep 100 & (sleep 100 &); exit 0'

for where in ${LIMITS-none dev}; do eventually 40 grep -q TERM out.limit-$where; done
if [ -n "${LIMITS-all}" ]; then
    equal "$(ended "${limited[@]}" | cut -d' ' -f1 | xargs)" 'TIMEOUT TIMEOUT'
    equal "$(grep -cx USR1 out.limit-dev)$(grep -cx TERM out.limit-dev)" 11
    equal "$(heard limit-dev.main)" "$(heard limit-none.main)" 'a step at the time limit'
fi
idle
