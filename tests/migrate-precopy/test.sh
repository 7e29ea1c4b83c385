# `skiff migrate --mode precopy`: memory goes while the processes run and change it, they stand still for a moment only, and have then what they had;
# whatever fails meanwhile, they have never stopped.
# takes: 27
. "$(dirname "$0")/../lib.sh"
. "$here/../cluster-run/lib.sh"
needs_criu
cd /home/alice
daemons
own_disks
lines() { [ "$(on "$1" wc -l "/tmp/skiff-alice/instance/$2/output" | cut -d' ' -f1)" -ge "$3" ]; }
grows() { # NODE INSTANCE: it runs there
    local before
    before=$(on "$1" wc -l "/tmp/skiff-alice/instance/$2/output" | cut -d' ' -f1)
    eventually 20 lines "$1" "$2" $((before + 3))
}

# Writes to pages here and there, keeps apart what must be in each, takes and gives back memory all the while, and has a child with
# memory that was once its own; when told to end it looks whether all is as it must be.
cat >/shared/pages.py <<'X2'
import array, mmap, os, random, signal, sys, time
mib, rate = int(sys.argv[1]), int(sys.argv[2])
pages, random = mib << 8, random.Random(7)
memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, pages, 2):  # every other one; the rest is there once it is written to
    memory[page << 12:(page << 12) + 4096] = random.randbytes(64) * 64
    memory[page << 12:(page << 12) + 8] = bytes(8)
count = array.array('Q', bytes(8 * pages))
child, told = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(child[0], 1)
    same = all(memory[page << 12:(page << 12) + 8] == bytes(8) for page in range(pages))
    memory[4096:4104] = b'of child'
    os.write(told[1], b'+' if same and memory[4096:4104] == b'of child' else b'-')
    os._exit(0)
end = []
signal.signal(signal.SIGUSR1, lambda *_: end.append(1))
others, step = [], 0
while not end:
    for _ in range(rate):
        page = random.randrange(pages)
        count[page] += 1
        memory[page << 12:(page << 12) + 8] = count[page].to_bytes(8, 'little')
    other = mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    other[:] = bytes([step % 251]) * len(other)
    others.append((step, other))
    if len(others) > 4:
        number, other = others.pop(0)
        assert other[:] == bytes([number % 251]) * len(other), 'memory that comes and goes'
        other.close()
    print(step, flush=True)
    step += 1
    time.sleep(0.02)
wrong = sum(memory[page << 12:(page << 12) + 8] != count[page].to_bytes(8, 'little') for page in range(pages))
os.write(child[1], b'x')
print('wrong', wrong, os.read(told[0], 1).decode(), flush=True)
time.sleep(1000)
X2

pages() { # NODE NAME RATE: starts it with 192 MiB
    ok at "$1" alice skiff instance start --checkpoint host "$2" python3 /shared/pages.py 192 "$3"
    eventually 20 lines "$1" "$2" 3
}
right() { # NODE NAME: all of its memory is as it must be; it is ended
    on "$1" pkill -USR1 -o -u alice -f pages.py
    eventually 20 on "$1" grep -q ^wrong "/tmp/skiff-alice/instance/$2/output"
    equal "$(on "$1" tail -1 "/tmp/skiff-alice/instance/$2/output")" 'wrong 0 +' "memory of $2"
    ok at "$1" alice skiff instance rm --force "$2"
}

