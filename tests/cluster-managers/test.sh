# Clusters in jobs of other managers than Slurm. Grid Engine is Debian's own, with its master on the login node; PBS and LSF are not to
# be had, so their variables and files are as their manuals have them, and stand-ins start programs on hosts as theirs do.
# takes: 21
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
command -v sge_qmaster >/dev/null || skip 'gridengine-master is not installed'
cell=/var/lib/gridengine/default/common
spool=/var/spool/gridengine
own=/shared/gridengine
cleanup() {
    for node in n1 n2; do on $node sh -c "kill \$(cat $spool/execd/$node/execd.pid); umount $cell" 2>&- || true; done
    kill -9 $(cat $spool/qmaster/qmaster.pid) 2>&- || true
    umount $cell 2>&- || true
    rm -rf "$own"
}
trap cleanup EXIT

# A cell of its own for the time of the test, seen by all.
cp -a $cell "$own"
echo ctl >"$own/act_qmaster"
mkdir -p $spool/spooldb $spool/qmaster/job_scripts
chown -R sgeadmin $spool "$own"
mount --bind "$own" $cell
as_admin() { setpriv --reuid sgeadmin --clear-groups env SGE_ROOT=/var/lib/gridengine SGE_CELL=default "$@"; }
as_admin sh /usr/share/gridengine/scripts/init_cluster /var/lib/gridengine default $spool/spooldb sgeadmin >/dev/null
as_admin sge_qmaster
eventually 20 as_admin qconf -sh
as_admin qconf -as ctl >/dev/null
for node in n1 n2; do
    on $node sh -c "mount --bind $own $cell; mkdir -p $spool/execd; chown -R sgeadmin $spool"
    as_admin qconf -ah $node >/dev/null
    as_admin qconf -as $node >/dev/null
    on $node sge_execd
done
cat >"$own/pe" <<X
pe_name            mpi
slots              99
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    2
control_slaves     TRUE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
X
as_admin qconf -Ap "$own/pe" >/dev/null
as_admin qconf -sq | sed 's/^qname.*/qname all.q/; s/^hostlist.*/hostlist n1 n2/; s/^slots .*/slots 8/; s/^load_thresholds.*/load_thresholds NONE/; s/^pe_list.*/pe_list mpi/; s/^shell .*/shell \/bin\/sh/; s/^shell_start_mode.*/shell_start_mode unix_behavior/' >"$own/queue"
as_admin qconf -ssconf | sed 's/^schedule_interval.*/schedule_interval 0:0:1/; s/^flush_submit_sec.*/flush_submit_sec 1/; s/^job_load_adjustments.*/job_load_adjustments NONE/; s/^load_formula.*/load_formula slots/' >"$own/scheduler"
as_admin qconf -Msconf "$own/scheduler" >/dev/null
as_admin qconf -Aq "$own/queue" >/dev/null
export SGE_ROOT=/var/lib/gridengine
both_there() { [ "$(qstat -f | grep -c '^all.q@n[12] .*lx-[^ ]* *$')" = 2 ]; }
eventually 30 both_there
cd /home/alice
as alice cp "$here/../slurm-mpi/mpi.c" .
as alice mpicc -o mpi mpi.c
submit() { # SCRIPT
    rm -f out
    printf '#!/bin/sh\n%s\n' "$1" | as alice tee job >/dev/null
    ok as alice env SGE_ROOT=$SGE_ROOT qsub -terse -cwd -o out -j y -pe mpi 4 -v "PATH=/usr/local/bin:/usr/bin:/bin" job
    job=$out
}
# It takes the manager some seconds to notice that a job has ended; the next one finds room beside it.
over() { ! qstat -u '*' | grep -q .; }
submit 'skiff cluster run --dry-run -- true | grep ^start
skiff cluster run -- sh -c "uniq -c \$PBS_NODEFILE | xargs; mpirun ./mpi | sort | cut -d, -f1; exit 6"
echo $?'
eventually 40 grep -q '^6$' out
first=$(sed -n 's/^start *qrsh -inherit -V \(n[12]\) .*/\1/p' out)
[[ $first == n[12] ]] || fail "$(cat out)"
has "$(cat out)" '2 n1'
has "$(cat out)" $'rank 0 of 4\nrank 1 of 4\nrank 2 of 4\nrank 3 of 4\n6'
nothing_left
# Deleted while it runs.
submit 'skiff cluster run -- sh -c "touch up; sleep 1000"'
eventually 40 test -e up
ok as alice env SGE_ROOT=$SGE_ROOT qdel "$job"
nothing_left
eventually 40 over

# A Slurm of one's own over its hosts: deleted, and gone with the job's end. Grid Engine kills all there is, so what that could not remove
# is in nobody's way.
up='skiff cluster up lab --slurm && skiff cluster exec lab -- srun -N2 hostname'
submit "$up; touch up-too; sleep 1000"
eventually 40 test -e up-too
ok as alice env SGE_ROOT=$SGE_ROOT qdel "$job"
nothing_left
eventually 40 over
submit "$up"
both() { [ "$(wc -l <out)" = 2 ]; }
eventually 40 both
equal "$(sort out)" $'n1\nn2'
nothing_left
ok as alice skiff sweep
equal "$(ls -A .local/share/skiff/cluster)" ''

# What stands in for the launchers of PBS and LSF: the one passes no input on and takes output to itself, the other is like ssh.
daemons
as alice mkdir -p bin
as alice tee bin/pbsdsh >/dev/null <<'X'
#!/bin/sh
[ "$1 $3" = '-n --' ] || exit 9
host=$(sed -n "$(($2 + 1))p" "$PBS_NODEFILE")
shift 3
exec ssh -n "$host" "$@" >pbs.out 2>&1
X
as alice tee bin/blaunch >/dev/null <<'X'
#!/bin/sh
exec ssh "$@"
X
as alice chmod +x bin/pbsdsh bin/blaunch
as alice sh -c 'printf "n1\nn1\nn2\n" >nodes'
path=/home/alice/bin:/usr/bin:/bin
script='skiff cluster run -- sh -c "uniq -c \$PBS_NODEFILE | xargs; ssh n2 hostname; exit 8"'
fails 8 as alice env PATH=$path PBS_JOBID=1.ctl PBS_NODEFILE=/home/alice/nodes sh -c "$script"
equal "$out" $'2 n1 1 n2\nn2' "$err"
nothing_left
fails 8 as alice env PATH=$path LSB_JOBID=1 LSB_HOSTS='n1 n1 n2' LSB_MCPU_HOSTS='n1 2 n2 1' sh -c "$script"
equal "$out" $'2 n1 1 n2\nn2' "$err"
nothing_left
# A home that is full has no room for what tells the hosts of PBS how to call back.
as alice mkdir -p .local/share/skiff
mount -t tmpfs -o size=4k,mode=1777 none .local/share/skiff
as alice sh -c 'head -c 10000 /dev/zero >.local/share/skiff/full' 2>&- || true
fails 125 as alice env PATH=$path PBS_JOBID=1.ctl PBS_NODEFILE=/home/alice/nodes sh -c "$script"
has "$err" 'hint: your home must take a small file'
umount .local/share/skiff
nothing_left
eventually 40 over
