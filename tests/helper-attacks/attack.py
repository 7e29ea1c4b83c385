#!/usr/bin/python3
"""Attacks on the setuid helper, as an ordinary user who speaks its protocol herself.

    attack.py HELPER NAME [ARGUMENT...]     runs one attack; prints what it gained, and nothing if it gained nothing

Every function below is one; its text says what must come of it.
"""

import ctypes, errno, fcntl, json, os, pty, random, resource, signal, socket, stat, struct, sys, termios, time

libc = ctypes.CDLL(None, use_errno=True)
HELPER = sys.argv[1]
NEWNS, NEWUSER, NEWPID, NEWIPC, NEWNET = 0x20000, 0x10000000, 0x20000000, 0x8000000, 0x40000000
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT, SYS_FSPICK = 428, 429, 430, 431, 432, 433
SYS_MOUNT_SETATTR = 442
EMPTY_PATH = 0x1000
RDONLY, NOSUID, NODEV = 1, 2, 4
VERSION = 3


def gained(*words):
    print("GAINED:", *words)


def call(name, *arguments):
    """A system call or libc function; an OSError like Python's own."""
    result = name(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def syscall(number, *arguments):
    return call(libc.syscall, ctypes.c_long(number), *arguments)


def refused(act, *arguments):
    """Whether the kernel refuses this."""
    try:
        act(*arguments)
    except OSError:
        return True
    return False


class Asked:
    """A helper that has been started with one message on its socket."""

    def __init__(self, message, fds=(), words=(), before=None, env=None, kind=socket.SOCK_SEQPACKET, close=()):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        self.socket.settimeout(10)
        if message is not None:
            socket.send_fds(self.socket, [message], list(fds))
        theirs.set_inheritable(True)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.socket.close()
                if before:
                    before()
                for fd in close:
                    os.close(fd)
                os.execve(HELPER, [HELPER, str(theirs.fileno()), *words], env if env is not None else {})
            except OSError as e:
                os._exit(99 if e.errno == errno.EACCES else 98)
            finally:
                os._exit(97)
        theirs.close()

    def received(self):
        """Its reply and the descriptors that came along."""
        try:
            return socket.recv_fds(self.socket, 8192, 64)[:2]
        except ConnectionResetError:
            # It has not read what it was told; the answer comes behind that word.
            return socket.recv_fds(self.socket, 8192, 64)[:2]

    def answer(self):
        """The same, and its exit code (negative: the signal)."""
        try:
            reply, fds = self.received()
        except TimeoutError:
            gained("the helper hangs")
            os.kill(self.pid, signal.SIGKILL)
            reply, fds = b"", []
        self.socket.close()  # It stays a while for as long as we are there.
        return reply, fds, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def request(kind, pid):
    return bytes([VERSION, ord(kind)]) + struct.pack("<I", pid % 2**32)


def ordered(*argv, stack="ffffffffffffffff", head=None):
    """The messages that order this program."""
    texts = [*(head or ("0000", "0", stack, "", "/", "")), "", "", "", str(len(argv)), *argv]
    return b"".join(text.encode() + b"\0" for text in texts)


def join(pid, order, go=True, first=(), **how):
    """One that is told of a program, and where."""
    asked = Asked(None, **how)
    told = [*first, *(request("o", 0) + order[at:at + 4090] for at in range(0, len(order), 4090))]
    for message in [*told, request("j", pid), *([request("g", 0)] if go else [])]:
        try:
            asked.socket.send(message)
        except (BrokenPipeError, ConnectionResetError):
            break  # It has refused by now.
    return asked


def prepared(second, image=b""):
    """One that has made ready, and is then told this."""
    asked = Asked(request("p", 0) + image)
    asked.socket.send(second)
    return asked


def must_refuse(what, asked):
    reply, fds, code = asked.answer()
    if fds or code == 0 or reply[1:2] == b"+":
        gained(what, reply, fds, code)
    for fd in fds:
        os.close(fd)


class Other:
    """A child that does what it is told and then waits."""

    def __init__(self, *steps):
        self.go, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.go.close()
                for step in steps:
                    step()
                theirs.send(b"+")
                while theirs.recv(1):
                    pass
            finally:
                os._exit(0)
        theirs.close()
        assert self.go.recv(1) == b"+", "a child could not do its steps"

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def unshare(flags):
    return lambda: call(libc.unshare, flags)


UID, GID = os.getuid(), os.getgid()


def map_herself():
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {UID} 1"), ("gid_map", f"0 {GID} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def status(pid="self"):
    return dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").decode().splitlines())


# Whether root of this machine may lift hard limits (CAP_SYS_RESOURCE): not in many a container.
LIFTS = bool(int(status()["CapBnd"], 16) >> 24 & 1)


# ---- What it is told ------------------------------------------------------------------------------------------------------


def messages():
    """Garbage: refused, nothing given, no panic."""
    random.seed(2026)
    bad = [b"", b"\0", b"\1", b"\1b", b"\1b\0\0\0", request("b", 1) + b"\0", request("x", 1), b"\2" + request("b", 1)[1:],
           b"\0" * 6, b"\xff" * 6, request("r", 1), b"a" * 4096, b"a" * 4097, b"a" * 60000, b"GET / HTTP/1.1\r\n\r\n"]
    bad += [random.randbytes(random.randrange(1, 40)) for _ in range(40)]
    for message in bad:
        must_refuse(message[:20], Asked(message))
        must_refuse(message[:20], Asked(message, fds=[0] * 9))
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        must_refuse("another kind of socket", Asked(b"x" * 50, kind=kind))
    # Made ready for one thing, it does no other.
    image = bytes(32)
    for second in [*bad[:9], request("p", 0), request("r", 0), request("s", 0), request("j", os.getpid()), request("i", 1) + image]:
        must_refuse(b"prepared, then " + second[:20], prepared(second))
        must_refuse(b"prepared for an image, then " + second[:20], prepared(second, image))
    must_refuse("prepared for an image, then the host", prepared(request("b", 1), image))
    # Nobody there any more: it ends.
    for first in (None, request("p", 0)):
        asked = Asked(first)
        asked.socket.close()
        if os.waitstatus_to_exitcode(os.waitpid(asked.pid, 0)[1]) == 0:
            gained("an answer for nobody")


def words():
    """Orders that are none, and command lines of its own that are none: refused."""
    me = Other(unshare(NEWUSER | NEWNS))
    Asked(request("b", me.pid)).answer()
    good = ordered("/bin/id")
    for bad in (b"", b"\0", b"\0" * 7, b"\xff" * 4090, good[:-1], good[:-9], good + b"=", good + b"novariable\0",
                ordered("/bin/id", head=("x", "0", "0", "", "/", "")), ordered("/bin/id", head=("0000", "xyz", "0", "", "/", "")),
                ordered("/bin/id", head=("00099", "0", "0", "", "/", "")), ordered("/bin/id", stack="-1"), ordered(), good.replace(b"\x001\0", b"\x002\0"),
                good.replace(b"\x001\0", b"\x0018446744073709551616\0"), good.replace(b"\x001\0", b"\0-1\0"), good + b"A=1\0" * (3 << 20)):
        must_refuse(f"order {bad[:40]}", join(me.pid, bad))
    for what, messages in {"no order": [request("j", me.pid)], "go": [request("g", 0), request("j", me.pid)], "an order, then the host": [request("o", 0) + good, request("b", me.pid)],
                           "without a filter twice": [request("u", 0)] * 2 + [request("o", 0) + good, request("j", me.pid)],
                           "without a filter, too late": [request("o", 0) + good, request("u", 0), request("j", me.pid)],
                           "an environment without a filter": [request("u", 0), request("b", me.pid)], "one made ready": [request("u", 0), request("p", 0)],
                           "go twice": [request("g", 0), request("o", 0) + good, request("g", 0), request("j", me.pid)]}.items():
        asked = Asked(None)
        for message in messages:
            asked.socket.send(message)
        must_refuse(what, asked)
    for argv in ([], [b""], [b"\xff\xfe"], [b"x", b"\xff"], [b"x", b"-1"], [b"x", b"2147483648"], [b"x", b"0"], [b"x", b"2"], [b"x", b"999"]):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            array = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
            libc.execve(HELPER.encode(), array, (ctypes.c_char_p * 1)(None))
            os._exit(99)
        if (code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) != 125:
            gained("exit code", code, "with the words", argv)
    me.end()


def targets(bobs, bobs_space):
    """Processes and namespaces that are not hers to ask about, or no longer: refused."""
    mapped = Other(unshare(NEWUSER | NEWNS))
    first, fds, _ = Asked(request("b", mapped.pid)).answer()
    if first[1:2] != b"+":
        gained("nothing: her own namespace was refused", first)
    nested = Other(unshare(NEWUSER), map_herself, unshare(NEWUSER | NEWNS))
    mixed = Other(unshare(NEWUSER | NEWNS), map_herself, unshare(NEWUSER))
    dead = Other(unshare(NEWUSER))
    os.kill(dead.pid, signal.SIGKILL)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    plain = Other()
    for name, pid in {"her own process": os.getpid(), "process 1": 1, "bob's process": bobs, "bob's environment": bobs_space,
                      "a process in no user namespace": plain.pid, "a mapped one": mapped.pid, "a nested one": nested.pid,
                      "0": 0, "-1": -1, "2^31": 2**31, "none": 2**22 - 1}.items():
        must_refuse(f"base {name}", Asked(request("b", pid)))
        must_refuse(f"base {name}, prepared", prepared(request("b", pid)))
    for name, pid in {"her own process": os.getpid(), "process 1": 1, "bob's process": bobs, "bob's environment": bobs_space,
                      "a process in no user namespace": plain.pid, "a nested one": nested.pid, "a dead one": dead.pid,
                      "one with mounts of a user namespace further up": mixed.pid, "0": 0, "none": 2**22 - 1}.items():
        must_refuse(f"join {name}", join(pid, ordered("/bin/true")))
    if read(f"/proc/{nested.pid}/uid_map"):
        gained("a map for a nested user namespace")
    os.waitpid(dead.pid, 0)
    for other in (mapped, nested, mixed, plain):
        other.end()


def moving():
    """A target that moves on to a further user namespace while it is looked at: that one gets no map."""
    for n in range(60):
        other = Other(unshare(NEWUSER))
        asked = Asked(request("b", other.pid))
        time.sleep(n * 0.00003)
        other.end()
        for fd in asked.answer()[1]:
            os.close(fd)
    for _ in range(60):
        moved, mover = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            call(libc.unshare, NEWUSER)
            mover.send(b"+")
            # The kernel makes no further one before both maps are written; so this moves as soon as they are.
            end = time.time() + 0.2
            while refused(call, libc.unshare, NEWUSER) and time.time() < end:
                pass
            mover.send(b"+" if time.time() < end else b"-")
            time.sleep(10)
            os._exit(0)
        moved.recv(1)
        asked = Asked(request("b", pid))
        if moved.recv(1) == b"+" and read(f"/proc/{pid}/uid_map"):
            gained("a map for a further user namespace")
        for fd in asked.answer()[1]:
            os.close(fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def networks(bobs_space):
    """Names that are none, networks of others' processes: refused; and who gets onto one comes with nothing more than he had."""
    def of(name):
        return request("n", 0) + name
    for name in (b"", b"nosuch", b"../../passwd", b"/etc/passwd", b"a" * 13, b"LAB", b"la b", b"lab\0", b"\xff", b"host", b"private", b"x" * 4000):
        must_refuse(f"network {name[:20]}", Asked(of(name), words=["0", "run", "--", "true"]))
    plain = Other()
    theirs = Other(unshare(NEWUSER | NEWNET))
    for name, pid in {"process 1": 1, "bob's environment": bobs_space, "a process in no user namespace": plain.pid, "her own": os.getpid(),
                      "one whose network is her own": theirs.pid, "0": 0, "none": 2**22 - 1}.items():
        must_refuse(f"follow {name}", Asked(request("f", pid), words=["0", "run", "--", "true"]))
    # Words that are nobody's: it is she who reads them, as herself.
    mine = Other(unshare(NEWUSER))
    for words in ([], ["x"], ["0"], ["999", "run"], ["-1", "run", "--", "id"], ["0", "0", "999", "run", "--", "id"], ["0", "0", "0", "run", "--", "id"], [b"\xff", b"\xff"]):
        must_refuse(f"follow with {words}", Asked(request("f", mine.pid), words=words))
    # A file that cannot be written to its end gives no address.
    small = Asked(of(b"attack"), words=["0", "run", "--", "true"], before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    must_refuse("an address without a lease", small)
    if not LIFTS and (leases := [name for name in os.listdir("/run/skiff/net/attack") if name[0] != "."]):
        gained("a lease that could not be written", leases)
    for other in (plain, theirs, mine):
        other.end()
    # She is on it as herself, and it is the host's.
    script = ("import json, os; d = '/proc/self/fd/'; print(json.dumps([os.getresuid(), os.getresgid(), [l for l in open('/proc/self/status')"
              " if l[:3] == 'Cap' and l[:6] != 'CapBnd' and int(l.split()[1], 16)], [os.readlink(d + f) for f in os.listdir(d) if os.path.lexists(d + f)]]))")
    hers = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}
    out, into = os.pipe()
    here = os.open("/", os.O_PATH)
    os.set_inheritable(here, True)
    asked = Asked(of(b"attack"), words=[str(here), "ffffffffffffffff", "-", "run", "--me", "-e", "PATH=/usr/bin:/bin", "--", "/usr/bin/python3", "-c", script],
                  env={"HOME": os.path.expanduser("~")}, before=lambda: os.dup2(into, 1))
    os.close(into)
    asked.socket.close()
    os.waitpid(asked.pid, 0)
    said = os.read(out, 4096)
    ids, gids, capabilities, files = json.loads(said) if said else [None] * 4
    hers |= {os.readlink(f"/proc/self/fd/{out}")}
    if (ids, gids, capabilities) != ([UID] * 3, [GID] * 3, []) or set(files) - hers:
        gained("something on the way to a network", said)


def connections(bobs_space, bobs_address):
    """`connect` and `leave`: only into namespaces of her own making, and nobody's address but her own; what she is given gives no power."""
    def connect(pid, name=b"attack", claim=b"\0"):
        return Asked(request("c", pid) + claim + name)

    def claim(address, until=2**40, proof=b"\x01" + b"p" * 32):
        return b"\x01" + socket.inet_aton(address) + struct.pack("<QQ", until, int(time.time())) + proof

    def leave(address, name=b"attack"):
        return Asked(bytes([VERSION, ord("k")]) + bytes(reversed(socket.inet_aton(address))) + name)

    plain, nested = Other(), Other(unshare(NEWUSER), map_herself, unshare(NEWUSER | NEWNET))
    hosts, mine = Other(unshare(NEWUSER)), Other(unshare(NEWUSER | NEWNET))
    for name, pid in {"process 1": 1, "bob's environment": bobs_space, "a process in no user namespace": plain.pid, "the host's network": hosts.pid,
                      "a user namespace below hers": nested.pid, "herself": os.getpid(), "0": 0, "none": 2**22 - 1}.items():
        must_refuse(f"connecting {name}", connect(pid))
    for name in (b"", b"nosuch", b"../../passwd", b"a" * 13, b"LAB", b"\xff", b"host", b"x" * 4000):
        must_refuse(f"connecting to {name[:20]}", connect(mine.pid, name))
        must_refuse(f"leaving {name[:20]}", leave("10.66.0.2", name))
    for what, words in {"another's": claim(bobs_address), "one outside": claim("10.67.0.2"), "the net's": claim("10.66.0.0"), "all of them": claim("10.66.0.255"),
                        "one that nobody had": claim("10.66.0.77"), "one without a proof": claim("10.66.0.77", proof=b"\0" * 33),
                        "an odd one": claim("10.66.0.77", proof=b"\2" + b"p" * 32), "a short one": claim("10.66.0.77")[:-5], "none": b"\1", "neither": b"\2"}.items():
        must_refuse(f"claiming {what}", connect(mine.pid, claim=words))
    for address in (bobs_address, "10.66.0.77", "10.66.0.0", "0.0.0.0", "255.255.255.255"):
        must_refuse(f"leaving {address}", leave(address))
    # Her own namespace: she gets an address, and nothing else.
    reply, fds, code = connect(mine.pid).answer()
    if code or len(fds) != 1:
        return gained("no address for herself", reply, fds, code)
    between = f"/proc/{os.getpid()}/fd/{fds[0]}"
    if not refused(call, libc.setns, fds[0], NEWNET):
        gained("the namespace between")

    def ruling():
        own = [os.open(f"/proc/{mine.pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
        for fd in own:
            call(libc.setns, fd, 0)
        if not refused(call, libc.setns, fds[0], NEWNET):
            gained("the namespace between, with power over her own")
        for words in (["link", "set", "eth0", "netns", between], ["link", "add", "x", "type", "veth", "peer", "name", "y", "netns", between],
                      ["link", "add", "x", "netns", between, "type", "bridge"]):
            if os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", 'exec ip "$@" 2>/dev/null', "ip", *words]) == 0:
                gained("a device in the namespace between", words)
        # She may name it, but not ask what is in there.
        os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", f"ip netns list-id >/dev/null 2>&1; exec 2>/dev/null; ip -j link show | grep -q wire && echo GAINED: its devices"])

    Other(ruling).end()
    # Twice is refused: the device is there. The address that this would have had is free again.
    must_refuse("connecting twice", connect(mine.pid))
    for other in (plain, nested, hosts, mine):
        other.end()


def descriptors():
    """`refresh` of what is no view: refused, and nothing about it changed."""
    pipe = os.pipe()
    unconnected = socket.socket()
    for name, fds in {"none": [], "two": [0, 0], "/": [os.open("/", os.O_RDONLY)], "/proc": [os.open("/proc", os.O_PATH)], "a pipe": [pipe[0]],
                      "a socket": [unconnected.fileno()], "/etc/passwd": [os.open("/etc/passwd", os.O_RDONLY)], "memory": [os.memfd_create("x")],
                      "a namespace": [os.open("/proc/self/ns/user", os.O_RDONLY)], "itself": [os.open("/proc/self/exe", os.O_PATH)]}.items():
        must_refuse(f"refresh {name}", Asked(request("r", 0), fds=fds))


# ---- Where it runs ---------------------------------------------------------------------------------------------------------


def limits():
    """Whatever her limits are, it works, unless it cannot even be loaded, or root has no right to lift them. What others share stays whole."""
    loading = [(resource.RLIMIT_CPU, 0)] + [(resource.RLIMIT_AS, n << 10) for n in (0, 64, 256, 1024, 2048, 4096)]
    loading += [(resource.RLIMIT_DATA, n << 10) for n in (0, 64, 256)]
    cases = [(resource.RLIMIT_NOFILE, n) for n in range(3, 20)] + [(resource.RLIMIT_AS, 16 << 20), (resource.RLIMIT_DATA, 1 << 20)]
    cases += [(resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_FSIZE, 100), (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_STACK, 64 << 10),
              (resource.RLIMIT_MEMLOCK, 0), (resource.RLIMIT_SIGPENDING, 0), (resource.RLIMIT_MSGQUEUE, 0)]
    soft = [(limit, (value, resource.getrlimit(limit)[1])) for limit, value in cases]
    hard = [(limit, (value, value)) for limit, value in cases]
    sure = soft + hard if LIFTS else soft
    for limit, values in soft + hard + [(limit, (value, value)) for limit, value in loading]:
        mine = Other(unshare(NEWUSER | NEWNS))
        _, fds, code = Asked(request("b", mine.pid), before=lambda: resource.setrlimit(limit, values)).answer()
        if code == 0 and len(fds) != 2:
            gained("half an answer under a limit", limit, values)
        if code != 0 and (limit, values) in sure:
            gained("an end by a limit", limit, values, "with exit code", code)
        for fd in fds:
            os.close(fd)
        mine.end()


def out_of_time():
    """Her processor time runs out while a helper works, at a moment that she chooses: it goes on, where root has the right to lift that."""
    def nearly_out():
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
        while time.process_time() < 0.985:
            pass
    asked = Asked(request("o", 0) + b"x" * 4090, before=nearly_out)
    asked.socket.settimeout(10)
    # As much work as she can give it.
    for _ in range(2040):
        if refused(asked.socket.send, request("o", 0) + b"x" * 4090):
            break
    refused(asked.socket.send, request("x", 0))
    reply, fds, code = asked.answer()
    if LIFTS and (code != 125 or reply[1:2] != b"-"):
        gained("the end of a helper that works:", code)


def own_limits(*more):
    """What a helper starts for her has her limits, none higher and none lower."""
    own = {resource.RLIMIT_CPU: (50, 60), resource.RLIMIT_FSIZE: (1 << 20, 2 << 20), resource.RLIMIT_AS: (1 << 30, 2 << 30),
           resource.RLIMIT_DATA: (1 << 29, 1 << 30), resource.RLIMIT_STACK: (16 << 20, 32 << 20), resource.RLIMIT_NOFILE: (100, 200),
           resource.RLIMIT_NPROC: (300, 400), resource.RLIMIT_RTTIME: (10 ** 6, 2 * 10 ** 6), resource.RLIMIT_SIGPENDING: (50, 60)}
    def limited():
        for limit, values in own.items():
            resource.setrlimit(limit, values)
        os.dup2(back, 1)
    want = None
    here = os.open("/", os.O_PATH)
    os.set_inheritable(here, True)
    mine = Other(unshare(NEWUSER | NEWNS))
    Asked(request("b", mine.pid)).answer()
    for start in ("by herself", "join", "network"):
        out, back = os.pipe()
        os.set_inheritable(back, True)
        words = ["cat", "/proc/self/limits"]
        if start == "join":
            asked = join(mine.pid, ordered("/bin/cat", *words[1:], stack=f"{own[resource.RLIMIT_STACK][0]:x}"), before=limited)
        elif start == "network":
            asked = Asked(request("n", 0) + b"attack", words=[str(here), f"{own[resource.RLIMIT_STACK][0]:x}", "-", "run", "--me", "-e", "PATH=/bin", "--", *words], env={"HOME": os.path.expanduser("~")}, before=limited)
        else:
            asked = Asked(None)
            if os.fork() == 0:
                limited()
                os.execv("/bin/cat", words)
        os.close(back)
        text = b""
        while part := os.read(out, 65536):
            text += part
        asked.socket.close()
        os.waitpid(asked.pid, 0)
        os.close(out)
        want = want or text
        if text != want:
            gained("other limits by", start, text.decode())
    mine.end()


def few_descriptors(count):
    """With so few, it works or says no, but gives the others nothing that lacks something."""
    mine = Other(unshare(NEWUSER | NEWNS))
    for fd in Asked(request("b", mine.pid), before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))).answer()[1]:
        os.close(fd)
    mine.end()


def surroundings(preload):
    """Variables, umask, standard descriptors, working directory, many descriptors, signals: no difference."""
    variables = {"LD_PRELOAD": preload, "LD_LIBRARY_PATH": os.path.dirname(preload), "LD_AUDIT": preload, "RUST_BACKTRACE": "full", "RUST_LOG": "trace",
                 "GLIBC_TUNABLES": "glibc.malloc.check=3", "MALLOC_CHECK_": "3", "TMPDIR": "/home", "PATH": "/home", "HOME": "/etc", "LANG": "../../home"}

    def lost():
        os.mkdir("/tmp/lost")
        os.chdir("/tmp/lost")
        os.rmdir("/tmp/lost")

    def ignore():
        for n in range(1, 65):
            if n not in (9, 19, 32, 33):
                signal.signal(n, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))

    def many():
        for _ in range(500):
            os.set_inheritable(os.open("/etc/passwd", os.O_RDONLY), True)

    def alarm():
        signal.setitimer(signal.ITIMER_REAL, 30)

    for name, options in {"variables": {"env": variables}, "umask": {"before": lambda: os.umask(0o777)}, "no standard descriptors": {"close": (0, 1, 2)},
                          "a directory that is gone": {"before": lost}, "signals": {"before": ignore}, "descriptors": {"before": many},
                          "a timer": {"before": alarm}, "idle": {"before": lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))}}.items():
        mine = Other(unshare(NEWUSER | NEWNS))
        reply, fds, code = Asked(request("b", mine.pid), **options).answer()
        if code != 0 or len(fds) != 2:
            gained("nothing, but it should have worked in spite of:", name, reply, code)
        for fd in fds:
            os.close(fd)
        mine.end()


