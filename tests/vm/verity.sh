# fs-verity, which no file system of the test bed has: images in the store have it, the kernel keeps their owner from changing them and finds
# what a disk has changed, and the helper refuses what was put in their place. The attacker has taken over a writer: `daemon` owns the store.
. "$(dirname "$0")/../lib.sh"
SKIFF_TESTBED_NODES=
# Debian has started one at the usual port.
registry=127.0.0.1:5005
. "$(dirname "$0")/../images/lib.sh"
verity() { python3 "$here/verity.py" "$@"; }
root=$images_tmp/root
skeleton "$root"
start_registry
make_store
attacker() { setpriv --reuid daemon --regid daemon --clear-groups "$@"; }
# As after the next boot. What runs on an image, or is mounted, keeps the file that it has.
forget() { umount -l /run/skiff/images/* 2>&- || true; }
pull() { # MARK: its file is $file, its note $note
    echo "$1" >"$root/etc/mark"
    mkdir -p "$images_tmp/noise"
    { echo "what $1 says"; head -c 1000000 /dev/urandom; } >"$images_tmp/noise/noise"
    push "$1:1" "$root" "$images_tmp/noise"
    ok as alice skiff pull --quiet "$registry/$1:1"
    id=${pushed#sha256:} file=$store/images/${pushed#sha256:}.erofs
    note=$file.verity
}
runs() { # MARK
    ok as alice skiff run "$registry/$1:1" cat /etc/mark
    equal "$out" "$1" 'what the image holds'
}
refused() { # MARK WORDS
    forget
    fails 125 as alice skiff run "$registry/$1:1" cat /etc/mark
    has "$err" "$2"
    has "$err" "hint: administrator: rm $file $note; then \`skiff pull\` makes it again"
    fails 1 as alice skiff store verify "$registry/$1:1"
    has "$out" 'fs-verity does not hold it'
}
again() { # MARK: as the hint says
    rm "$file" "$note"
    ok as alice skiff pull --quiet "$registry/$1:1"
    runs "$1"
}
cleanup() {
    forget
    rm -f /etc/skiff/helper.conf
    mountpoint -q "$store" && umount -l "$store"
    images_cleanup
}
trap cleanup EXIT

pull good
has "$(lsattr "$file")" V- 'its attributes'
equal "$(verity measure "$file")" "$(od -An -v -tx1 "$note" | tr -d ' \n')" 'the digest noted'
runs good
digest=$(verity measure "$file")

# Its owner cannot change it.
attacker chmod 644 "$file"
fails 2 attacker sh -c ': >>"$0"' "$file"
has "$err" 'not permitted'
attacker chmod 400 "$file"
runs good

# Exchanged for another image, which has fs-verity: what is mounted already stays, what is mounted next is refused.
good=$file
pull other
attacker mv "$good" "$store/kept"
attacker cp "$file" "$good"
attacker chmod 400 "$good"
file=$good note=$good.verity
verity enable "$file"
runs good
refused good 'its fs-verity digest is not the one noted'
again good
equal "$(verity measure "$file")" "$digest" 'the digest of the same image, made again'

# The same image, but without fs-verity, so that it could be changed later.
attacker sh -c 'rm "$0" && cp "$1" "$0" && chmod 400 "$0"' "$file" "$store/kept"
refused good 'it has lost its fs-verity'
again good
ok as alice skiff store verify $registry/good:1

# A disk that returns something else: there is an error in place of it.
forget
sync
verity flip "$file" 'what good says'
echo 3 >/proc/sys/vm/drop_caches
fails 1 as alice skiff run $registry/good:1 cat /noise
lacks "$out" 'hat good says'
has "$err" 'Input/output error'
forget
fails 1 as alice skiff store verify $registry/good:1
lacks "$out" sound

# As a squashfs, which has id maps from Linux 6.2 on.
if printf '6.2\n%s\n' "$(uname -r)" | sort -VC; then
    echo 'image_format = squashfs' >/etc/skiff/helper.conf
    pull third
    runs third
    file=$store/images/$id.sqsh note=$store/images/$id.sqsh.verity
    has "$(lsattr "$file")" V- 'its attributes'
    attacker sh -c 'cp "$0" "$0.new" && chmod 400 "$0.new" && mv "$0.new" "$0"' "$file"
    forget
    fails 125 as alice skiff run $registry/third:1 cat /etc/mark
    has "$err" 'it has lost its fs-verity'
    rm /etc/skiff/helper.conf
else
    echo 'not tried with a squashfs: this kernel has no id maps for it'
fi

# A store without fs-verity is as good as it was.
forget
drop_store
mkdir $store
mount -t tmpfs -o mode=755,uid=1,gid=1 tmpfs $store
pull plain
[ ! -e "$note" ] || fail 'a digest is noted where there is none'
runs plain
echo passed