# There and back.
pages n1 calm 20
for way in 'n1 n2' 'n2 n1'; do
    ok at ${way% *} alice skiff migrate --mode precopy --json calm ${way#* }
    equal "$(json "$out" '[p["phase"] for p in d["phases"]]')" "['connect', 'prepare', 'ahead', 'dump', 'files', 'make', 'memory', 'start']"
    # It shares what it had before the fork with its child; what that may see goes as ever.
    equal "$(json "$out" '(len(d["rounds"]) > 0, d["memory_bytes"] > 90 << 20, d["frozen_ms"] < d["total_ms"])')" '(True, True, True)' "$out"
    grows ${way#* } calm
done
right n1 calm

# Without a child most of it goes ahead, and what is written in the meantime goes again.
sed 's/^if os.fork() == 0:/os.write(told[1], b"+")\nif False:/' /shared/pages.py >/shared/alone.py
mv /shared/alone.py /shared/pages.py
pages n1 busy 500
ok at n1 alice skiff migrate --mode precopy --compress off --json busy n2
equal "$(json "$out" '(len(d["rounds"]) > 1, d["rounds"][0]["bytes"] > 90 << 20, d["sent_bytes"] > d["memory_bytes"])')" '(True, True, True)' "$out"
# By a slow link it is packed.
on n2 tc qdisc replace dev e-n2 root tbf rate 100mbit burst 64k latency 50ms
ok at n2 alice skiff migrate --mode precopy --json busy n1
on n2 tc qdisc del dev e-n2 root
equal "$(json "$out" '(d["rounds"][0]["bytes"] > 90 << 20, d["sent_bytes"] < sum(r["bytes"] for r in d["rounds"]))')" '(True, True)' "$out"
grows n1 busy

# Whoever is killed while it is under way: it goes on, has never stopped, and nothing is left there.
on n1 tc qdisc replace dev e-n1 root tbf rate 400mbit burst 64k latency 50ms
login alice
# (What has memory sent ahead is a process of the instance's namespaces, whose own name is that of the move.)
for side in n1 n2 inside; do
    timeout -k 1 60 on n1 "${login[@]}" skiff migrate --mode precopy --compress off busy n2 2>err & job=$!
    on n2 timeout 20 sh -c 'until pgrep -u alice -f migrate-receive >/dev/null; do sleep 0.01; done'
    sleep 1
    case $side in
        inside) on n1 sh -c 'kill -9 $(pgrep -u alice -f "skiff migrate" | tail -1)' ;;
        *) on $side pkill -9 -u alice -f 'skiff migrate' ;;
    esac
    try wait $job
    [ $code != 0 ] || fail "it has gone, though $side was killed"
    [ $side = n1 ] || has "$(cat err)" 'instance busy'
    grows n1 busy
    eventually 20 on n2 sh -c '! pgrep -u alice'
    eventually 10 on n1 sh -c '! pgrep -u alice -f "skiff migrate"'
done
# Who is asked to end takes all back first, and says so. (By a link that is slow enough for this to come before the end.)
on n1 tc qdisc replace dev e-n1 root tbf rate 40mbit burst 64k latency 50ms
timeout -k 1 60 on n1 "${login[@]}" skiff migrate --mode precopy --compress off busy n2 2>err & job=$!
# The other side is there, and what sends the memory: processes that have the command's words. (Those that look beforehand have ended.)
on n2 timeout 30 sh -c 'until pgrep -u alice -f migrate-receive >/dev/null; do sleep 0.01; done'
on n1 timeout 30 sh -c 'until [ "$(pgrep -c -u alice -f "skiff migrate --mode")" -gt 1 ]; do sleep 0.01; done'
on n1 pkill -TERM -o -u alice -f 'skiff migrate --mode'
try wait $job
on n1 tc qdisc del dev e-n1 root
equal "$code" 143 "$(cat err)"
has "$(cat err)" 'instance busy: interrupted: nothing is moved, and the instance goes on'
# (From an earlier move it may be known there as one that has gone.)
nothing_there() {
    ok at n2 alice skiff instance list --json
    [ "$(json "$out" '[i["state"] for i in d if i["name"] == "busy" and i["state"] != "moved"]')" = '[]' ]
}
eventually 20 nothing_there
grows n1 busy
ok at n1 alice skiff migrate --mode precopy busy n2
right n2 busy
ok at n2 alice skiff instance list --json
lacks "$out" busy 'what is left on n2'
