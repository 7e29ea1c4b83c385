"""A task and a child of its: each writes down every signal it gets, and ends soon after SIGTERM."""

import os
import signal
import sys
import time

role = "main"


def note(text):
    log = os.open(f"{sys.argv[1]}.{role}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, (text + "\n").encode())
    os.close(log)


def got(number, _frame):
    global end
    note(signal.Signals(number).name)
    if number == signal.SIGTERM:
        # Whatever came with it is to be seen too.
        end = time.monotonic() + 0.3


end = time.monotonic() + 60
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
    signal.signal(number, got)
if os.fork() == 0:
    role = "child"
note("start")
while time.monotonic() < end:
    time.sleep(0.1)
