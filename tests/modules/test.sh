# The site's modules (docs/modules.md): a fabric and an MPI that say where they are, and a program that asks the linker for them.
# takes: 15
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
fabric=/opt/fabric
modules=/etc/skiff/modules.d
cleanup() {
    rm -rf "$fabric" "$modules" /home/alice/own /home/alice/out.module /home/alice/.config/skiff
    images_cleanup
}
trap cleanup EXIT

# ---- A host with an MPI, and images with others -----------------------------------------------------------------------------
arch=$(cc -print-multiarch)
libs=/usr/lib/$arch
mkdir -p "$fabric/deep" "$modules"
printf 'const char *NAME(void) { return PLACE; }\n' >"$images_tmp/library.c"
library() { # FILE SONAME FUNCTION PLACE FLAGS...
    cc -shared -fPIC -Wl,-soname,"$2" "-DNAME=$3" "-DPLACE=\"$4\"" -o "$1" "$images_tmp/library.c" "${@:5}"
}
library "$fabric/deep/libfab.so.1" libfab.so.1 fabric 'fabric of the host'
cat >"$images_tmp/mpi.c" <<'END'
const char *fabric(void);
const char *mpi(void) { return fabric()[0] ? PLACE : ""; }
END
cc -shared -fPIC -Wl,-soname,libmpi.so.40 '-DPLACE="MPI of the host"' -o "$fabric/libmpi.so.40.30.1" "$images_tmp/mpi.c" \
    -L"$fabric/deep" -l:libfab.so.1 -Wl,-rpath,'$ORIGIN:$ORIGIN/deep'
