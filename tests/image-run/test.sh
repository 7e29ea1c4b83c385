# Commands in images: what its maker said is honoured, who one is, what of the host is there, what takes changes, exit codes.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
start_registry
make_store
image() { # NAME [--config JSON]: pushes $root, alice pulls it
    push "$1" "$root" "${@:2}"
    ok as alice skiff pull --quiet "$registry/$1"
}

skeleton "$root"
printf '#!/bin/sh\necho "entry $# [$1] [$2]"\n' >"$root/bin/entry" && chmod 755 "$root/bin/entry"
echo hidden >"$root/etc/for-root" && chmod 600 "$root/etc/for-root"
echo large >"$root/etc/large-id" && chown 3000000:3000000 "$root/etc/large-id"
mkdir "$root/setuid" && install -m 4755 -o daemon "$root/bin/busybox" "$root/setuid/id"
mknod -m 666 "$root/etc/zero" c 1 5
ln -s ../run/nowhere/stub-resolv.conf "$root/etc/resolv.conf"
mkdir "$root/data" "$root/usr/share" && echo of-image >"$root/data/file"
image tools/full:1 --config '{"Entrypoint":["/bin/entry"],"Cmd":["default","words"],"Env":["PATH=/usr/bin:/bin","FROM_IMAGE=yes","HOME=/nowhere"],"WorkingDir":"/usr/share","Volumes":{"/data":{},"/proc/x":{}}}'
full=$registry/tools/full:1
digits=${pushed#sha256:}

# The maker's words, variables and directory; and the user's in their place.
ok as alice skiff run $full
equal "$out" 'entry 2 [default] [words]'
ok as alice skiff run $full 'one word' two
equal "$out" 'entry 2 [one word] [two]'
ok as alice skiff run --entrypoint /bin/pwd $full
equal "$out" /usr/share 'directory of the image'
ok as alice skiff run --entrypoint /bin/pwd -w /etc $full
equal "$out" /etc
fails 125 as alice skiff run --entrypoint /bin/pwd -w /no/such $full
has "$err" 'hint: '
run() { ok as alice "${before[@]}" skiff run "${options[@]}" --entrypoint /bin/sh $full -ec "$1"; }
before=(env MINE=kept LD_PRELOAD=/lib/x.so PYTHONPATH=/x) options=(-e A=1 -e MINE)
run 'echo "$FROM_IMAGE $HOME $PATH $A $MINE [$LD_PRELOAD$PYTHONPATH]"'
equal "$out" 'yes /home/alice /usr/bin:/bin 1 kept []'
options=(-e FROM_IMAGE=mine -e PATH=/bin)
run 'echo "$FROM_IMAGE $PATH"'
equal "$out" 'mine /bin' 'what the user says is stronger'
before=() options=()

# As builders write them: no entry point, and a directory from the root on.
image tools/odd:1 --config '{"Entrypoint":[""],"Cmd":["/bin/pwd"],"WorkingDir":"usr/share"}'
ok as alice skiff run $registry/tools/odd:1
equal "$out" /usr/share

# Images by whichever of their names.
for name in "docker://$full" "$digits" "sha256:$digits" "${digits:0:12}" "image:"; do
    case $name in
    image:) ok as alice skiff run --base image:$full /etc/passwd ;;
    *) ok as alice skiff run "$name" /etc/passwd ;;
    esac
    has "$out" 'entry 1 [/etc/passwd]' "$name"
