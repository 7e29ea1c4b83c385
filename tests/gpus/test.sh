# takes: 20
# bed: --nodes 2 --slurm-conf GresTypes=gpu --node-conf Gres=gpu:2 --gres-conf 'Name=gpu File=/dev/tty[0-1]'
# GPUs and other devices as vendors describe them (docs/gpus.md): device nodes that are none, a driver that says where it is, and a program that
# asks the linker for it, as everybody's do.
. "$(dirname "$0")/../lib.sh"
# Where the nodes reach it too.
registry=10.77.0.1:5000
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
driver=/opt/driver
made=()
cleanup() {
    [ ${#made[@]} = 0 ] || rm -f "${made[@]}"
    rm -rf "$driver" /etc/cdi /run/cdi /etc/skiff/conf.d/cdi.toml
    images_cleanup
}
trap cleanup EXIT
for node in nvidia0 nvidia1 nvidiactl; do
    [ -e /dev/$node ] || { mknod -m 666 /dev/$node c 1 3 && made+=(/dev/$node); }
done

# ---- A driver, and an image of a system like Debian -------------------------------------------------------------------------
arch=$(cc -print-multiarch)
libs=/usr/lib/$arch
mkdir -p "$driver"
cat >"$images_tmp/driver.c" <<'END'
#include <pthread.h>
const char *where(void) { return PLACE; }
static void *nothing(void *x) { return x; }
int uses(void) { pthread_t t; return pthread_create(&t, 0, nothing, 0); }
END
cat >"$images_tmp/cuda.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **words) {
    void *library = dlopen(n > 1 ? words[1] : "libcuda.so.1", RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    const char *(*where)(void) = (const char *(*)(void))dlsym(library, "where");
    puts(where ? where() : "no driver");
    return 0;
}
END
library() { # FILE SONAME PLACE
    cc -shared -fPIC -Wl,-soname,"$2" "-DPLACE=\"$3\"" -o "$1" "$images_tmp/driver.c"
}
library "$driver/libcuda.so.550.1" libcuda.so.1 "driver of the host"
library "$driver/libnvidia-ml.so.550.1" libnvidia-ml.so.1 "management of the host"
skeleton "$root"
for command in readlink echo; do ln -sf busybox "$root/bin/$command"; done
mkdir -p "$root$libs" "$root/usr/lib64" "$root/opt/own"
for link in lib lib64; do ln -s usr/$link "$root/$link"; done
loader=$(readlink -f /lib64/ld-linux-x86-64.so.2)
cp "$loader" "$root/usr/lib64/ld-linux-x86-64.so.2"
cp -L "/lib/$arch/libc.so.6" "$root$libs/"
cc -o "$root/bin/cuda" "$images_tmp/cuda.c"
library "$root/opt/own/libown.so.1" libown.so.1 "library of the image"
# What NVIDIA's images bring for older drivers, and must not win.
mkdir -p "$root/opt/compat"
library "$root/opt/compat/libcuda.so.1" libcuda.so.1 "stub of the image"
printf '/opt/own\n/opt/compat\n' >"$root/etc/ld.so.conf"
ldconfig -r "$root" -f /etc/ld.so.conf
start_registry
make_store
node_stores
cuda=$registry/tools/cuda:1
push tools/cuda:1 "$root" --config '{"Env":["PATH=/usr/bin:/bin","NVIDIA_VISIBLE_DEVICES=all"]}'

describe() { # EDITS...: lines of the edits of all devices, behind those of everybody's files
    cat <<END
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
    - name: "1"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia1
    - name: all
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
            - path: /dev/nvidia1
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
        - DRIVER=550.1
    deviceNodes:
        - path: /dev/nvidiactl
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, create-symlinks, --link, "libcuda.so.1::$libs/libcuda.so", --link, "../..$libs/libcuda.so.1::/opt/links/libcuda.so"]
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, enable-cuda-compat, --host-driver-version=550.1]
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, update-ldcache, --folder, $libs]
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, disable-device-node-modification]
${1:-}
    mounts:
        - hostPath: $driver/libcuda.so.550.1
          containerPath: $libs/libcuda.so.550.1
          options: [ro, nosuid, nodev, rbind, rprivate]
        - hostPath: $driver/libnvidia-ml.so.550.1
          containerPath: $libs/libnvidia-ml.so.550.1
          options: [ro, nosuid, nodev, rbind, rprivate]
