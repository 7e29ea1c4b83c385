"""Exchanges two names for one another as fast as it can, for a bounded time: swap.py SECONDS A B"""
import ctypes, os, sys, time

AT_FDCWD, RENAME_EXCHANGE = -100, 2
libc = ctypes.CDLL(None, use_errno=True)
seconds, a, b = float(sys.argv[1]), os.fsencode(sys.argv[2]), os.fsencode(sys.argv[3])
end = time.monotonic() + seconds
print("ready", flush=True)
while time.monotonic() < end:
    for _ in range(100):
        libc.renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)
