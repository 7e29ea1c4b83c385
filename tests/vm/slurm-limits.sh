# What Slurm bounds by control groups of version 2 holds in environments and containers, and can be read there: memory, processors and devices.
# Set up as docs/install.md says, with Debian's own units; tests/slurm-limits does this by version 1, which the kernel of the test bed has as well.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
SKIFF_TESTBED_NODES=
equal "$(stat -fc %T /sys/fs/cgroup)" cgroup2fs 'the kind of control groups'
cleanup() {
    as alice scancel -u alice || true
    as alice skiff env rm -f dev 2>/dev/null || true
    as alice skiff rmi small || true
    systemctl stop slurmd slurmctld munge || true
    rm -rf /etc/slurm /var/lib/slurm-test "$images_tmp" /home/alice/small.tar
}
trap cleanup EXIT
mkdir -p /etc/slurm/plugstack.conf.d
install -d -o slurm /var/lib/slurm-test
cp /usr/local/share/doc/skiff/plugstack-skiff.conf /etc/slurm/plugstack.conf.d/skiff.conf
echo 'include /etc/slurm/plugstack.conf.d/*.conf' >/etc/slurm/plugstack.conf
name=$(hostname -s)
cat >/etc/slurm/slurm.conf <<X
ClusterName=test
SlurmctldHost=$name(127.0.0.1)
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm-test
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SlurmctldTimeout=600
SlurmdTimeout=600
MessageTimeout=99
NodeName=$name NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES
X
printf 'ConstrainRAMSpace=yes\nConstrainCores=yes\nConstrainDevices=yes\nAllowedRAMSpace=100\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n' >/etc/slurm/cgroup.conf
# Terminals stand for GPUs: who may open them is what counts.
printf 'Name=gpu File=/dev/tty[8-9]\n' >/etc/slurm/gres.conf
chmod 666 /dev/tty8 /dev/tty9
# Users read it, whatever the umask here.
chmod -R a+rX /etc/slurm
systemctl start munge slurmctld slurmd
eventually 60 bash -c 'sinfo -h -o %t | grep -q idle'
skeleton "$images_tmp/root"
for command in sed nproc dd timeout; do ln -sf busybox "$images_tmp/root/bin/$command"; done
tar -cf /home/alice/small.tar -C "$images_tmp/root" .
chown alice /home/alice/small.tar
cd /home/alice
ok as alice skiff env create dev
ok as alice skiff import --quiet small.tar small

# The bounds are set for the step, above the control group of the task.
bounds='g=/sys/fs/cgroup$(sed -n "s,^0::,,p" /proc/self/cgroup)
    while [ ! -e $g/memory.max ] || [ "$(cat $g/memory.max)" = max ]; do g=${g%/*}; [ -n "$g" ] || exit 9; done
    cat $g/memory.max; nproc'
uses='dd if=/dev/zero of=/dev/null count=1 bs=' # as much memory as a block of it
step() { as alice srun -Q -n1 -c1 --mem=100 "$@"; }
ok step sh -c "$bounds"
want=$out
equal "$want" $'104857600\n1' 'on the bare node'
opened='for t in 8 9; do timeout 5 sh -c ": </dev/tty$t" 2>/dev/null && echo $t; done; true'
ok step --gres=gpu:1 sh -c "$opened"
has_one=$out
equal "$has_one" 8 'the devices of the bare node'
for how in --environment=dev --container-image=small '--container-image=small --container-remap-root' '--container-image=small --container-writable'; do
    ok step $how sh -c "$bounds"
    equal "$out" "$want" "$how"
    ok step $how sh -c "${uses}20M"
    try step $how sh -c "${uses}300M"
    [ "$code" != 0 ] || fail "$how: more memory than the job has$(said)"
done
ok step --gres=gpu:1 --environment=dev sh -c "$opened"
equal "$out" "$has_one" 'the devices of an environment'
# In a container that a step starts by itself, too.
ok step skiff run small sh -c "${uses}20M"
try step skiff run small sh -c "${uses}300M"
[ "$code" != 0 ] || fail "skiff run: more memory than the job has$(said)"
# So in the steps of a script.
as alice tee script >/dev/null <<X
#!/bin/sh
srun -n1 sh -c '$bounds'
X
for how in --environment=dev --container-image=small; do
    ok as alice sbatch -W --parsable -n1 -c1 --mem=100 -o out $how script
    equal "$(cat out)" "$want" "script $how"
done
equal "$(find /sys/fs/cgroup -name 'job_*' | head)" '' 'control groups of jobs that have ended'
