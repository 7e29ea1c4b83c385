# bed: --nodes 2 --slurm-conf KillWait=2
# takes: 12
# Slurm's own containers: `srun --container=BUNDLE`, by oci.conf as docs/oci-runtime.md has it.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../oci-runtime/lib.sh"
make_bundle
configure 'process["env"] = ["PATH=/bin", "FROM_BUNDLE=yes"]'
sed -n '/^RunTime.*=/p' /usr/share/doc/skiff/oci-runtime.md >/etc/slurm/oci.conf
[ "$(wc -l </etc/slurm/oci.conf)" = 4 ] || fail "the page's lines: $(cat /etc/slurm/oci.conf)"
cd /home/alice

# In the bundle's root, with its namespaces and the task's variables; as root there, the user outside.
ok as alice srun -Q -N2 --container $bundle sh -c 'echo $(hostname) $(id -u) $FROM_BUNDLE $SLURM_NNODES; [ -e /etc/slurm ] || echo alone; echo process $$'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 alone 2 process 1 2 skiff 0 yes 2' "$err"
ok as alice sh -c "echo typed | srun -Q --container $bundle cat"
equal "$out" typed
fails 7 as alice srun -Q --container $bundle sh -c 'exit 7'
try as alice srun -Q --container $bundle nothing
[ "$code" != 0 ] || fail 'a program that is missing'
has "$err" 'nothing'
cat >job <<'SCRIPT'
#!/bin/sh
hostname
id -u
SCRIPT
ok as alice sbatch -Q --wait --container $bundle -o out job
eventually 30 grep -q 0 out
equal "$(cat out)" $'skiff\n0'
# By a line of the script's own, in a job of two nodes: only the script is in the container.
cat >job <<SCRIPT
#!/bin/sh
#SBATCH --container=$bundle
#SBATCH -N2 -o out.line
echo \$(hostname) \$(id -u) \$FROM_BUNDLE \$SLURM_NNODES \$\$
[ -e /etc/slurm ] || echo alone
exit 5
SCRIPT
ok as alice sbatch --parsable job
equal "$(ended "$out")" 'FAILED 5:0' "$(cat out.line)"
equal "$(cat out.line)" $'skiff 0 yes 2 1\nalone'
idle
for node in n1 n2; do
    ok on $node sh -c 'ls -A /tmp/skiff-oci.*/'
    equal "$out" '' "what is left of the script on $node"
done

# Ended from outside: all processes go, and nothing is left of it.
ok as alice sbatch --parsable -N2 --wrap "srun --container $bundle sh -c 'echo begun; exec sleep 1000'" -o out
job=$out
eventually 30 sh -c '[ "$(grep -c begun out)" = 2 ]'
ok as alice scancel "$job"
idle
for node in n1 n2; do
    if on $node pgrep -u alice sleep; then fail "a process is left on $node"; fi
    ok on $node sh -c 'ls -A /tmp/skiff-oci.*/'
    equal "$out" '' "what is left on $node"
done

# scrun, which Slurm has from 23.02 on: an engine's runtime that has a job carry the container out, by the same lines.
if command -v scrun >/dev/null; then
    sed -n '/^function/,/^return/p' /usr/share/doc/skiff/oci-runtime.md >/etc/slurm/scrun.lua
    as alice mkdir -p -m 700 spool
    configure 'process["args"] = ["/bin/sh", "-c", "echo begun; hostname; id -u; while [ ! -e /data/end ]; do sleep 0.1; done; echo ended"]
c["mounts"].append({"destination": "/data", "type": "bind", "source": "/home/alice/data", "options": ["bind"]})'
    as alice mkdir data
    box() { as alice scrun --root=/home/alice/spool "$@" box; }
    status() { json "$(box state)" 'd["status"]'; }
    stopped() { [ "$(status)" = stopped ]; }
    for end in by-itself killed; do
        rm -f data/end
        as alice sh -c "scrun --root=/home/alice/spool create -b $bundle box >box.out 2>&1 </dev/null"
        equal "$(cat box.out)" '' 'output before its start'
        ok box start
        eventually 30 grep -qx 0 box.out
        equal "$(status)" running "$end: $(cat box.out)"
        case $end in
        by-itself) as alice touch data/end ;;
        killed) ok as alice scrun --root=/home/alice/spool kill box KILL ;;
        esac
        eventually 30 stopped
        # Its daemon may have been the first to.
        try box delete
        # srun says more of what is killed.
        equal "$(head -3 box.out)" $'begun\nskiff\n0'
        case $end in
        by-itself) equal "$(tail -n +4 box.out)" ended ;;
        killed) lacks "$(cat box.out)" ended ;;
        esac
        idle
    done
    for node in n1 n2; do
        ok on $node sh -c 'ls -A /tmp/skiff-oci.*/'
        equal "$out" '' "what is left on $node"
    done
    eventually 10 sh -c '[ -z "$(ls -A spool)" ]'
fi
rm -rf /etc/slurm/oci.conf /etc/slurm/scrun.lua /tmp/skiff-oci.*
for node in n1 n2; do on $node sh -c 'rm -rf /tmp/skiff-oci.*'; done
