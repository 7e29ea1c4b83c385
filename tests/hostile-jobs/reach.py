"""What runs as her, but was started by somebody else, she tries to trace, to read, to signal, and to take descriptors from, until there is /shared/enough:
reach.py 'ARGUMENTS|ARGUMENTS...', as that process has them."""
import ctypes, os, sys, time

libc = ctypes.CDLL(None, use_errno=True)
SEIZE, DETACH, PIDFD_OPEN, PIDFD_GETFD = 0x4206, 17, 434, 438
me, seen, told, wanted = os.getuid(), set(), set(), sys.argv[1].split("|")


def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def gained(what, pid):
    if (what, pid) not in told:
        print("gained", what, "of", pid, flush=True)
        told.add((what, pid))


def arguments(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read().replace("\0", " ")


def files(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if "memfd:" in target:
            gained(f"{target} by {fd}", pid)


def attack(pid):
    try:
        files(pid)
        gained("descriptors", pid)
    except OSError:
        pass
    for name in ("mem", "environ", "maps"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if name == "mem" or file.read(1):
                    gained(name, pid)
        except OSError:
            pass
    if libc.ptrace(SEIZE, pid, None, None) == 0:
        gained("control", pid)
        libc.ptrace(DETACH, pid, None, None)
    try:
        # No signal, but the kernel checks the same: to stop it would do.
        os.kill(pid, 0)
        gained("signals", pid)
    except OSError:
        pass
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    if pidfd >= 0:
        for fd in range(8):
            if libc.syscall(PIDFD_GETFD, pidfd, fd, 0) >= 0:
                gained(f"descriptor {fd}", pid)
        os.close(pidfd)


print("ready", flush=True)
until = time.monotonic() + 15
while time.monotonic() < until and not os.path.exists("/shared/enough"):
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if str(me) in status(name)["Uid"].split() and any(one in arguments(name) for one in wanted):
                seen.add(name)
                # A program that was started as her may be hers; what counts then is what it has of root's.
                files(name) if "step-begin" in wanted[0] else attack(int(name))
        except OSError:
            pass
print("seen", len(seen), flush=True)
