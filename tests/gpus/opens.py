# opens.py FILE COMMAND...: how often FILE is opened, by anybody, while the command runs. Its own output goes to stderr. As root.
import ctypes
import os
import struct
import subprocess
import sys

CLOEXEC, NONBLOCK, UNLIMITED_QUEUE = 0x1, 0x2, 0x10
ADD, OPEN, HERE = 0x1, 0x20, -100
EVENT = struct.Struct("=IBBHQii")

libc = ctypes.CDLL(None, use_errno=True)
# Of one file fanotify tells each process that opens it; inotify takes equal events for one.
watcher = libc.fanotify_init(CLOEXEC | NONBLOCK | UNLIMITED_QUEUE, os.O_RDONLY | os.O_CLOEXEC)
if watcher < 0 or libc.fanotify_mark(watcher, ADD, ctypes.c_uint64(OPEN), HERE, sys.argv[1].encode()) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
ended = subprocess.run(sys.argv[2:], stdout=2, check=False).returncode
count = 0
while True:
    try:
        events = os.read(watcher, 4096)
    except BlockingIOError:
        break
    at = 0
    while at < len(events):
        length, _, _, _, _, opened, _ = EVENT.unpack_from(events, at)
        os.close(opened)
        count += 1
        at += length
print(count)
sys.exit(ended)
