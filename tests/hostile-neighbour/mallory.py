#!/usr/bin/python3
"""What an ordinary user can do to stand in her neighbours' way.

    mallory.py ATTACK [ARGUMENT...]     goes on until it is killed; prints `ready` as soon as it is in force

Every function below is one. None of them burns processor time: to share that out is the job manager's work.
"""

import errno, fcntl, json, os, pty, random, resource, signal, socket, struct, subprocess, sys, time

HELPER = "/usr/libexec/skiff/skiff-helper"
VERSION = 3
PLACES = ("/run/skiff", "/var/lib/skiff", "/var/cache/skiff", "/etc/skiff", "/usr/libexec/skiff")


def request(kind):
    return bytes([VERSION, ord(kind)]) + struct.pack("<I", 0)


def ready():
    print("ready", flush=True)


def forever():
    while True:
        time.sleep(1)


def ask(message=None, fds=()):
    """A helper of hers, and its socket; nothing where the kernel refuses her one more process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if message:
        socket.send_fds(ours, [message], list(fds))
    theirs.set_inheritable(True)
    try:
        pid = os.fork()
    except BlockingIOError:
        ours.close()
        theirs.close()
        return None, None
    if pid == 0:
        os.execve(HELPER, [HELPER, str(theirs.fileno())], {})
    theirs.close()
    return pid, ours


def reap(talks):
    """Lets go of those that have ended."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if talk := talks.pop(pid, None):
            talk.close()


def helpers(most="400"):
    """As many helpers as she can get, asked nothing, under a limit of 40 processes."""
    resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    talks, begun, told = {}, time.time(), False
    while True:
        reap(talks)
        while len(talks) < int(most):
            pid, talk = ask()
            if pid is None:
                break
            talks[pid] = talk
            time.sleep(0.002)
        if not told and (len(talks) >= int(most) or time.time() > begun + 1.5):
            told = True
            ready()
        time.sleep(0.05)


def writers(most="150"):
    """As many of the store's writers, asked nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    talks, begun, told = {}, time.time(), False
    while True:
        reap(talks)
        while len(talks) < int(most):
            ours, theirs = socket.socketpair()
            pid, talk = ask(request("s"), [theirs.fileno()])
            theirs.close()
            if pid is None:
                break
            talks[pid] = Both(talk, ours)
            time.sleep(0.005)
        if not told and (len(talks) >= int(most) or time.time() > begun + 3):
            told = True
            ready()
        time.sleep(0.1)


class Both:
    def __init__(self, *sockets):
        self.sockets = sockets

    def close(self):
        for one in self.sockets:
            one.close()


def locks():
    """Every file and directory of Skiff's that she can open, locked for good; what others hold this moment she tries again."""
    held, told = {}, False
    while True:
        for place in PLACES:
            for path, directories, files in os.walk(place):
                for name in (".", *files):
                    file = os.path.join(path, name)
                    if file in held:
                        continue
                    try:
                        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        held[file] = fd
                    except OSError:
                        pass
        if not told:
            told = True
            ready()
        time.sleep(0.2)


def stops(*command):
    """Starts, and stops what she has started by a key of its terminal at some moment: whatever that holds, it holds for good."""
    children = []
    for round in range(60):
        pid, terminal = pty.fork()
        if pid == 0:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.execvp(command[0], command)
        time.sleep(random.random() * 0.012)
        try:
            os.write(terminal, b"\x1a")
        except OSError:
            pass
        children.append((pid, terminal))
        if round == 30:
            ready()
        if len(children) > 30:
            pid, terminal = children.pop(0)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)
    forever()


def freezes(group, *command):
    """The same with a control group of hers, which stops what is root's in it, too."""
    v1 = os.path.exists(f"{group}/freezer.state")
    for round in range(40):
        own = f"{group}/{os.getpid()}.{round}"
        os.mkdir(own)
        if os.fork() == 0:
            with open(f"{own}/cgroup.procs", "w") as file:
                file.write("0")
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (1, 2):
                os.dup2(null, fd)
            os.execvp(command[0], command)
        time.sleep(random.random() * 0.015)
        with open(f"{own}/freezer.state" if v1 else f"{own}/cgroup.freeze", "w") as file:
            file.write("FROZEN" if v1 else "1")
        if round == 30:
            ready()
    forever()


