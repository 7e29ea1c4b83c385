"""Holds memory: hold.py MIB KIND; says when it does. `random` cannot be compressed, `text` is what a program's own words are."""

import os, sys, time

os.closerange(3, 256)  # whatever a shell has left open leads out of its node
size, kind = int(sys.argv[1]) << 20, sys.argv[2]
length = min(size, (64 if kind == "random" else 16) << 20)
if kind == "random":
    block = os.urandom(length)
else:
    lines = (b"step %d atom %d at %.5f\n" % (n // 99, n % 99, n * 0.61803 % 1) for n in range(length // 24))
    block = b"".join(lines).ljust(length, b".")[:length]
memory = bytearray(size)
for at in range(0, size, length):
    memory[at : at + length] = block[: min(length, size - at)]
    memory[at : at + 8] = os.urandom(8)
del block
print("ready", flush=True)
while True:
    time.sleep(0.1)
