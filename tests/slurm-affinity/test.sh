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
want=$'0 Cpus_allowed_list: 0\n1 Cpus_allowed_list: 1'
for how in '' --environment=dev --container-image=small; do
    ok as alice srun -Q -N1 -n2 --cpu-bind=map_cpu:0,1 $how sh -c "$bound"
    equal "$(sort <<<"$out")" "$want" "processors ${how:-on the bare node}"
done
# So in the steps of a script.
as alice tee script >/dev/null <<X
#!/bin/sh
srun -n2 --cpu-bind=map_cpu:1,0 sh -c '$bound'
X
ok as alice sbatch --parsable -N1 -n2 -o out --environment=dev script
equal "$(ended "$out")" 'COMPLETED 0:0'
equal "$(sort out)" $'0 Cpus_allowed_list: 1\n1 Cpus_allowed_list: 0'
idle
