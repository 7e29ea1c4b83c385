"""What processes are and have besides memory and files."""
import ctypes
import os
import resource
import signal
import struct
import threading
import time

from moved import call, child, equal, libc, local, main, moved, pause, place, program, told, within


def idle():
    within(600, lambda: False)


@program
def tree():
    """children of children, groups, a session"""
    r, w = os.pipe()

    def middle():
        os.setsid()
        below = child(idle)
        os.setpgid(below, below)
        os.write(w, struct.pack('i', below))
        idle()
    pid = child(middle)
    below = struct.unpack('i', os.read(r, 4))[0]
    moved()
    equal('session', (os.getsid(pid), os.getsid(below)), (pid, pid))
    equal('group', (os.getpgid(pid), os.getpgid(below)), (pid, below))
    os.kill(pid, 9)
    equal('ended', os.waitpid(pid, 0)[1], 9)
    os.kill(below, 9)


@program
def threads():
    """a hundred threads with names"""
    go, done = threading.Event(), []
    all = [threading.Thread(target=lambda: (go.wait(), done.append(1))) for _ in range(100)]
    [thread.start() for thread in all]
    open(f'/proc/self/task/{all[7].native_id}/comm', 'w').write('seventh')
    moved()
    equal('name', open(f'/proc/self/task/{all[7].native_id}/comm').read(), 'seventh\n')
    go.set()
    [thread.join() for thread in all]
    equal('done', len(done), 100)


@program
def threads_many():
    """a thousand threads"""
    go, done = threading.Event(), []
    threading.stack_size(1 << 16)
    all = [threading.Thread(target=lambda: (go.wait(), done.append(threading.get_native_id()))) for _ in range(1000)]
    [thread.start() for thread in all]
    moved()
    go.set()
    [thread.join() for thread in all]
    equal('done', sorted(done), sorted(thread.native_id for thread in all))


@program
def children_many():
    """five hundred processes"""
    (r, w), (back, answer) = os.pipe(), os.pipe()
    pids = [os.posix_spawn('/usr/bin/head', ['head', '-c', '1'], {}, file_actions=[(os.POSIX_SPAWN_DUP2, r, 0), (os.POSIX_SPAWN_DUP2, answer, 1)]) for _ in range(500)]
    equal('begun', within(30, lambda: all(open(f'/proc/{pid}/comm').read() == 'head\n' for pid in pids)), True)
    moved()
    os.write(w, b'x' * 500)
    equal('codes', [os.waitpid(pid, 0) for pid in pids], [(pid, 0) for pid in pids])
    equal('answers', os.read(back, 1000), b'x' * 500)


@program
def stopped():
    """a stopped child"""
    pid = child(idle)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    moved()
    state = lambda: open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()[0]
    equal('state', state(), 'T')
    os.kill(pid, signal.SIGCONT)
    equal('goes on', within(5, lambda: state() == 'S'), True)
    os.kill(pid, 9)


@program
def stopped_unseen():
    """a stopped child whose stop has not been waited for"""
    pid = child(idle)
    os.kill(pid, signal.SIGSTOP)
    within(5, lambda: open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()[0] == 'T')
    moved()
    got, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    equal('stop', (got, got and os.WIFSTOPPED(status)), (pid, True))
    os.kill(pid, 9)


@program
def zombie():
    """children that have ended and not been waited for"""
    pids = [child(lambda: os._exit(23)) for _ in range(3)]
    within(5, lambda: all(stat(pid)[0] == 'Z' for pid in pids))
    moved()
    equal('status', [os.waitpid(pid, os.WNOHANG) for pid in pids], [(pid, 23 << 8) for pid in pids])


def stat(pid):
    """State, parent, process group and session of a process."""
    words = open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()
    return words[0], *map(int, words[1:4])


def gone(pid):
    return within(5, lambda: not os.path.exists(f'/proc/{pid}'))


def left(of, first=lambda: None):
    """A process that does `of`, whose parent has done `first` and has ended."""
    r, w = os.pipe()

    def middle():
        first()
        os.write(w, struct.pack('i', child(of)))
    os.waitpid(child(middle), 0)
    return struct.unpack('i', os.read(r, 4))[0]


@program
def orphan():
    """a daemon: its parent, and the leader of its session, has ended"""
    def daemon():
        within(600, told)
        open(local('lives'), 'w').close()
        idle()
    pid = left(daemon, os.setsid)
    before = stat(pid)[1:]
    moved()
    equal('daemon', within(5, lambda: os.path.exists(local('lives'))), True)
    equal('parent, group, session', stat(pid)[1:], before)
    os.kill(pid, 9)
    equal('taken over', gone(pid), True)


@program
def orphan_session():
    """a daemon that leads a session"""
    r, w = os.pipe()

    def daemon():
        os.setsid()
        os.write(w, b'x')
        idle()
    pid = left(daemon)
    os.read(r, 1)
    before = stat(pid)[1:]
    moved()
    equal('parent, group, session', stat(pid)[1:], before)
    os.kill(pid, 9)
    equal('taken over', gone(pid), True)


