# Checkpoints of one user have a store in common: a save writes what has changed since, each checkpoint comes back as it was, and what none needs any
# more is removed; what is damaged is refused, and what is killed or finds no room leaves nothing.
# takes: 25
. "$(dirname "$0")/../lib.sh"
needs_criu
# At each turn a page of its memory changes, and all of it is summed: whoever goes on from a checkpoint says the same again.
cat >/shared/turns.py <<'X'
import hashlib, mmap, os, random, time
size, turn = 32 << 20, 0
random.seed(1)
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 1 << 20): memory[at:at + (1 << 20)] = random.randbytes(1 << 20)
print('ready', flush=True)
while True:
    while not os.path.exists('/shared/turn.%d' % (turn + 1)): time.sleep(0.02)
    turn += 1
    at = turn * 977 * 4096 % size
    memory[at:at + 4096] = random.randbytes(4096)
    print(turn, hashlib.sha256(memory).hexdigest(), flush=True)
X
rm -f /shared/turn.*
home=/home/alice/.local/share/skiff/checkpoint
instances=/home/alice/.local/share/skiff/instance
tells() { grep -q "^$2" "$instances/$1/output"; } # INSTANCE WORD
turn() { touch /shared/turn.$1; eventually 20 tells work $1; }
packs() { find $home/.chunks/packs -type f | wc -l; }
room() { du -sk $home | cut -f1; }
saved() { # WORDS... -> all, written: in KiB
    fits as alice skiff checkpoint save work --leave-running --json "$@"
    written=$(($(json "$out" 'd["written_bytes"]') / 1024)) all=$(($(json "$out" 'd["bytes"]') / 1024))
}

ok as alice skiff instance start --checkpoint host work python3 /shared/turns.py
eventually 20 tells work ready
saved --keep 4
[ $all -gt 32768 ] && [ $written -gt 32768 ] || fail "the first: $all KiB, $written KiB written"
first=$(room)
for n in 1 2 3; do
    turn $n
    saved --keep 4
    [ $all -gt 32768 ] && [ $written -lt 4096 ] || fail "save $n: $all KiB, $written KiB written"
done
[ $(room) -lt $((first + 12288)) ] || fail "four checkpoints take $(room) KiB, one $first KiB"
fits as alice skiff checkpoint list --json
equal "$(json "$out" '[(c["name"], c["bytes"] > 32 << 20, c["own_bytes"] < 4 << 20) for c in d]')" \
    "[('work', True, True), ('work@1', True, True), ('work@2', True, True), ('work@3', True, True)]"
ok as alice skiff checkpoint show work@2
has "$out" 'that no other checkpoint needs'
has "$out" 'its own tmp (empty)'
# Where two names cannot change places at once, a kill leaves one between them. It is there again for whoever looks.
for look in list 'show work@2' 'restore --dry-run work@2 again'; do
    mv $home/work@2 "$home/.new.99999999.work+between.2@$(uname -n)"
    ok as alice skiff checkpoint $look
    [ -d $home/work@2 ] || fail "after $look a checkpoint is still between two names"
done

