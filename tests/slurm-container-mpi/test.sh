# takes: 21
# MPI programs of an image, started by srun: Open MPI over PMIx, MPICH over PMI2; ranks of a node share memory. The host's own MPI
# libraries are in the image, and not on the nodes' PATH to it: it is a squashfs file on a shared file system, as users of Pyxis have them.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
. "$(dirname "$0")/../slurm-mpi/lib.sh"
root=$images_tmp/root
skeleton "$root"
lib=/usr/lib/x86_64-linux-gnu
for dir in openmpi/lib/openmpi3 pmix2/lib ucx; do mkdir -p "$root$lib/$dir"; cp -aT $lib/$dir "$root$lib/$dir"; done
for dir in /usr/share/openmpi /usr/share/pmix2 /usr/share/pmix /etc/openmpi /etc/pmix-mca; do [ ! -d $dir ] || { mkdir -p "$root$dir"; cp -aT $dir "$root$dir"; }; done
mpicc -o "$root/bin/mpi" "$here/../slurm-mpi/mpi.c"
gcc -o "$root/bin/mpich" "$here/mpich.c" -l:libmpich.so.12
gcc -o "$root/bin/pmi2" "$here/../slurm-mpi/pmi2.c" -lpmi2
# All that these want to load, at the place where they look for it.
find "$root" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec ldd {} + 2>&- | sed -nE 's/.*(=> |\t)(\/[^ ]*) .*/\2/p' | sort -u |
    while read -r file; do [ -e "$root$file" ] || install -D "$file" "$root$file"; done
mksquashfs "$root" /home/alice/mpi.sqsh -quiet -no-progress -all-root -comp zstd -Xcompression-level 1
chown alice: /home/alice/mpi.sqsh
make_store
node_stores
# MPICH's UCX looks for the node's network device in /sys, which is the machine's here.
for node in n1 n2; do on $node mount -t sysfs sysfs /sys; done
trap 'for node in n1 n2; do on $node umount /sys; done; images_cleanup' EXIT
cd /home/alice

want='rank 0 of 4, sum 6, last 1048575, on the node 0 of 3: shared 12, read 101
rank 1 of 4, sum 6, last 1048575, on the node 1 of 3: shared 12, read 102
rank 2 of 4, sum 6, last 1048575, on the node 2 of 3: shared 12, read 100
rank 3 of 4, sum 6, last 1048575, on the node 0 of 1: shared 10, read 100'
placed='-N2 -n4 -m arbitrary -w n1,n1,n1,n2'
for who in '' --container-remap-root; do
    ends 0 as alice srun -Q $placed --mpi=pmix --container-image=./mpi.sqsh $who mpi
    equal "$(sort <<<"$out")" "$want" "srun $who"
    equal "$err" '' "srun $who"
done
ok as alice srun -Q $placed --mpi=pmi2 --container-image=/home/alice/mpi.sqsh pmi2
equal "$(sort <<<"$out")" $'0 of 4: value.1\n1 of 4: value.2\n2 of 4: value.3\n3 of 4: value.0'
# MPICH on several nodes, and on one. (More ranks on several: MPI_Finalize of MPICH 4.0.2 over UCX at times never ends, on bare nodes too.)
ok as alice srun -Q -N2 -n2 --mpi=pmi2 --container-image=/home/alice/mpi.sqsh mpich
equal "$(sort <<<"$out")" $'rank 0 of 2, sum 1, on the node with 1\nrank 1 of 2, sum 1, on the node with 1'
ok as alice srun -Q -N1 -n3 --mpi=pmi2 --container-image=/home/alice/mpi.sqsh mpich
equal "$(sort <<<"$out")" $'rank 0 of 3, sum 3, on the node with 3\nrank 1 of 3, sum 3, on the node with 3\nrank 2 of 3, sum 3, on the node with 3'
# A rank that fails takes its code, and the others, along.
ends 9 as alice srun $placed --mpi=pmix --container-image=./mpi.sqsh mpi exit
ends 7 as alice srun $placed --mpi=pmix --container-image=./mpi.sqsh mpi abort
idle