${2:-}
END
}
mkdir -p /etc/cdi
describe >/etc/cdi/nvidia.yaml

# ---- What there is ----------------------------------------------------------------------------------------------------------
ok as alice skiff cdi list
has "$out" 'nvidia.com/gpu=0'
has "$out" '/etc/cdi/nvidia.yaml'
fits as alice skiff cdi list --json
equal "$(json "$out" "[(one['name'], one['nodes']) for one in d if one['name'].endswith('=1')]")" "[('nvidia.com/gpu=1', ['/dev/nvidia1'])]"
ok as alice skiff cdi check
has "$out" 'pass  /etc/cdi/nvidia.yaml'
has "$out" 'note: /etc/cdi/nvidia.yaml: hook enable-cuda-compat is left out'
fits as alice skiff cdi check --json

# Prints which nodes of GPUs can be opened, as drivers open them.
usable='for node in nvidia0 nvidia1 nvidiactl; do if (: <>/dev/$node) 2>/dev/null; then echo $node; fi; done'

# ---- The driver is found, by rootless and helper, whatever the image and its root ------------------------------------------
own_helper=${SKIFF_HELPER:-}
for route in helper rootless; do
    SKIFF_HELPER=$own_helper
    [ $route = helper ] || SKIFF_HELPER=none
    fails 1 as alice skiff run -v "$driver:/nothing" --entrypoint= $cuda cuda libnvidia-ml.so.1
    has "$out" 'cannot open shared object' "$route: without a GPU there is no driver"
    for words in '--gpus all' --nv '--device nvidia.com/gpu=all' '--gpus 1' '--gpus device=1' '--gpus all --contain' '--gpus all -C' \
        '--gpus all --root' '--gpus all --writable --root' '--gpus all --untrusted' '--gpus 0,1'; do
        ok as alice skiff run $words $cuda cuda
        equal "$out" 'driver of the host' "$route $words"
    done
    ok as alice skiff run --gpus all $cuda sh -c 'cuda libnvidia-ml.so.1; cuda libown.so.1; cuda /opt/links/libcuda.so; cuda libcuda.so
        readlink '"$libs"'/libcuda.so.1; echo $DRIVER $NVIDIA_VISIBLE_DEVICES; touch '"$libs"'/libcuda.so.550.1 2>/dev/null || echo read-only'
    equal "$out" $'management of the host\nlibrary of the image\ndriver of the host\ndriver of the host\nlibcuda.so.550.1\n550.1 void\nread-only' "$route"
    ok as alice skiff run --gpus all -e DRIVER=mine $cuda sh -c 'echo $DRIVER'
    equal "$out" mine "$route: what the user sets is stronger"
    # Contained, there are the nodes that were asked for, and no others.
    ok as alice skiff run --contain --gpus device=1 $cuda sh -c 'ls /dev | grep nvidia; : >/dev/nvidia1'
    equal "$out" $'nvidia1\nnvidiactl' "$route"
    ok as alice skiff run --contain --gpus 1,capabilities=utility $cuda sh -c 'ls /dev | grep nvidia'
    equal "$out" $'nvidia0\nnvidiactl' "$route: a number is a count"
    ok as alice skiff run --contain --gpus 1 -- sh -c 'ls /dev | grep nvidia'
    equal "$out" $'nvidia0\nnvidiactl' "$route: over the host's root"
    # As NVIDIA's tools have it.
    ok as alice skiff run --contain --nv -e NVIDIA_VISIBLE_DEVICES=1 $cuda sh -c 'ls /dev | grep nvidia; echo $NVIDIA_VISIBLE_DEVICES'
    equal "$out" $'nvidia1\nnvidiactl\n1' "$route: picked by a variable"
    # Of some that were picked the others cannot be opened where /dev is the host's.
    for words in '--gpus device=1' '--device nvidia.com/gpu=1' '--gpus all -e NVIDIA_VISIBLE_DEVICES=1'; do
        for root in "$cuda" --; do
            ok as alice skiff run $words $root sh -c "$usable"
            equal "$out" $'nvidia1\nnvidiactl' "$route $words $root"
        done
    done
    ok as alice skiff run --root --writable --gpus device=1 $cuda sh -c "$usable"
    equal "$out" $'nvidia1\nnvidiactl' "$route: nor by root inside"
    ok as alice skiff run --gpus all $cuda sh -c "$usable"
    equal "$out" $'nvidia0\nnvidia1\nnvidiactl' "$route"