def fake_system():
    """From a root of her own, in her own user namespace, with /etc/subuid and /run/skiff of her making: it is no privileged program there."""
    def build():
        call(libc.unshare, NEWUSER | NEWNS)
        map_herself()
        for place, name in (("/etc/subuid", "subuid"), ("/etc/subgid", "subgid")):
            with open(f"/tmp/fake.{name}", "w") as file:
                file.write("root:1:65536\nalice:1:65536\n0:1:65536\n")
            call(libc.mount, f"/tmp/fake.{name}".encode(), place.encode(), None, 4096, None)
        call(libc.mount, b"none", b"/run", b"tmpfs", 0, None)
    mine = Other(unshare(NEWUSER | NEWNS))
    must_refuse("with a system of her making", Asked(request("b", mine.pid), before=build))
    must_refuse("join with a system of her making", join(mine.pid, ordered("/bin/true"), before=build))
    for pid in (1, os.getpid()):
        must_refuse("host namespaces from a system of her making", join(pid, ordered("/bin/true"), before=build))
    mine.end()


def through(inside):
    """By a path that leads through another process' mounts, or as a program without new privileges: not privileged."""
    global HELPER
    direct = HELPER
    mine = Other(unshare(NEWUSER | NEWNS))
    HELPER = f"/proc/{inside}/root{direct}"
    must_refuse("through /proc/PID/root", Asked(request("b", mine.pid)))
    HELPER = direct
    must_refuse("with no_new_privs", Asked(request("b", mine.pid), before=lambda: call(libc.prctl, 38, 1, 0, 0, 0)))
    must_refuse("traced", traced(mine.pid))
    mine.end()


