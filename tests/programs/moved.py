"""What the programs of the corpus share. Each is a function with one kernel feature in it, which makes something, calls `moved()`, and
demands afterwards that it is as it was:

    python3 memory.py                 the programs in this file, and what each is about
    python3 memory.py NAME DIRECTORY  runs one; it says `ready`, waits for DIRECTORY/NAME.go, and says `right`, or `wrong: WHAT` and exits with 1
    python3 memory.py NAME,NAME... DIRECTORY AS
                                      runs several side by side, which wait for DIRECTORY/AS.go; it says the same of all

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


def local(path):
    """A file of the program's own in the instance's /tmp."""
    os.makedirs(f'/tmp/{sys.argv[1]}', exist_ok=True)
    return f'/tmp/{sys.argv[1]}/{path}'


def told():
    """Whether it has been moved."""
    return os.path.exists(f'{sys.argv[2]}/{(sys.argv[3:] or sys.argv[1:])[0]}.go')


def call(name, *words):
    """A function of the C library's that gives -1 when it fails."""
    got = getattr(libc, name)(*words)
    if got == -1:
        raise OSError(ctypes.get_errno(), f'{name}: {os.strerror(ctypes.get_errno())}')
    return got


def pause():
    # Without a deadline: a clock that goes back would hold this up.
    ctypes.CDLL(None).usleep(20000)


def moved(meanwhile=lambda: None):
    print('ready', flush=True)
    while not told():
        meanwhile()
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


def alone():
    try:
        PROGRAMS[sys.argv[1]]()
    except BaseException as e:
        print(f'wrong: {type(e).__name__}: {e}', flush=True)
        os._exit(1)
    print('right', flush=True)
    os._exit(0)


def side_by_side(names):
    """Runs each in a session of its own, with a pipe by which it says how it fares."""
    said = {}
    for name in names:
        r, w = os.pipe()
        if os.fork() == 0:
            os.close(r)
            os.setsid()
            os.dup2(w, 1)
            os.close(w)
            [of.close() for of in said.values()]
            sys.argv[1] = name
            alone()
        os.close(w)
        said[name] = os.fdopen(r)
    for word in 'ready', 'right':
        # Whatever else a program says is why it is not so.
        wrong = [f'{name}: {line}' for name, of in said.items() if (line := of.readline().strip()) != word]
        [print(f'not right {line}', flush=True) for line in wrong]
        print(f'wrong: {wrong[0]}' if wrong else word, flush=True)
        if wrong:
            os._exit(1)
    os._exit(0)


def main():
    if len(sys.argv) == 1:
        for name, of in PROGRAMS.items():
            print(f'{name}\t{of.__doc__}')
        return
    names = sys.argv[1].split(',')
    side_by_side(names) if len(sys.argv) > 3 else alone()