done
# What is not here is pulled, or not; what is here only if that is asked for.
fails 125 as alice skiff run --pull never $registry/tools/never:1
has "$err" 'not in your image list'
has "$err" 'hint: `skiff images` lists yours; `skiff pull'
fails 125 as alice skiff run $registry/tools/never:1
has "$err" '404'
has "$err" 'hint: '
fails 125 as alice skiff run --dry-run $registry/tools/never:1
fails 125 as alice skiff run --pull sometimes $full
push tools/later:1 "$root" --config '{"Cmd":["cat","/etc/version"]}'
ok as bob skiff run $registry/tools/later:1 whoami
equal "$out" bob
has "$err" 'pulling it'
questions=$(asked HEAD tools/later)
ok as bob skiff run $registry/tools/later:1 whoami
equal "$err" ''
equal "$(asked HEAD tools/later)" "$questions" 'it is here'
echo new >"$root/etc/version"
push tools/later:1 "$root" --config '{"Cmd":["cat","/etc/version"]}'
ok as bob skiff run $registry/tools/later:1 whoami
fails 1 as bob skiff run $registry/tools/later:1
ok as bob skiff run --pull always $registry/tools/later:1
equal "$out" new
fails 125 as alice skiff run 'Not A Name'
has "$err" 'hint: '
printf '[[registry]]\nprefix = "docker.io"\nlocation = "127.0.0.1:5000"\ninsecure = true\n' >>/home/alice/.config/containers/registries.conf
fails 125 as alice skiff run hostname
has "$err" 'skiff run -- hostname' 'who forgot the dashes'

# Who one is.
run 'id -u; id -un; grep CapEff /proc/self/status; [ "$(pwd)" = /usr/share ]; echo ~'
equal "$out" "$(id -u alice)"$'\nalice\nCapEff:\t0000000000000000\n/home/alice'
options=(--root)
run 'id -u; cat /etc/for-root; grep alice /etc/passwd /etc/group | cut -d: -f1,2'
equal "$out" $'0\nhidden\n/etc/passwd:alice\n/etc/group:alice' 'as root'
options=()
# What was root's in the image is hers, as it is her image.
ok as alice skiff run --entrypoint /bin/cat $full /etc/for-root
equal "$out" hidden
# A program that is setuid in the image is run as anybody else is.
run '/setuid/id -u; grep NoNewPrivs /proc/self/status'
equal "$out" "$(id -u alice)"$'\nNoNewPrivs:\t1'
for options in --me --root; do
    run '[ ! -e /etc/zero ]; stat -c %u /etc/large-id'
    equal "$out" 65534 "large id $options; and an image has no devices"
    run 'dd if=/dev/zero of=/dev/null bs=1 count=1 2>/dev/null; cat /etc/large-id'
    equal "$out" large
done
options=()

# What takes changes: not the root, but /tmp, the home, volumes; and the root if that is asked for, as long as the command runs.
run 'for file in /new /etc/new /usr/new; do ! touch $file 2>/dev/null; done
    touch /tmp/of-image-run /var/tmp/x ~/from-image /data/x; echo changed >/data/file; ls /tmp'
equal "$out" of-image-run
run 'cat /data/file; ls /data'
equal "$out" $'of-image\nfile' 'a volume has what the image has there, and changes go with the command'
[ -e /home/alice/from-image ] && [ ! -e /tmp/of-image-run ] || fail 'files are not where they belong'
equal "$(stat -c %U /home/alice/from-image)" alice
options=(--root)
run '! touch /new 2>/dev/null'
options=(--root --writable)
run 'touch /new /etc/new; echo changed >/data/file; rm /etc/for-root; ls /new'
run 'ls /new /etc/new 2>/dev/null || true; cat /data/file /etc/for-root'
equal "$out" $'of-image\nhidden' 'what was changed is gone'
options=()

# What of the host is there.
run 'cat /etc/resolv.conf'
equal "$out" "$(cat /etc/resolv.conf)" 'resolv.conf, which the image has as a link that leads nowhere'
run 'cat /etc/hosts; ls /shared >/dev/null; ls /proc/1/exe >/dev/null 2>&1 || true; [ -d /proc/self ]; [ -d /sys/kernel ]; [ ! -e /home/bob ]'
equal "$out" "$(cat /etc/hosts)"
as alice mkdir data && as alice sh -c 'echo mine >data/file'
options=(-v /home/alice/data:/mnt/deep/place -v /home/alice/data:/data:ro)
run 'cat /mnt/deep/place/file /data/file; ! touch /data/x 2>/dev/null; touch /mnt/deep/place/written'
equal "$out" $'mine\nmine'
[ -e /home/alice/data/written ] || fail 'nothing was written through the mount'
options=()
fails 125 as alice skiff run -v /no/such:/x $full
has "$err" /no/such