ln -s libmpi.so.40.30.1 "$fabric/libmpi.so.40"
cat >"$images_tmp/program.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    const char *(*place)(void) = (const char *(*)(void))dlsym(library, words[2]);
    puts(place ? place() : "no such function");
    return n == 3 ? 0 : 2;
}
END
skeleton "$root"
ln -sf busybox "$root/bin/readlink"
mkdir -p "$root$libs" "$root/usr/lib64" "$root/opt/own"
for link in lib lib64; do ln -s usr/$link "$root/$link"; done
cp "$(readlink -f /lib64/ld-linux-x86-64.so.2)" "$root/usr/lib64/ld-linux-x86-64.so.2"
cp -L "/lib/$arch/libc.so.6" "$root$libs/"
cc -o "$root/bin/ask" "$images_tmp/program.c"
start_registry
make_store
node_stores
# An image with an MPI of this name and version.
image() { # NAME SONAME VERSION
    rm -f "$root"/opt/own/*
    library "$root/opt/own/$2$3" "$2" mpi 'MPI of the image'
    [ -z "$3" ] || ln -s "$2$3" "$root/opt/own/$2"
    echo /opt/own >"$root/etc/ld.so.conf"
    ldconfig -r "$root" -f /etc/ld.so.conf
    push "tools/$1:1" "$root" --config '{"Env":["PATH=/usr/bin:/bin","OPAL_PREFIX=of the image"]}'
    ok as alice skiff pull --quiet "$registry/tools/$1:1"
}
image open libmpi.so.40 .20.3
image newer libmpi.so.40 .40.0
image mpich libmpi.so.12 .1
open=$registry/tools/open:1 newer=$registry/tools/newer:1 mpich=$registry/tools/mpich:1
module() { cat >"$modules/$1.toml"; }
module openmpi <<END
description = "The host's Open MPI"
provides = "mpi"
replaces = ["$fabric/libmpi.so.40"]
END
asks() { # EXPECTED OPTIONS... -- IMAGE LIBRARY FUNCTION
    local expected=$1 options=()
    while shift && [ "$1" != -- ]; do options+=("$1"); done
    ok as alice skiff run "${options[@]}" "$2" ask "$3" "$4"
    equal "$out" "$expected" "${options[*]} $2 $3"
}

# ---- Whose MPI ----------------------------------------------------------------------------------------------------------------
asks 'MPI of the image' -- $open libmpi.so.40 mpi
asks 'MPI of the image' --mpi image -- $open libmpi.so.40 mpi
for choice in host auto; do
    asks 'MPI of the host' --mpi $choice -- $open libmpi.so.40 mpi
    # Also for who has a path of its own.
    asks 'MPI of the host' --mpi $choice --read-only -- $open /opt/own/libmpi.so.40 mpi
done
asks 'fabric of the host' --mpi host -- $open libfab.so.1 fabric
asks 'MPI of the host' --module openmpi -- $open libmpi.so.40 mpi
fails 125 as alice skiff run --mpi host $mpich ask libmpi.so.12 mpi
has "$err" 'module openmpi: libmpi.so.40: the image has libmpi.so.12'
asks 'MPI of the image' --mpi auto -- $mpich libmpi.so.12 mpi
fails 125 as alice skiff run --mpi host $newer ask libmpi.so.40 mpi
has "$err" 'libmpi.so.40.30.1: older than the image'
asks 'MPI of the image' --mpi auto -- $newer libmpi.so.40 mpi
fits as alice skiff run --dry-run --json --mpi host $open true
# How the versions must match, whoever starts it says, or the module.
image same libmpi.so.40 .30.9
same=$registry/tools/same:1
asks 'MPI of the host' --mpi host:major -- $newer libmpi.so.40 mpi
asks 'MPI of the image' --mpi auto:full -- $newer libmpi.so.40 mpi
asks 'MPI of the host' --mpi host:strict -- $same libmpi.so.40 mpi
asks 'MPI of the image' --mpi auto:strict -- $open libmpi.so.40 mpi
fails 125 as alice skiff run --mpi host:strict $open ask libmpi.so.40 mpi
has "$err" "module openmpi: $fabric/libmpi.so.40.30.1: not of the minor version of the image's /opt/own/libmpi.so.40.20.3"
fails 125 as alice skiff run --mpi host:major $mpich ask libmpi.so.12 mpi
has "$err" 'module openmpi: libmpi.so.40: the image has libmpi.so.12'
ok as alice srun -Q --container-image=10.77.0.1:5000#tools/newer:1 --container-mpi=host:major ask libmpi.so.40 mpi
equal "$out" 'MPI of the host' 'a job with an older one'
echo 'compatibility = "strict"' >>"$modules/openmpi.toml"
fails 125 as alice skiff run --mpi host $open ask libmpi.so.40 mpi
has "$err" 'not of the minor version'
fails 125 as alice skiff run --module openmpi $open ask libmpi.so.40 mpi
has "$err" 'not of the minor version'
asks 'MPI of the host' --mpi host:full -- $open libmpi.so.40 mpi
asks 'MPI of the host' --mpi host -- $same libmpi.so.40 mpi
sed -i /compatibility/d "$modules/openmpi.toml"

# ---- The ABI of MPI 5 ------------------------------------------------------------------------------------------------------------
image abi libmpi_abi.so.0 .1.0
image abi-newer libmpi_abi.so.0 .9.0
fails 125 as alice skiff run --mpi host $registry/tools/abi:1 ask libmpi_abi.so.0 mpi
has "$err" 'module openmpi: libmpi.so.40: the image has libmpi_abi.so.0'
asks 'MPI of the image' --mpi auto -- $registry/tools/abi:1 libmpi_abi.so.0 mpi
library "$fabric/libmpi_abi.so.0.2.0" libmpi_abi.so.0 mpi 'any MPI of the host'
module standard <<END
description = "The ABI of MPI 5"
provides = "mpi"
replaces = ["$fabric/libmpi_abi.so.0.2.0"]
END
asks 'any MPI of the host' --mpi host -- $registry/tools/abi:1 libmpi_abi.so.0 mpi
asks 'MPI of the host' --mpi host -- $open libmpi.so.40 mpi
# Of the reasons why none is used the one that concerns this image is told.
fails 125 as alice skiff run --mpi host $registry/tools/abi-newer:1 ask libmpi_abi.so.0 mpi
has "$err" "module standard: $fabric/libmpi_abi.so.0.2.0: older than the image's /opt/own/libmpi_abi.so.0.9.0"
asks 'MPI of the image' --mpi auto -- $registry/tools/abi-newer:1 libmpi_abi.so.0 mpi
rm "$modules/standard.toml" "$fabric/libmpi_abi.so.0.2.0"

# Over the host's root there is nothing to replace.
ok as alice skiff run --mpi host -- true
fails 125 as alice skiff run --contain --mpi host $mpich ask libmpi.so.12 mpi
has "$err" 'the image has libmpi.so.12'
# One whose files are missing is no reason to run the image's.
module openmpi <<END
description = "The host's Open MPI"
provides = "mpi"
replaces = ["$fabric/libmpi.so.40"]
mounts = ["$fabric:/opt/components"]
END
ok as alice skiff run --mpi auto $newer sh -c 'ls /opt/components 2>&1; true'
has "$out" 'No such file'
ok as alice skiff run --mpi auto $open ls /opt/components
has "$out" deep
module lost <<END
description = "An MPI that is not there"
provides = "mpi"
replaces = ["/nowhere/libmpi.so.40"]
END
mv "$modules/openmpi.toml" "$images_tmp"
fails 125 as alice skiff run --mpi host $open ask libmpi.so.40 mpi
has "$err" 'module lost: /nowhere/libmpi.so.40: No such file or directory'
mv "$images_tmp/openmpi.toml" "$modules" && rm "$modules/lost.toml"
# Variables are set where the module is used; elsewhere the image's stand.
module openmpi <<END
description = "The host's Open MPI"
provides = "mpi"
replaces = ["$fabric/libmpi.so.40"]
env = { OPAL_PREFIX = "of the host", OTHER = "of the module" }
END
prefix='echo "$OPAL_PREFIX, $OTHER"'
ok as alice skiff run --mpi auto -e OTHER=mine $open sh -c "$prefix"
equal "$out" 'of the host, mine'
ok as alice skiff run --mpi auto $newer sh -c "$prefix"
equal "$out" 'of the image, '
ok as alice skiff instance start --mpi auto $newer kept sh -c "$prefix; exec sleep 100"
ok as alice skiff exec kept sh -c "$prefix"
equal "$out" 'of the image, '
eventually 5 sh -c "setpriv --reuid alice --regid alice --init-groups env -i HOME=/home/alice PATH=/usr/bin:/bin skiff logs kept | grep -qx 'of the image, '"
ok as alice skiff stop kept
for image in open newer; do
    ok as alice srun -Q --container-image=10.77.0.1:5000#tools/$image:1 --container-mpi=auto sh -c "ask libmpi.so.40 mpi; $prefix"
    case $image in open) want=$'MPI of the host\nof the host, of the module' ;; *) want=$'MPI of the image\nof the image, ' ;; esac
    equal "$out" "$want" "a job in $image"
done
# In a job, by options of its own.
ok as alice srun -Q -N2 --container-image=10.77.0.1:5000#tools/open:1 --container-module=openmpi ask libmpi.so.40 mpi
equal "$out" $'MPI of the host\nMPI of the host'
ok as alice sbatch --parsable -W -o out.module --container-image=10.77.0.1:5000#tools/open:1 --container-mpi=host --wrap 'ask libmpi.so.40 mpi; srun ask libmpi.so.40 mpi'
equal "$(cat /home/alice/out.module)" $'MPI of the host\nMPI of the host' 'a script'
rm /home/alice/out.module
fails 125 as alice srun -Q --container-image=10.77.0.1:5000#tools/mpich:1 --container-mpi=host ask libmpi.so.12 mpi
has "$err" 'module openmpi: libmpi.so.40: the image has libmpi.so.12'
fails 125 as alice srun -Q --container-image=10.77.0.1:5000#tools/open:1 --container-module=fabrik true
has "$err" 'module fabrik: not on this host'
# By another name than its own.
module alias <<END
description = "The host's Open MPI by another name"
replaces = ["$fabric/libmpi.so.40:libmpi.so.12"]
END
asks 'MPI of the host' --module alias -- $mpich libmpi.so.12 mpi
rm "$modules/alias.toml"

# ---- Of two libraries the newer ---------------------------------------------------------------------------------------------------
# One that is needed, and one that is named; the image's are newer, by their files' names or by their symbols'.
versioned() { # FILE SONAME FUNCTION PLACE VERSION...
    local version before= map=$images_tmp/map
    : >"$map"
    for version in "${@:5}"; do echo "$version { } $before;" >>"$map"; before=$version; done
    library "${@:1:4}" -Wl,--version-script,"$map"
}
versioned "$fabric/deep/libfab.so.1" libfab.so.1 fabric 'fabric of the host' FAB_1.9
rm -rf "$root/opt/own" && mkdir "$root/opt/own"
image_with() { # NAME FILE
    rm -f "$root"/opt/own/*
    library "$root/opt/own/libmpi.so.40.20.3" libmpi.so.40 mpi 'MPI of the image'
    ln -s libmpi.so.40.20.3 "$root/opt/own/libmpi.so.40"
    cp "$2" "$root/opt/own/libfab.so.1"
    ldconfig -r "$root" -f /etc/ld.so.conf
    push "tools/$1:1" "$root" --config '{"Env":["PATH=/usr/bin:/bin"]}'
    ok as alice skiff pull --quiet "$registry/tools/$1:1"
}
versioned "$images_tmp/newer" libfab.so.1 fabric 'fabric of the image' FAB_1.9 FAB_1.10
versioned "$images_tmp/older" libfab.so.1 fabric 'fabric of the image' FAB_1.8
image_with newer-fabric "$images_tmp/newer"
image_with older-fabric "$images_tmp/older"
asks 'fabric of the image' --mpi host -- $registry/tools/newer-fabric:1 libfab.so.1 fabric
asks 'MPI of the host' --mpi host -- $registry/tools/newer-fabric:1 libmpi.so.40 mpi
# Also where the host's MPI looks beside itself first.
asks 'fabric of the image' --mpi host -- $registry/tools/newer-fabric:1 libmpi.so.40 fabric
asks 'fabric of the host' --mpi host -- $registry/tools/older-fabric:1 libfab.so.1 fabric
module named <<END
description = "A fabric that must be the host's"
libraries = ["$fabric/deep/libfab.so.1"]
END
asks 'fabric of the host' --module named -- $registry/tools/older-fabric:1 libfab.so.1 fabric
fails 125 as alice skiff run --module named $registry/tools/newer-fabric:1 true
has "$err" 'libfab.so.1: older than the image'
has "$err" 'with FAB_1.10'
rm "$modules/named.toml"
# What a module's libraries load when they run: the directory, and what its files need.
mkdir -p "$fabric/plugins" "$fabric/far"
library "$fabric/far/libfar.so.1" libfar.so.1 far 'far away'
printf 'const char *far(void);\nconst char *near(void) { return far(); }\n' >"$images_tmp/plugin.c"
cc -shared -fPIC -o "$fabric/plugins/near.so" "$images_tmp/plugin.c" -L"$fabric/far" -l:libfar.so.1 -Wl,-rpath,"$fabric/far"
module plugged <<END
description = "With a plug-in"
plugins = ["$fabric/plugins"]
END
asks 'far away' --module plugged -- $open "$fabric/plugins/near.so" near
rm -r "$modules/plugged.toml" "$fabric/plugins" "$fabric/far"
# Without the helper as with it.
ok as alice env SKIFF_HELPER=none skiff run --mpi host $open ask libmpi.so.40 mpi
equal "$out" 'MPI of the host' 'without the helper'

# ---- A root whose glibc is too old -------------------------------------------------------------------------------------------
mkdir "$fabric/modern"
cat >"$images_tmp/modern.c" <<'END'
#include <pthread.h>
static void *nothing(void *x) { return x; }
int mpi(void) { pthread_t t; return pthread_create(&t, 0, nothing, 0); }
END
cc -shared -fPIC -Wl,-soname,libmpi.so.40 -o "$fabric/modern/libmpi.so.40.30.1" "$images_tmp/modern.c"
old=$images_tmp/old
skeleton "$old"
mkdir -p "$old$libs" "$old/opt/own"
library "$old/opt/own/libmpi.so.40.20.3" libmpi.so.40 mpi 'MPI of the image'
printf 'GLIBC_2.2.5 { };\nGLIBC_2.17 { global: old; };\n' >"$images_tmp/versions"
echo 'int old;' >"$images_tmp/old.c"
cc -shared -fPIC -nostdlib -Wl,-soname,libc.so.6 -Wl,--version-script="$images_tmp/versions" -o "$old$libs/libc.so.6" "$images_tmp/old.c"
printf '/opt/own\n%s\n' "$libs" >"$old/etc/ld.so.conf"
ldconfig -r "$old" -f /etc/ld.so.conf
push tools/old:1 "$old" --config '{"Env":["PATH=/bin"]}'
mv "$modules/openmpi.toml" "$images_tmp"
module modern <<END
description = "An MPI that was made on a newer system"
provides = "mpi"
replaces = ["$fabric/modern/libmpi.so.40.30.1"]
mounts = ["$fabric:/opt/components"]
END
for rule in host host:major; do
    fails 125 as alice skiff run --mpi $rule $registry/tools/old:1 ls /opt
    has "$err" "module modern: $fabric/modern/libmpi.so.40.30.1: needs glibc 2.34, and this root has glibc 2.17"
    has "$err" 'hint: '
    equal "$out" '' 'nothing is started'
done
ok as alice skiff run --mpi auto $registry/tools/old:1 ls /opt
equal "$out" own 'nothing of the module'
fails 125 as alice srun -Q --container-image=10.77.0.1:5000#tools/old:1 --container-mpi=host ls /opt
has "$err" 'needs glibc 2.34, and this root has glibc 2.17'
rm -r "$modules/modern.toml" "$fabric/modern"
mv "$images_tmp/openmpi.toml" "$modules"

# ---- What every container gets -----------------------------------------------------------------------------------------------
module fabric <<END
description = "The network"
when = "always"
requires = ["$fabric"]
libraries = ["$fabric/deep/libfab.so.1"]
mounts = ["$fabric:/opt/of-host:ro"]
devices = ["/dev/zer*"]
env = { FABRIC = "fast", OTHER = "of the module" }
END
module elsewhere <<'END'
description = "A network of other hosts"
when = "always"
requires = ["/dev/nothing0"]
libraries = ["/nowhere/libnothing.so"]
END
module broken <<<'libs = 1'
module half <<'END'
description = "A network of which a part is missing"
when = "always"
mounts = ["/opt/missing"]
env = { HALF = "there" }
END
ok as alice skiff run $mpich sh -c 'echo [$HALF]'
equal "$out" '[]'
left_out='module half: /opt/missing: No such file or directory (os error 2); containers go without this module'
equal "$(grep -c "$left_out" <<<"$err")" 1 "$err"
ok as alice skiff run --contain $mpich sh -c exit
lacks "$err" 'module half' 'contained'
ok as alice srun -Q -n2 -w n1 --container-image=10.77.0.1:5000#tools/mpich:1 sh -c exit
equal "$(grep -c "node n1: $left_out" <<<"$err")" 1 "$err"
rm "$modules/half.toml"
ok as alice skiff run $mpich ask libfab.so.1 fabric
equal "$out" 'fabric of the host'
has "$err" 'broken.toml: line 1: unknown field `libs`, expected'
equal "$(grep -c broken.toml <<<"$err")" 1 'a broken file is told once'
ok as alice skiff run -e OTHER=mine $mpich sh -c 'echo $FABRIC $OTHER; ls /opt/of-host'
equal "$out" $'fast mine\ndeep\nlibmpi.so.40\nlibmpi.so.40.30.1'
ok as alice skiff run --contain $mpich sh -c 'echo $FABRIC; ls -d /opt/of-host || true'
equal "$out" '' 'contained'
ok as alice srun -N2 -Q --container-image=10.77.0.1:5000#tools/mpich:1 sh -c 'ask libfab.so.1 fabric; echo $FABRIC'
equal "$(sort <<<"$out" | uniq -c | xargs)" '2 fabric of the host 2 fast' 'in a job'
ok as alice skiff env create of-image --base image:$open --module openmpi
ok as alice skiff env exec of-image -- sh -c 'ask libmpi.so.40 mpi; echo $FABRIC'
equal "$out" $'MPI of the host\nfast' 'an environment over an image'
ok as alice srun -N1 --environment=of-image sh -c 'ask libmpi.so.40 mpi; echo $FABRIC'
equal "$out" $'MPI of the host\nfast' 'a job in it'
ok as alice skiff env rm -f of-image

# ---- Asked for by name ---------------------------------------------------------------------------------------------------------
fails 125 as alice skiff run --module fabrik $mpich true
has "$err" 'module fabrik: not on this host'
has "$err" 'there are: broken, elsewhere, fabric, openmpi'
fails 125 as alice skiff run --module elsewhere $mpich true
has "$err" 'module elsewhere: this host has no /dev/nothing0'
fails 125 as alice skiff run --module broken $mpich true
has "$err" 'broken.toml: line 1: unknown field `libs`'
fails 125 as alice skiff run --module openmpi $mpich true
has "$err" 'module openmpi: libmpi.so.40: the image has libmpi.so.12'
module rival <<'END'
description = "Another network"
conflicts = ["fabric"]
END
fails 125 as alice skiff run --module rival $mpich true
has "$err" 'module fabric: cannot be used with module rival'
ok as alice skiff run --contain --module rival $mpich sh -c exit
ok as alice skiff run --module rival -- true
echo 'librarys = []' >"$modules/rival.toml"
fails 125 as alice skiff run --module rival $mpich true
has "$err" 'rival.toml: line 1: unknown field `librarys`: "libraries" may be meant'
rm "$modules/rival.toml"
ok as alice skiff module list
has "$out" 'every container'
has "$out" 'not this host'
has "$err" '1 file is not used'
fits as alice skiff module list --json
fails 1 as alice skiff module check --json
described as alice skiff module check --json
has "$out" libfab.so.1
ok as alice skiff module check "$modules/fabric.toml"
has "$out" "brings $fabric/deep/libfab.so.1"
# Of one's own, it gives what -v would.
as alice mkdir -p own .config/skiff
as alice tee own/secret.toml >/dev/null <<<$'description = "x"\nmounts = ["/etc/shadow:/opt/shadow"]'
as alice tee .config/skiff/config.toml >/dev/null <<<'module_dirs = ["/home/alice/own"]'
ok as alice skiff run --module secret $mpich sh -c 'cat /opt/shadow 2>&1; true'
has "$out" 'Permission denied'
