# takes: 24
# Attacks on what the setuid helper does with images: alice asks it herself for mounts and for the store's writer.
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../images/lib.sh"
helper=/usr/libexec/skiff/skiff-helper
own=/usr/local/skiff-test-own
restless=
cleanup() {
    [ -z "$restless" ] || { kill "$restless" && wait "$restless"; } 2>/dev/null || true
    rm -rf $own /tmp/skiff-attack.py /tmp/skiff-files /tmp/skiff-loot
    images_cleanup
}
trap cleanup EXIT
install -m 755 "$here/../helper-attacks/attack.py" /tmp/skiff-attack.py
root=$images_tmp/root
skeleton "$root"
start_registry
make_store
pull() { # USER NAME MARK: pulls an image of its own; its id is $id
    echo "$3" >"$root/etc/mark"
    push "$2" "$root"
    ok as "$1" skiff pull --quiet "$registry/$2"
    id=${pushed#sha256:}
}
pull bob good:1 good
good=$id
ok as alice skiff pull --quiet $registry/good:1
attack() { # NAME ARGUMENT...
    ok as alice /usr/bin/python3 /tmp/skiff-attack.py $helper "$@"
    equal "$out" '' "what the attack '$1' gained$(said)"
    # Without memory Rust's own beginning gives up, before there is anything of ours.
    [ "$1" = writer_limits ] || lacks "$err" panicked "$1"
    ok as bob skiff run $registry/good:1 cat /etc/mark
    equal "$out" good "what bob has after '$1'"
}

# Nobody sees by himself what is in the store, nor has it told.
for place in images users blobs meanings tmp; do fails 2 as alice ls "$store/$place"; done
fails 1 as alice cat "$store/images/$good.erofs"
fails 125 as alice skiff store gc --budget 1 --dry-run
lacks "$out$err" "$good"

# Images that alice may not have, and such as only look like the store's.
others=($(printf '0%.0s' $(seq 64)))
pull bob foreign:1 foreign
foreign=$id
others+=("$foreign")
spoil() { # NAME COMMAND...: another image of alice's, as the writer makes them; what is done to its file $file, permit $permit
    id=$(sha256sum <<<"$1") && id=${id%% *}
    others+=("$id")
    file=$store/images/$id.erofs permit=$store/users/$(id -u alice)/$id
    install -m 444 -o daemon -g daemon "$store/images/$good.erofs" "$file"
    install -m 644 -o daemon -g daemon /dev/null "$permit"
    "${@:2}"
}
spoil gone rm -f $store/none
rm "$store/images/$id.erofs"
spoil permit-link true
rm "$permit" && ln -s /etc/passwd "$permit" && chown -h daemon "$permit"
spoil permit-hers true
chown alice "$permit"
spoil permit-writable true
chmod 666 "$permit"
spoil link true
mv "$file" "$store/real" && ln -s ../real "$file" && chown -h daemon "$file"
spoil far-link true
mv "$file" /var/lib/skiff/real && ln -s /var/lib/skiff/real "$file" && chown -h daemon "$file"
spoil hers true
chown alice "$file"
spoil roots true
chown root "$file"
spoil writable true
chmod 464 "$file"
spoil directory true
rm "$file" && install -d -o daemon "$file"
spoil pipe true
rm "$file" && mkfifo "$file" && chown daemon "$file"
spoil empty true
chmod 644 "$file" && : >"$file" && chmod 444 "$file"
spoil no-image true
chmod 644 "$file" && head -c 100000 /dev/urandom >"$file" && chmod 444 "$file"
spoil mount true
echo x >/var/lib/skiff/other && chown daemon /var/lib/skiff/other && mount --bind /var/lib/skiff/other "$file"
attack images "$good" "${others[@]}"
attack layers "$good" "${others[@]}"
umount "$file"
# It was what was done to them.
spoil sound true
attack images "$id"

# Devices are left out of what the writer makes; and where a store has some all the same, the mount keeps them shut.
mkdir "$images_tmp/odd"
mknod -m 666 "$images_tmp/odd/zero" c 1 5
mknod -m 666 "$images_tmp/odd/disk" b 7 0
install -m 6755 -o 5 -g 5 /bin/sleep "$images_tmp/odd/others"
push odd:1 "$images_tmp/odd"
ok as alice skiff pull --quiet $registry/odd:1
ok as alice skiff inspect --files $registry/odd:1
has "$out" others
lacks "$out" zero 'devices in an image'
lacks "$out" disk 'devices in an image'
odd=${pushed#sha256:}
mkfs.erofs "$images_tmp/odd.erofs" "$images_tmp/odd" >/dev/null
install -m 444 -o daemon "$images_tmp/odd.erofs" "$store/images/$odd.erofs"
attack image_devices "$odd"

# A store that is led elsewhere, or is anybody's.
mv $store /var/lib/skiff/moved && ln -s moved $store
fails 125 as alice skiff run $registry/good:1 true
rm $store && mv /var/lib/skiff/moved $store
chmod 777 /var/lib/skiff
fails 125 as alice skiff run $registry/good:1 true
has "$err" 'with mode 777'
chmod 755 /var/lib/skiff

mounted=$(stat -c %d /run/skiff/images/$good)
attack released "$good" 20
equal "$(stat -c %d /run/skiff/images/$good)" "$mounted" 'the image that all share, after releases with few descriptors'
start alice /usr/bin/python3 /tmp/skiff-attack.py $helper released "$good" 200
restless=$started
for _ in $(seq 15); do ok as bob skiff run $registry/good:1 cat /etc/mark; done
{ kill "$restless" && wait "$restless"; } 2>/dev/null || true
restless=

# Many images.
many=()
for n in $(seq 250); do
    many+=("$(printf '%064x' "$n")")
    install -m 444 -o daemon "$images_tmp/odd.erofs" "$store/images/${many[-1]}.erofs"
    install -m 644 -o daemon /dev/null "$store/users/$(id -u alice)/${many[-1]}"
done
limit=60 attack many_images "${many[@]}"
many=$(grep -c ' /run/skiff/images/' /proc/self/mountinfo)
[ "$many" -lt 220 ] || fail "$many images are mounted"

# A helper of alice's that is frozen in the middle of its work keeps bob waiting by no lock: here all are held that are not bob's own.
first_starts() { # the median of five starts that find neither the image nor the stand-ins mounted, in milliseconds
    local since
    took=$(for _ in 1 2 3 4 5; do
        umount -l /run/skiff/images/$good /run/skiff/base
        since=${EPOCHREALTIME/./}
        as bob skiff run $registry/good:1 sh -c :
        as bob skiff run -- true
        echo $(((${EPOCHREALTIME/./} - since) / 1000))
    done | sort -n | sed -n 3p)
}
ok as bob skiff run -- true
first_starts
usual=$took
held=()
for file in $(find /run/skiff -type f \( -name lock -o -path '*/callers/*' \) ! -name "$(id -u bob).*"); do
    (exec 9<"$file" && flock -n 9 && exec sleep 60) 3>&- &
    held+=($!)
done
[ ${#held[@]} -ge 2 ] || fail 'alice has no locks'
sleep 0.2
first_starts
kill "${held[@]}"
[ "$took" -le $((usual + 100)) ] || fail "bob's two starts took $took ms while others hold locks, $usual ms else"

# The writer: what it is, and what it has.
attack writer "$(id -u daemon)" "$(id -g daemon)"
# One that only the user was thought of is not of root's group for that.
chgrp root $store
attack writer "$(id -u daemon)" 65534
chgrp daemon $store
start alice /usr/bin/python3 /tmp/skiff-attack.py $helper waiting_writer 4
eventually 5 pgrep -u daemon -x skiff
sleep 0.3
fetcher=$(pgrep -u daemon -f '^skiff store-fetcher')
writer=$(pgrep -u daemon -f '^skiff store-writer')
for pid in $fetcher $writer; do
    # (Of the writer's, no path leads to it any more.)
    variables= null=/null
    [ $pid = $writer ] || variables='HTTP_PROXY=http://proxy:1' null=/dev/null
    equal "$(tr '\0' '\n' </proc/$pid/environ | sort | xargs)" "$variables" 'its variables'
    # The lock that says that it works for alice, which is root's, is all that it has besides.
    equal "$(ls -l /proc/$pid/fd | sed -n 's/.*-> \([a-z/]*\).*/\1/p' | sort | grep -v "^$store" | xargs)" "$null $null $null /run/skiff/callers/ socket socket" 'its descriptors'
    equal "$(readlink /proc/$pid/cwd) $(readlink /proc/$pid/exe)" '/ /usr/bin/skiff'
    equal "$(stat -c %U /proc/$pid/fd)" root 'not dumpable'
    # Few system calls, and no way to more privilege; no end of memory, descriptors or time.
    equal "$(sed -nE 's/^(NoNewPrivs|Seccomp):\t//p' /proc/$pid/status | xargs)" '1 2' 'no_new_privs, seccomp'
    equal "$(awk '/^Max (cpu time|address space|open files)/ { print $(NF - 1) }' /proc/$pid/limits | sort -n | xargs)" "$(printf '%s\n' 14400 "$(ulimit -Hn | awk '{ print $1 < 4096 ? $1 : 4096 }')" $((16 << 30)) | sort -n | xargs)" 'its limits'
    # What it takes up is its caller's: the job's limits hold it.
    equal "$(cat /proc/$pid/cgroup)" "$(cat /proc/"$started"/cgroup)" 'its control group'
done
# The writer sees no process, no network, and no file but the store.
for namespace in mnt pid ipc net; do
    [ "$(readlink /proc/$writer/ns/$namespace)" != "$(readlink /proc/self/ns/$namespace)" ] || fail "the writer has the host's $namespace namespace"
done
equal "$(cut -d' ' -f5 /proc/$writer/mountinfo | sort | xargs)" "/ $store" "the writer's mounts"
equal "$(cd /proc/$writer/root && find . -xdev -not -name . | xargs)" './var ./var/lib ./var/lib/skiff ./var/lib/skiff/store' "the writer's files"
equal "$(nsenter --net=/proc/$writer/ns/net ip -o link | grep -c -v ' lo: ' || true)" 0 "the writer's devices"
try wait "$started"
eventually 15 sh -c '! pgrep -u daemon -x skiff'

attack writer_sockets
attack writer_words "$foreign"
attack writer_files "$good" "$foreign"
attack writer_limits "$good"
eventually 15 sh -c '! pgrep -u daemon -x skiff'

# A second name of the helper, in a directory of alice's.
install -d -o alice $own $own/libexec $own/libexec/skiff $own/bin
printf '#!/bin/sh\nid >/tmp/skiff-loot\n' >$own/bin/skiff && chmod 755 $own/bin/skiff && chown alice $own/bin/skiff
ln $helper $own/libexec/skiff/skiff-helper
attack second_name $own/libexec/skiff/skiff-helper
[ ! -e /tmp/skiff-loot ] || fail "a program of alice's was run as $(cat /tmp/skiff-loot)"
