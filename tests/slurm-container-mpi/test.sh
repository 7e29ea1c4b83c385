# takes: 30
# MPI programs of an image, started by srun: Open MPI over PMIx, MPICH over PMI2; ranks of a node share memory. The host's own MPI
# libraries are in the image, and not on the nodes' PATH to it: it is a squashfs file on a shared file system, as users of Pyxis have them.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
. "$(dirname "$0")/../slurm-mpi/lib.sh"
root=$images_tmp/root
skeleton "$root"
lib=/usr/lib/x86_64-linux-gnu
# Which Open MPI it is, the name of its directory tells.
for dir in $(cd $lib && echo openmpi/lib/openmpi[0-9]*) pmix2/lib ucx; do mkdir -p "$root$lib/$dir"; cp -aT $lib/$dir "$root$lib/$dir"; done
for dir in /usr/share/openmpi /usr/share/pmix2 /usr/share/pmix /etc/openmpi /etc/pmix-mca; do [ ! -d $dir ] || { mkdir -p "$root$dir"; cp -aT $dir "$root$dir"; }; done
mpicc -o "$root/bin/mpi" "$here/../slurm-mpi/mpi.c"
cp -L "$(command -v mpirun.openmpi || command -v mpirun)" "$root/bin/mpirun"
# Of Open MPI 5 this only starts PRRTE's program, whose path is built in. Without ssh, both start ranks here alone: the older one has to be told.
isolated='--mca plm isolated'
if prterun=$(command -v prterun); then install -D "$prterun" "$root/usr/bin/prterun"; isolated=; fi
gcc -I"$here/../slurm-mpi/mpich" -o "$root/bin/mpich" "$here/mpich.c" -l:libmpich.so.12
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
trap 'for node in n1 n2; do on $node umount /sys; done; images_cleanup; rm -rf /etc/skiff/modules.d' EXIT
cd /home/alice

want='rank 0 of 4, sum 6, last 1048575, on the node 0 of 3: shared 12, read 101
rank 1 of 4, sum 6, last 1048575, on the node 1 of 3: shared 12, read 102
rank 2 of 4, sum 6, last 1048575, on the node 2 of 3: shared 12, read 100
rank 3 of 4, sum 6, last 1048575, on the node 0 of 1: shared 10, read 100'
placed='-n4 -m arbitrary -w n1,n1,n1,n2'
# Making the image tells how far it is where it takes long.
ok as alice srun -Q -N2 --container-image=./mpi.sqsh sh -c exit
for who in '' --container-remap-root; do
    ends 0 as alice srun -Q $placed --mpi=pmix --container-image=./mpi.sqsh $who mpi
    equal "$(sort <<<"$out")" "$want" "srun $who"
    equal "$err" '' "srun $who"
done
ok as alice srun -Q $placed --mpi=pmi2 --container-image=/home/alice/mpi.sqsh pmi2
equal "$(sort <<<"$out")" $'0 of 4: value.1\n1 of 4: value.2\n2 of 4: value.3\n3 of 4: value.0'
# MPICH on several nodes, and on one. On several without MPI_Finalize, which with MPICH 4.0.2 over UCX at times never ends, on bare nodes too.
ok as alice srun -Q -N2 -n2 --mpi=pmi2 --container-image=/home/alice/mpi.sqsh mpich leave
equal "$(sort <<<"$out")" $'rank 0 of 2, sum 1, on the node with 1\nrank 1 of 2, sum 1, on the node with 1'
ok as alice srun -Q -N1 -n3 --mpi=pmi2 --container-image=/home/alice/mpi.sqsh mpich
equal "$(sort <<<"$out")" $'rank 0 of 3, sum 3, on the node with 3\nrank 1 of 3, sum 3, on the node with 3\nrank 2 of 3, sum 3, on the node with 3'
# All ranks of a host in one container of `skiff run`. In one each they share no memory, which the first one says.
ok as alice skiff run ./mpi.sqsh mpirun $isolated -n 2 --oversubscribe mpi
equal "$(grep -c 'of 2, sum 1' <<<"$out")" 2 "$out"
ok as alice srun -Q -N1 -n2 --mpi=pmix skiff run ./mpi.sqsh sh -c exit
equal "$(grep -c "this node's 2 ranks run in a container each" <<<"$err")" 1 "$err"
has "$err" 'hint: `srun --container-image=./mpi.sqsh ...` has all ranks of a node in one container'
# A network of one's own keeps PMIx out, which the first rank says.
ok as alice srun -Q -N1 -n2 --mpi=pmix --container-unshare=net --container-image=./mpi.sqsh sh -c exit
equal "$err" $'skiff: image /home/alice/mpi.sqsh: it has a network of its own, from which MPI does not reach PMIx, which is on the host\'s\nhint: srun without --container-unshare=net: MPI needs the host\'s network'
ok as alice srun -Q -N2 --mpi=pmi2 --container-unshare=net --container-image=./mpi.sqsh sh -c exit
equal "$(grep -c 'from which MPI does not reach the ranks of other nodes' <<<"$err")" 1 "$err"
ok as alice srun -Q -N1 -n1 --mpi=pmix skiff run --net none ./mpi.sqsh sh -c exit
has "$err" 'hint: --net host: MPI needs'
# A rank that fails takes its code, and the others, along.
ends 9 as alice srun $placed --mpi=pmix --container-image=./mpi.sqsh mpi exit
ends 7 as alice srun $placed --mpi=pmix --container-image=./mpi.sqsh mpi abort