def traced(target):
    """A helper that its tracer leads from its first instruction on."""
    asked = Asked(request("b", target), before=lambda: call(libc.ptrace, 0, 0, 0, 0))
    while True:
        _, how = os.waitpid(asked.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(how):
            break
        if status(asked.pid)["Uid"].split()[1] == "0":
            gained("a privileged process to trace")
        call(libc.ptrace, 7, asked.pid, 0, 0)
    reply, fds = asked.received()
    asked.answer = lambda: (reply, fds, os.waitstatus_to_exitcode(how))
    return asked


def watched():
    """While it runs: its memory, descriptors and root are closed to her, and it cannot be traced."""
    for n in range(40):
        mine = Other(unshare(NEWUSER | NEWNS))
        asked = Asked(None)
        while "skiff-helper" not in status(asked.pid)["Name"] or status(asked.pid)["Uid"].split()[0] != "0":
            time.sleep(0.0005)
        for what in ("mem", "environ", "maps", "syscall"):
            if not refused(read, f"/proc/{asked.pid}/{what}"):
                gained(f"/proc/PID/{what}")
        if not refused(os.listdir, f"/proc/{asked.pid}/fd") or not refused(os.listdir, f"/proc/{asked.pid}/root/"):
            gained("its descriptors or root")
        if not refused(call, libc.ptrace, 0x4206, asked.pid, 0, 0) or not refused(call, libc.ptrace, 16, asked.pid, 0, 0):
            gained("a traced helper")
        for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM):
            if not refused(os.kill, asked.pid, number):
                gained("a signal to it", number)
        asked.socket.send(request("b", mine.pid))
        _, fds, code = asked.answer()
        if code != 0:
            gained("nothing, but it should have worked")
        for fd in fds:
            os.close(fd)
        mine.end()


