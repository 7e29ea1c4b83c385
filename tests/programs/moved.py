"""What the programs of the corpus share. Each is a function with one kernel feature in it, which makes something, calls `moved()`, and
demands afterwards that it is as it was:

    python3 memory.py                 the programs in this file, and what each is about
    python3 memory.py NAME DIRECTORY  runs one; it says `ready`, waits for DIRECTORY/NAME.go, and says `right`, or `wrong: WHAT` and exits with 1

In DIRECTORY, which every node sees, it may keep files of its name.
"""
import ctypes
import os
import sys
import time

PROGRAMS = {}
libc = ctypes.CDLL(None, use_errno=True)


def program(of):
    PROGRAMS[of.__name__.replace('_', '-')] = of
    return of


def place(suffix=''):
    return f'{sys.argv[2]}/{sys.argv[1]}{suffix}'


def call(name, *words):
    """A function of the C library's that gives -1 when it fails."""
    got = getattr(libc, name)(*words)
    if got == -1:
        raise OSError(ctypes.get_errno(), f'{name}: {os.strerror(ctypes.get_errno())}')
    return got


def pause():
    # Without a deadline: a clock that goes back would hold this up.
    ctypes.CDLL(None).usleep(20000)


def moved():
    print('ready', flush=True)
    while not os.path.exists(place('.go')):
        pause()


def within(seconds, fact):
    for _ in range(int(seconds * 50)):
        if fact():
            return True
        pause()
    return bool(fact())


def equal(what, got, want):
    if got != want:
        print(f'wrong: {what}: {got!r} instead of {want!r}', flush=True)
        os._exit(1)


def child(of):
    """Forks a process that does this and exits with 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            of()
            code = 0
        finally:
            os._exit(code)
    return pid


def main():
    if len(sys.argv) == 1:
        for name, of in PROGRAMS.items():
            print(f'{name}\t{of.__doc__}')
        return
    try:
        PROGRAMS[sys.argv[1]]()
    except BaseException as e:
        print(f'wrong: {type(e).__name__}: {e}', flush=True)
        os._exit(1)
    print('right', flush=True)
    os._exit(0)