# ---- The host's MPI in an image that has another (docs/modules.md) ------------------------------------------------------------------
# What the image has can exchange nothing: all that comes right is the host's doing. Its programs ask for libmpi.so.40, and for libmpi.so.12 as those
# of MPICH do elsewhere than on Debian.
bare=$images_tmp/bare
skeleton "$bare"
mkdir -p "$bare$lib" "$bare/usr/lib64" "$bare/opt/mpi"
ln -s usr/lib "$bare/lib" && ln -s usr/lib64 "$bare/lib64"
cp "$(readlink -f /lib64/ld-linux-x86-64.so.2)" "$bare/usr/lib64/ld-linux-x86-64.so.2"
# All of glibc, as systems have it.
for part in libc.so.6 libm.so.6 libmvec.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1 libresolv.so.2; do cp -L "$lib/$part" "$bare$lib/"; done
stub() { # OBJECT SONAME FILE: a library with what the program wants
    nm -u "$1" | awk '$2 ~ /^ompi_/ { print "char " $2 "[1024];" }
        $2 ~ /^MPI_/ { print "void " $2 "(void) { static const char text[] = \"MPI of the image\\n\"; write(1, text, sizeof text - 1); _exit(4); }" }' |
        cat <(echo '#include <unistd.h>') - | gcc -w -shared -fPIC -x c - -Wl,-soname,"$2" -o "$3"
}
mpicc -c -o "$images_tmp/open.o" "$here/../slurm-mpi/exchange.c"
mpicc -o "$bare/bin/open" "$images_tmp/open.o"
gcc -I"$here/../slurm-mpi/mpich" -c -o "$images_tmp/mpich.o" "$here/../slurm-mpi/exchange.c"
stub "$images_tmp/mpich.o" libmpi.so.12 "$bare/opt/mpi/libmpi.so.12.1.10"
gcc -o "$bare/bin/mpich" "$images_tmp/mpich.o" "$bare/opt/mpi/libmpi.so.12.1.10"
echo /opt/mpi >"$bare/etc/ld.so.conf"
image() { # NAME VERSION-OF-OPEN-MPI
    rm -f "$bare"/opt/mpi/libmpi.so.40*
    stub "$images_tmp/open.o" libmpi.so.40 "$bare/opt/mpi/libmpi.so.40.$2"
    /sbin/ldconfig -r "$bare" -f /etc/ld.so.conf
    mksquashfs "$bare" "/home/alice/$1.sqsh" -quiet -no-progress -all-root -noappend
    chown alice: "/home/alice/$1.sqsh"
}
image older 20.3
image newer 99.0
install -D -m 644 -t /etc/skiff/modules.d /usr/share/doc/skiff/modules/openmpi*.toml
cat >/etc/skiff/modules.d/mpich.toml <<'E'
description = "The host's MPICH"
provides = "mpi"
replaces = ["libmpich.so.12:libmpi.so.12"]
plugins = ["/usr/lib/x86_64-linux-gnu/ucx"]
E
right() { # IMAGE SHAPE PROGRAM LIBRARY [WORD]
    local pmi=pmix ranks=${2##*-n}
    case $3 in mpich) pmi=pmi2 ;; esac
    ends 0 as alice srun -Q $2 --mpi=$pmi --container-image="./$1.sqsh" --container-mpi=host "$3" ${5:-}
    equal "$(grep -c ": all came right by $4" <<<"$out")" "$ranks" "$3 $2: $out"
    # Its plug-ins load, and it has nothing to say.
    equal "$err" '' "$3 $2"
}
ends 4 as alice srun -Q -N1 -n1 --mpi=pmix --container-image=./older.sqsh open
has "$out" 'MPI of the image'
open_mpi="Open MPI v$(mpicc --showme:version | sed -nE 's/.*Open MPI ([0-9]+\.[0-9]+).*/\1/p')"
right older '-N1 -n2' open "$open_mpi"
right older '-N2 -n4' open "$open_mpi"
right older '-N1 -n2' mpich 'MPICH Version'
# Without MPI_Finalize, which at times never ends, as above.
right older '-N2 -n2' mpich 'MPICH Version' leave
# Both versions are named where it does not fit.
module=openmpi
[ -e $lib/openmpi/lib/openmpi3 ] || module=openmpi5
fails 125 as alice srun -Q -N1 -n1 --mpi=pmix --container-image=./newer.sqsh --container-module=$module open
has "$err" "$(basename "$(readlink -f $lib/libmpi.so.40)"): older than the image's /opt/mpi/libmpi.so.40.99.0"
ends 4 as alice srun -Q -N1 -n1 --mpi=pmix --container-image=./newer.sqsh --container-mpi=auto open
has "$out" 'MPI of the image'
idle