def interrupted(seconds):
    """Stopped by her terminal's key, or killed early, at any moment: others go on (which the test sees), and it stays stopped."""
    end = time.time() + float(seconds)
    stopped = []
    while time.time() < end:
        master, slave = pty.openpty()
        targets = [Other(unshare(NEWUSER | NEWNS)) for _ in range(2)]

        def terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        asked = Asked(request("b", targets[0].pid), before=terminal)
        time.sleep(random.random() * 0.004)
        os.write(master, b"\x1a")
        stopped.append(asked.pid)
        asked = Asked(request("b", targets[1].pid))
        time.sleep(random.random() * 0.002)
        refused(os.kill, asked.pid, signal.SIGKILL)
        asked.socket.close()
        os.waitpid(asked.pid, 0)
        for target in targets:
            target.end()
        os.close(slave)
        if len(stopped) > 60:
            pid = stopped.pop(0)
            refused(os.kill, pid, signal.SIGKILL)
    os._exit(0)


# ---- What it gives ----------------------------------------------------------------------------------------------------------


class Attr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def setattr_(fd, clear):
    attr = Attr(0, clear, 0, 0)
    syscall(SYS_MOUNT_SETATTR, fd, b"", EMPTY_PATH, ctypes.byref(attr), ctypes.sizeof(attr))