def connections(*addresses):
    """Connections to servers of root's, on which nothing is said."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    held = []
    for address in addresses:
        host, port = address.split(":")
        for _ in range(300):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, int(port)))
            held.append(one)
    time.sleep(0.3)
    ready()
    forever()


def squats(bob):
    """Names that somebody else might want to make where everybody can."""
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/run/user"):
        for name in ("skiff", "skiff-bob", f"skiff-{bob}", f"skiff.{bob}", "bob", str(bob), ".skiff", "skiff-agent"):
            try:
                os.mkdir(f"{place}/{name}", 0o777)
            except OSError:
                pass
    sockets = []
    for name in ("skiff", f"skiff-{bob}", "skiff-agent", "skiff/bob"):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.bind("\0" + name)
            sockets.append(one)
        except OSError:
            pass
    ready()
    forever()


def renames():
    """Names that change all the time, as a build's do: what looks a path up meanwhile may have to begin again."""
    names = [f"/dev/shm/skiff-renames.{os.getpid()}{end}" for end in "ab"]
    os.mkdir(names[0])
    ready()
    while True:
        for _ in range(200):
            os.rename(*names)
            os.rename(*reversed(names))
        time.sleep(0.001)


def fills(image, place, *agents):
    """Whatever of Skiff's has room for several users, up to what each may have of it: the store, a network's addresses, an agent's
    receivers. And what has no such limit, to the brim."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for number in range(1, 5):
        pulled = subprocess.run(["skiff", "pull", "--quiet", f"{image}:{number}"], **quiet)
    # Whoever is let in beyond the limit shows in `full`, which the test looks at.
    full = {"store": pulled.returncode != 0}
    members = [subprocess.Popen(["skiff", "run", "--net", "lab", "--", "sleep", "1000"], **quiet) for _ in range(8)]
    brim(place, told=lambda: None, ever=lambda: None)
    full["place"] = True
    # What the receivers call waits for nothing and says nothing.
    listener = socket.create_server(("", 0), backlog=1000)
    call = {"hosts": ["10.77.0.1"], "port": listener.getsockname()[1], "secret": "00" * 32}
    knocks, refused = [(None, agent) for agent in agents for _ in range(18)], dict.fromkeys(agents, 0)
    begun, told = time.time(), False
    while True:
        for at, (knock, agent) in enumerate(knocks):
            if knock is None:
                knocks[at] = (knocked(agent, json.dumps(call)), agent)
            elif (said := heard(knock)) is not None:
                refused[agent] += b"on their way" in said
                knock.close()
                knocks[at] = (None, agent)
        full["receivers"] = all(refused.values())
        full["addresses"] = any(member.poll() for member in members)
        if not told and (all(full.values()) or time.time() > begun + 5):
            told = True
            print("full:", *sorted(name for name, is_full in full.items() if is_full), flush=True)
            ready()
        time.sleep(1 if told else 0.1)


def knocked(agent, call):
    """A connection on which an agent has got a credential of hers; nothing where there was none to be had."""
    try:
        host, port = agent.split(":")
        knock = socket.create_connection((host, int(port)), 2)
        request = f"to {host} {knock.getpeername()[0]}\n{call}"
        knock.sendall(subprocess.run(["munge", "-s", request, "-u", "0"], capture_output=True).stdout)
        knock.setblocking(False)
        return knock
    except OSError:
        return None


def heard(knock):
    """What an agent has said in the end; nothing while it says nothing."""
    try:
        return knock.recv(1000)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def brim(place, told=ready, ever=forever):
    """All bytes and all names of a file system on which everybody may write."""
    directory = f"{place}/skiff-fills.{os.getpid()}"
    os.mkdir(directory)
    with open(f"{directory}/bytes", "wb", buffering=0) as file:
        for block in (1 << 16, 1):
            try:
                while file.write(b"x" * block):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    for number in range(1 << 20):
        try:
            os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            break
    told()
    ever()


globals()[sys.argv[1]](*sys.argv[2:])
