# Clusters over directories and images, on a network of the site's, and with MPICH.
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
. "$here/../images/lib.sh"
cd /home/alice
cleanup() {
    images_cleanup
    part_all
    rm -rf /home/store
    for node in n1 n2; do
        on $node sh -c 'umount /sys; umount -l /run/skiff/images/*; rm -rf /run/skiff/images/*' 2>&- || true
    done
}
trap cleanup EXIT
run() { as alice salloc -Q -N2 --ntasks-per-node=2 skiff cluster run "$@"; }

# MPICH, started by its own launcher: it finds hosts, slots and ssh by itself.
as alice tee mpich.py >/dev/null <<'X'
import ctypes, socket
mpi = ctypes.CDLL("libmpich.so.12")
world, integer, add = 0x44000000, 0x4c000405, 0x58000003
mpi.MPI_Init(None, None)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, integer, add, world)
print(rank.value, size.value, total.value, socket.gethostname())
mpi.MPI_Finalize()
X
# UCX looks for devices in /sys, which in the test bed is the machine's; and for the machine's number, which is the same on all nodes
# of the test bed, before it shares memory.
for node in n1 n2; do on $node mount -t sysfs sysfs /sys; done
# (With more ranks on several nodes MPI_Finalize of MPICH 4.0.2 over UCX at times never ends, on bare nodes too.)
# (MPICH 4.0.2 fails if it reads its standard input to the end only after its first host's processes have ended.)
ok run -- mpirun.mpich sh -c 'hostname; sleep 0.5'
equal "$(sort <<<"$out")" $'n1\nn1\nn2\nn2' "$err"
ok run -e UCX_TLS=tcp,self -- mpirun.mpich -n 2 -ppn 1 python3 mpich.py
equal "$(sort <<<"$out")" $'0 2 1 n1\n1 2 1 n2' "$err"

# A root in a directory that all hosts see: of another system, in which only OpenSSH and a shell are.
root=/home/alice/root
as alice mkdir -p $root/{bin,usr/bin,usr/sbin,etc,proc,sys,dev,tmp,var/tmp,run,home}
as alice cp /bin/busybox $root/bin/busybox
for command in sh cat hostname id touch ls test echo; do as alice ln -s busybox $root/bin/$command; done
as alice cp /usr/bin/ssh $root/usr/bin/
as alice cp /usr/sbin/sshd $root/usr/sbin/
ldd /usr/bin/ssh /usr/sbin/sshd | grep -o '/lib[^ :]*' | sort -u | as alice xargs -I{} sh -c 'mkdir -p "$1$(dirname {})" && cp -L {} "$1{}"' - $root
as alice sh -c "echo root:x:0:0::/root:/bin/sh >$root/etc/passwd; echo root:x:0: >$root/etc/group; echo mine >$root/etc/marker"
ok run --base dir:$root -- sh -euc 'cat /etc/marker; echo other >/etc/marker; ssh n2 "hostname; id -un; cat /etc/marker; pwd"; ls /usr/bin'
equal "$out" $'mine\nn2\nalice\nmine\n/home/alice\nssh'
equal "$(cat $root/etc/marker)" mine

# The same as an image, in a store that the hosts share.
install -d -o daemon -g daemon /home/store
for node in n1 n2; do on $node sh -c 'mkdir -p /etc/skiff && echo "store = /home/store" >/etc/skiff/helper.conf'; done
start_registry
push tools/ssh:1 $root
ok as alice skiff pull --quiet "$registry/tools/ssh:1"
ok run --base "image:$registry/tools/ssh:1" -e MINE=yes -- sh -euc 'cat /etc/marker; ssh n2 "hostname; cat /etc/marker; echo \$MINE"'
equal "$out" $'mine\nn2\nmine\nyes' "$err"

# On a network of the site's: an address and port 22 for each, names that mean them, other clusters beside it.
join_all
ok run --net far -- sh -euc 'getent hosts n2; ssh n2 "getent hosts n1; ss -Hltn | sed \"s/ \+/ /g\" | cut -d\" \" -f4"'
first=$(cut -d' ' -f1 <<<"$out" | head -1)
has "$first" 10.20.2.
has "$out" 10.20.1.
has "$out" "$first:22"
as alice cp "$here/../slurm-mpi/mpi.c" .
as alice mpicc -o mpi mpi.c
ok run --net far -- mpirun ./mpi
equal "$(grep -c '^rank . of 4, sum 6' <<<"$out")" 4 "$err"
nothing_left