# The directory that one is in is shown at its path, where the image has nothing there. Contained, one begins in the home.
mkdir -p "$root/srv/empty" "$root/srv/own" && echo of-image >"$root/srv/own/file"
image tools/plain:1
install -d -o alice /srv/work /srv/work/run /srv/empty /srv/own /tmp/work /home/alice/project
for dir in /srv/work/run /srv/empty /srv/own /tmp/work /home/alice/project; do echo of-host >$dir/file; done
begins() { # DIR WANTED OPTIONS...
    ok as alice env -C "$1" skiff run "${@:3}" $registry/tools/plain:1 sh -c 'pwd; cat file 2>/dev/null || true'
    equal "$out" "$2" "in $*"
    equal "$err" ''
}
begins /srv/work/run $'/srv/work/run\nof-host'
begins /srv/work/run $'/srv/work/run\nof-host' --root
begins /srv/work/run /srv/work -w ..
begins /srv/empty $'/srv/empty\nof-host'
begins /srv/own $'/srv/own\nof-image'
begins /tmp/work $'/tmp/work\nof-host'
begins /srv/work/run $'/srv/work/run\nmine' -v /home/alice/data:/srv/work/run
begins /srv/work/run /home/alice --contain
begins /srv/work/run $'/srv/work/run\nof-host' --contain -v /srv/work
begins /home/alice/project $'/home/alice/project\nof-host' --no-home
begins /home/alice / --no-home
ok as alice env -C /home/alice/project skiff run --no-home $registry/tools/plain:1 ls -A /home/alice
equal "$out" project 'of a home that is left out, only the directory that one is in'
ok as alice env -C /srv/work/run skiff run $registry/tools/plain:1 touch written
[ -e /srv/work/run/written ] || fail 'nothing was written there'
fails 125 as alice env -C /srv/work/run skiff run -w below $registry/tools/plain:1 touch never
has "$err" 'working directory /srv/work/run/below: No such file or directory'
ok as alice env -C /srv/work/run skiff run --dry-run --json $registry/tools/plain:1 cat file
ok as alice skiff run --plan - <<<"$out"
equal "$out" of-host 'a plan shows the directory, too'
rm -r /srv/work /srv/empty /srv/own "$root/srv"

# Exit codes.
fails 7 as alice skiff run --entrypoint /bin/sh $full -c 'exit 7'
fails 126 as alice skiff run --entrypoint /etc/passwd $full
fails 127 as alice skiff run --entrypoint no-such-command $full
has "$err" 'no-such-command'
fails 127 as alice skiff run --root --entrypoint no-such-command $full
fails 137 as alice skiff run --entrypoint /bin/sh $full -c 'kill -9 $$'
fails 143 as alice skiff run --entrypoint /bin/sh $full -c 'kill $$'
fails 125 as alice skiff run --no-such-option $full

# Root of an image mounts, and has terminals with a group of their own where the image is writable.
ok as alice skiff run --root --writable --entrypoint /bin/sh $full -ec 'b=/bin/busybox; $b mkdir /tmp/m; $b mount -t tmpfs none /tmp/m; $b mkdir /tmp/m/p /tmp/m/b
    $b mount -t proc none /tmp/m/p; $b mount -o bind /etc /tmp/m/b; $b ls -d /tmp/m/p/self /tmp/m/b/passwd; $b mount | $b grep -q "devpts on /dev/pts .*gid"; $b umount /tmp/m/b'
equal "$out" $'/tmp/m/b/passwd\n/tmp/m/p/self'

# The plan, without doing anything.
ok as alice skiff run --dry-run --json --root --writable -v /shared:/s $full
equal "$(json "$out" 'd["base"]["image"]')" "$digits"
equal "$(json "$out" '[m["target"] for m in d["mounts"]][-1]')" /s
ok as alice skiff run --dry-run $full
has "$out" "base         image $digits"

# An image that has nothing but a program.
rm -rf "$root" && mkdir "$root" && cp /bin/busybox "$root/busybox"
image scratch:1 --config '{"Entrypoint":["/busybox"]}'
ok as alice skiff run $registry/scratch:1 sh -ec '/busybox id -un; /busybox cat /etc/resolv.conf; /busybox touch /tmp/x ~/x; /busybox pwd; /busybox ls -d /proc/self /dev/null'
equal "$out" "$(printf 'alice\n%s\n/home/alice\n/dev/null\n/proc/self' "$(cat /etc/resolv.conf)")"
ok as alice skiff run --root $registry/scratch:1 id -u
equal "$out" 0
fails 127 as alice skiff run --entrypoint '' $registry/scratch:1
has "$err" /bin/sh