@program
def orphan_of_orphan():
    """a daemon of a daemon"""
    r, w = os.pipe()

    def daemon():
        os.write(w, struct.pack('i', left(idle, os.setsid)))
        idle()
    first = left(daemon, os.setsid)
    second = struct.unpack('i', os.read(r, 4))[0]
    before = stat(first)[1:], stat(second)[1:]
    moved()
    equal('parents, groups, sessions', (stat(first)[1:], stat(second)[1:]), before)
    [os.kill(pid, 9) for pid in (first, second)]
    equal('taken over', (gone(first), gone(second)), (True, True))


@program
def orphan_group():
    """a process group without a leader, whose processes are orphans"""
    pid = left(idle, lambda: os.setpgid(0, 0))
    before = stat(pid)[1:]
    moved()
    equal('parent, group, session', stat(pid)[1:], before)
    os.killpg(before[1], 9)
    equal('taken over', gone(pid), True)


@program
def orphan_ended():
    """a daemon that has ended, of which its new parent has not heard yet"""
    pid = left(idle, os.setsid)
    parent = stat(pid)[1]
    os.kill(parent, signal.SIGSTOP)
    try:
        within(5, lambda: stat(parent)[0] == 'T')
        os.kill(pid, 9)
        within(5, lambda: stat(pid)[0] == 'Z')
        moved()
        equal('states', (stat(pid)[:2], stat(parent)[0]), (('Z', parent), 'T'))
    finally:
        # Other programs may have this parent, too.
        os.kill(parent, signal.SIGCONT)
    equal('taken over', gone(pid), True)


@program
def tmux():
    """tmux: its server, and bash in it"""
    import subprocess
    server = ['tmux', '-S', local('tmux'), '-f', '/dev/null']
    run = lambda *words: subprocess.run([*server, *words], capture_output=True, text=True, check=True).stdout
    count = lambda: open(local('count')).read().count('x') if os.path.exists(local('count')) else 0
    run('new-session', '-d', '-x', '80', '-y', '24', 'bash --norc')
    run('send-keys', f'while sleep 0.05; do echo x >>{local("count")}; done', 'Enter')
    equal('begun', within(20, lambda: count() > 3), True)
    before = run('display-message', '-p', '#{pid} #{pane_pid} #{pane_tty}')
    moved()
    then = count()
    equal('goes on', within(20, lambda: count() > then + 3), True)
    equal('server, shell and terminal', run('display-message', '-p', '#{pid} #{pane_pid} #{pane_tty}'), before)
    run('send-keys', 'C-c')
    run('send-keys', f'echo $((6 * 7)) >{local("answer")}', 'Enter')
    equal('answers', within(20, lambda: os.path.exists(local('answer')) and open(local('answer')).read() == '42\n'), True)
    run('kill-server')
    equal('ended', gone(int(before.split()[0])), True)


@program
def postgresql():
    """PostgreSQL, which has System V shared memory: its data, and a session with a transaction under way"""
    import glob
    import subprocess
    binaries = sorted(glob.glob('/usr/lib/postgresql/*/bin'))
    equal('installed', bool(binaries), True)
    os.makedirs(local('data'))
    os.chown(local('data'), 1, 1)
    os.chmod(local('data'), 0o700)
    words = lambda name, *rest: ['setpriv', '--reuid', '1', '--regid', '1', '--clear-groups', f'{binaries[-1]}/{name}', *rest]
    subprocess.run(words('initdb', '-N', '-A', 'trust', '-U', 'owner', local('data')), check=True, capture_output=True, cwd='/')
    with open(local('log'), 'w') as log:
        server = subprocess.Popen(
            words('postgres', '-D', local('data'), '-k', local('data'), '-c', 'listen_addresses=', '-c', 'fsync=off'),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd='/')
    psql = words('psql', '-h', local('data'), '-U', 'owner', '-XqAt', '-v', 'ON_ERROR_STOP=1', 'postgres')
    ask = lambda question: subprocess.run([*psql, '-c', question], capture_output=True, text=True, cwd='/').stdout.strip()
    equal('begun', within(30, lambda: ask('select 1') == '1'), True)
    ask('create table data as select generate_series(1, 1000) as number')
    session = subprocess.Popen(psql, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd='/')

    def say(words):
        session.stdin.write(words + '\n')
        return session.stdout.readline().strip()
    equal('in the session', say('begin; insert into data values (7); select count(*) from data;'), '1001')
    # Those that the server has made.
    lines = lambda: [line for line in map(str.split, open('/proc/sysvipc/shm')) if line[4] == str(server.pid)]
    # Who has last attached a segment is not kept. How many have changes as processes of the server begin and end.
    segments = lambda: [line[:5] for line in lines()]
    children = lambda: len(open(f'/proc/{server.pid}/task/{server.pid}/children').read().split())
    all_attached = lambda: all(int(line[6]) == 1 + children() for line in lines())
    before = segments()
    equal('segments begun', (len(before), within(30, all_attached)), (1, True))
    moved()
    equal('segments', (segments(), within(30, all_attached)), (before, True))
    equal('for others', ask('select count(*) from data'), '1000')
    equal('in the session afterwards', say('commit; select sum(number) from data;'), str(500500 + 7))
    equal('for others afterwards', ask('select count(*) from data'), '1001')
    session.stdin.close()
    session.wait()
    server.terminate()
    equal('ended', server.wait(), 0)
    equal('segments left', segments(), [])


