# A save reads only memory that was written to since the last one. Whatever a program does with its memory meanwhile, and whatever becomes of the
# last checkpoint or of a save in between, each checkpoint comes back as the program was: nothing is missing, and nothing is of another time.
# time: 900
# takes: 60
. "$(dirname "$0")/../lib.sh"
needs_criu
printf '6.7\n%s\n' "$(uname -r)" | sort -VC || skip 'this kernel cannot tell what was written'
# At each turn it does to its memory what a seed says, and sums all of it: whoever goes on from a checkpoint says the same again.
cat >/shared/turns.py <<'X'
import ctypes, hashlib, mmap, os, random, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
PAGE, PRIVATE, FIXED, MAYMOVE = 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0x10, 1
random.seed(7)

class Memory:
    def __init__(self, size, flags=PRIVATE, fd=-1):
        self.size = size
        self.at = libc.mmap(None, ctypes.c_size_t(size), 3, flags, fd, ctypes.c_long(0))
        assert self.at not in (None, 2 ** 64 - 1)
    def write(self, at, data): ctypes.memmove(self.at + at, data, len(data))
    def fill(self):
        for at in range(0, self.size, 1 << 20): self.write(at, random.randbytes(min(1 << 20, self.size - at)))
    def change(self, count):
        for _ in range(count): self.write(random.randrange(self.size - 600), random.randbytes(random.choice([1, 8, 600])))
    def bytes(self): return (ctypes.c_char * self.size).from_address(self.at)

def digest(parts):
    all = hashlib.sha256()
    for part in parts: all.update(part)
    return all.hexdigest()

def call(result): assert result not in (-1, None, 2 ** 64 - 1), os.strerror(ctypes.get_errno())

