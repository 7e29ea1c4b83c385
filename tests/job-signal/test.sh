# A batch script of an MPI job over two nodes: all instances are saved together every so often, and when the job's time is nearly over. The next
# job goes on from there on two other nodes, is told to make room and put back in the queue, and comes to the result of ranks that nobody disturbed.
# bed: --nodes 4
# time: 900
# takes: 170
. "$(dirname "$0")/../lib.sh"
. "$here/../job-save/lib.sh"
cat >script <<'X'
#!/bin/bash
#SBATCH --nodes=2 --requeue --open-mode=append --output=job.out --time=2 --signal=B:USR1@20
if skiff checkpoint show ring >/dev/null 2>&1
then skiff job restore ring; else . ./start; fi
exec skiff job save --on-signal --every 5s --keep 2 "$@" ring rank-0 rank-1 rank-2 rank-3
X
chown alice: script
start_script
written() { [ "$(grep -c 'ring: .* stood still for .* the next in 5s' job.out)" -ge "$1" ]; }

# ---- While it runs: the last two are kept; if one cannot be saved, it is said, and all go on ---------------------------------------------
ok as alice sbatch --parsable -w n1,n2 script --no-requeue
job=$out
eventually 60 written 2
ok at n2 alice skiff instance exec rank-3 sh -c 'setsid sleep 4321 >/dev/null 2>&1 </dev/null &'
eventually 30 grep -q 'checkpoint ring: nothing is saved, and all instances go on: instance rank-3 on n2' job.out
goes_on n1
on n2 pkill -f 'sleep 4321'
before=$(grep -c 'the next in 5s' job.out)
eventually 40 written $((before + 1))
equal "$(saved)" 'ring ring@1'

# ---- Its time is over: saved by Slurm's signal, and ended -----------------------------------------------------------------------------------
eventually 150 grep -q 'checkpoint ring: all instances are saved' job.out
equal "$(ended $job)" 'COMPLETED 0:0' "$(cat job.out)"
for node in n1 n2; do lacks "$(states $node)" running; done
at_save=$(taken n1)

# ---- The next goes on elsewhere, makes room, and goes on again ----------------------------------------------------------------------------
ok as alice sbatch --parsable -w n3,n4 script
job=$out
eventually 60 steps n3 $((at_save + 20))
eventually 30 grep -q 'instances of checkpoint ring go on' job.out
# The command that hears the signal comes right behind that.
now=$(grep -c 'the next in 5s' job.out)
eventually 30 written $((now + 1))
ok scancel --batch --signal=USR1 $job
waits() { [ "$(squeue -h -j $job -o %T)" = PENDING ]; }
eventually 60 waits
at_save=$(taken n3)
# Slurm would wait for two minutes.
ok scontrol update job=$job starttime=now reqnodelist=n1,n2
eventually 60 steps n1 $((at_save + 20))
as alice touch enough
equal "$(ended $job)" 'COMPLETED 0:0' "$(cat job.out)"
equal "$(written_by_ranks n1 | grep result)" "$(undisturbed openmpi "$(taken n1)")" 'what the ranks came to'
# A job with the same script would begin anew.
equal "$(saved)" ''

# ---- One that has failed: the last checkpoint with it stays ---------------------------------------------------------------------------------
as alice rm -f enough failing
ok at n1 alice skiff instance start --checkpoint --net mv host one sh -c 'cd; until [ -e failing ]; do sleep 0.1; done; exit 3'
ok at n2 alice skiff instance start --checkpoint --net mv host two sh -c 'cd; until [ -e enough ]; do sleep 0.1; done'
start alice skiff job save --on n1,n2 --every 2s --keep 1 pair one two >/shared/pair.out 2>&1
eventually 40 grep -q 'pair: .* stood still' /shared/pair.out
as alice touch failing
eventually 40 grep -q 'checkpoint pair: an instance has ended with 3: nothing more is saved' /shared/pair.out
ok as alice skiff checkpoint show --json pair
before=$out
has "$before" '"one"'
# Longer than between two saves.
sleep 5
ok as alice skiff checkpoint show --json pair
equal "$out" "$before"
as alice touch enough
code=0
wait $started || code=$?
equal "$code" 3 "$(cat /shared/pair.out)"
ok as alice skiff checkpoint delete pair

# ---- What is refused -----------------------------------------------------------------------------------------------------------------------
fails 125 as alice skiff job save --on n1 --on-signal=NONE ring rank-0
has "$err" '--on-signal: NONE: there is no such signal'
fails 125 as alice skiff job save --on n1 --on-signal ring rank-0
has "$err" 'SLURM_JOB_ID is not set'
fails 125 as alice skiff job save --on n1 --every 1h ring rank-0
has "$err" 'instance rank-0: it runs on none of the nodes'
idle