@program
def tcp_daemon():
    """a daemon of the distribution's that listens (sshd)"""
    import socket
    import subprocess
    call = lambda *words: subprocess.run(words, capture_output=True, text=True, check=True)
    os.makedirs('/run/sshd', exist_ok=True)
    call('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', local('key'))
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    open(local('conf'), 'w').write(f'Port {port}\nListenAddress 127.0.0.1\nHostKey {local("key")}\nPidFile {local("pid")}\nUsePAM no\n')
    call('/usr/sbin/sshd', '-f', local('conf'))

    def greets():
        with socket.create_connection(('127.0.0.1', port), 5) as client:
            return client.makefile('rb').readline().startswith(b'SSH-2.0-')
    equal('begun', within(5, lambda: os.path.exists(local('pid'))) and greets(), True)
    pid = int(open(local('pid')).read())
    # What has served that connection has ended.
    equal('alone', within(20, lambda: not open(f'/proc/{pid}/task/{pid}/children').read()), True)
    before = stat(pid)[1:]
    moved()
    equal('parent, group, session', stat(pid)[1:], before)
    equal('greets', greets(), True)
    os.kill(pid, signal.SIGTERM)
    equal('ended', gone(pid), True)


@program
def subreaper():
    """a subreaper with an orphan"""
    call('prctl', 36, 1, 0, 0, 0)
    r, w = os.pipe()

    def middle():
        os.write(w, struct.pack('i', child(idle)))
    os.waitpid(child(middle), 0)
    below = struct.unpack('i', os.read(r, 4))[0]
    moved()
    is_one = ctypes.c_int()
    call('prctl', 37, ctypes.byref(is_one), 0, 0, 0)
    equal('subreaper', is_one.value, 1)
    os.kill(below, 9)
    equal('orphan', os.waitpid(below, 0), (below, 9))


@program
def death_signal():
    """a child with PR_SET_PDEATHSIG"""
    r, w = os.pipe()

    def bound():
        call('prctl', 1, signal.SIGTERM, 0, 0, 0)
        os.write(w, b'x')
        idle()
    pid = child(bound)
    os.read(r, 1)
    moved()
    libc.usleep(300000)
    equal('lives', os.waitpid(pid, os.WNOHANG), (0, 0))
    os.kill(pid, 9)


@program
def death_signal_comes():
    """a child with PR_SET_PDEATHSIG whose parent ends afterwards"""
    r, w = os.pipe()
    call('prctl', 36, 1, 0, 0, 0)

    def parent():
        def bound():
            call('prctl', 1, signal.SIGTERM, 0, 0, 0)
            os.write(w, struct.pack('i', os.getpid()))
            idle()
        child(bound)
        within(600, told)
    pid = child(parent)
    below = struct.unpack('i', os.read(r, 4))[0]
    moved()
    equal('parent', os.waitpid(pid, 0), (pid, 0))
    ended = []
    within(5, lambda: ended or ended.extend(x for x in [os.waitpid(below, os.WNOHANG)] if x[0]))
    equal('ended', ended, [(below, signal.SIGTERM)])


@program
def death_signal_first():
    """the command itself with PR_SET_PDEATHSIG"""
    call('prctl', 1, signal.SIGKILL, 0, 0, 0)
    moved()
    libc.usleep(300000)
    signal_ = ctypes.c_int()
    call('prctl', 2, ctypes.byref(signal_), 0, 0, 0)
    equal('signal', signal_.value, 9)


@program
def affinity():
    """on which processors it may run"""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    before = os.sched_getaffinity(0)
    moved()
    equal('processors', os.sched_getaffinity(0), before)


@program
def affinity_thread():
    """a thread that may run on one processor only"""
    seen, go = [], threading.Event()

    def pinned():
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
        seen.append(os.sched_getaffinity(0))
        go.wait()
        seen.append(os.sched_getaffinity(0))
    thread = threading.Thread(target=pinned)
    thread.start()
    moved()
    go.set()
    thread.join()
    equal('processors', seen[1], seen[0])


@program
def niceness():
    """a nice value"""
    before = os.nice(7)
    moved()
    equal('nice', os.getpriority(os.PRIO_PROCESS, 0), before)


@program
def scheduling_class():
    """SCHED_BATCH"""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    moved()
    equal('class', os.sched_getscheduler(0), os.SCHED_BATCH)


@program
def scheduling_idle():
    """SCHED_IDLE in a thread"""
    seen, go = [], threading.Event()

    def thread():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        go.wait()
        seen.append(os.sched_getscheduler(0))
    of = threading.Thread(target=thread)
    of.start()
    moved()
    go.set()
    of.join()
    equal('class', seen, [os.SCHED_IDLE])


@program
def io_priority():
    """a priority of input and output"""
    call('syscall', 251, 1, 0, 2 << 13 | 6)
    moved()
    equal('priority', call('syscall', 252, 1, 0), 2 << 13 | 6)


@program
def limits():
    """resource limits"""
    wanted = {resource.RLIMIT_NOFILE: (300, 400), resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_FSIZE: (1 << 30, 1 << 31), resource.RLIMIT_STACK: (4 << 20, 16 << 20)}
    [resource.setrlimit(which, limit) for which, limit in wanted.items()]
    moved()
    equal('limits', {which: resource.getrlimit(which) for which in wanted}, wanted)


@program
def memory_badness():
    """oom_score_adj"""
    open('/proc/self/oom_score_adj', 'w').write('300')
    moved()
    equal('oom_score_adj', open('/proc/self/oom_score_adj').read(), '300\n')


