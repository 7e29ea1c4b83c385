# The samples of modules (packaging/modules): each with the files and device nodes that it names, made here, is used, and without them left out.
# What a program loads, and from where, it says itself.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
samples=/usr/share/doc/skiff/modules
modules=/etc/skiff/modules.d
arch=$(cc -print-multiarch)
libs=/usr/lib/$arch
made=(/usr/lib64/libcxi.so.1 /opt/cray /opt/aws-ofi-nccl /opt/mpich /dev/cxi0 /dev/cxi1 /dev/infiniband /etc/nccl.conf)
trap 'rm -rf "${made[@]}" "$modules"; images_cleanup' EXIT
for path in "${made[@]}"; do [ ! -e "$path" ] || fail "there is a $path"; done

# ---- An image with the MPIs that programs ask for, and a program that loads libraries -------------------------------------------------
echo 'const char *whose(void) { return WHOSE; }' >"$images_tmp/library.c"
library() { # FILE SONAME [FLAGS...]
    mkdir -p "${1%/*}"
    cc -shared -fPIC -Wl,-soname,"$2" -DWHOSE='"x"' -o "$1" "$images_tmp/library.c" "${@:3}"
}
cat >"$images_tmp/load.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int n, char **words) {
    for (int i = 1; i < n; i++) {
        struct link_map *map;
        void *library = dlopen(words[i], RTLD_NOW);
        if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) puts(dlerror());
        else puts(map->l_name);
    }
    return 0;
}
END
skeleton "$root"
mkdir -p "$root$libs" "$root/usr/lib64" "$root/opt/own"
for link in lib lib64; do ln -s usr/$link "$root/$link"; done
cp "$(readlink -f /lib64/ld-linux-x86-64.so.2)" "$root/usr/lib64/ld-linux-x86-64.so.2"
for part in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2; do cp -L "/lib/$arch/$part" "$root$libs/"; done
cc -o "$root/bin/load" "$images_tmp/load.c"
for name in libmpi.so.12 libmpich.so.12 libmpi_abi.so.0; do library "$root/opt/own/$name" $name; done
echo /opt/own >"$root/etc/ld.so.conf"
ldconfig -r "$root" -f /etc/ld.so.conf
tar -cf "$images_tmp/root.tar" -C "$root" .
chmod 644 "$images_tmp/root.tar"
make_store
ok as alice skiff import "$images_tmp/root.tar" site
loads() { # OPTIONS... -- LIBRARY... PATHS, a line each
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    ok as alice skiff run "${options[@]}" site load "${@:2:$#-2}"
    equal "$out" "${!#}" "${options[*]} ${*:2:$#-2}"
}

# ---- On a host that has nothing of it all --------------------------------------------------------------------------------------------
install -D -m 644 -t $modules $samples/*.toml
ok as alice skiff module check
checked=$out
for sample in aws_ofi_nccl cxi mpi-abi mpich mpich-debian nccl rdma; do
    has "$checked" "$modules/$sample.toml"
    fails 125 as alice skiff run --module $sample site true
    has "$err" "module $sample: this host has no /"
done
loads --mpi auto -- libmpi.so.12 libmpich.so.12 libmpi_abi.so.0 $'/opt/own/libmpi.so.12\n/opt/own/libmpich.so.12\n/opt/own/libmpi_abi.so.0'
equal "$err" '' 'what is left out is not told'

# ---- With the files that the samples name ----------------------------------------------------------------------------------------------
inside=/run/skiff/modules
library /usr/lib64/libcxi.so.1.5.0 libcxi.so.1 && made+=(/usr/lib64/libcxi.so.1.5.0)
ln -s libcxi.so.1.5.0 /usr/lib64/libcxi.so.1
library /opt/cray/libfabric/lib64/libfabric.so.1 libfabric.so.1 -L/usr/lib64 -Wl,--no-as-needed -l:libcxi.so.1
# With the module's other part missing it is left out.
loads -- libcxi.so.1 'libcxi.so.1: cannot open shared object file: No such file or directory'
for node in cxi0 cxi1; do mknod -m 666 /dev/$node c 1 3; done
loads -- libcxi.so.1 libfabric.so.1 "$inside/cxi/libcxi.so.1"$'\n'"$inside/cxi/libfabric.so.1"
ok as alice skiff run site sh -c 'ls /dev/cxi*; echo $FI_PROVIDER $FI_CXI_DEFAULT_CQ_SIZE; echo x >/dev/cxi1'
equal "$out" $'/dev/cxi0\n/dev/cxi1\ncxi 131072'
ok as alice skiff run --contain site sh -c 'ls /dev/cxi* 2>&1; echo [$FI_PROVIDER]'
has "$out" '[]' 'contained'

library /opt/aws-ofi-nccl/lib/libnccl-net.so libnccl-net.so
loads -- libnccl-net.so 'libnccl-net.so: cannot open shared object file: No such file or directory'
loads --module aws_ofi_nccl -- libnccl-net.so $inside/aws_ofi_nccl/libnccl-net.so
ok as alice skiff run --module aws_ofi_nccl site sh -c 'echo $NCCL_NET, $NCCL_CROSS_NIC $FI_CXI_DISABLE_HOST_REGISTER'
equal "$out" 'AWS Libfabric, 1 1'

echo NCCL_SOCKET_IFNAME=hsn0 >/etc/nccl.conf
ok as alice skiff run site cat /etc/nccl.conf
equal "$out" NCCL_SOCKET_IFNAME=hsn0

# Debian's own libraries and drivers, with a node that is none.
mkdir /dev/infiniband && mknod -m 666 /dev/infiniband/uverbs0 c 1 3
driver=$(cd $libs/libibverbs && ls | head -1)
loads -- libibverbs.so.1 librdmacm.so.1 "$libs/libibverbs/$driver" "$inside/rdma/libibverbs.so.1
$inside/rdma/librdmacm.so.1
$libs/libibverbs/$driver"
ok as alice skiff run site sh -c 'ls /dev/infiniband /etc/libibverbs.d; echo x >/dev/infiniband/uverbs0'
has "$out" uverbs0
has "$out" .driver

loads --module ucx -- libucp.so.0 libuct.so.0 "$inside/ucx/libucp.so.0"$'\n'"$inside/ucx/libuct.so.0"
ok as alice skiff run --module ucx site ls $libs/ucx
has "$out" libuct_

# ---- The host's MPICH, under each of its names, and for the ABI of MPI 5 ----------------------------------------------------------------
library /opt/mpich/lib/libmpi.so.12.4.1 libmpi.so.12
ln -s libmpi.so.12.4.1 /opt/mpich/lib/libmpi.so.12
loads --module mpich -- libmpi.so.12 libmpich.so.12 "$inside/mpich/libmpi.so.12"$'\n/opt/own/libmpich.so.12'
loads --module mpich-debian -- libmpi.so.12 libmpich.so.12 $'/opt/own/libmpi.so.12\n'"$inside/mpich-debian/libmpich.so.12"
library /opt/mpich/lib/libmpi_abi.so.0 libmpi_abi.so.0
loads --mpi host -- libmpi.so.12 libmpi_abi.so.0 "$inside/mpich/libmpi.so.12"$'\n'"$inside/mpi-abi/libmpi_abi.so.0"
loads --mpi host -- libmpich.so.12 "$inside/mpich-debian/libmpich.so.12"
# Also by a path of the image's own.
ok as alice skiff run --mpi host site sh -c 'cmp /opt/own/libmpi.so.12 /run/skiff/modules/mpich/libmpi.so.12'
fits as alice skiff module list --json
fits as alice skiff module check --json
