"""Reads so many MiB of a process's memory, as whoever moves it has to, and sends as many; says how long each took."""

import ctypes, os, socket, sys, time

size, piece = int(sys.argv[1]) << 20, 256 << 10
block = os.urandom(min(size, 64 << 20))
memory = bytearray(size)
for at in range(0, size, len(block)):
    memory[at : at + len(block)] = block[: min(len(block), size - at)]
address = ctypes.addressof((ctypes.c_char * size).from_buffer(memory))
buffer = bytearray(piece)
while True:
    try:
        peer = socket.create_connection(("n2", 7789))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
fill = float(peer.makefile().readline())
with open("/proc/self/mem", "rb", buffering=0) as own:
    begin = time.monotonic()
    for at in range(0, size, piece):
        os.preadv(own.fileno(), [buffer], address + at)
    read = time.monotonic() - begin
begin = time.monotonic()
peer.sendall(memory)
peer.recv(1)
link = time.monotonic() - begin
ms = {"total_ms": link, "frozen_ms": link, "read_ms": read, "fill_ms": fill}
print("{%s}" % ", ".join(f'"{name}": {seconds * 1000}' for name, seconds in ms.items()))
