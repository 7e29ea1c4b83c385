# The site's store over time: layers that images share, what room is taken, what is collected and what is not; and a file system from
# whose files the kernel mounts nothing, so that a loop device stands between.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
root=$images_tmp/root
skeleton "$root"
layer() { mkdir "$images_tmp/$1" && head -c "$2" /dev/urandom >"$images_tmp/$1/$1"; }
layer both 4000000 && layer first 1000000 && layer second 2000000
start_registry
make_store
at=$registry/tools
push tools/first:1 "$root" "$images_tmp/both" "$images_tmp/first" --config '{"Cmd":["ls","/both","/first"]}'
first=${pushed#sha256:}
push tools/second:1 "$root" "$images_tmp/both" "$images_tmp/second" --config '{"Cmd":["ls","/both","/second"]}'
second=${pushed#sha256:}
du_of() { find "$@" -type f -printf '%b\n' | awk '{ sum += $1 * 512 } END { print sum + 0 }'; }
usage() { ok as "${1:-alice}" skiff store du --json; json "$out" "d['images'], d['blobs'], d['unfinished']"; }
near() { # BYTES LOW HIGH
    [ "$1" -ge "$2" ] && [ "$1" -le "$3" ] || fail "$1 bytes are not between $2 and $3"
}
layers() { find $store/blobs -name 'sha256-*' -size +500k | wc -l; }

# A layer that an image has already is not fetched for another, and kept once, as long as an image has it.
ok as alice skiff pull --quiet $at/first:1
near "$(served tools)" 0 0
near "$(served tools/first)" 5000000 7000000
ok as alice skiff pull --quiet $at/second:1
near "$(served tools/second)" 2000000 2100000
equal "$(layers)" 4
ok as bob skiff pull --quiet $at/second:1
equal "$(layers)" 4 'an image that is there takes no second layers'
equal "$(usage)" "($(du_of $store/images), $(du_of $store/blobs), 0)" 'what is said to be taken'
ok as alice skiff store verify
equal "$(grep -c sound <<<"$out")" 2
ok as alice skiff rmi $at/first:1
equal "$(layers) $(ls $store/images | xargs)" "3 $second.erofs $second.json"
ok as alice skiff pull --quiet $at/first:1
ok as alice skiff run $at/first:1
equal "$out" $'/both\n/first'

# The administrator sets a size: layers go first, then images, the longest unused before the others.
sizes=($(usage | tr -d '(,)'))
before=$(find $store -type f | sort)
ok skiff store gc --dry-run --budget $((sizes[0] + 100000)) --json
near "$(json "$out" 'd["bytes"]')" 6000000 9000000
equal "$(json "$out" 'd["images"]') $(find $store -type f | sort)" "[] $before"
# The store's owner may, as root may.
ok setpriv --reuid daemon --regid daemon --clear-groups env -i PATH=/usr/bin:/bin skiff store gc --budget $((sizes[0] + 100000))
equal "$(layers)" 0
for image in first second; do
    ok as alice skiff run --pull never $at/$image:1
done
ok as alice skiff store verify --json
equal "$(json "$out" '[(c["id"], c["fault"]) for c in d]')" "[$(printf "('%s', None)\n" $first $second | sort | paste -sd, | sed 's/,(/, (/')]"
# A start is a use, too, though not noted every time.
touch -d yesterday $store/users/*/*
ok as alice skiff run --pull never $at/first:1
ok skiff store gc --budget $((sizes[0] - 100000))
has "$out" "removed image sha256:$second"
equal "$(ls $store/images | xargs)" "$first.erofs $first.json" 'the one that was used longer ago is gone'
[ ! -e /run/skiff/images/$second ] || fail 'its mount is still there'
fails 125 as bob skiff run --pull never $at/second:1
has "$err" 'hint: '
ok as bob skiff run $at/second:1
equal "$out" $'/both\n/second'
fails 125 as alice skiff run --pull never $at/second:1
has "$err" 'not yours'
ok skiff store verify
equal "$(grep -c sound <<<"$out")" 2

# What nobody may use any more anybody may have collected.
rm $store/users/$(id -u alice)/$first
ok as bob skiff store gc
has "$out" "removed image sha256:$first"
equal "$(ls $store/images | xargs)" "$second.erofs $second.json"
ok as bob skiff store gc --json
equal "$(json "$out" 'd["images"], d["files"], d["bytes"]')" '([], [], 0)'
ok as bob skiff rmi $at/second:1
equal "$(find $store/images $store/blobs $store/tmp -type f)" ''
equal "$(usage bob)" '(0, 0, 0)'

# The kernel mounts no file of a tmpfs.
mount -t tmpfs -o size=64m,mode=755,uid="$(id -u daemon)" tmpfs $store
devices() { grep -l "$first" /sys/block/loop*/loop/backing_file 2>/dev/null || true; }
equal "$(devices)" ''
ok as alice skiff pull --quiet $at/first:1
device=$(devices | cut -d/ -f4)
has "$device" loop
equal "$(cat /sys/block/$device/ro)" 1
ok as alice skiff run --pull never $at/first:1
equal "$out" $'/both\n/first'
start alice skiff run --root $at/first:1 sleep 1000
eventually 10 pgrep -u alice -x sleep
equal "$(devices | wc -l)" 1 'devices of the image'
ok as alice skiff rmi $at/first:1
pid=$(pgrep -u alice -x sleep)
nsenter -t "$pid" -m /bin/cat /first >/dev/null || fail 'what runs on it does not go on'
kill -9 "$started" && try wait "$started"
eventually 10 sh -c "! grep -l $first /sys/block/loop*/loop/backing_file"
umount $store
