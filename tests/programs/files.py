"""Open files, locks on them, and descriptors of other kinds."""
import ctypes
import fcntl
import os
import select
import signal
import struct

from moved import call, child, equal, libc, local, main, moved, place, program, told, within


@program
def offset():
    """an open file with a position and flags"""
    open(place('.data'), 'w').write('0123456789')
    fd = os.open(place('.data'), os.O_RDWR | os.O_APPEND)
    os.lseek(fd, 4, 0)
    moved()
    equal('position', os.read(fd, 3), b'456')
    os.write(fd, b'end')
    equal('file', open(place('.data')).read(), '0123456789end')


@program
def deleted():
    """an open file that has been deleted, in the home and in /tmp"""
    fds = []
    for path in place('.data'), local('deleted'):
        fds.append(os.open(path, os.O_CREAT | os.O_RDWR))
        os.write(fds[-1], b'deleted')
        os.unlink(path)
    moved()
    equal('content', [os.pread(fd, 20, 0) for fd in fds], [b'deleted'] * 2)


@program
def nameless():
    """a file that never had a name (O_TMPFILE)"""
    fd = os.open('/tmp', os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b'nameless')
    moved()
    equal('content', os.pread(fd, 20, 0), b'nameless')


@program
def directory():
    """an open directory, and the one that it is in"""
    os.makedirs(local('there/below'))
    fd = os.open(local('there'), os.O_RDONLY)
    os.chdir(local('there/below'))
    moved()
    equal('entries', os.listdir(fd), ['below'])
    equal('where', os.getcwd(), local('there/below'))


@program
def shared_position():
    """a descriptor that parent and child have in common"""
    open(local('data'), 'w').write('abcdef')
    fd = os.open(local('data'), os.O_RDONLY)

    def read():
        within(600, told)
        equal('child', os.read(fd, 2), b'ab')
    pid = child(read)
    moved()
    equal('child', os.waitpid(pid, 0)[1], 0)
    equal('parent', os.read(fd, 2), b'cd')


@program
def outside_grows():
    """a file of the home that is longer when it comes back than when it went"""
    f = open(place('.log'), 'a')
    f.write('one\n')
    f.flush()
    moved()
    f.write('two\n')
    f.flush()
    equal('file', open(place('.log')).read(), 'one\ntwo\n')


@program
def outside_log():
    """a log in the home that a shell has opened (>), and that goes on growing, where it is left running after it was saved, too"""
    f = open(place('.log'), 'w')
    count = 0

    def write():
        nonlocal count
        print(count, file=f, flush=True)
        count += 1
    write()
    moved(write)
    write()
    equal('log', open(place('.log')).read().split(), [str(n) for n in range(count)])


@program
def outside_base():
    """a file in the home that is written anywhere, as a database is, and goes on being written, where it is left running after it was saved, too"""
    fd = os.open(place('.base'), os.O_CREAT | os.O_RDWR, 0o600)
    count = 0

    def write():
        nonlocal count
        equal('base', os.pread(fd, 100, 0), b'' if count == 0 else b'%d' % count + b'.' * (count % 7))
        count += 1
        os.ftruncate(fd, 0)
        os.pwrite(fd, b'%d' % count + b'.' * (count % 7), 0)
    write()
    moved(write)
    write()


def held(path, way):
    """Whether somebody else is kept from the lock."""
    def other():
        fd = os.open(path, os.O_RDWR)
        try:
            way(fd)
        except OSError:
            os._exit(3)
        os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child(other), 0)[1]) == 3


def lock(path, way):
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    way(fd)
    moved()
    equal('whether it is still locked', held(path, way), True)
    return fd


@program
def flock_inside():
    """flock on a file in /tmp"""
    lock(local('locked'), lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))


@program
def flock_home():
    """flock on a file of the home"""
    lock(place('.lock'), lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))


@program
def flock_shared_home():
    """a shared flock on a file of the home"""
    fd = os.open(place('.lock'), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    moved()
    equal('whether it is still locked', held(place('.lock'), lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)), True)