large, huge, given_back, moved, anew = Memory(24 << 20), Memory(8 << 20), Memory(4 << 20), Memory(1 << 20), Memory(1 << 20)
call(libc.madvise(ctypes.c_void_p(huge.at), ctypes.c_size_t(huge.size), 14))
shared = Memory(2 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
memfd = os.memfd_create('m')
os.ftruncate(memfd, 2 << 20)
of_memfd, own_of_memfd = Memory(2 << 20, mmap.MAP_SHARED, memfd), Memory(2 << 20, mmap.MAP_PRIVATE, memfd)
every = [large, huge, given_back, moved, anew, shared, of_memfd, own_of_memfd]
for memory in every: memory.fill()
objects = [random.randbytes(random.randrange(40, 400)) for _ in range(40000)]

# Two processes that have come of this one: the newer has its memory from after a save, the other has become another program.
def answer(turn):
    large.change(40); shared.change(5)
    return digest([large.bytes(), huge.bytes()])
def fork():
    (asked, ask), (told, tell) = os.pipe(), os.pipe()
    seed = random.random()
    if os.fork() == 0:
        os.close(ask); os.close(told); random.seed(seed)
        while True:
            word = os.read(asked, 1)
            if not word: os._exit(0)
            if word == b'x': os.execv(sys.executable, [sys.executable, sys.argv[0], 'other', str(asked), str(tell)])
            os.write(tell, answer(word).encode())
    os.close(asked); os.close(tell)
    return ask, told
if sys.argv[1:2] == ['other']:
    asked, tell = int(sys.argv[2]), int(sys.argv[3])
    while os.read(asked, 1): os.write(tell, answer(0).encode())
    sys.exit()
def say(child, word=b't'):
    os.write(child[0], word)
    return os.read(child[1], 64).decode()
for fd in range(3, 20):
    try: os.set_inheritable(fd, True)
    except OSError: pass

old_pipe, os.pipe = os.pipe, lambda: [os.set_inheritable(fd, True) or fd for fd in old_pipe()]
children = [fork(), fork()]
turn = 0
print('ready', flush=True)
while True:
    while not os.path.exists('/shared/turn.%d' % (turn + 1)): time.sleep(0.02)
    turn += 1
    large.change(300); huge.change(2); of_memfd.change(20); own_of_memfd.change(20)
    for _ in range(200): objects[random.randrange(len(objects))] = random.randbytes(random.randrange(40, 400))
    for _ in range(20):
        at = random.randrange(given_back.size // PAGE - 8) * PAGE
        call(libc.madvise(ctypes.c_void_p(given_back.at + at), ctypes.c_size_t(8 * PAGE), 4))
        if random.random() < .5: given_back.write(at + PAGE, random.randbytes(PAGE))
    # What two places have is exchanged page by page: each is then where another was.
    spare = Memory(PAGE)
    for _ in range(6):
        one, two = (moved.at + random.randrange(moved.size // PAGE) * PAGE for _ in 'ab')
        if one == two: continue
        for to, source in ((spare.at, one), (one, two), (two, spare.at)):
            call(libc.mremap(ctypes.c_void_p(source), ctypes.c_size_t(PAGE), ctypes.c_size_t(PAGE), MAYMOVE | 2, ctypes.c_void_p(to)))
    at = random.randrange(anew.size // PAGE - 16) * PAGE
    call(libc.munmap(ctypes.c_void_p(anew.at + at), ctypes.c_size_t(16 * PAGE)))
    call(libc.mmap(ctypes.c_void_p(anew.at + at), ctypes.c_size_t(16 * PAGE), 3, PRIVATE | FIXED, -1, ctypes.c_long(0)))
    if turn % 2: anew.write(at, random.randbytes(9 * PAGE))
    call(libc.mprotect(ctypes.c_void_p(huge.at), ctypes.c_size_t(huge.size), 1 if turn % 2 else 3))
    if turn % 2: call(libc.mprotect(ctypes.c_void_p(huge.at), ctypes.c_size_t(huge.size), 3))
    if turn == 3:
        children[1] = fork()
    if turn == 5: os.write(children[0][0], b'x')
    told = [say(child) for child in children]
    sum = digest([memory.bytes() for memory in every] + objects)
    print(turn, sum, *told, flush=True)
X
rm -f /shared/turn.*
home=/home/alice/.local/share/skiff/checkpoint
instances=/home/alice/.local/share/skiff/instance
tells() { grep -q "^$2" "$instances/$1/output"; } # INSTANCE WORD
last=0
turn() { last=$((last + 1)) && touch /shared/turn.$last && eventually 20 tells work $last; }
saved() { # INSTANCE WORDS... -> read, all: in KiB
    fits as alice skiff checkpoint save "$@" --leave-running --json
    read=$(($(json "$out" 'd["read_bytes"]') / 1024)) all=$(($(json "$out" 'd["bytes"]') / 1024))
}
part() { [ $((read * 3)) -lt $((all * 2)) ] || fail "$1: $read KiB of $all KiB were read"; }
whole() { [ $((read * 10)) -gt $((all * 8)) ] || fail "$1: only $read KiB of $all KiB were read"; }
# From a checkpoint of turn N on it says what the first one said.
same() { # CHECKPOINT TURN
    ok as alice skiff checkpoint restore "$1" again
    eventually 20 tells again $last
    equal "$(sed -n "/^$2 /,\$p" $instances/again/output)" "$(sed -n "/^$2 /,\$p" $instances/work/output)" "$1"
}
gone() { ok as alice skiff instance rm --force again; }

ok as alice skiff instance start --checkpoint host work python3 /shared/turns.py
eventually 20 tells work ready
turn
saved work --keep 8
whole 'the first save'
# What watches is open in the supervisor: under way in a socket it would count against what all of her processes may have so.
supervisor=$(pgrep -u alice -f '^skiff-instance work')
readlink /proc/$supervisor/fd/* | grep -q userfaultfd || fail "the supervisor has no userfaultfd: $(readlink /proc/$supervisor/fd/*)"
equal "$(grep -h '^scm_fds:' /proc/$supervisor/fdinfo/* | sort -u)" 'scm_fds: 0' 'descriptors under way'
for n in 2 3 4 5 6 7; do
    turn
    saved work --keep 8
    part "save $n"
done
turn
for n in 1 3 5 6 7; do
    old=work@$((7 - n))
    same ${old%@0} $n
    [ $n = 7 ] || gone
done

# What is restored is watched by nobody. Its next save is whole, the one after that is not, and both are right.
saved again --name other
whole 'the first save of what is restored'
turn
eventually 20 tells again $last
saved again --name other
part 'the second save of what is restored'
gone
turn
same other $((last - 1))
gone

# Under another name.
saved work --name third
part 'another name'
turn
saved work
part 'the first name again'
same third $((last - 1))
gone
same work $last
gone

# Without the last checkpoint, or where it is damaged or another one, all is read.
ok as alice skiff checkpoint delete work
turn
saved work --keep 2
whole 'without the last checkpoint'
turn
printf '\125\252\125\252\125\252\125\252' | dd of=$home/work/chunks bs=1 seek=4000 conv=notrunc status=none
saved work --keep 2
whole 'the last one is damaged'
same work $last
gone
ok as alice skiff checkpoint delete work@1
turn
saved work --keep 2
part 'after that'
printf 'x' >>$home/work/images/pagemap-$(basename $(ls $home/work/images/pagemap-[0-9]*.img | head -1) .img | tr -dc 0-9).img
turn
saved work
whole 'another image is damaged'
same work $last
gone

# A save that ends after a new watch has begun, and before its checkpoint has a name, is of no use to the next one.
turn
start alice skiff checkpoint save work --leave-running
for try in $(seq 2000); do
    ! compgen -G "$home/.new*/chunks" >/dev/null || break
    sleep 0.005
done
kill -KILL $started 2>&- || echo 'the save had ended before it could be killed' >&3
wait $started || true
turn
saved work
same work $last
gone
turn
saved work
part 'the one after it'
same work $last
gone

# Who does not want it does without it.
as alice mkdir -p .config/skiff
printf '[checkpoint]\ntrack = false\n' | as alice tee .config/skiff/config.toml >/dev/null
turn
saved work
whole 'without it'
rm /home/alice/.config/skiff/config.toml
turn
saved work
same work $last
gone

# The last save ends the instance. It reads as little.
turn
saved work --name third
fits as alice skiff checkpoint save work --json
read=$(($(json "$out" 'd["read_bytes"]') / 1024)) all=$(($(json "$out" 'd["bytes"]') / 1024))
part 'the last save'
next=$((last + 1))
touch /shared/turn.$next
for checkpoint in third work; do
    ok as alice skiff checkpoint restore $checkpoint again
    eventually 20 tells again $next
    told=$(grep "^$next " $instances/again/output)
    equal "$told" "${first:-$told}" 'the last save'
    first=$told
    gone
done
rm -f /shared/turn.*