done
SKIFF_HELPER=$own_helper
ok as alice skiff instance start --gpus all --entrypoint= $cuda web sleep 600
ok as alice skiff exec web sh -c 'cuda; echo $DRIVER'
equal "$out" $'driver of the host\n550.1'
ok as alice skiff stop web
ok as alice skiff env create --base image:$cuda --gpus all dev
ok as alice skiff env exec dev -- sh -c 'cuda; echo $DRIVER'
equal "$out" $'driver of the host\n550.1'
# What it was started with is its own: a file that breaks later keeps nobody out.
mv /etc/cdi/nvidia.yaml /etc/cdi/nvidia.kept && echo 'kind: 1' >/etc/cdi/nvidia.yaml
ok as alice skiff env exec dev -- sh -c 'cuda; echo $DRIVER'
equal "$out" $'driver of the host\n550.1' 'while the file is broken'
ok as alice skiff env exec -e DRIVER=mine dev -- sh -c 'echo $DRIVER'
equal "$out" mine
mv /etc/cdi/nvidia.kept /etc/cdi/nvidia.yaml
ok as alice skiff env stop dev
ok as alice skiff env rm -f dev
# A plan that was printed is carried out as it is, and no other.
ok as alice sh -c "skiff run --dry-run --json --contain --gpus 1 $cuda cuda >plan"
fits as alice skiff run --dry-run --json --contain --gpus 1 $cuda cuda
ok as alice skiff run --plan plan
equal "$out" 'driver of the host'
sed -i 's/nvidia0/nvidia1/g' /home/alice/plan
fails 125 as alice skiff run --plan plan