def as_root_of_ids(act, names=("mask", "view"), ask=lambda pid: request("b", pid)):
    """Runs `act(mask, view)` as root of a user namespace of hers with every capability there and no filter."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            call(libc.unshare, NEWUSER | NEWNS)
            theirs.send(b"+")
            _, fds, _, _ = socket.recv_fds(theirs, 1, 2)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            call(libc.mount, b"none", b"/mnt", b"tmpfs", 0, None)
            for fd, name in zip(fds, names):
                os.mkdir(f"/mnt/{name}")
                syscall(SYS_MOVE_MOUNT, fd, b"", -100, f"/mnt/{name}".encode(), 4)
            act(*fds)
        except BaseException as e:
            print("FAILED:", repr(e))
        finally:
            sys.stdout.flush()
            os._exit(0)
    ours.recv(1)
    reply, fds, _ = Asked(ask(pid)).answer()
    if len(fds) != len(names):
        print("FAILED: no mounts", reply)
    socket.send_fds(ours, [b"x"], fds)
    for fd in fds:
        os.close(fd)
    os.waitpid(pid, 0)


def mounts(secret, *paths):
    """The mounts handed out, with every flag taken off that she can take off: read-only all the same, without secrets, without a way out."""
    def act(mask, view):
        for fd, name in ((mask, "mask"), (view, "view")):
            top = f"/mnt/{name}"
            refused(setattr_, fd, RDONLY | NOSUID | NODEV)
            refused(call, libc.mount, None, top.encode(), None, 32, None)
            for what in (lambda: open(f"{top}/new", "w"), lambda: os.mkdir(f"{top}/new"), lambda: os.mknod(f"{top}/new", stat.S_IFCHR, 0),
                         lambda: os.chmod(f"{top}/etc" if name == "view" else f"{top}/shown", 0o777), lambda: os.utime(top),
                         lambda: os.setxattr(top, "user.x", b"x"), lambda: os.setxattr(top, "trusted.x", b"x"),
                         lambda: os.rename(f"{top}/etc", f"{top}/x"), lambda: open(f"{top}/etc/passwd", "r+")):
                if not refused(what):
                    gained(f"a change to the {name}")
            pick = syscall(SYS_FSPICK, fd, b"", 8)
            for key in (b"rw", b"ro"):
                refused(syscall, SYS_FSCONFIG, pick, 0, key, None, 0)
            if not refused(syscall, SYS_FSCONFIG, pick, 7, None, None, 0):
                gained(f"a reconfiguration of the {name}'s file system")
            up = os.open("..", os.O_PATH, dir_fd=fd)
            if name == "view" and os.fstat(up).st_ino != os.fstat(fd).st_ino and os.path.exists("/mnt/view/../proc/1"):
                gained("a way up")
        for where, names, files in os.walk("/mnt/mask"):
            if secret in names + files:
                gained("a name that `other` may not list, in", where)
        for path in paths:
            for layer in ("view", "mask/shown"):
                try:
                    content = read(f"/mnt/{layer}{path}")
                except OSError:
                    continue
                if secret.encode() in content:
                    gained("the secret in", layer, path)
        # What she mounts on them is hers alone. (The test looks at the host's mounts.)
        for place in (b"/mnt/mask/shown", b"/mnt/view/mnt"):
            call(libc.mount, b"skiff-attack", place, b"tmpfs", 0, None)
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
        mount_id = ctypes.c_int()
        if not refused(call, libc.name_to_handle_at, view, b"etc/passwd", handle, ctypes.byref(mount_id), 0):
            fd = libc.open_by_handle_at(view, handle, os.O_RDONLY)
            if fd >= 0:
                gained("a file opened by its handle")
    as_root_of_ids(act)


def devices(*paths):
    """Device nodes of the host's tree that `other` may not open: not through the view either."""
    def act(mask, view):
        setattr_(view, NODEV)
        for path in paths:
            if not refused(lambda: os.open("/mnt/view" + path, os.O_RDONLY)):
                gained("device", path)
    as_root_of_ids(act)


def privileged_files(set_uid, set_cap):
    """Set-uid programs and ones with capabilities, set-uid allowed again: no more than she is anyway."""
    def act(mask, view):
        setattr_(view, NOSUID)
        for path in (set_uid, set_cap):
            pid = os.fork()
            if pid == 0:
                os.execv("/mnt/view" + path, [path, "2"])
            time.sleep(0.3)
            # This /proc shows ids as this namespace sees them: 0 is she.
            seen = status(pid)["Uid"].split()
            if seen != ["0"] * 4:
                gained(path, "runs as", seen)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    as_root_of_ids(act)


def joined(first=(), filters="2"):
    """What has joined: she herself, for good without any privilege."""
    mine = Other(unshare(NEWUSER | NEWNS))
    Asked(request("b", mine.pid)).answer()
    out, back = os.pipe()
    os.set_inheritable(back, True)
    reply, fds, code = join(mine.pid, ordered("/bin/cat", "/proc/self/status"), first=first, before=lambda: os.dup2(back, 1)).answer()
    os.close(back)
    text = os.read(out, 65536).decode()
    seen = dict(line.split(":\t", 1) for line in text.splitlines())
    want = {"Uid": "\t".join([str(os.getuid())] * 4), "Gid": "\t".join([str(os.getgid())] * 4), "NoNewPrivs": "1", "Seccomp": filters,
            **{f"Cap{name}": "0" * 16 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}}
    for key, value in want.items():
        if seen.get(key) != value:
            gained(key, seen.get(key), "instead of", value)
    if sorted(map(int, seen["Groups"].split())) != sorted(os.getgroups()):
        gained("groups", seen["Groups"])
    mine.end()


def joined_unfiltered():
    """The same without the filter, which keeps nobody from anything that is not hers."""
    joined([request("u", 0)], "0")


def waiting():
    """The process that waits for the word to start is root's still: she can touch it as little as any other of root's. Any other word, or none, ends it."""
    mine = Other(unshare(NEWUSER | NEWNS))
    asked = Asked(request("b", mine.pid))
    reply, fds = asked.received()
    for fd in fds:
        os.close(fd)
    asked.socket.send(request("o", 0) + ordered("/bin/true"))
    asked.socket.send(request("j", 1))
    if asked.received()[0][1:2] != b"-":
        gained("a process in the host's namespaces, behind an environment of hers")
    asked.answer()
    for word in (b"", b"x", request("j", mine.pid), request("o", 0) + b"x", request("g", 1)):
        asked = join(mine.pid, ordered("/bin/true"), go=False)
        reply, fds = asked.received()
        pid = struct.unpack("<I", reply[3:7])[0]
        for what, act in (("a signal", lambda: os.kill(pid, 0)), ("traced", lambda: call(libc.ptrace, 0x4206, pid, 0, 0)),
                          ("its memory", lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR)), ("its root", lambda: os.listdir(f"/proc/{pid}/root/")),
                          ("a descriptor", lambda: os.stat(f"/proc/{pid}/fd/0")), ("by its handle", lambda: syscall(424, fds[0], 9, None, 0))):
            if not refused(act):
                gained("from a process that waits:", what)
        if word:
            asked.socket.send(word)
        else:
            asked.socket.close()
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 125:
            gained("a start without the word")
        for fd in fds:
            os.close(fd)
        os.waitpid(asked.pid, 0)
    mine.end()


def many(most):
    """Helpers that are asked nothing: of root's there are so many of one user's and no more, the others count as hers; and all end by themselves."""
    resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
    all_ = []
    for _ in range(200):
        try:
            all_.append(Asked(None))
        except BlockingIOError:
            break
        time.sleep(0.005)
    begun = time.monotonic()
    roots = [asked for asked in all_ if status(asked.pid)["Uid"].split() == ["0"] * 4]
    if len(roots) > most:
        gained(len(roots), "processes of root's")
    if len(all_) - len(roots) > 40:
        gained(len(all_) - len(roots), "processes under a limit of 40")
    if len(roots) < min(most, 20):
        print("FAILED: only", len(roots), "of", len(all_))
    # Those that wait are hers to end; the others do so by themselves.
    for asked in all_:
        if asked not in roots and refused(os.kill, asked.pid, signal.SIGKILL):
            gained("one more that is root's")
    while all_ and time.monotonic() < begun + 14:
        all_ = [asked for asked in all_ if os.waitpid(asked.pid, os.WNOHANG)[0] == 0]
        time.sleep(0.1)
    if all_:
        gained("helpers that do not end:", len(all_))


