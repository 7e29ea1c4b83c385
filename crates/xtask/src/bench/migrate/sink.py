"""Finds and fills so many MiB of new memory, and says how long that took; then takes what source.py sends into it."""

import mmap, socket, sys, time

size, piece = int(sys.argv[1]) << 20, b"\1" * (256 << 10)
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
begin = time.monotonic()
for at in range(0, size, len(piece)):
    memory[at : at + len(piece)] = piece
fill = time.monotonic() - begin
peer, view, at = socket.create_server(("", 7789)).accept()[0], memoryview(memory), 0
peer.sendall(b"%f\n" % fill)
while at < size:
    at += peer.recv_into(view[at : at + (1 << 20)])
peer.sendall(b"+")
