"""What mallory does to the store's writers: asks the helper for many, and says nothing to them.

    idle.py HELPER COUNT SECONDS     prints how many she was given, then holds them so long
    idle.py HELPER trickle           sends a question a byte a second, and to another writer the files of
                                     a question one a second; prints after how many seconds both have gone
"""

import json
import os
import socket
import struct
import sys
import time


def request(kind):
    # Version, kind and a number: see crates/spec/src/wire.rs.
    return struct.pack("<BcI", 3, kind.encode(), 0)


def writer(helper):
    """A writer, or nothing; and the way to it."""
    ask, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    talk, given = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        os.set_inheritable(theirs.fileno(), True)
        os.execv(helper, ["x", str(theirs.fileno())])
    theirs.close()
    socket.send_fds(ask, [request("s")], [given.fileno()])
    given.close()
    ask.settimeout(10)
    answer = ask.recv(4096)
    return (talk, pid) if answer[1:2] == b"+" else (None, pid)


helper = sys.argv[1]
if sys.argv[2] == "trickle":
    talk, _ = writer(helper)
    files, _ = writer(helper)
    source = {"form": "oci", "path": "/x", "tag": None, "files": [str(n) for n in range(199)]}
    question = json.dumps({"Import": {"source": source, "platform": "linux/amd64"}}).encode()
    talk.sendall(struct.pack("<I", 1000))
    files.sendall(struct.pack("<I", len(question)) + question)
    null = os.open("/dev/null", os.O_RDONLY)
    trickles = [
        (talk, lambda: talk.sendall(b" ")),
        (files, lambda: socket.send_fds(files, [b"\0"], [null])),
    ]
    begin = time.monotonic()
    while trickles and time.monotonic() - begin < 40:
        for link, send in trickles[:]:
            link.settimeout(0.5)
            try:
                send()
                gone = link.recv(4096) == b""
            except TimeoutError:
                gone = False
            except OSError:
                gone = True
            if gone:
                trickles.remove((link, send))
    print(int(time.monotonic() - begin))
else:
    held = [writer(helper) for _ in range(int(sys.argv[2]))]
    print(sum(talk is not None for talk, _ in held), flush=True)
    time.sleep(float(sys.argv[3]))
