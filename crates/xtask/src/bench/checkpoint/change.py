"""Holds memory that cannot be compressed: change.py MIB. A file turn.N beside this one has it change 1 % of its pages, as the file says: `spread`, each by itself, or
`piece`, side by side. It says when it has."""

import mmap, os, sys, time

os.closerange(3, 256)  # whatever a shell has left open leads out of its node
PAGE = 4096
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)  # memory in huge pages is read each time
block = os.urandom(min(size, 64 << 20))
for at in range(0, size, len(block)):
    memory[at : at + len(block)] = block[: size - at]
    memory[at : at + 8] = os.urandom(8)
del block
print("ready", flush=True)
count, turn = size // PAGE // 100, 1
while True:
    file = os.path.join(os.path.dirname(sys.argv[0]), f"turn.{turn}")
    if not os.path.exists(file):
        time.sleep(0.01)
        continue
    with open(file) as text:
        step = {"spread": 100, "piece": 1}[text.read().strip()]
    first = turn * 7 % 100 if step == 100 else turn * count % (size // PAGE - count)
    for number in range(count):
        at = (first + number * step) * PAGE
        memory[at : at + PAGE] = os.urandom(PAGE)
    print("changed", turn, flush=True)
    turn += 1
