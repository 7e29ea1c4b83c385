# The bounds that Slurm sets to a job's memory and processors hold in environments and containers, and can be read there.
# By version 1 of control groups: Slurm's plug-in for version 2 refuses a kernel that has hierarchies of version 1 ("Hybrid mode is not supported"),
# as the machines of the tests have, where memory, cpu and cpuset are in those, and version 2 has hugetlb alone.
# tests/vm/slurm-limits.sh does this by version 2.
# bed: --nodes 1 --cpus 2 --proctrack cgroup --slurm-conf TaskPlugin=task/cgroup --slurm-conf SelectTypeParameters=CR_Core_Memory --cgroup-conf ConstrainRAMSpace=yes --cgroup-conf ConstrainCores=yes
# takes: 10
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
make_store
node_stores
skeleton "$images_tmp/root"
for command in sed nproc dd; do ln -sf busybox "$images_tmp/root/bin/$command"; done
tar -cf /home/alice/small.tar -C "$images_tmp/root" .
chown alice /home/alice/small.tar
cd /home/alice
ok as alice skiff env create dev
ok as alice skiff import --quiet small.tar small

# In its mounts a bed sees its own subtree of the hierarchies; /proc/self/cgroup begins above that.
bounds='own() { sed -n "s,^[0-9]*:$1:/[^/]*,/sys/fs/cgroup/$1,p" /proc/self/cgroup; }
    sed -n "s/^hierarchical_memory_limit //p" $(own memory)/memory.stat; cat $(own cpuset)/cpuset.cpus; nproc'
uses='dd if=/dev/zero of=/dev/null count=1 bs=' # as much memory as a block of it
ok as alice srun -Q -n1 -c1 --mem=100 sh -c "$bounds"
want=$out
[[ $want =~ ^104857600$'\n'[01]$'\n'1$ ]] || fail "no bounds on the bare node: $want"
for how in --environment=dev --container-image=small '--container-image=small --container-remap-root'; do
    ok as alice srun -Q -n1 -c1 --mem=100 $how sh -c "$bounds"
    equal "$(sed 2d <<<"$out")" "$(sed 2d <<<"$want")" "$how"
    [[ $(sed -n 2p <<<"$out") == [01] ]] || fail "$how: not one processor: $out"
    ok as alice srun -Q -n1 -c1 --mem=100 $how sh -c "${uses}20M"
    try as alice srun -Q -n1 -c1 --mem=100 $how sh -c "${uses}300M"
    [ "$code" != 0 ] || fail "$how: more memory than the job has$(said)"
done
# In a container that a step starts by itself, too.
ok as alice srun -Q -n1 -c1 --mem=100 skiff run small sh -c "${uses}20M"
try as alice srun -Q -n1 -c1 --mem=100 skiff run small sh -c "${uses}300M"
[ "$code" != 0 ] || fail "skiff run: more memory than the job has$(said)"
# So in the steps of a script.
as alice tee script >/dev/null <<E
#!/bin/sh
srun -n1 sh -c '$bounds'
E
for how in --environment=dev --container-image=small; do
    ok as alice sbatch --parsable -n1 -c1 --mem=100 -o out $how script
    equal "$(ended "$out")" 'COMPLETED 0:0' "$(cat out)"
    equal "$(sed 2d out)" "$(sed 2d <<<"$want")" "script $how"
done
idle