# Each comes back as it was then: it says what the first one said.
turn 4
for old in work@3:1 work@1:3 work:4; do
    fits as alice skiff checkpoint restore "${old%:*}" again --json
    eventually 20 tells again 4
    equal "$(sed -n "/^${old#*:} /,\$p" $instances/again/output)" "$(sed -n "/^${old#*:} /,\$p" $instances/work/output)" "$old"
    ok as alice skiff instance rm --force again
done
equal "$(find $home -name 'pages-*.img')" '' 'what restoring has left'

# As one file it needs no store. What an older Skiff has written comes back, too: it is of the same format as that.
ok as alice skiff checkpoint export work@2 /tmp/work.file
mv $home kept
ok as alice skiff checkpoint import /tmp/work.file old
equal "$(head -c 18 $home/old/checkpoint)" 'skiff-checkpoint 1'
[ ! -e $home/.chunks ] || fail 'importing has made a store'
ok as alice skiff checkpoint restore old again
eventually 20 tells again 4
equal "$(sed -n '/^3/,$p' $instances/again/output)" "$(sed -n '/^3/,$p' $instances/work/output)" 'as one file'
ok as alice skiff checkpoint save again --name old
equal "$(head -c 18 $home/old/checkpoint)" 'skiff-checkpoint 2'
ok as alice skiff checkpoint delete old
ok as alice skiff instance rm again
equal "$(packs)" 0 'chunks that nobody needs'
rm -rf $home /tmp/work.file && mv kept $home

# Encrypted on its way, as the docs say. What was altered there, or cut, is refused and leaves nothing.
ok as alice ssh-keygen -q -t ed25519 -N '' -f /tmp/key
ok as alice sh -c 'skiff checkpoint export work@2 - | age -R /tmp/key.pub >/tmp/work.age'
ok as alice sh -c 'age -d -i /tmp/key /tmp/work.age | skiff checkpoint import - opened'
ok as alice skiff checkpoint restore opened again
eventually 20 tells again 4
equal "$(sed -n '/^3/,$p' $instances/again/output)" "$(sed -n '/^3/,$p' $instances/work/output)" 'encrypted'
ok as alice skiff instance rm --force again
ok as alice skiff checkpoint delete opened
for harm in "truncate -s 5000000 /tmp/work.age" "printf x | dd of=/tmp/work.age bs=1 seek=4000000 conv=notrunc status=none"; do
    as alice sh -c "$harm"
    fails 125 as alice sh -c 'age -d -i /tmp/key /tmp/work.age | skiff checkpoint import - opened'
    has "$err" 'hint:'
    ok as alice skiff checkpoint list
    lacks "$out" opened
    lacks "$(ls -A $home)" opened
done
rm -f /tmp/key* /tmp/work.age

# What is damaged is refused before anything is started. (The largest pack is the first.)
pack=$(ls -S $home/.chunks/packs/* | head -1)
rm -rf kept && cp -a $home kept
again_as_it_was() { rm -rf $home && cp -a kept $home; }
refused() { # WORDS
    for words in 'restore work again' 'restore --dry-run work again' 'export work /tmp/work.file'; do
        fails 125 as alice skiff checkpoint $words
        has "$err" "$1"
    done
    ok as alice skiff instance list
    lacks "$out" again 'what is left of it'
    [ ! -e /tmp/work.file ] || fail 'a file of what is damaged'
    again_as_it_was
}
damage() { printf '\125\252\125\252\125\252\125\252' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
damage $pack $(($(stat -c %s $pack) / 2))
# An instance does not end by a save that would need it.
fails 125 as alice skiff checkpoint save work --name last
has "$err" "$(basename $pack) is damaged"
has "$err" 'the instance goes on'
refused "$(basename $pack) is damaged"
truncate -s 1M $pack
refused "$(basename $pack) is damaged"
rm $pack
refused "$(basename $pack)"
damage $home/work/chunks 4000
refused chunks
cp $home/work@3/chunks $home/work
refused chunks
sed -i '1s/skiff-checkpoint 2/skiff-checkpoint 9/' $home/work/checkpoint
refused 'format 9'
# A list that cannot be read does not say what it needs: so nothing goes, until it has gone itself.
damage $home/work@1/chunks 100
ok as alice skiff checkpoint delete work@2
has "$err" 'were not removed'
ok as alice skiff checkpoint delete work@1
lacks "$err" 'not removed'
again_as_it_was

# The processes go on before the checkpoint is there. If who saves is killed in between, they go on, and it is whole or not there.
start alice skiff checkpoint save work --name torn --leave-running
for try in $(seq 2000); do
    ! compgen -G "$home/.new*/chunks" >/dev/null || break
    sleep 0.005
done
for pid in $(pgrep -u alice -f 'save work --name torn'); do kill -9 $pid 2>/dev/null || true; done
try wait $started
turn 5
[ ! -e $home/torn ] || ok as alice skiff checkpoint restore --dry-run torn again

# Nothing stays of saves that were killed, and what they had begun is in nobody's way.
for moment in 0.02 0.05 0.1 0.15 0.2 0.3; do
    start alice skiff checkpoint save work --name torn --leave-running
    sleep $moment
    kill -9 $started 2>/dev/null || true
    try wait $started
done
turn 5
ok as alice skiff sweep
try as alice skiff checkpoint delete torn
saved --keep 4
[ $written -lt 4096 ] || fail "after saves that were killed: $written KiB written"
[ $(packs) -le 6 ] || fail "packs after saves that were killed: $(packs)"
equal "$(find $home -mindepth 1 -maxdepth 1 -name '.*' ! -name .lock ! -name .chunks)" '' 'what is left of them'

# Saves and removals at the same time: what is there comes back.
for n in 1 2 3; do
    start alice skiff checkpoint save work --name other --leave-running
    ok as alice skiff checkpoint delete work@$((4 - n))
    try wait $started
    equal "$code" 0 'a save beside removals'
    ok as alice skiff checkpoint restore --dry-run other again
    ok as alice skiff checkpoint delete other
done
ok as alice skiff checkpoint restore work again
turn 6
eventually 20 tells again 6
equal "$(tail -1 $instances/again/output)" "$(tail -1 $instances/work/output)"
ok as alice skiff instance rm --force again

# Without room it goes on, and nothing stays.
shm=/dev/shm/skiff-$(id -u alice)
ok as alice skiff checkpoint create --mem-dir small
mount -t tmpfs -o size=16m,mode=700,uid=alice,gid=alice none $shm
ok as alice skiff checkpoint create --mem-dir full
fails 125 as alice skiff checkpoint save work --name full --leave-running
full=$err left=$(find $shm -type f ! -name .lock ! -name lock ! -name turn)
eventually 10 umount $shm
has "$full" 'No space left on device'
equal "$left" '' 'what is left of it'
ok as alice skiff checkpoint delete small
turn 7

# When it has ended and its checkpoint is removed, nothing is left.
ok as alice skiff checkpoint save work
ok as alice skiff checkpoint restore work
turn 8
ok as alice skiff instance rm --force work
ok as alice skiff checkpoint delete work
equal "$(packs)" 0 'chunks that nobody needs'
[ $(room) -lt 256 ] || fail "$(room) KiB are left"
