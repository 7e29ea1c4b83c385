# What the kernel shows of an image is what umoci and podman unpack: each name, type, mode, owner, time, link, attribute and byte. One
# image has what layers can do to each other, one is made of Debian packages.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
layers=$images_tmp/layers
mkdir "$layers"
start_registry
make_store
trap 'podman image unmount --all >/dev/null || true; images_cleanup' EXIT
podman() { command podman --storage-driver vfs --root "$images_tmp/podman" --runroot "$images_tmp/podman-run" "$@"; }
tree() { python3 "$here/../images/tree.py" "$1"; }
# Each gets the image from the registry and prints its tree.
with_skiff() { # IMAGE
    ok as alice skiff pull --quiet $registry/$1
    fsck.erofs --extract "$store/images/${out#sha256:}.erofs" >&2 || fail "fsck.erofs of $1"
    tree "/run/skiff/images/${out#sha256:}"
}
with_umoci() {
    skopeo copy --quiet --insecure-policy --src-tls-verify=false docker://$registry/$1 "oci:$images_tmp/layout:x"
    umoci unpack --image "$images_tmp/layout:x" "$images_tmp/bundle" >&2
    tree "$images_tmp/bundle/rootfs"
    rm -r "$images_tmp/bundle" "$images_tmp/layout"
}
with_podman() {
    podman pull --quiet --tls-verify=false $registry/$1 >/dev/null
    tree "$(podman image mount $registry/$1)"
}
# A store has no devices. Both programs are Go's, which drops an attribute without a value that GNU tar has written and restores.
same() { # IMAGE PROGRAM [sed SCRIPT]: but for what sed changes in the program's
    local ours=$images_tmp/ours-$1
    [ -e "$ours" ] || with_skiff $1 >"$ours"
    "with_$2" $1 >"$images_tmp/all"
    sed "/^[bc]/d; / b'.bare'$/s/{/{'user.empty': b'', /; ${3:-}" "$images_tmp/all" >"$images_tmp/theirs"
    diff "$images_tmp/theirs" "$ours" >"$images_tmp/diff" || fail "$2 has unpacked $1 in another way (<): $(cut -c-400 "$images_tmp/diff")"
}

# By hand; and what GNU tar writes of all that a directory can have, in two formats.
python3 "$here/layers.py" "$layers"
root=$images_tmp/root
mkdir "$root"
cd "$root"
mkdir -p a/b empty a/long
head -c 4096 /dev/urandom >a/block; head -c 100001 /dev/urandom >a/odd; : >a/none
ln a/odd a/b/again; ln -s ../f a/b/link
touch "$(printf 'a/not-utf8-\377\376')" $'a/with\nnewline' 'a/with space'
long=a/long/$(printf 'x%.0s' $(seq 200)); echo long >"$long"; ln "$long" a/b/long; ln -s "$long" a/b/longlink
truncate -s 10M a/holes; printf abc | dd of=a/holes bs=1 seek=5000000 conv=notrunc status=none
truncate -s 1M a/all-hole
for n in $(seq 0 40); do printf x | dd of=a/many-holes bs=1 seek=$((n * 50000 + n)) conv=notrunc status=none; done
mkfifo a/fifo; mknod a/null c 1 3
chmod 1777 empty; chown 70000:4000000000 a/none; chown -h 5:6 a/b/link
setfattr -n user.x -v 0x00ff0a3d a/odd; setfattr -n trusted.t -v v a/b; setcap cap_net_raw+ep a/block
touch -d @1000 a/block; touch -d '2031-02-03 04:05:06.789012345' a/odd; touch -hd @1000 a/b/link
cd - >/dev/null
pack() { # NAME OPTIONS...: into a directory of that name
    tar -c --numeric-owner --sort=name -C "$root" --transform="s,^\./,$1/,;s,^\.$,$1," "${@:2}" . >"$layers/$1.tar"
}
pack posix --format=posix --sparse --xattrs --xattrs-include='*'
# (With holes of its own form both programs refuse it.)
pack gnu --format=gnu
head -c 1024 /dev/zero >"$layers/empty.tar"
cd "$layers"
push odd:1 0.tar 1.tar empty.tar 2.tar posix.tar gnu.tar empty.tar
same odd:1 umoci
# A layer twice, and paths twice in one.
push odd:twice 0.tar 1.tar 2.tar 1.tar twice.tar
same odd:twice umoci
# podman refuses layers that name a path twice. It copies each layer for the next one: trusted attributes are lost by that, and symbolic
# links with two names become two; a directory that comes again keeps the attributes that it had.
same odd:1 podman "s/{'user.k': b'v'} b'.attrs'/{} b'\/attrs'/; s/ 1 b'.symlink2*' / 2 b'\/symlink' /; s/{} b'.posix.a.b'\$/{'trusted.t': b'v'} b'\/posix\/a\/b'/"

# The files of packages, as they lie in this machine's file system: programs with rights of their own, links, directories that are links.
files_of() { # PACKAGE...
    local path
    dpkg -L "$@" | sed 's,^/,,; /^\.$/d' | sort -u | while read -r path; do [ ! -e "/$path" ] && [ ! -L "/$path" ] || echo "$path"; done
}
pack_files() { # NAME, and their names on standard input; that another program touches a directory is none of our concern
    tar -c --format=posix --numeric-owner --no-recursion --xattrs --xattrs-include='*' -C / -T - >"$1.tar" || [ $? = 1 ]
}
{ printf '%s\n' . usr usr/{bin,sbin,lib,lib64} bin sbin lib lib64; files_of base-files base-passwd dash libc6; } | awk '!had[$0]++' | pack_files base
files_of libcrypt1 perl-base passwd mount util-linux | pack_files more
push debian:1 base.tar more.tar --config '{"Cmd":["perl","-e","print 6 * 7"]}'
same debian:1 umoci
same debian:1 podman
ok as alice skiff run $registry/debian:1
equal "$out" 42