def hosts_overlay(place):
    """`refresh` of an overlay of the host's, which would lose its cache for all: refused."""
    must_refuse("refresh", Asked(request("r", 0), fds=[os.open(place, os.O_PATH)]))


def confined():
    """A helper that has made ready has no more than the rest of its work takes."""
    asked = Asked(request("p", 0))
    want = sum(1 << bit for bit in (1, 6, 7, 8, 18, 19, 21))  # DAC_OVERRIDE SETGID SETUID SETPCAP SYS_CHROOT SYS_PTRACE SYS_ADMIN
    for _ in range(500):
        have = status(asked.pid)
        if have["Seccomp"].strip() == "2":
            break
        time.sleep(0.002)
    else:
        gained("a helper without a filter")
    for kind in ("CapPrm", "CapEff"):
        if int(have[kind], 16) & ~want:
            gained("a helper with", kind, have[kind])
    asked.socket.close()
    os.waitpid(asked.pid, 0)


def full_socket():
    """A helper whose answer has no room waits for her; not for good."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    while not refused(theirs.send, b"x"):
        pass
    theirs.setblocking(True)
    theirs.set_inheritable(True)
    ours.send(request("x", 1))
    pid = os.fork()
    if pid == 0:
        os.execve(HELPER, [HELPER, str(theirs.fileno())], {})
    for _ in range(30):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    gained("a helper that waits for room")


def stopped():
    """The keys of her terminal, and the terminal's own rules, stop no helper, wherever it is in its work."""
    keys = (signal.SIGTSTP, signal.SIGINT, signal.SIGQUIT)
    for round in range(40):
        pid, terminal = pty.fork()
        if pid == 0:
            # Alone in front; her terminal stops whoever writes to it from behind.
            asked = Asked(request("p", 0) if round % 2 else None, before=lambda: [signal.signal(s, signal.SIG_DFL) for s in keys])
            for key in keys:
                signal.signal(key, signal.SIG_IGN)
            time.sleep(random.random() * 0.004)
            os.write(1, b"%d\n" % asked.pid)
            time.sleep(10)
            os._exit(0)
        number = int(os.read(terminal, 100).split()[0])
        for _ in range(200):
            if refused(os.kill, number, 0):
                break  # It is root's by now.
            time.sleep(0.001)
        os.write(terminal, b"\x1a\x03\x1c")
        time.sleep(0.01)
        try:
            if read(f"/proc/{number}/stat").rsplit(b")", 1)[1].split()[0] in (b"T", b"Z"):
                gained("a helper stopped or ended by a key")
        except FileNotFoundError:
            gained("a helper ended by a key")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def left_open():
    """What the helper has open for the layers is no way for the program that it starts behind them: not by a directory, not by a program's name."""
    for ahead in (False, True):
        for number in range(3, 20):
            for head, argv in ((("0000", "0", "ffffffffffffffff", "only", f"/proc/self/fd/{number}/etc", ""), ("/bin/cat", "shadow")),
                               (("0000", "0", "ffffffffffffffff", "", "/", ""), (f"/proc/self/fd/{number}/bin/true",))):
                mine = Other(unshare(NEWUSER | NEWNS))
                out, back = os.pipe()
                os.set_inheritable(back, True)
                asked = Asked(request("p", 0) if ahead else None, before=lambda: os.dup2(back, 1))
                os.close(back)
                for message in (request("b", mine.pid), request("o", 0) + ordered(*argv, head=head), request("g", 0), request("j", mine.pid)):
                    asked.socket.send(message)
                _, fds = asked.received()
                for fd in fds:
                    os.close(fd)
                reply, fds = asked.received()
                if reply[1:2] != b"+":
                    print("FAILED: no process", reply)
                why = os.read(fds[1], 100)
                asked.socket.close()
                os.waitpid(struct.unpack("<I", reply[3:7])[0], 0)
                os.waitpid(asked.pid, 0)
                if not why or os.read(out, 1):
                    gained("by descriptor", number, "of the helper's:", argv)
                for fd in [*fds, out]:
                    os.close(fd)
                mine.end()