@program
def memory_policy():
    """a NUMA policy"""
    mask = ctypes.c_ulong(1)
    equal('set', libc.syscall(238, 2, ctypes.byref(mask), 64), 0)
    moved()
    mode = ctypes.c_int()
    libc.syscall(239, ctypes.byref(mode), None, 0, None, 0)
    equal('policy', mode.value, 2)


@program
def small_things():
    """umask, name, personality, core filter, no new privileges"""
    os.umask(0o027)
    call('personality', 0x0040000)
    open('/proc/self/comm', 'w').write('renamed')
    open('/proc/self/coredump_filter', 'w').write('0x7')
    call('prctl', 38, 1, 0, 0, 0)

    def seen():
        mask = os.umask(0)
        os.umask(mask)
        return (mask, open('/proc/self/comm').read(), open('/proc/self/coredump_filter').read(), call('prctl', 39, 0, 0, 0, 0), call('personality', 0xffffffff))
    before = seen()
    equal('personality', before[4] & 0x0040000, 0x0040000)
    moved()
    equal('all', seen(), before)


@program
def huge_pages_off():
    """huge pages switched off for the process"""
    call('prctl', 41, 1, 0, 0, 0)
    moved()
    equal('off', call('prctl', 42, 0, 0, 0, 0), 1)


@program
def not_dumpable():
    """PR_SET_DUMPABLE"""
    call('prctl', 4, 0, 0, 0, 0)
    moved()
    equal('dumpable', call('prctl', 3, 0, 0, 0, 0), 0)


@program
def capabilities():
    """capabilities given up"""
    def sets():
        return [line for line in open('/proc/self/status') if line.startswith('Cap')]
    header, data = struct.pack('Ii', 0x20080522, 0), ctypes.create_string_buffer(24)
    libc.syscall(125, header, data)
    words = list(struct.unpack('6I', data.raw))
    words[0] &= ~1
    words[1] &= ~1
    libc.syscall(126, header, struct.pack('6I', *words))
    before = sets()
    moved()
    equal('capabilities', sets(), before)


@program
def user():
    """another user and groups inside"""
    r, w = os.pipe()
    ready, tell = os.pipe()

    def other():
        os.setgroups([5, 6])
        os.setresgid(7, 8, 9)
        os.setresuid(1, 2, 3)
        os.write(tell, b'x')
        os.read(r, 1)
        equal('ids', (os.getresuid(), os.getresgid(), os.getgroups()), ((1, 2, 3), (7, 8, 9), [5, 6]))
    pid = child(other)
    os.read(ready, 1)
    moved()
    os.write(w, b'x')
    equal('other', os.waitpid(pid, 0)[1], 0)


def signal_taken(number):
    """Number, code, sender and value of such a signal that waits."""
    mask, info = struct.pack('Q', 1 << (number - 1)).ljust(128, b'\0'), ctypes.create_string_buffer(128)
    got = libc.sigtimedwait(mask, info, bytes(16))
    return None if got < 0 else (got, *struct.unpack_from('iiIQ', info.raw, 8)[:1], *struct.unpack_from('iIQ', info.raw, 16))


@program
def signals_pending():
    """signals that are blocked and wait, with values"""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN, signal.SIGUSR1])
    for value in 1, 2, 3:
        call('sigqueue', os.getpid(), int(signal.SIGRTMIN), ctypes.c_void_p(value))
    os.kill(os.getpid(), signal.SIGUSR1)
    moved()
    equal('mask', {signal.SIGRTMIN, signal.SIGUSR1} <= signal.pthread_sigmask(signal.SIG_BLOCK, []), True)
    got = [signal_taken(signal.SIGRTMIN) for _ in range(4)]
    own = os.getpid(), os.getuid()
    equal('queue', got, [(signal.SIGRTMIN, -1, *own, value) for value in (1, 2, 3)] + [None])
    equal('other', signal_taken(signal.SIGUSR1)[:4], (signal.SIGUSR1, 0, *own))


@program
def signal_handlers():
    """handlers, ignored signals, an alternate stack"""
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    memory = ctypes.create_string_buffer(65536)
    call('sigaltstack', struct.pack('Pi4xL', ctypes.addressof(memory), 0, 65536), None)
    moved()
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGUSR1)
    equal('heard', within(2, lambda: heard) and heard, [1])
    stack = ctypes.create_string_buffer(24)
    call('sigaltstack', None, stack)
    equal('stack', struct.unpack('Pi4xL', stack.raw), (ctypes.addressof(memory), 0, 65536))


@program
def robust_list():
    """a robust mutex whose owner ends afterwards"""
    import mmap
    thread = ctypes.CDLL(None)
    shared = mmap.mmap(-1, 4096)
    mutex = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    attributes = ctypes.create_string_buffer(64)
    thread.pthread_mutexattr_init(attributes)
    thread.pthread_mutexattr_setpshared(attributes, 1)
    thread.pthread_mutexattr_setrobust(attributes, 1)
    thread.pthread_mutex_init(ctypes.c_void_p(mutex), attributes)

    def owner():
        thread.pthread_mutex_lock(ctypes.c_void_p(mutex))
        shared[1000] = 1
        within(600, told)
    pid = child(owner)
    within(5, lambda: shared[1000])
    moved()
    os.waitpid(pid, 0)
    equal('lock', thread.pthread_mutex_trylock(ctypes.c_void_p(mutex)), 130)


