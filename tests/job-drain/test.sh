# A node of an MPI job fails its health check. The instances there, and only they, move to a node of the job that has none, while the others wait; the
# job comes to the result of ranks that nobody disturbed.
# bed: --nodes 4 --slurm-conf HealthCheckProgram=/shared/health-check --slurm-conf HealthCheckInterval=2
# time: 500
# takes: 60
. "$(dirname "$0")/../lib.sh"
. "$here/../job-save/lib.sh"
trap 'scontrol update nodename=n2,n3 state=resume 2>&- || true; rm -f /shared/health-check; cleanup' EXIT
cat >script <<'X'
#!/bin/bash
#SBATCH --nodes=3 --output=job.out --comment=drain:USR2
. ./start
exec skiff job save --drain-on-signal ring rank-0 rank-1 rank-2 rank-3
X
chown alice: script
start_script
checks=/etc/slurm/health.d
ok as alice sbatch --parsable -w n1,n2,n3 script
job=$out
eventually 60 grep -qx 20 job.out
attended() { on n1 pgrep -u alice -f 'skiff job save'; }
eventually 30 attended
# Nothing is wrong: nothing happens.
mkdir -p $checks
printf '#!/bin/sh\ntouch /shared/checked.$(hostname)\n[ ! -e /shared/broken.$(hostname) ] || { echo "disk 3 does not answer"; exit 1; }\n' >$checks/disk
chmod 755 $checks/disk
cp "$here/health-check" /shared/health-check.new
mv /shared/health-check.new /shared/health-check
eventually 60 test -e /shared/checked.n2
equal "$(states n2)" 'rank-2:running rank-3:running'

touch /shared/broken.n2
moved() { [[ $(states n3) == *rank-2:running* && $(states n3) == *rank-3:running* ]]; }
eventually 90 moved
lacks "$(states n2)" running
equal "$(states n1)" 'rank-0:running rank-1:running'
has "$(scontrol show node n2)" 'Reason=disk: disk 3 does not answer'
goes_on n1
# There is no further node.
ok scancel --batch --signal=USR2 $job
eventually 30 grep -q 'no instance is on a node that Slurm drains' job.out
touch /shared/broken.n3
eventually 90 grep -q 'node n3 is being drained, and the job has no node without instances' job.out
goes_on n1
as alice touch enough
equal "$(ended $job)" 'COMPLETED 0:0' "$(cat job.out)"
equal "$(written_by_ranks n1 | grep result)" "$(undisturbed openmpi "$(taken n1)")" 'what the ranks came to'
rm -rf $checks /shared/health-check
scontrol update nodename=n2,n3 state=resume
trap cleanup EXIT
idle