# Links of an image's cannot lead what is mounted or written out of it.
rm -rf "$root" && skeleton "$root"
rm -r "$root/tmp" "$root/home" "$root/etc/passwd" "$root/etc/group"
ln -s ../../../../home/bob "$root/tmp" && ln -s / "$root/home" && ln -s ../../../../../home/alice/victim "$root/etc/passwd"
ln -s loop "$root/etc/loop" && ln -s loop "$root/etc/group"
image hostile:1
try as alice skiff run $registry/hostile:1 id
[ ! -e /home/alice/victim ] || fail 'a link of the image led out of it'

# Where the kernel is to have squashfs (it must, if it has no EROFS), an image is one as well.
rm -rf "$root" && skeleton "$root"
echo before >"$root/etc/when"
image tools/format:1
umount "/run/skiff/images/${pushed#sha256:}"
echo 'image_format = squashfs' >/etc/skiff/helper.conf
echo after >"$root/etc/when"
head -c 5000 /dev/urandom >"$root/etc/random"
image tools/format:2
format=$registry/tools/format:2
mounted() { findmnt -no FSTYPE,SOURCE "/run/skiff/images/${pushed#sha256:}"; }
has "$(mounted)" 'squashfs /dev/loop'
device=$(mounted | sed 's,.*/dev/,,')
equal "$(cat /sys/block/$device/loop/backing_file)" "$store/images/${pushed#sha256:}.sqsh"
ok as alice skiff run $format sh -c 'cat /etc/when; sha256sum </etc/random; id -u'
equal "$out" "$(printf 'after\n%s\n%s' "$(sha256sum <"$root/etc/random")" "$(id -u alice)")"
ok as alice skiff run --root --writable $format sh -c 'echo x >/etc/when && stat -c "%u %a" /etc/when /bin/busybox'
equal "$out" $'0 644\n0 755'
fails 125 as bob skiff run --pull never $format true
ok as alice skiff store verify $format
ok as alice skiff rmi $format
[ ! -e "$store/images/${pushed#sha256:}.sqsh" ] || fail 'the squashfs is still there'
eventually 5 sh -c "! grep -q ${pushed#sha256:} /sys/block/loop*/loop/backing_file"
# One that was pulled before is made one when it is next needed; from then on both kinds of kernels have it.
ok as alice skiff run $registry/tools/format:1 cat /etc/when
equal "$out" before
rm /etc/skiff/helper.conf
ok as alice skiff run $registry/tools/format:1 cat /etc/when
ok as alice skiff export $registry/tools/format:1 out.sqsh
as alice unsquashfs -quiet -no-progress -dest unpacked out.sqsh etc/when >/dev/null
equal "$(cat /home/alice/unpacked/etc/when)" before
# Whatever limits one has, the store's writer has its own, or the same.
ok as alice bash -c "ulimit -t 100; ulimit -f 100000; exec skiff pull --quiet $registry/tools/format:1"

# An image's maker cannot choose one of the user's directories in the host's /tmp by the variable of an ssh agent; the user's own word does.
push tools/agent:1 "$root" --config '{"Cmd":["sh"],"Env":["PATH=/usr/bin:/bin","SSH_AUTH_SOCK=/tmp/tmux-1/default"]}'
as alice sh -c 'mkdir -m 700 /tmp/tmux-1; exec python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/tmux-1/default\")"'
ok as alice skiff run $registry/tools/agent:1 ls -A /tmp
equal "$out" '' 'what an image sees of /tmp'
ok as alice env SSH_AUTH_SOCK=/tmp/tmux-1/default skiff run $registry/tools/agent:1 ls -A /tmp
equal "$out" tmux-1
ok as alice env SSH_AUTH_SOCK=/tmp/tmux-1/default skiff run --contain $registry/tools/agent:1 ls -A /tmp
equal "$out" ''
rm -r /tmp/tmux-1
