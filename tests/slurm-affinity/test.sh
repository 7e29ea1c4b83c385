# The processors that Slurm binds a task to are what its program sees in an environment and a container, and no more.
# bed: --nodes 2 --cpus 2 --slurm-conf TaskPlugin=task/affinity
# takes: 8
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
make_store
node_stores
skeleton "$images_tmp/root"
tar -cf /home/alice/small.tar -C "$images_tmp/root" .
chown alice /home/alice/small.tar
cd /home/alice
ok as alice skiff env create dev
ok as alice skiff import --quiet small.tar small

bound='echo $SLURM_PROCID $(grep Cpus_allowed_list /proc/self/status)'
# Slurm's numbers of processors need not be the kernel's: what they mean the bare node says.
ok as alice srun -Q -N1 -n2 --cpu-bind=map_cpu:0,1 sh -c "$bound"
want=$(sort <<<"$out")
[[ $want =~ ^0\ Cpus_allowed_list:\ ([0-9]+)$'\n'1\ Cpus_allowed_list:\ ([0-9]+)$ ]] || fail "not one processor each on the bare node: $want"
first=${BASH_REMATCH[1]} second=${BASH_REMATCH[2]}
[ "$first" != "$second" ] || fail "one processor for both on the bare node: $want"
for how in --environment=dev --container-image=small; do
    ok as alice srun -Q -N1 -n2 --cpu-bind=map_cpu:0,1 $how sh -c "$bound"
    equal "$(sort <<<"$out")" "$want" "processors $how"
done
# So in the steps of a script.
as alice tee script >/dev/null <<X
#!/bin/sh
srun -n2 --cpu-bind=map_cpu:1,0 sh -c '$bound'
X
ok as alice sbatch --parsable -N1 -n2 -o out --environment=dev script
equal "$(ended "$out")" 'COMPLETED 0:0'
equal "$(sort out)" "0 Cpus_allowed_list: $second"$'\n'"1 Cpus_allowed_list: $first"
idle
