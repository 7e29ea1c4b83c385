"""Deletes the nftables table `skiff` of a process's network namespace, with the power of the user who owns it, and asserts that it is gone.

    unrule.py PID
"""

import ctypes, errno, os, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
spaces = [os.open(f"/proc/{sys.argv[1]}/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
for space in spaces:
    if libc.setns(space, 0):
        raise OSError(ctypes.get_errno(), "setns")

REQUEST, ACK, IPV4, TABLES = 1, 4, 2, 10
GET, DELETE, BEGIN, END = TABLES << 8 | 1, TABLES << 8 | 2, 0x10, 0x11


def message(kind, flags, family, number, body=b""):
    return struct.pack("=IHHIIBBH", 20 + len(body), kind, REQUEST | flags, 0, 0, family, 0, socket.htons(number)) + body


def ask(*messages):
    """The error of the first answer, 0 for none."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as s:
        s.send(b"".join(messages))
        answer = s.recv(65536)
    kind, code = struct.unpack_from("=4xH10xi", answer)
    return -code if kind == 2 else 0


name = struct.pack("=HH", 10, 1) + b"skiff\0\0\0"
get = message(GET, 0, IPV4, 0, name)
assert ask(get) == 0, "no table before"
error = ask(message(BEGIN, 0, 0, TABLES), message(DELETE, ACK, IPV4, 0, name), message(END, 0, 0, TABLES))
assert error == 0, os.strerror(error)
assert ask(get) == errno.ENOENT, "the table is still there"