def from_inside(rounds):
    """Root inside, with all its capabilities there, lies in wait for those who join: it can touch none, and none is caught half-way."""
    go, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        call(libc.unshare, NEWUSER | NEWNS | NEWPID)
        inside = os.fork()
        if inside == 0:
            theirs.recv(1)
            call(libc.mount, None, b"/", None, 0x44000, None)
            call(libc.mount, b"proc", b"/proc", b"proc", 0, None)
            theirs.send(b"+")
            known = {os.getpid()}
            while True:
                for name in os.listdir("/proc"):
                    if not name.isdigit() or int(name) in known:
                        continue
                    other = int(name)
                    for what, act in (("traced", lambda: call(libc.ptrace, 0x4206, other, 0, 0)), ("its memory", lambda: os.open(f"/proc/{other}/mem", os.O_RDWR)),
                                      ("its root", lambda: os.listdir(f"/proc/{other}/root/")), ("a descriptor", lambda: os.stat(f"/proc/{other}/fd/0"))):
                        if not refused(act):
                            gained("from inside:", what)
                            sys.stdout.flush()
                    known.add(other) if random.random() < 0.05 else None
        theirs.send(struct.pack("<I", inside))
        os.waitpid(inside, 0)
        os._exit(0)
    number = struct.unpack("<I", go.recv(4))[0]
    # Its number, as this PID namespace is still ours.
    Asked(request("b", number)).answer()
    go.send(b"x")
    go.recv(1)
    for _ in range(int(rounds)):
        asked = join(number, ordered("/bin/true"), go=False)
        time.sleep(0.01)
        asked.socket.send(request("g", 0))
        reply, fds, code = asked.answer()
        if reply[1:2] != b"+":
            print("FAILED: cannot join", reply)
            break
    os.kill(number, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# ---- Images and their store -------------------------------------------------------------------------------------------------


def image_request(pid, image):
    return request("i", pid) + bytes.fromhex(image)


def images(good, *others):
    """Images that are not hers, not there, or not the store's own: refused. Hers: one mount, read-only and harmless for good."""
    for image in others:
        mine = Other(unshare(NEWUSER | NEWNS))
        must_refuse(f"image {image[:8]}", Asked(image_request(mine.pid, image)))
        mine.end()
    for length in (0, 1, 31, 33, 64):
        must_refuse("no digest", Asked(request("i", os.getpid()) + b"x" * length))
    must_refuse("an image for her own process", Asked(image_request(os.getpid(), good)))
    must_refuse("an image for process 1", Asked(image_request(1, good)))
    mine = Other(unshare(NEWUSER | NEWNS))
    reply, fds, code = Asked(image_request(mine.pid, good)).answer()
    if code != 0 or len(fds) != 1:
        print("FAILED: no image", reply)
    place = f"/proc/self/fd/{fds[0]}"
    for flag in (os.ST_RDONLY, os.ST_NOSUID, os.ST_NODEV):
        if not os.statvfs(place).f_flag & flag:
            gained("an image's mount without flag", flag)
    for clear in (RDONLY, NOSUID, NODEV):
        if not refused(setattr_, fds[0], clear):
            gained("a changed mount of an image", clear)
    if not refused(os.open, f"{place}/new", os.O_CREAT | os.O_WRONLY):
        gained("a file in an image")
    if not refused(os.listdir, "/run/skiff/images"):
        gained("a look at all that is mounted")
    os.close(fds[0])
    mine.end()


def layer_request(image):
    return request("y", 0) + bytes.fromhex(image)


def told(*messages):
    asked = Asked(None)
    for message in messages:
        try:
            asked.socket.send(message)
        except (BrokenPipeError, ConnectionResetError):
            break  # It has refused by now.
    return asked


def layers(good, *others):
    """The same of layers that come with an environment, and requests for them out of turn."""
    def ask(pid, *messages):
        return told(*messages, request("p", 0), request("b", pid))
    for image in others:
        for wanted in ([image], [good, image], [image, good]):
            mine = Other(unshare(NEWUSER | NEWNS))
            must_refuse(f"layer {image[:8]}", ask(mine.pid, *map(layer_request, wanted)))
            mine.end()
    mine = Other(unshare(NEWUSER | NEWNS))
    must_refuse("more layers than there may be", ask(mine.pid, *[layer_request(good)] * 33))
    for length in (0, 1, 31, 33, 64):
        must_refuse("no digest", ask(mine.pid, request("y", 0) + b"x" * length))
    must_refuse("a layer of a process", ask(mine.pid, request("y", 1) + bytes.fromhex(good)))
    must_refuse("a layer and nothing below", told(layer_request(good), request("g", 0)))
    must_refuse("a layer, not made ready", told(layer_request(good), request("b", mine.pid)))
    must_refuse("a layer too late", told(request("p", 0), layer_request(good), request("b", mine.pid)))
    must_refuse("layers for her own process", ask(os.getpid(), layer_request(good)))
    reply, fds, code = ask(mine.pid, *[layer_request(good)] * 32).answer()
    if code != 0 or len(fds) != 34:
        print("FAILED: no layers", reply, len(fds))
    for fd in fds[:32]:
        for flag in (os.ST_RDONLY, os.ST_NOSUID, os.ST_NODEV):
            if not os.statvfs(f"/proc/self/fd/{fd}").f_flag & flag:
                gained("a layer's mount without flag", flag)
        for clear in (RDONLY, NOSUID, NODEV):
            if not refused(setattr_, fd, clear):
                gained("a changed mount of a layer", clear)
    for fd in fds:
        os.close(fd)
    mine.end()


def image_devices(image):
    """An image with devices for all, and a program of root's, as only a broken store has them: of no use even to root of her own namespace."""
    def act(mount):
        for clear in (RDONLY, NOSUID, NODEV):
            if not refused(setattr_, mount, clear):
                gained("a changed mount of an image", clear)
        again = syscall(SYS_OPEN_TREE, mount, b"", 1 | EMPTY_PATH)
        if not refused(setattr_, again, NODEV) or not refused(setattr_, again, NOSUID):
            gained("a changed copy of an image's mount")
        refused(call, libc.mount, None, b"/mnt/image", None, 32 | 4096, None)
        for name in sorted(os.listdir("/mnt/image")):
            if not refused(os.open, f"/mnt/image/{name}", os.O_RDONLY) and stat.S_ISREG(os.stat(f"/mnt/image/{name}").st_mode) == 0:
                gained("a device", name)
        pid = os.fork()
        if pid == 0:
            os.execv("/mnt/image/others", ["sleep", "2"])
        time.sleep(0.3)
        seen = status(pid)["Uid"].split()
        if seen != ["0"] * 4:
            gained("a program that runs as", seen)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    as_root_of_ids(act, ("image",), lambda pid: image_request(pid, image))


def released(good, rounds):
    """Whenever she asks for it: nothing goes that is in the store."""
    for _ in range(rounds):
        reply, fds, code = Asked(request("l", 0)).answer()
        if reply[1:2] != b"+" or fds:
            print("FAILED:", reply)
    must_refuse("release of a process", Asked(request("l", 1)))
    for count in range(3, 30):
        Asked(request("l", 0), before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))).answer()
    mine = Other(unshare(NEWUSER | NEWNS))
    _, fds, code = Asked(image_request(mine.pid, good)).answer()
    if len(fds) != 1:
        gained("an image less")
    mine.end()


def many_images(*images):
    """However many are hers: the machine's mounts do not become more and more. (The test counts them.)"""
    for image in images:
        mine = Other(unshare(NEWUSER | NEWNS))
        reply, fds, code = Asked(image_request(mine.pid, image)).answer()
        if len(fds) != 1:
            print("FAILED: no image", reply)
        os.close(fds[0])
        mine.end()


class Writer:
    """The store's writer, which has been started and asked nothing."""

    def __init__(self, fds=None, **options):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(10)
        self.asked = Asked(request("s", 0), fds=[theirs.fileno()] if fds is None else fds, **options)
        theirs.close()
        self.pid = self.asked.pid

    def hear(self):
        """What it says until it ends; and whether it ends."""
        said = b""
        try:
            while part := self.socket.recv(65536):
                said += part
        except ConnectionResetError:
            pass
        except TimeoutError:
            gained("a writer that hangs")
            sys.stdout.flush()
        return said

    def end(self):
        self.socket.close()
        for _ in range(200):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.05)
        gained("a writer that stays")


def writer(owner, group):
    """What fills the store is the store's owner and nothing else; she cannot touch it."""
    one = Writer(env={"LD_PRELOAD": "/tmp/x", "SECRET": "x", "PATH": "/home", "HTTP_PROXY": "http://proxy:1"}, before=lambda: os.umask(0o777))
    reply, _ = one.asked.received()
    if reply[1:2] != b"+":
        print("FAILED: no writer", reply)
    # It is another program from this word on.
    one.asked.socket.recv(1)
    seen = status(one.pid)
    want = {"Uid": "\t".join([str(owner)] * 4), "Gid": "\t".join([str(group)] * 4), "Groups": " ", "NoNewPrivs": "1",
            **{f"Cap{name}": "0" * 16 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}}
    for key, value in want.items():
        if seen[key].strip() != value.strip():
            gained(key, seen[key], "instead of", value)
    session = read(f"/proc/{one.pid}/stat").decode().rpartition(")")[2].split()[3]
    if int(session) != one.pid:
        gained("its session", session)
    for what in ("mem", "maps", "environ", "syscall", "stack"):
        if not refused(read, f"/proc/{one.pid}/{what}"):
            gained(f"/proc/PID/{what} of the writer")
    for place in ("fd", "root/", "cwd/"):
        if not refused(os.listdir, f"/proc/{one.pid}/{place}"):
            gained(f"/proc/PID/{place} of the writer")
    if not refused(call, libc.ptrace, 0x4206, one.pid, 0, 0) or not refused(call, libc.ptrace, 16, one.pid, 0, 0):
        gained("a traced writer")
    for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGINT, 0):
        if not refused(os.kill, one.pid, number):
            gained("a signal to the writer", number)
    one.end()


def waiting_writer(seconds):
    """A writer that waits, for the test to look at."""
    os.chdir("/home/alice")
    one = Writer(env={"LD_PRELOAD": "/tmp/x", "SECRET": "x", "HTTP_PROXY": "http://proxy:1", "SSL_CERT_FILE": "/x"},
                 before=lambda: [os.set_inheritable(os.open("/etc/passwd", os.O_RDONLY), True) for _ in range(20)])
    time.sleep(seconds)
    one.end()