@program
def restartable_sequence():
    """rseq is registered"""
    moved()
    # Once more: the kernel says that there is one already.
    memory = ctypes.create_string_buffer(96)
    aligned = (ctypes.addressof(memory) + 31) & ~31
    libc.syscall(334, ctypes.c_void_p(aligned), 32, 0, 0x53053053)
    equal('registered', ctypes.get_errno(), 22)


SYSCALL_NUMBER = [(0x20, 0, 0, 0), (0x15, 0, 1, 999), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]


def filter_calls():
    program = b''.join(struct.pack('HBBI', *line) for line in SYSCALL_NUMBER)
    memory = ctypes.create_string_buffer(program, len(program))
    call('prctl', 38, 1, 0, 0, 0)
    call('prctl', 22, 2, struct.pack('HxxxxxxP', len(SYSCALL_NUMBER), ctypes.addressof(memory)), 0, 0)


def is_filtered():
    libc.syscall(999)
    return ctypes.get_errno() == 1


@program
def seccomp():
    """a filter of system calls"""
    filter_calls()
    moved()
    equal('filtered', is_filtered(), True)


@program
def seccomp_thread():
    """a filter of system calls in one thread"""
    go, seen = threading.Event(), []
    thread = threading.Thread(target=lambda: (filter_calls(), seen.append(1), go.wait(), seen.append(is_filtered())))
    thread.start()
    within(5, lambda: seen)
    moved()
    go.set()
    thread.join()
    equal('filtered', seen[1:], [True])


@program
def traced():
    """a process that another traces"""
    r, w = os.pipe()

    def tracee():
        call('ptrace', 0, 0, None, None)
        os.write(w, b'x')
        idle()
    pid = child(tracee)
    os.read(r, 1)
    moved()
    equal('tracer', next(line.split()[1] for line in open(f'/proc/{pid}/status') if line.startswith('TracerPid')), str(os.getpid()))
    os.kill(pid, 9)


def apart(flags):
    r, w = os.pipe()

    def inner():
        libc.unshare(flags)
        os.write(w, b'x')
        idle()
    pid = child(inner)
    os.read(r, 1)
    names = 'user', 'mnt', 'uts', 'ipc', 'net', 'pid_for_children', 'time_for_children', 'cgroup'

    def differs():
        # A PID namespace shows only once somebody is in it.
        space = lambda pid, name: os.path.exists(path := f'/proc/{pid}/ns/{name}') and os.stat(path).st_ino
        return [name for name in names if space(pid, name) != space('self', name)]
    before = differs()
    moved()
    equal('namespaces', differs(), before)
    os.kill(pid, 9)


@program
def namespace_user():
    """a user namespace within"""
    apart(0x10000000)


@program
def namespace_mounts():
    """a mount namespace within"""
    apart(0x10000000 | 0x20000)


@program
def namespace_network():
    """a network namespace within"""
    apart(0x10000000 | 0x40000000)


@program
def namespace_processes():
    """a PID namespace within"""
    apart(0x10000000 | 0x20000000)


@program
def namespace_time():
    """a time namespace within"""
    apart(0x10000000 | 0x80)


@program
def session_keyring():
    """a key in the session's keyring"""
    key = libc.syscall(248, b'user', b'corpus', b'secret', 6, -3)
    moved()
    into = ctypes.create_string_buffer(16)
    equal('key', key < 0 or (libc.syscall(250, 11, key, into, 16), into.value), key < 0 or (6, b'secret'))


@program
def user_keyring():
    """a key in the user's keyring"""
    key = libc.syscall(248, b'user', b'corpus', b'secret', 6, -4)
    moved()
    into = ctypes.create_string_buffer(16)
    equal('key', key < 0 or (libc.syscall(250, 11, key, into, 16), into.value), key < 0 or (6, b'secret'))


@program
def own_keyring():
    """a key in a session's keyring that the program has made"""
    libc.syscall(250, 1, None)
    key = libc.syscall(248, b'user', b'corpus', b'secret', 6, -3)
    moved()
    into = ctypes.create_string_buffer(16)
    equal('key', key < 0 or (libc.syscall(250, 11, key, into, 16), into.value), key < 0 or (6, b'secret'))


@program
def root_directory():
    """chroot"""
    os.makedirs(local('root/in'))

    def inside():
        os.chroot(local('root'))
        os.chdir('/')
        idle()
    pid = child(inside)
    within(2, lambda: os.readlink(f'/proc/{pid}/root') == local('root'))
    moved()
    equal('root', os.readlink(f'/proc/{pid}/root'), local('root'))
    os.kill(pid, 9)