@program
def posix_lock():
    """a lock of a range (fcntl) in /tmp"""
    lock(local('locked'), lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5))


@program
def posix_lock_home():
    """a lock of a range (fcntl) in the home"""
    lock(place('.lock'), lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5))


@program
def open_file_lock():
    """a lock of an open file description (F_OFD_SETLK)"""
    way = lambda fd: fcntl.fcntl(fd, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 10, 0))
    lock(local('locked'), way)


@program
def open_file_lock_home():
    """the same in the home"""
    way = lambda fd: fcntl.fcntl(fd, 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 10, 0))
    lock(place('.lock'), way)


@program
def lease():
    """a lease on a file (F_SETLEASE)"""
    open(local('leased'), 'w').close()
    fd = os.open(local('leased'), os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    moved()
    equal('lease', fcntl.fcntl(fd, fcntl.F_GETLEASE), fcntl.F_RDLCK)


@program
def directory_notify():
    """dnotify (F_NOTIFY)"""
    heard = []
    signal.signal(signal.SIGIO, lambda *_: heard.append(1))
    os.mkdir(local('watched'))
    fd = os.open(local('watched'), os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    moved()
    open(local('watched/new'), 'w').close()
    equal('heard', within(3, lambda: heard) and True, True)


@program
def directory_notify_thread():
    """dnotify of a thread"""
    import threading
    heard, fd, ends = [], [], threading.Event()
    signal.signal(signal.SIGIO, lambda *_: heard.append(1))
    os.mkdir(local('watched'))

    def watch():
        fd.append(os.open(local('watched'), os.O_RDONLY))
        fcntl.fcntl(fd[0], fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
        ends.wait()
    thread = threading.Thread(target=watch)
    thread.start()
    within(5, lambda: fd)
    moved()
    open(local('watched/new'), 'w').close()
    equal('heard', within(3, lambda: heard) and True, True)
    ends.set()


@program
def signal_io():
    """a descriptor that signals (O_ASYNC, F_SETOWN)"""
    import socket
    heard = []
    signal.signal(signal.SIGIO, lambda *_: heard.append(1))
    a, b = socket.socketpair()
    fcntl.fcntl(a, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(a, fcntl.F_SETFL, fcntl.fcntl(a, fcntl.F_GETFL) | os.O_ASYNC)
    moved()
    b.send(b'x')
    equal('heard', within(3, lambda: heard) and True, True)


@program
def eventfd():
    """an eventfd with a count"""
    fd = os.eventfd(5)
    moved()
    equal('count', os.eventfd_read(fd), 5)


@program
def epoll():
    """an epoll set, level and edge, one in another"""
    r, w = os.pipe()
    r2, w2 = os.pipe()
    inner, outer = select.epoll(), select.epoll()
    inner.register(r, select.EPOLLIN)
    outer.register(inner.fileno(), select.EPOLLIN)
    outer.register(r2, select.EPOLLIN | select.EPOLLET)
    moved()
    os.write(w, b'x')
    equal('inner', inner.poll(2), [(r, select.EPOLLIN)])
    equal('outer', outer.poll(2), [(inner.fileno(), select.EPOLLIN)])
    os.write(w2, b'x')
    equal('edge', (r2, select.EPOLLIN) in outer.poll(2), True)


@program
def epoll_replaced():
    """an epoll set with a descriptor that has been closed and lives on under another number"""
    r, w = os.pipe()
    other = os.dup(r)
    poll = select.epoll()
    poll.register(r, select.EPOLLIN)
    os.close(r)
    moved()
    os.write(w, b'x')
    equal('heard', len(poll.poll(2)), 1)


@program
def signalfd():
    """a signalfd, and a signal that waits for it"""
    mask = ctypes.create_string_buffer(128)
    struct.pack_into('Q', mask, 0, 1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGUSR2 - 1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
    fd = call('signalfd', -1, mask, os.O_NONBLOCK)
    os.kill(os.getpid(), signal.SIGUSR1)
    moved()
    equal('waiting', struct.unpack_from('I', os.read(fd, 128))[0], signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    equal('new', struct.unpack_from('I', os.read(fd, 128))[0], signal.SIGUSR2)


@program
def pidfd():
    """a pidfd of a child"""
    pid = child(lambda: within(60, lambda: False))
    fd = os.pidfd_open(pid)
    moved()
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    equal('ended', os.WTERMSIG(os.waitpid(pid, 0)[1]), 9)


@program
def inotify():
    """inotify"""
    fd = call('inotify_init1', os.O_NONBLOCK)
    os.mkdir(local('watched'))
    call('inotify_add_watch', fd, local('watched').encode(), 0x100)
    moved()
    open(local('watched/new'), 'w').close()
    equal('heard', len(os.read(fd, 4096)) > 0, True)


@program
def inotify_empty():
    """inotify that watches nothing yet"""
    fd = call('inotify_init1', os.O_NONBLOCK)
    moved()
    os.mkdir(local('watched'))
    call('inotify_add_watch', fd, local('watched').encode(), 0x100)
    open(local('watched/new'), 'w').close()
    equal('heard', len(os.read(fd, 4096)) > 0, True)


@program
def io_uring():
    """io_uring"""
    params = ctypes.create_string_buffer(120)
    fd = libc.syscall(425, 4, params)
    moved()
    equal('whether it is there', fd < 0 or libc.syscall(426, fd, 0, 0, 0, None, 0), 0)


@program
def userfaultfd():
    """userfaultfd"""
    fd = libc.syscall(323, 1 | os.O_NONBLOCK)
    moved()
    equal('whether it is there', fd < 0 or os.readlink(f'/proc/self/fd/{fd}'), fd < 0 or 'anon_inode:[userfaultfd]')


@program
def descriptor_flags():
    """close-on-exec, a high number"""
    fd = os.open('/dev/null', os.O_RDONLY)
    os.dup2(fd, 900, inheritable=True)
    moved()
    equal('flags', (os.get_inheritable(fd), os.get_inheritable(900)), (False, True))


@program
def proc_file():
    """open files of /proc and /sys"""
    fds = [os.open(path, os.O_RDONLY) for path in ('/proc/self/status', '/proc/meminfo', '/sys/kernel/mm')]
    moved()
    equal('read', os.pread(fds[0], 5, 0), b'Name:')
    equal('read', os.pread(fds[1], 8, 0), b'MemTotal')


@program
def host_file():
    """files of the host's root, open and mapped as libraries are, by a program that has started others"""
    import mmap
    import subprocess
    f = open('/etc/os-release')
    first = f.readline()
    library = next(line.split()[-1] for line in open('/proc/self/maps') if 'libc.so.6' in line)
    with open(library, 'rb') as of:
        mapped = mmap.mmap(of.fileno(), 0, prot=mmap.PROT_READ)
    spawned = lambda: subprocess.run(['cat', '/etc/os-release'], capture_output=True, text=True, check=True).stdout.startswith(first)
    [spawned() for _ in range(3)]
    moved()
    f.seek(0)
    equal('read', (f.readline(), mapped[:4]), (first, b'\x7fELF'))
    equal('spawned', spawned(), True)
    equal('deleted', [line for line in open('/proc/self/maps') if '(deleted)' in line], [])


@program
def namespace_descriptor():
    """a descriptor of a namespace"""
    fd = os.open('/proc/self/ns/uts', os.O_RDONLY)
    moved()
    equal('namespace', os.fstat(fd).st_ino, os.stat('/proc/self/ns/uts').st_ino)


@program
def path_only():
    """descriptors that are only a path (O_PATH): of a file, a directory, a link"""
    os.makedirs(local('there/below'))
    open(local('there/file'), 'w').write('found')
    os.symlink('file', local('there/link'))
    fds = [os.open(local(f'there{name}'), os.O_PATH | os.O_NOFOLLOW) for name in ('', '/file', '/link')]
    moved()
    equal('links', [os.readlink(f'/proc/self/fd/{fd}') for fd in fds], [local(f'there{name}') for name in ('', '/file', '/link')])
    equal('below', os.stat('below', dir_fd=fds[0]).st_mode & 0o170000, 0o040000)
    equal('content', open(f'/proc/self/fd/{fds[1]}').read(), 'found')
    equal('target', os.readlink('', dir_fd=fds[2]), 'file')
    equal('flags', [bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH) for fd in fds], [True] * 3)


def half_listed(path):
    os.makedirs(path)
    [open(f'{path}/{number}', 'w').close() for number in range(3000)]
    listing = os.scandir(path)
    names = [next(listing).name for _ in range(1500)]
    moved()
    names += [entry.name for entry in listing]
    equal('names', (len(names), len(set(names))), (3000, 3000))


@program
def directory_stream():
    """a directory in /tmp of which half has been listed"""
    half_listed(local('many'))


@program
def directory_stream_home():
    """a directory of the home of which half has been listed"""
    half_listed(place('.many'))
    import shutil
    shutil.rmtree(place('.many'))


@program
def directory_deleted():
    """a current directory that has been deleted"""
    os.makedirs(local('gone'))
    os.chdir(local('gone'))
    os.rmdir(local('gone'))
    moved()
    equal('current', os.readlink('/proc/self/cwd'), local('gone') + ' (deleted)')


@program
def deleted_linked():
    """an open file that has been deleted and has another name"""
    fds = []
    for path in place('.data'), local('deleted'):
        fds.append(os.open(path, os.O_CREAT | os.O_RDWR))
        os.write(fds[-1], b'before')
        os.link(path, path + '.other')
        os.unlink(path)
    moved()
    equal('content', [os.pread(fd, 20, 0) for fd in fds], [b'before'] * 2)
    [os.pwrite(fd, b'behind', 0) for fd in fds]
    equal('by the other name', [open(path + '.other').read() for path in (place('.data'), local('deleted'))], ['behind'] * 2)
    equal('names', sorted(os.listdir(local(''))), ['deleted.other'])


@program
def open_flags():
    """flags of open files: O_NONBLOCK, O_SYNC, O_NOATIME, O_DIRECT"""
    open(place('.data'), 'w').close()
    wanted = [os.O_NONBLOCK, os.O_SYNC, os.O_DSYNC, os.O_NOATIME, os.O_DIRECT]
    fds = [os.open(place('.data'), os.O_RDWR | flag) for flag in wanted]
    flags = lambda: [oct(fcntl.fcntl(fd, fcntl.F_GETFL)) for fd in fds]
    before = flags()
    moved()
    equal('flags', flags(), before)


def owner_of(fd):
    into = ctypes.create_string_buffer(8)
    call('fcntl', fd, 16, into)
    return struct.unpack('ii', into.raw)


@program
def signal_io_number():
    """a descriptor that sends another signal to a group (F_SETSIG)"""
    import socket
    os.setpgid(0, 0) if os.getsid(0) != os.getpid() else None
    a, b = socket.socketpair()
    fcntl.fcntl(a, 10, signal.SIGUSR2)
    fcntl.fcntl(a, fcntl.F_SETOWN, -os.getpgid(0))
    moved()
    equal('signal, owner', (fcntl.fcntl(a, 11), owner_of(a.fileno())), (signal.SIGUSR2, (2, os.getpgid(0))))


@program
def signal_io_thread():
    """a descriptor that sends its signal to a thread (F_SETOWN_EX)"""
    import socket
    import threading
    a, b = socket.socketpair()
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    call('fcntl', a.fileno(), 15, struct.pack('ii', 0, thread.native_id))
    before = owner_of(a.fileno())
    moved()
    equal('owner', owner_of(a.fileno()), before)
    ends.set()


@program
def lease_write():
    """a lease against readers"""
    open(local('leased'), 'w').close()
    fd = os.open(local('leased'), os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    moved()
    equal('lease', fcntl.fcntl(fd, fcntl.F_GETLEASE), fcntl.F_WRLCK)


@program
def eventfd_semaphore():
    """an eventfd that counts down by one"""
    fd = os.eventfd(5, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
    moved()
    equal('counts', [os.eventfd_read(fd) for _ in range(5)], [1] * 5)
    try:
        equal('empty', os.eventfd_read(fd), None)
    except BlockingIOError:
        pass


@program
def epoll_once():
    """an epoll set with a descriptor that has been reported once (EPOLLONESHOT)"""
    (r, w), (r2, w2) = os.pipe(), os.pipe()
    poll = select.epoll()
    poll.register(r, select.EPOLLIN | select.EPOLLONESHOT)
    poll.register(r2, select.EPOLLIN | select.EPOLLONESHOT)
    os.write(w, b'x')
    equal('heard', poll.poll(2), [(r, select.EPOLLIN)])
    moved()
    os.write(w2, b'x')
    equal('heard', (poll.poll(2), poll.poll(0.2)), ([(r2, select.EPOLLIN)], []))


@program
def pidfd_ended():
    """pidfds of a child that has not been waited for, and of one that has"""
    ended, gone = child(lambda: None), child(lambda: None)
    fds = [os.pidfd_open(pid) for pid in (ended, gone)]
    os.waitpid(gone, 0)
    [select.select([fd], [], []) for fd in fds]
    moved()
    equal('ended', [len(select.select([fd], [], [], 0)[0]) for fd in fds], [1, 1])
    equal('status', os.waitid(os.P_PIDFD, fds[0], os.WEXITED).si_pid, ended)
    try:
        equal('signal', signal.pidfd_send_signal(fds[1], 0), None)
    except ProcessLookupError:
        pass


@program
def pidfd_other():
    """a pidfd of the program itself, one that does not block, one of a thread"""
    import threading
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    pid = child(lambda: within(600, told))
    fds = [fd for fd in (libc.syscall(434, os.getpid(), 0), libc.syscall(434, pid, os.O_NONBLOCK), libc.syscall(434, thread.native_id, os.O_EXCL)) if fd >= 0]
    info = lambda: [[line for line in open(f'/proc/self/fdinfo/{fd}') if line.startswith(('Pid:', 'flags:'))] for fd in fds]
    before = info()
    moved()
    equal('pidfds', info(), before)
    ends.set()


@program
def fanotify():
    """fanotify"""
    fd = libc.syscall(300, 0x200 | os.O_NONBLOCK, 0)
    moved()
    equal('whether it is there', fd < 0 or os.readlink(f'/proc/self/fd/{fd}'), fd < 0 or 'anon_inode:[fanotify]')


@program
def landlock_rules():
    """rules for Landlock that are not yet in force"""
    fd = libc.syscall(444, struct.pack('Q', 1 << 1), 8, 0)
    moved()
    equal('whether it is there', fd < 0 or os.readlink(f'/proc/self/fd/{fd}'), fd < 0 or 'anon_inode:[landlock-ruleset]')


@program
def proc_other():
    """open files of /proc about a child, its memory, and a directory of descriptors"""
    pid = child(lambda: within(600, lambda: False))
    fds = [os.open(f'/proc/{pid}/{name}', os.O_RDONLY) for name in ('stat', 'mem', 'fd')]
    moved()
    equal('stat', os.pread(fds[0], 100, 0).split()[0], str(pid).encode())
    equal('fd', '0' in os.listdir(fds[2]), True)
    address = ctypes.addressof(ctypes.create_string_buffer(b'x'))
    equal('memory', len(os.pread(fds[1], 1, address & ~4095)), 1)
    os.kill(pid, 9)


@program
def proc_ended():
    """an open file of /proc about a process that has ended"""
    pid = child(lambda: within(600, lambda: False))
    fd = os.open(f'/proc/{pid}/stat', os.O_RDONLY)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    moved()
    try:
        equal('stat', os.pread(fd, 100, 0), None)
    except ProcessLookupError:
        pass


main()