# ---- What cannot be is said before anything starts --------------------------------------------------------------------------
refused() { # WHY WORDS...
    fails 125 as alice skiff run "${@:2}" $cuda echo started
    has "$err" "$1" "${*:2}"
    has "$err" 'hint: ' "${*:2}"
    lacks "$out" started
}
refused 'this host has 2' --gpus 3
refused 'GPU 7 of nvidia.com/gpu: not described; there are 0, 1, all' --gpus device=7
refused 'not one of nvidia.com/gpu' --device nvidia.com/gpu=7
refused 'no file describes amd.com/gpu, only nvidia.com/gpu' --device amd.com/gpu=0
refused 'no file describes a GPU (amd.com/gpu)' --rocm
has "$err" "hint: this host's GPUs are nvidia.com/gpu: skiff cdi list"
refused '--gpus x/y' --gpus x/y
refused "the device's name is empty" --device nvidia.com/gpu=
broken() { # WHY: what is refused with the file as it is now, and found by the check
    refused "$1" --gpus all
    fails 1 as alice skiff cdi check
    has "$out" 'fail  /etc/cdi/nvidia.yaml'
    fits_too "$1"
}
fits_too() { has "$out" "$1"; }
describe '        - {hookName: createContainer, path: /opt/evil, args: [evil, now]}' >/etc/cdi/nvidia.yaml
broken 'names the hook "evil now"'
describe '        - {hookName: createContainer, path: /usr/bin/nvidia-ctk, args: [x, hook, create-symlinks, --link, ../../../../x::/a/b]}' >/etc/cdi/nvidia.yaml
broken 'the target leads out of the root'
describe '' '        - {hostPath: /opt/driver/gone, containerPath: /x}' >/etc/cdi/nvidia.yaml
broken '/opt/driver/gone: '
# A node that the host does not have takes those devices away that name it, and leaves the others.
describe | sed 's|/dev/nvidia1$|/dev/nvidia9|' >/etc/cdi/nvidia.yaml
broken '/dev/nvidia9: '
has "$out" '/dev/nvidia9: no such device on this host'
refused '/dev/nvidia9: No such file or directory' --contain --gpus device=1
ok as alice skiff run --contain --gpus device=0 $cuda cuda
equal "$out" 'driver of the host'
touch /dev/nvidia9
refused '/dev/nvidia9: not a device' --gpus all
rm /dev/nvidia9
describe '' '        - {hostPath: /etc/passwd, containerPath: /}' >/etc/cdi/nvidia.yaml
broken "would cover what is the container's own"
describe '' '        - {hostPath: /etc/passwd, containerPath: /a/../../b}' >/etc/cdi/nvidia.yaml
broken 'holds `..`'
describe '' '        - {hostPaht: /etc/passwd, containerPath: /b}' >/etc/cdi/nvidia.yaml
broken 'hostPaht: there is no such key'
has "$out" 'hint: "hostPath" may be meant'
printf 'a: &a [x, x, x, x, x, x, x, x, x]\n' >/etc/cdi/nvidia.yaml
for level in b c d e f g h; do
    before=$(printf '%b' "\\$(printf '%03o' $(($(printf '%d' "'$level") - 1)))")
    printf '%s: &%s [*%s, *%s, *%s, *%s, *%s, *%s, *%s, *%s, *%s]\n' $level $level $before $before $before $before $before $before $before $before $before >>/etc/cdi/nvidia.yaml
done
broken 'more than 100000 values'
truncate -s 100M /etc/cdi/nvidia.yaml
broken 'longer than 4 MiB'
rm /etc/cdi/nvidia.yaml && mkfifo -m 644 /etc/cdi/nvidia.yaml
broken 'not a file'
rm /etc/cdi/nvidia.yaml && describe >/etc/cdi/nvidia.yaml && chmod 600 /etc/cdi/nvidia.yaml
broken 'Permission denied'
chmod 644 /etc/cdi/nvidia.yaml
# Two files of one directory; the later directory wins; a directory of the site's.
describe >/etc/cdi/second.yaml
refused "describe it" --gpus all
fails 1 as alice skiff cdi check
has "$out" "second.yaml describes it, too"
rm /etc/cdi/second.yaml
mkdir -p /run/cdi && describe | sed 's/DRIVER=550.1/DRIVER=later/' >/run/cdi/nvidia.yaml
ok as alice skiff run --gpus all $cuda sh -c 'echo $DRIVER'
equal "$out" later
rm -r /run/cdi
mkdir -p /etc/skiff/conf.d && echo 'cdi_dirs = ["/opt/driver/cdi"]' >/etc/skiff/conf.d/cdi.toml
refused 'no file describes a GPU' --gpus all
rm /etc/skiff/conf.d/cdi.toml

# ---- A root whose glibc is too old -------------------------------------------------------------------------------------------
old=$images_tmp/old
skeleton "$old"
ln -sf busybox "$old/bin/echo"
mkdir -p "$old$libs"
printf 'GLIBC_2.2.5 { };\nGLIBC_2.17 { global: old; };\n' >"$images_tmp/versions"
echo 'int old;' >"$images_tmp/old.c"
cc -shared -fPIC -nostdlib -Wl,-soname,libc.so.6 -Wl,--version-script="$images_tmp/versions" -o "$old$libs/libc.so.6" "$images_tmp/old.c"
push tools/old:1 "$old" --config '{"Env":["PATH=/bin","NVIDIA_VISIBLE_DEVICES=all"]}'
fails 125 as alice skiff run --gpus all $registry/tools/old:1 echo started
has "$err" "$driver/libcuda.so.550.1: needs glibc 2.34, and this root has glibc 2.17"
has "$err" 'hint: '
lacks "$out" started
ok as alice skiff run $registry/tools/old:1 echo started
rm -r "${old:?}/usr/lib" && mkdir "$old/lib" && touch "$old/lib/ld-musl-x86_64.so.1"
push tools/musl:1 "$old"
fails 125 as alice skiff run --gpus all $registry/tools/musl:1 echo started
has "$err" 'and this root has musl in its place'

# ---- In a job, what Slurm has given decides. (Its own GPUs are terminals, of which it needs the numbers.) ------------------
image=10.77.0.1:5000#tools/cuda:1
ok as alice srun -Q --gres=gpu:1 -w n1 --container-image=$image sh -c 'cuda; echo $DRIVER $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES'
equal "$out" $'driver of the host\n550.1 0 0'
ok as alice srun -Q --gres=gpu:2 -N2 -n4 --container-image=$image cuda
equal "$(sort -u <<<"$out")" 'driver of the host'
# In a job's container the description has set the variable to void, which is no word of the user's.
printf '#!/bin/sh\necho $NVIDIA_VISIBLE_DEVICES\nsrun -Q -n1 --gres=gpu:1 --container-image=%s cuda\n' "$image" >/home/alice/script
ok as alice sbatch -Q --wait --gres=gpu:2 -n1 -w n1 --output=/home/alice/out.void --container-image=$image /home/alice/script
equal "$(cat /home/alice/out.void)" $'void\ndriver of the host'
rm /home/alice/script /home/alice/out.void
ok as alice srun -Q --gres=gpu:1 -w n1 skiff run --contain --gpus all $cuda sh -c 'ls /dev | grep nvidia; cuda'
equal "$out" $'nvidia0\nnvidiactl\ndriver of the host'
# A definition's devices are those that it names, though the image asks for all.
mkdir -p /home/alice/.edf
printf 'image = "%s"\ndevices = ["nvidia.com/gpu=1"]\n' "$image" >/home/alice/.edf/one-gpu.toml
for words in '' --gres=gpu:2; do
    ok as alice srun -Q -w n1 $words --environment=one-gpu sh -c "cuda; $usable"
    equal "$out$err" $'driver of the host\nnvidia1\nnvidiactl' "$words"
done
ok as alice srun -Q -w n1 --gres=gpu:1 --environment=one-gpu echo started
has "$err" 'node n1: GPU 1 of nvidia.com/gpu: this job has not been given it, but 0'
ok as alice sh -c "skiff run .edf/one-gpu.toml sh -c '$usable'"
equal "$out" $'nvidia1\nnvidiactl'
rm /home/alice/.edf/one-gpu.toml
fails 125 as alice srun -Q --gres=gpu:1 -w n1 skiff run --contain --gpus 2 $cuda echo started
has "$err" 'this job has 1'
fails 125 as alice srun -Q --gres=gpu:1 -w n1 skiff run --contain --device nvidia.com/gpu=1 $cuda echo started
has "$err" 'this job has not been given it, but 0'
fails 125 as alice srun -Q -w n1 skiff run --gpus all $cuda echo started
has "$err" 'this job has no GPU'
ok as alice srun -Q -w n1 --container-image=$image sh -c 'echo [$DRIVER]'
equal "$out" '[]'
# What an image asks for and cannot have is a fault for jobs with GPUs alone.
mv /etc/cdi/nvidia.yaml /etc/cdi/nvidia.kept && echo 'kind: 1' >/etc/cdi/nvidia.yaml
fails 125 as alice srun -Q --gres=gpu:1 -w n1 --container-image=$image cuda
has "$err" '/etc/cdi/nvidia.yaml is not used: '
ok as alice srun -Q -w n1 --container-image=$image cuda
equal "$out$err" 'stub of the image' 'without GPUs'
fails 125 as alice srun -Q --gres=gpu:1 -w n1 skiff run --contain --device nvidia.com/gpu=0 $cuda echo started
has "$err" 'no file describes a GPU (nvidia.com/gpu); /etc/cdi/nvidia.yaml is not used: '
mv /etc/cdi/nvidia.kept /etc/cdi/nvidia.yaml
fails 125 as alice srun -Q --gres=gpu:1 -w n1 --container-image=10.77.0.1:5000#tools/old:1 echo started
has "$err" "$driver/libcuda.so.550.1: needs glibc 2.34, and this root has glibc 2.17"
ok as alice srun -Q -w n1 --container-image=10.77.0.1:5000#tools/old:1 echo started
equal "$out$err" started 'without GPUs'
ok as alice env NVIDIA_VISIBLE_DEVICES=none srun -Q --gres=gpu:1 -w n1 --container-image=$image cuda
equal "$out" 'stub of the image'

# ---- The description is read once for a node's container, however many tasks there are -------------------------------------------
ok /usr/bin/python3 "$here/opens.py" /etc/cdi/nvidia.yaml sh -c 'for i in 1 2 3 4 5; do cat /etc/cdi/nvidia.yaml >/dev/null & done; wait'
equal "$out" 5 'as often as it is opened'
opens() { # TASKS
    ok /usr/bin/python3 "$here/opens.py" /etc/cdi/nvidia.yaml setpriv --reuid alice --regid alice --init-groups env -i HOME=/home/alice PATH=/usr/bin:/bin \
        srun -Q --gres=gpu:1 -w n1 -n "$1" --overcommit --container-image=$image cuda
    equal "$(grep -c 'driver of the host' <<<"$err")" "$1" "$1 tasks with the driver"
}
opens 1
one=$out
[ "$one" -ge 1 ] || fail 'nobody has opened the description'
opens 12
equal "$out" "$one" 'of 12 tasks'