def running(code, *words):
    """Runs machine code in a thread, until it finds a byte other than 0 where rdx leads to. Gives what sets that byte."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    address = libc.mmap(None, 1 << 16, 7, 0x22, -1, 0)
    ctypes.memmove(address, code, len(code))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(address)
    thread = threading.Thread(target=lambda: function(*words))
    thread.start()

    def end():
        ctypes.memset(words[2], 1, 1)
        thread.join()
    return end


def aligned(size):
    memory = ctypes.create_string_buffer(size + 63)
    offset = -ctypes.addressof(memory) & 63
    return memory, ctypes.addressof(memory) + offset


# pause; cmp byte [rdx], 0; je to the beginning
SPIN = bytes.fromhex('f390803a0074f9')


def move_register(number, at, is_store, kind):
    """movups between a register and [rdi + at] (load) or [rsi + at] (store)."""
    modrm, operation = 0x80 | (number & 7) << 3 | (6 if is_store else 7), 0x11 if is_store else 0x10
    prefix = {
        'sse': [[0x0f], [0x44, 0x0f]][number >> 3 & 1],
        'avx': [0xc5, [0xfc, 0x7c][number >> 3 & 1]],
        'avx512f': [0x62, 0xf1 ^ (number >> 3 & 1) << 7 ^ (number >> 4 & 1) << 4, 0x7c, 0x48],
    }[kind]
    return bytes(prefix + [operation, modrm]) + struct.pack('i', at)


def move_mask(number, at, is_store):
    return bytes([0xc4, 0xe1, 0xf8, 0x91 if is_store else 0x90, 0x80 | number << 3 | (6 if is_store else 7)]) + struct.pack('i', at)


def processor_flags():
    return next(line for line in open('/proc/cpuinfo') if line.startswith('flags')).split()


@program
def wide_registers():
    """vector registers (SSE, AVX, AVX-512 and its masks) of a thread that computes, and rounding of floating point"""
    flags = processor_flags()
    kind = next((kind for kind in ('avx512f', 'avx') if kind in flags), 'sse')
    count, width = {'sse': (16, 16), 'avx': (16, 32), 'avx512f': (32, 64)}[kind]
    masks = range(1, 8) if 'avx512bw' in flags else []
    code = b''
    for is_store in False, True:
        code += b''.join(move_register(number, number * width, is_store, kind) for number in range(count))
        code += b''.join(move_mask(number, 2048 + 8 * number, is_store) for number in masks)
        code += b'' if is_store else SPIN
    code += (b'' if kind == 'sse' else b'\xc5\xf8\x77') + b'\xc3'
    (before, begun), (after, ends), (flag, byte) = aligned(4096), aligned(4096), aligned(64)
    ctypes.memmove(begun, os.urandom(4096), 4096)
    end = running(code, begun, ends, byte, None)
    m = ctypes.CDLL('libm.so.6')
    m.fesetround(0x400)
    moved()
    equal('rounding', m.fegetround(), 0x400)
    end()
    parts = [(number * width, width) for number in range(count)] + [(2048 + 8 * number, 8) for number in masks]
    equal('registers', [at for at, size in parts if ctypes.string_at(begun + at, size) != ctypes.string_at(ends + at, size)], [])


@program
def tiles():
    """tiles of a matrix (AMX) of a thread that computes"""
    if 'amx_tile' not in processor_flags() or libc.syscall(158, 0x1023, 18):
        return moved()
    # mov eax, 64; ldtilecfg [rdi]; tileloadd tmm0, [rsi + rax]; ...; tilestored [rcx + rax], tmm0; tilerelease; ret
    code = bytes.fromhex('b840000000' 'c4e2784907' 'c4e27b4b0406') + SPIN + bytes.fromhex('c4e27a4b0401' 'c4e27849c0' 'c3')
    (one, shape), (two, begun), (three, byte), (four, ends) = [aligned(1024) for _ in range(4)]
    layout = bytearray(64)
    layout[0], layout[48] = 1, 16
    struct.pack_into('H', layout, 16, 64)
    ctypes.memmove(shape, bytes(layout), 64)
    ctypes.memmove(begun, os.urandom(1024), 1024)
    end = running(code, shape, begun, byte, ends)
    moved()
    end()
    equal('tile', ctypes.string_at(ends, 1024) == ctypes.string_at(begun, 1024), True)


@program
def tiles_permitted():
    """a process that may use tiles (ARCH_REQ_XCOMP_PERM), and has not yet"""
    get = lambda: (into := ctypes.c_ulong(), libc.syscall(158, 0x1022, ctypes.byref(into)), into.value)[1:]
    libc.syscall(158, 0x1023, 18)
    before = get()
    moved()
    equal('permission', get(), before)


@program
def segment_base():
    """a base of the segment GS (arch_prctl)"""
    base = ctypes.create_string_buffer(64)
    get = lambda: (into := ctypes.c_ulong(), call('syscall', 158, 0x1004, ctypes.byref(into)), into.value)[2]
    call('syscall', 158, 0x1001, base)
    before = get()
    moved()
    equal('base', get(), before)


@program
def accounting():
    """processor time used"""
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    moved()
    equal('at least', time.process_time() > 0.25, True)


def setting(name, set, get, value):
    """Something that prctl(2) sets to 1 or to `value`, where the kernel can."""
    is_known = libc.prctl(*set) == 0
    before = libc.prctl(*get)
    equal(f'{name} before', not is_known or before, not is_known or value)
    moved()
    equal(name, libc.prctl(*get), before)


@program
def speculation():
    """speculation switched off (PR_SET_SPECULATION_CTRL)"""
    get = lambda: [libc.prctl(52, which, 0, 0, 0) for which in (0, 1, 2)]
    [libc.prctl(53, which, 4, 0, 0) for which in (0, 1, 2)]
    before = get()
    moved()
    equal('speculation', get(), before)


@program
def deny_write_execute():
    """memory that is written can never be run (PR_SET_MDWE)"""
    setting('deny', (65, 1, 0, 0, 0), (66, 0, 0, 0, 0), 1)


@program
def keep_capabilities():
    """capabilities kept at a change of user (PR_SET_KEEPCAPS), and secure bits"""
    get = lambda: (libc.prctl(7, 0, 0, 0, 0), libc.prctl(27, 0, 0, 0, 0))
    call('prctl', 28, 1 << 4 | 1 << 2 | 1 << 6, 0, 0, 0)
    before = get()
    moved()
    equal('kept', get(), before)


@program
def capabilities_ambient():
    """ambient capabilities, and those given up for good"""
    header = struct.pack('Ii', 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    call('syscall', 125, header, data)
    words = list(struct.unpack('6I', data.raw))
    words[2] |= 1
    call('syscall', 126, header, struct.pack('6I', *words))
    call('prctl', 47, 2, 0, 0, 0)
    call('prctl', 24, 5, 0, 0, 0)
    sets = lambda: [line for line in open('/proc/self/status') if line.startswith('Cap')]
    before = sets()
    moved()
    equal('capabilities', sets(), before)


@program
def barriers():
    """what the process has asked of membarrier(2)"""
    wanted = sum(1 << bit for bit in (2, 4, 6, 8) if libc.syscall(324, 1 << bit, 0, 0) == 0)
    moved()
    now = libc.syscall(324, 1 << 9, 0, 0)
    if now < 0:  # Kernels before 6.3 do not report them; the private ones show by what they allow.
        now = wanted & 1 << 2 | sum(1 << bit for bit in (4, 6, 8) if libc.syscall(324, 1 << bit - 1, 0, 0) == 0)
    equal('registrations', now, wanted)


@program
def autogroup():
    """the nice value of a session (autogroup)"""
    try:
        open('/proc/self/autogroup', 'w').write('7')
        get = lambda: open('/proc/self/autogroup').read().split()[-1]
    except OSError:
        get = lambda: None
    before = get()
    moved()
    equal('nice', get(), before)


def scheduling():
    """The attributes of sched_getattr(2): policy, flags, nice, priority, slice."""
    into = ctypes.create_string_buffer(56)
    call('syscall', 315, 0, into, 56, 0)
    return struct.unpack_from('IIQiIQ', into.raw)[1:]


@program
def scheduling_reset():
    """a scheduling class that children do not inherit (SCHED_RESET_ON_FORK)"""
    os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    before = scheduling()
    moved()
    # The slice is the kernel's: those before 6.12 do not tell it.
    equal('attributes', scheduling()[:4], before[:4])


@program
def scheduling_slice():
    """a slice of time of its own (sched_setattr)"""
    libc.syscall(314, 0, struct.pack('IIQiIQQQ', 48, 0, 0, 0, 0, 12000000, 0, 0), 0)
    before = scheduling()
    moved()
    # Kernels before 6.12 have none of its own, and tell 0.
    equal('attributes', scheduling(), before if before[4] else (*before[:4], scheduling()[4]))


@program
def niceness_thread():
    """a thread with a nice value of its own"""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    os.setpriority(os.PRIO_PROCESS, thread.native_id, 11)
    nice = lambda: (os.getpriority(os.PRIO_PROCESS, thread.native_id), os.getpriority(os.PRIO_PROCESS, 0))
    before = nice()
    moved()
    equal('nice', nice(), before)
    go.set()


def in_thread(change, see):
    """What a thread has of its own, which others have not."""
    seen, go, began = [], threading.Event(), threading.Event()

    def body():
        change()
        seen.append(see())
        began.set()
        go.wait()
        seen.append(see())
    thread = threading.Thread(target=body)
    thread.start()
    began.wait()
    other = see()
    moved()
    go.set()
    thread.join()
    equal('in the thread', seen[1:], seen[:1])
    equal('in others', see(), other)


@program
def thread_directory():
    """a thread with a current directory and umask of its own (unshare of CLONE_FS)"""
    def change():
        call('unshare', 0x200)
        os.chdir('/usr')
    in_thread(change, os.getcwd)


@program
def thread_descriptors():
    """a thread with descriptors of its own (unshare of CLONE_FILES)"""
    def change():
        call('unshare', 0x400)
        os.dup2(0, 123)
    in_thread(change, lambda: os.path.exists(f'/proc/thread-self/fd/123'))


@program
def thread_user():
    """a thread of another user"""
    in_thread(lambda: libc.syscall(117, 5, 5, 0), lambda: [line for line in open('/proc/thread-self/status') if line.startswith('Uid')])


@program
def thread_capabilities():
    """a thread that has given up capabilities"""
    def change():
        header, data = struct.pack('Ii', 0x20080522, 0), ctypes.create_string_buffer(24)
        call('syscall', 125, header, data)
        words = list(struct.unpack('6I', data.raw))
        words[0] &= ~1
        call('syscall', 126, header, struct.pack('6I', *words))
    in_thread(change, lambda: [line for line in open('/proc/thread-self/status') if line.startswith('Cap')])


@program
def thread_personality():
    """a thread with a personality and no new privileges of its own"""
    def change():
        call('personality', 0x0040000)
        call('prctl', 38, 1, 0, 0, 0)
    in_thread(change, lambda: (call('personality', 0xffffffff), call('prctl', 39, 0, 0, 0, 0)))


@program
def thread_signals():
    """a thread with signals that wait for it, a mask and an alternate stack of its own"""
    memory = ctypes.create_string_buffer(65536)

    def change():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        call('sigaltstack', struct.pack('Pi4xL', ctypes.addressof(memory), 0, 65536), None)

    def see():
        stack = ctypes.create_string_buffer(24)
        call('sigaltstack', None, stack)
        return struct.unpack('Pi4xL', stack.raw), signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    in_thread(change, see)


@program
def leader_ended():
    """a process whose first thread has ended, and another goes on"""
    r, w = os.pipe()

    def of():
        def other():
            os.write(w, b'x')
            within(600, told)
            os._exit(42)
        threading.Thread(target=other).start()
        os.read(r, 1)
        libc.syscall(60, 0)
    pid = child(of)
    within(5, lambda: open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()[0] == 'Z')
    moved()
    equal('code', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 42)


def cloned(flags):
    stack = ctypes.create_string_buffer(1 << 16)
    function = ctypes.cast(libc.pause, ctypes.c_void_p)
    pid = call('clone', function, ctypes.c_void_p((ctypes.addressof(stack) + (1 << 16)) & ~15), flags | signal.SIGCHLD, None)
    shares = lambda: [libc.syscall(312, os.getpid(), pid, kind, 0, 0) == 0 for kind in range(1, 6)]
    before = shares()
    moved()
    equal('in common', shares(), before)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    stack[0] = 0


@program
def shared_descriptors():
    """processes with descriptors in common (CLONE_FILES)"""
    cloned(0x400)


@program
def shared_directory():
    """processes with the current directory in common (CLONE_FS)"""
    cloned(0x200)


@program
def shared_memory_map():
    """processes with all memory in common (CLONE_VM)"""
    cloned(0x100)


@program
def shared_handlers():
    """processes with memory and handlers of signals in common (CLONE_SIGHAND)"""
    cloned(0x100 | 0x800)


@program
def shared_io():
    """processes that count as one for input and output (CLONE_IO), clean handlers"""
    cloned(0x80000000 - (1 << 32))


@program
def seccomp_strict():
    """the strict mode of seccomp"""
    r, w = os.pipe()
    go, tell = os.pipe()

    def confined():
        os.write(w, b'x')
        # From now on only read, write and exit.
        call('prctl', 22, 1, 0, 0, 0)
        libc.read(go, ctypes.create_string_buffer(1), 1)
        libc.getpid()
        libc.syscall(60, 0)
    pid = child(confined)
    os.read(r, 1)
    libc.usleep(100000)
    moved()
    os.write(tell, b'x')
    equal('ended by a signal', os.waitpid(pid, 0)[1] & 127 != 0, True)


@program
def landlock():
    """a process that Landlock confines"""
    r, w = os.pipe()
    go, tell = os.pipe()

    def writes():
        try:
            open(local('new'), 'w').close()
            return True
        except PermissionError:
            return False

    def confined():
        rules = libc.syscall(444, struct.pack('Q', 1 << 1 | 1 << 8), 8, 0)
        call('prctl', 38, 1, 0, 0, 0)
        rules < 0 or call('syscall', 446, rules, 0)
        rules < 0 or os.close(rules)
        before = writes()
        os.write(w, b'x')
        os.read(go, 1)
        equal('may write', writes(), before)
    pid = child(confined)
    os.read(r, 1)
    moved()
    os.write(tell, b'x')
    equal('child', os.waitpid(pid, 0)[1], 0)


@program
def title():
    """a command line that the process has changed, and its variables"""
    start = int(open('/proc/self/stat').read().rsplit(')')[1].split()[45])
    ctypes.memmove(start, b'title\0', 6)
    seen = lambda: [open(f'/proc/self/{name}', 'rb').read() for name in ('cmdline', 'environ', 'auxv')]
    before = seen()
    moved()
    equal('all', seen(), before)


@program
def inheriting_mutex():
    """a lock that lends its priority (FUTEX_LOCK_PI), held by one, waited for by another"""
    word = ctypes.c_uint(0)
    lock = lambda: libc.syscall(202, ctypes.byref(word), 6 | 128, 0, None)
    unlock = lambda: libc.syscall(202, ctypes.byref(word), 7 | 128, 0, None)
    done, go = [], threading.Event()
    holder = threading.Thread(target=lambda: (lock(), done.append('held'), go.wait(), unlock()))
    holder.start()
    within(5, lambda: done)
    waiter = threading.Thread(target=lambda: done.append(lock()))
    waiter.start()
    within(5, lambda: word.value & 0x80000000)
    moved()
    equal('owner', (word.value & 0x3fffffff, done), (holder.native_id, ['held']))
    go.set()
    waiter.join(10)
    equal('locked', (done, word.value & 0x3fffffff), (['held', 0], waiter.native_id))


@program
def handler_flags():
    """flags of handlers: once, nested, children that are not waited for"""
    get = lambda number: (into := ctypes.create_string_buffer(32), libc.syscall(13, number, None, into, 8), into.raw)[2]
    for number, flags in (signal.SIGUSR1, 0x80000000), (signal.SIGUSR2, 0x40000000), (signal.SIGCHLD, 2):
        old = bytearray(get(number))
        struct.pack_into('Q', old, 0, 1)
        struct.pack_into('Q', old, 8, flags | 0x04000000)
        call('syscall', 13, number, bytes(old), None, 8)
    before = [get(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)]
    moved()
    equal('handlers', [get(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)], before)


main()
