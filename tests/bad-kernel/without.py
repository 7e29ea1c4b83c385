"""without.py NUMBER=ERRNO... -- COMMAND...: runs a command for which these system calls fail so, as on a kernel that has not
got them.

Root needs no `no_new_privs` for such a filter, so it also holds for set-uid programs that the command starts."""

import ctypes
import os
import struct
import sys

LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("HBBI", code, if_true, if_false, value)


split = sys.argv.index("--")
program = b""
for word in sys.argv[1:split]:
    call, errno = word.split("=")
    program += instruction(LOAD, 0)
    program += instruction(JUMP_EQUAL, int(call), 0, 1)
    program += instruction(RETURN, FAIL | int(errno))
program += instruction(RETURN, ALLOW)

buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(22, 2, filter, 0, 0) != 0:
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
