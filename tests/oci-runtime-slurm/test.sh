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

# Ended from outside: all processes go, and nothing is left of it.
ok as alice sbatch --parsable -N2 --wrap "srun --container $bundle sh -c 'echo begun; exec sleep 1000'" -o out
job=$out
eventually 30 sh -c '[ "$(grep -c begun out)" = 2 ]'
ok as alice scancel "$job"
idle
for node in n1 n2; do
    if on $node pgrep -u alice sleep; then fail "a process is left on $node"; fi
    try on $node sh -c 'ls -A /tmp/skiff-oci.*/'
    equal "$out" '' "what is left on $node"
done
rm -rf /etc/slurm/oci.conf /tmp/skiff-oci.*
for node in n1 n2; do on $node sh -c 'rm -rf /tmp/skiff-oci.*'; done