def writer_sockets():
    """Something else than one socket to talk by: refused, or it ends without a word."""
    for name, fds in {"none": [], "two": [0, 0], "nine": [0] * 9}.items():
        must_refuse(f"store with {name}", Asked(request("s", 0), fds=fds))
    must_refuse("store of a process", Asked(request("s", 1), fds=[0]))
    pipe = os.pipe()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    for fd in (os.open("/etc/passwd", os.O_RDONLY), os.open("/", os.O_RDONLY), os.open("/", os.O_PATH), pipe[0], pipe[1], os.memfd_create("x"),
               os.open("/dev/null", os.O_RDWR), os.open("/proc/self/ns/user", os.O_RDONLY), listening.fileno(), os.open("/dev/zero", os.O_RDONLY)):
        asked = Asked(request("s", 0), fds=[fd])
        asked.socket.settimeout(5)
        try:
            asked.received()
        except TimeoutError:
            gained("a helper that hangs with", os.readlink(f"/proc/self/fd/{fd}"))
        for _ in range(100):
            if os.waitpid(asked.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.05)
        else:
            gained("a writer that stays with", os.readlink(f"/proc/self/fd/{fd}"))


def writer_words(foreign):
    """Nonsense told to the writer: it ends, or says no; nothing of others comes back."""
    word = lambda text: struct.pack("<I", len(text)) + text
    random.seed(2026)
    nonsense = [b"", b"\0", b"\0" * 4, b"\xff" * 4, b"\xff" * 64, struct.pack("<I", (16 << 20) + 1), struct.pack("<I", 16 << 20) + b"x" * 10,
                word(b""), word(b"null"), word(b"[" * 100000), word(b'{"Pull":' * 10000), word(b'"Nonsense"'), word(b"\xff" * 100), word(b" " * (8 << 20))]
    nonsense += [word(random.randbytes(random.randrange(1, 200))) for _ in range(10)]
    pull = '{"Pull":{"reference":"%s","platform":"%s","registries":[["%s","%s"]],"logins":[]}}'
    nonsense += [word((pull % filled).encode()) for filled in (
        ("x" * 100000, "linux/amd64", "f", ""), ("127.0.0.1:9/x:1", "../../..", "f", ""), ("127.0.0.1:9/x:1", "linux/../../etc", "f", ""),
        ("127.0.0.1:9/x:1", "linux/amd64", "/etc/shadow", "["), ("oci:/etc", "linux/amd64", "f", ""), ("127.0.0.1:9/../../x", "linux/amd64", "f", ""))]
    nonsense += [word(b'{"Collect":{"budget":0,"dry_run":false}}'), word(b'{"Files":"%s"}' % foreign.encode()), word(b'{"Verify":"../../../etc/passwd"}')]
    for text in nonsense:
        one = Writer()
        one.asked.received()
        refused(one.socket.sendall, text)
        refused(one.socket.shutdown, socket.SHUT_WR)
        said = one.hear()
        if said and b"Failed" not in said:
            gained("with", text[:60], said[:200])
        if b"panicked" in said:
            gained("a panic with", text[:60], said[:200])
        one.end()
    for text, want in ((b'{"Find":"%s"}' % foreign.encode(), b'{"Found":null}'), (b'{"Verify":"%s"}' % foreign.encode(), b'{"Verified":[]}')):
        one = Writer()
        one.asked.received()
        one.socket.sendall(word(text))
        if one.hear()[4:] != want:
            gained("word of what is not hers")
        one.end()


def writer_files(good, foreign):
    """Files that go to the writer and come from it: it looks at none with rights that she lacks, and gives none that she could change."""
    def told(text, files=()):
        one = Writer()
        one.asked.received()
        text = json.dumps(text).encode()
        refused(one.socket.sendall, struct.pack("<I", len(text)) + text)
        for at in range(0, len(files), 8):
            refused(socket.send_fds, one.socket, [b"\0"], files[at:at + 8])
        refused(one.socket.shutdown, socket.SHUT_WR)
        said, got = b"", []
        while True:
            try:
                part, fds, _, _ = socket.recv_fds(one.socket, 65536, 8)
            except ConnectionResetError:
                break
            said, got = said + part, got + fds
            if not part:
                break
        one.end()
        return said, got

    imported = lambda form, *files: {"Import": {"source": {"form": form, "path": "x", "tag": None, "files": list(files)}, "platform": "linux/amd64"}}
    # A directory of hers, as which she has mounted what is the writer's: it would be looked at with his eyes.
    os.makedirs("/tmp/skiff-files", exist_ok=True)
    with open("/tmp/skiff-files/manifest.json", "w") as file:
        json.dump([{"Config": "config", "RepoTags": [], "Layers": []}], file)
    with open("/tmp/skiff-files/config", "w") as file:
        json.dump({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}, file)
    opened = {path: os.open(path, flags) for path, flags in (
        ("/tmp/skiff-files", os.O_RDONLY), ("/etc", os.O_PATH), ("/etc/shadow", os.O_PATH), ("/dev/zero", os.O_RDONLY), ("/proc/self/ns/user", os.O_RDONLY),
        ("/tmp/skiff-files/config", os.O_RDONLY))}
    opened["a pipe"] = os.pipe()[0]
    opened["a socket"] = socket.socket().fileno()
    for form in ("docker-archive", "oci-archive", "archive", "oci", "dir", "squashfs", "sif", "erofs"):
        for path, fd in opened.items():
            for files, names in (([fd], []), ([fd], ["index.json", "manifest.json"]), ([fd] * 3, ["../x"] * 300)):
                said, got = told(imported(form, *names), files)
                if b"Pulled" in said or got or b"panicked" in said:
                    gained(form, path, len(files), len(names), said[:200])
    # What is not hers is not given; what is, to be read.
    said, got = told({"Open": foreign})
    if b"Failed" not in said or got:
        gained("a foreign image", said[:200])
    said, got = told({"Open": good})
    if b"Opened" not in said or len(got) != 1:
        print("FAILED: no file of an image", said[:200], got)
        return
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY):
        if not refused(os.open, f"/proc/self/fd/{got[0]}", flags):
            gained("the image's file anew", flags)
    if not refused(os.write, got[0], b"x") or not refused(os.fchmod, got[0], 0o666) or not refused(os.ftruncate, got[0], 0):
        gained("a changed image")


def writer_limits(good):
    """Whatever her limits are, it works or says no."""
    cases = [(resource.RLIMIT_NOFILE, n) for n in (3, 4, 5, 6, 7, 8, 10)]
    cases += [(resource.RLIMIT_AS, n << 10) for n in (64, 1024, 4096, 16384)]
    cases += [(resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 1), (resource.RLIMIT_STACK, 64 << 10), (resource.RLIMIT_CPU, 0), (resource.RLIMIT_DATA, 0)]
    for limit, value in cases:
        before = lambda: resource.setrlimit(limit, (value, value))
        one = Writer(before=before)
        one.asked.socket.settimeout(5)
        try:
            one.asked.received()
        except TimeoutError:
            gained("a helper that hangs under", limit, value)
        text = b'{"Find":"%s"}' % good.encode()
        refused(one.socket.sendall, struct.pack("<I", len(text)) + text)
        one.hear()
        one.end()
        mine = Other(unshare(NEWUSER | NEWNS))
        _, fds, code = Asked(image_request(mine.pid, good), before=before).answer()
        if code == 0 and len(fds) != 1:
            gained("half an answer under", limit, value)
        for fd in fds:
            os.close(fd)
        mine.end()


def second_name(name):
    """The helper by a second name in a directory of hers: what lies beside that is not started."""
    global HELPER
    HELPER = name
    one = Writer()
    reply, _ = one.asked.received()
    if reply[1:2] == b"+":
        # That comes before the program is looked for; then the reason follows.
        reply, _ = one.asked.received()
    if reply[1:2] != b"-":
        gained("a program of hers", reply)
    one.end()


globals()[sys.argv[2]](*[int(a) if a.isdigit() and len(a) < 10 else a for a in sys.argv[3:]])
