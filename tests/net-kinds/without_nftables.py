"""Runs a command as on a kernel without nftables: sockets to netfilter are refused, as that kernel refuses them.

    without_nftables.py CMD...
"""

import ctypes, os, struct, sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
AF_NETLINK, NETLINK_NETFILTER, EPROTONOSUPPORT = 16, 12, 93
SOCKET = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# Where seccomp's data has the number of the call and the low words of its first and third argument.
NUMBER, FIRST, THIRD = 0, 16, 32


def step(code, yes, no, value):
    return struct.pack("=HBBI", code, yes, no, value)


program = b"".join([
    step(LOAD, 0, 0, NUMBER), step(EQUAL, 0, 5, SOCKET),
    step(LOAD, 0, 0, FIRST), step(EQUAL, 0, 3, AF_NETLINK),
    step(LOAD, 0, 0, THIRD), step(EQUAL, 0, 1, NETLINK_NETFILTER),
    step(RETURN, 0, 0, ERRNO | EPROTONOSUPPORT), step(RETURN, 0, 0, ALLOW),
])
steps = ctypes.create_string_buffer(program)
head = ctypes.create_string_buffer(struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(steps)))
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(head)) == 0
os.execvp(sys.argv[1], sys.argv[1:])
