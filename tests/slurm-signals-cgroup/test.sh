# bed: --nodes 2 --proctrack cgroup --slurm-conf KillWait=2
# takes: 20
# The same where Slurm tracks processes by cgroups, and signals differently. (Not the time limit, which takes its time.)
LIMITS=
. "$(dirname "$0")/../slurm-signals/test.sh"
