"""Whether a server is reached, by TCP and by UDP: `in` or `out` of each.

    knock.py HOST [PORT]     PORT: where from
"""

import socket, sys


def reached(kind):
    with socket.socket(socket.AF_INET, kind) as s:
        s.settimeout(0.4)
        s.bind(("", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
        try:
            s.connect((sys.argv[1], 7000))
            if kind == socket.SOCK_DGRAM:
                s.send(b"?")
                s.recv(100)
            return "in"
        except OSError:
            return "out"


print(reached(socket.SOCK_STREAM), reached(socket.SOCK_DGRAM))
