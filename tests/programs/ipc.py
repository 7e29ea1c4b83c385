"""What processes talk by: System V, POSIX, pipes, sockets, terminals."""
import array
import ctypes
import os
import socket
import struct
import sys

from moved import call, child, equal, libc, local, main, moved, place, program, told, within

libc.shmat.restype = libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


@program
def sysv_semaphores():
    """System V semaphores"""
    key = 0x5e3a
    number = call('semget', key, 2, 0o1640)
    call('semctl', number, 0, 16, 3)
    other = child(lambda: call('semctl', number, 1, 16, 5))
    os.waitpid(other, 0)
    lines = lambda: [line.split()[:8] for line in open('/proc/sysvipc/sem') if line.split()[1] == str(number)]
    before = lines()
    moved()
    equal('found by its key', call('semget', key, 2, 0o600), number)
    equal('values', (call('semctl', number, 0, 12), call('semctl', number, 1, 12)), (3, 5))
    equal('who has changed them', (call('semctl', number, 0, 11), call('semctl', number, 1, 11)), (os.getpid(), other))
    equal('rights and owners', lines(), before)


@program
def sysv_semaphores_waited_for():
    """a System V semaphore that a process waits for, and one that another has used"""
    number = call('semget', 0, 2, 0o600)

    def operate(which, by):
        step = struct.pack('HhH', which, by, 0)
        while libc.semop(number, step, 1):
            # As after SIGSTOP: semop(2) is not begun again.
            if ctypes.get_errno() != 4:
                raise OSError(ctypes.get_errno(), 'semop')
    operate(1, 2)
    waits = child(lambda: operate(0, -1))
    waiting = lambda: call('semctl', number, 0, 14)
    equal('waits', within(20, lambda: waiting() == 1), True)
    moved()
    equal('waits again', within(20, lambda: waiting() == 1), True)
    line = next(line.split() for line in open('/proc/sysvipc/sem') if line.split()[1] == str(number))
    equal('has been used', line[8] != '0', True)
    operate(0, 1)
    equal('ended', os.waitpid(waits, 0)[1], 0)
    operate(1, -2)


@program
def sysv_semaphores_undone():
    """a System V semaphore that is set back when a process ends (SEM_UNDO), whole sets of them, by several processes"""
    number = call('semget', 0, 1, 0o600)
    many = call('semget', 0, 40, 0o600)
    (r, w), (r2, w2) = os.pipe(), os.pipe()
    value = lambda which, of=many: call('semctl', of, which, 12)

    def undone(which, by, of=many):
        call('semop', of, struct.pack('HhH', which, by, 0o10000), 1)

    def hold():
        undone(0, 1, number)
        undone(3, 7)
        undone(39, 32767)
        os.read(r, 1)

    def take():
        undone(3, -4)
        undone(20, -9)
        os.read(r2, 1)
    call('semctl', many, 20, 16, 9)
    holds = child(hold)
    equal('held', within(20, lambda: value(39) == 32767), True)
    takes = child(take)
    equal('taken', within(20, lambda: value(20) == 0), True)
    state = lambda: [(value(which), call('semctl', many, which, 11)) for which in range(40)] + [value(0, number)]
    before = state()
    moved()
    equal('held still', state(), before)
    # In this order: nothing is set back below zero.
    os.write(w2, b'g')
    os.waitpid(takes, 0)
    os.write(w, b'g')
    os.waitpid(holds, 0)
    equal('set back', (value(0, number), value(3), value(20), value(39)), (0, 0, 9, 0))


@program
def sysv_semaphores_threads():
    """threads beside System V semaphores, one of which computes; a semaphore that one of them has set back at the end"""
    import threading
    number = call('semget', 0, 2, 0o600)
    go = threading.Event()
    r, w = os.pipe()
    count = [0]

    def compute():
        while not go.is_set():
            count[0] += 1

    def threads(undone):
        def work():
            if undone:
                call('semop', number, struct.pack('HhH', 1, 5, 0o10000), 1)
                os.write(w, b'd')
            go.wait()
        all = [threading.Thread(target=of) for of in (work, compute)]
        [one.start() for one in all]
        return all
    own = threads(False)
    r2, w2 = os.pipe()

    def other():
        nonlocal go
        go = threading.Event()
        all = threads(True)
        os.read(r2, 1)
        go.set()
        [one.join() for one in all]
    ends = child(other)
    equal('done', os.read(r, 1), b'd')
    call('semop', number, struct.pack('HhH', 0, 3, 0), 1)
    moved()
    equal('values', (call('semctl', number, 0, 12), call('semctl', number, 1, 12)), (3, 5))
    os.write(w2, b'g')
    os.waitpid(ends, 0)
    go.set()
    [one.join() for one in own]
    equal('set back', (call('semctl', number, 0, 12), call('semctl', number, 1, 12)), (3, 0))


@program
def sysv_queue():
    """a System V message queue with messages"""
    queue = call('msgget', 0x5e3b, 0o1600)
    for kind, text in ((7, b'message'), (2, b''), (7, b'another')):
        call('msgsnd', queue, struct.pack('l', kind) + text, len(text), 0)
    into = ctypes.create_string_buffer(64)

    def receive(wanted):
        size = call('msgrcv', queue, into, 56, wanted, 0o4000)
        return into.raw[:8 + size]
    waits = child(lambda: call('msgrcv', queue, ctypes.create_string_buffer(64), 56, 9, 0))
    moved()
    equal('found by its key', call('msgget', 0x5e3b, 0o600), queue)
    equal('second', receive(2), struct.pack('l', 2))
    equal('first', receive(0), struct.pack('l', 7) + b'message')
    equal('last', receive(0), struct.pack('l', 7) + b'another')
    call('msgsnd', queue, struct.pack('l', 9) + b'x', 1, 0)
    equal('who waits', os.waitpid(waits, 0)[1], 0)


@program
def sysv_shared():
    """System V shared memory, attached"""
    number = call('shmget', 0x5e3c, 8192, 0o1600)
    address = libc.shmat(number, None, 0)
    ctypes.memmove(address, b'attached', 8)
    moved()
    equal('content', ctypes.string_at(address, 8), b'attached')
    equal('found by its key', call('shmget', 0x5e3c, 8192, 0o600), number)
    again = libc.shmat(number, None, 0)
    ctypes.memmove(again, b'changed', 7)
    equal('whether both are one', ctypes.string_at(address, 8), b'changedd')
    call('shmdt', ctypes.c_void_p(again))
    call('shmdt', ctypes.c_void_p(address))
    line = next(line.split() for line in open('/proc/sysvipc/shm') if line.split()[1] == str(number))
    equal('who has it attached', line[6], '0')
    equal('files that stood for it', [name for name in os.listdir('/dev/shm') + os.listdir('/run/skiff') if 'sysv' in name], [])


@program
def sysv_shared_parts():
    """System V shared memory marked for removal, attached by two: whole, in part, to be read only"""
    number = call('shmget', 0, 5 * 4096, 0o600)
    whole, read = libc.shmat(number, None, 0), libc.shmat(number, None, 0o10000)
    part = libc.shmat(number, None, 0)
    call('shmctl', number, 0, None)
    call('munmap', ctypes.c_void_p(part), 4096)
    call('munmap', ctypes.c_void_p(part + 3 * 4096), 2 * 4096)
    call('mprotect', ctypes.c_void_p(part + 4096), 4096, 1)
    ctypes.memmove(whole + 2 * 4096, b'third', 5)
    call('madvise', ctypes.c_void_p(whole), 4096, 16)
    call('mlock', ctypes.c_void_p(part + 2 * 4096), 4096)

    def flags():
        here, found = False, []
        for line in open('/proc/self/smaps'):
            here = '/SYSV' in line if '-' in line.split()[0] else here
            if here and line.startswith('VmFlags'):
                found.append([flag for flag in line.split() if flag in ('lo', 'dd', 'mw', 'rd', 'wr')])
        return found

    def other():
        equal('content in the child', (within(600, told), ctypes.string_at(part + 2 * 4096, 5)), (True, b'third'))
        ctypes.memmove(whole + 3 * 4096, b'r', 1)
        equal('what the parent writes', within(60, lambda: ctypes.string_at(part + 2 * 4096, 5) == b'later'), True)
        ctypes.memmove(whole + 4 * 4096, b'child', 5)
    lines = lambda: [line.split()[:2] for line in open('/proc/self/maps') if '/SYSV' in line]
    pid, before = child(other), (lines(), flags())
    moved()
    equal('what is attached', (lines(), flags()), before)
    equal('by the one to be read', ctypes.string_at(read + 2 * 4096, 5), b'third')
    equal('made writable', libc.mprotect(ctypes.c_void_p(read), 4096, 3), -1)
    equal('read in the child', within(60, lambda: ctypes.string_at(read + 3 * 4096, 1) == b'r'), True)
    ctypes.memmove(part + 2 * 4096, b'later', 5)
    equal('child', os.waitpid(pid, 0)[1], 0)
    equal('what the child has written', ctypes.string_at(read + 4 * 4096, 5), b'child')
    for address in whole, read, part:
        call('shmdt', ctypes.c_void_p(address))
    gone = [line for line in open('/proc/sysvipc/shm') if line.split()[1] == str(number)]
    equal('what is left of it', gone, [])


@program
def sysv_shared_detached():
    """System V shared memory that nobody has attached"""
    number = call('shmget', 0x5e3d, 8192, 0o1600)
    address = libc.shmat(number, None, 0)
    ctypes.memmove(address, b'detached', 8)
    call('shmdt', ctypes.c_void_p(address))
    moved()
    address = libc.shmat(number, None, 0)
    equal('content', address not in (None, 2 ** 64 - 1) and ctypes.string_at(address, 8), b'detached')


@program
def posix_queue():
    """a POSIX message queue that is open, with messages"""
    librt = ctypes.CDLL('librt.so.1', use_errno=True)
    queue = librt.mq_open(b'/corpus', os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o600, None)
    equal('opened', queue >= 0, True)
    librt.mq_send(queue, b'message', 7, 3)
    moved()
    into = ctypes.create_string_buffer(8192)
    size = librt.mq_receive(queue, into, 8192, None)
    equal('message', into.raw[:max(size, 0)], b'message')


@program
def posix_queue_closed():
    """POSIX message queues that nobody has open: messages with priorities, an empty one, rights"""
    librt = ctypes.CDLL('librt.so.1', use_errno=True)
    full, empty = f'/{sys.argv[1]}-full'.encode(), f'/{sys.argv[1]}-empty'.encode()
    attributes = struct.pack('8l', 0, 5, 100, 0, 0, 0, 0, 0)

    def opened(name, *words):
        queue = librt.mq_open(name, os.O_RDWR | os.O_NONBLOCK | (os.O_CREAT if words else 0), *words)
        equal('opened', queue >= 0, True)
        return queue
    messages = [(b'second', 3), (b'', 9), (b'last', 3), (b'x' * 100, 0)]
    queue = opened(full, 0o640, attributes)
    [librt.mq_send(queue, text, len(text), priority) for text, priority in messages]
    os.fchmod(queue, 0o640)
    os.close(queue)
    os.close(opened(empty, 0o600, attributes))
    moved()
    queue, priority = opened(full), ctypes.c_uint()
    said = ctypes.create_string_buffer(64)
    librt.mq_getattr(queue, said)
    equal('attributes', struct.unpack('8l', said.raw)[1:4], (5, 100, 4))
    equal('rights', (os.fstat(queue).st_mode & 0o777, os.fstat(queue).st_uid), (0o640, os.getuid()))
    into, got = ctypes.create_string_buffer(100), []
    while (size := librt.mq_receive(queue, into, 100, ctypes.byref(priority))) >= 0:
        got.append((into.raw[:size], priority.value))
    equal('messages', got, [messages[1], messages[0], messages[2], messages[3]])
    equal('empty', librt.mq_receive(opened(empty), into, 100, None), -1)
    call('mq_unlink', full)


@program
def multiprocessing_queue():
    """a process of multiprocessing, its queue and semaphores"""
    import multiprocessing
    fork = multiprocessing.get_context('fork')
    there, back = fork.Queue(), fork.Queue()
    worker = fork.Process(target=lambda: [back.put(there.get() * 2) for _ in range(2)])
    worker.start()
    there.put(3)
    equal('before', back.get(), 6)
    moved()
    there.put(21)
    equal('answer', back.get(timeout=10), 42)


@program
def posix_semaphore():
    """a POSIX semaphore with a name (sem_open), of the process that has made it and of another that has opened it"""
    name = f'/{sys.argv[1]}-{os.getpid()}'.encode()
    libc.sem_open.restype = ctypes.c_void_p

    def opened(*words):
        semaphore = libc.sem_open(name, *words)
        if not semaphore:
            raise OSError(ctypes.get_errno(), 'sem_open')
        return ctypes.c_void_p(semaphore)

    tell, told_by = os.pipe()
    r, w = os.pipe()

    def work():
        # Not inherited: the library would give it out again.
        os.read(tell, 1)
        mine = opened(0)
        os.write(w, b'o')
        while libc.sem_wait(mine):
            pass
        os.write(w, b'w')
    other = child(work)
    # Its file had another name when it was mapped, which is gone.
    made = opened(os.O_CREAT | os.O_EXCL, 0o600, 0)
    os.write(told_by, b'm')
    equal('opened', os.read(r, 1), b'o')
    moved()
    call('sem_post', made)
    os.set_blocking(r, False)

    def woken():
        try:
            return os.read(r, 1) == b'w'
        except BlockingIOError:
            return False
    equal('woken by who has made it', within(10, woken), True)
    equal('ended', os.waitpid(other, 0)[1], 0)
    call('sem_post', opened(0))
    equal('posted by its name', libc.sem_trywait(made), 0)
    call('sem_unlink', name)


@program
def multiprocessing_memory():
    """values, arrays and shared memory of multiprocessing"""
    import multiprocessing
    from multiprocessing import shared_memory
    fork = multiprocessing.get_context('fork')
    value, memory = fork.Value('i', 5), shared_memory.SharedMemory(create=True, size=4096)
    memory.buf[:4] = b'kept'

    def work():
        within(60, lambda: value.value == 6)
        value.value = 7
    worker = fork.Process(target=work)
    worker.start()
    moved()
    value.value = 6
    worker.join(10)
    equal('value', value.value, 7)
    equal('memory', bytes(memory.buf[:4]), b'kept')
    memory.unlink()


@program
def pipe():
    """a pipe with data in it, and its size"""
    import fcntl
    r, w = os.pipe()
    fcntl.fcntl(w, 1031, 1 << 18)
    os.write(w, b'p' * 100000)
    moved()
    got = b''
    while len(got) < 100000:
        got += os.read(r, 100000)
    equal('size', fcntl.fcntl(w, 1032), 1 << 18)
    equal('data', got, b'p' * 100000)


@program
def pipe_packets():
    """a pipe of packets (O_DIRECT)"""
    r, w = os.pipe2(os.O_DIRECT)
    os.write(w, b'one')
    os.write(w, b'two')
    moved()
    os.write(w, b'three')
    equal('packets', [os.read(r, 100) for _ in range(3)], [b'one', b'two', b'three'])


@program
def fifo():
    """a named pipe with data in it"""
    os.mkfifo(local('fifo'))
    fd = os.open(local('fifo'), os.O_RDWR)
    os.write(fd, b'in a fifo')
    moved()
    equal('data', os.read(fd, 20), b'in a fifo')


@program
def unix_stream():
    """Unix stream sockets with data under way"""
    a, b = socket.socketpair()
    a.send(b'under way')
    moved()
    equal('data', b.recv(20), b'under way')
    b.send(b'back')
    equal('back', a.recv(20), b'back')


@program
def unix_datagrams():
    """Unix datagrams under way"""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.send(b'one')
    a.send(b'two')
    moved()
    equal('datagrams', [b.recv(20), b.recv(20)], [b'one', b'two'])


@program
def unix_packets():
    """Unix SEQPACKET sockets with data under way"""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    a.send(b'one')
    a.send(b'two')
    moved()
    equal('packets', [b.recv(20), b.recv(20)], [b'one', b'two'])


@program
def unix_descriptors():
    """descriptors under way in a Unix socket"""
    a, b = socket.socketpair()
    r, w = os.pipe()
    socket.send_fds(a, [b'fds'], [r])
    os.close(r)
    os.write(w, b'through it')
    moved()
    data, fds, _, _ = socket.recv_fds(b, 10, 4)
    equal('data', (data, len(fds)), (b'fds', 1))
    equal('descriptor', os.read(fds[0], 20), b'through it')


@program
def unix_descriptors_mapped():
    """a descriptor under way of a memfd that is mapped, and open nowhere"""
    import mmap
    a, b = socket.socketpair()
    fd = os.memfd_create('under-way')
    os.ftruncate(fd, 4096)
    address = libc.mmap(None, 4096, 3, mmap.MAP_SHARED, fd, 0)
    socket.send_fds(a, [b'fds'], [fd])
    os.close(fd)
    moved()
    ctypes.memmove(address, b'mapped', 6)
    _, fds, _, _ = socket.recv_fds(b, 10, 4)
    equal('whether both are one', os.pread(fds[0], 6, 0), b'mapped')


@program
def unix_listener():
    """a named Unix socket with a connection that waits to be accepted"""
    server = socket.socket(socket.AF_UNIX)
    server.bind(local('listener'))
    server.listen(5)
    client = socket.socket(socket.AF_UNIX)
    client.connect(local('listener'))
    client.send(b'early')
    moved()
    server.settimeout(5)
    taken, _ = server.accept()
    taken.settimeout(5)
    equal('data', taken.recv(20), b'early')


@program
def unix_abstract():
    """an abstract Unix socket"""
    server = socket.socket(socket.AF_UNIX)
    server.bind('\0corpus')
    server.listen(5)
    moved()
    client = socket.socket(socket.AF_UNIX)
    client.connect('\0corpus')
    taken, _ = server.accept()
    client.send(b'found')
    equal('data', taken.recv(20), b'found')


@program
def unix_options():
    """options of a Unix socket: credentials, time-out, buffer"""
    a, b = socket.socketpair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 3, 0))
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 40000)
    seen = lambda: (b.getsockopt(1, socket.SO_PASSCRED), b.getsockopt(1, socket.SO_RCVTIMEO, 16), a.getsockopt(1, socket.SO_SNDBUF))
    before = seen()
    moved()
    equal('options', seen(), before)


@program
def udp():
    """UDP datagrams that wait"""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(('127.0.0.1', 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.sendto(b'waits', server.getsockname())
    moved()
    server.settimeout(2)
    equal('datagram', server.recv(20), b'waits')


@program
def udp_socket():
    """a UDP socket with an address, and nothing that waits"""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(('127.0.0.1', 0))
    moved()
    server.settimeout(2)
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'new', server.getsockname())
    equal('datagram', server.recv(20), b'new')


@program
def tcp():
    """an open TCP connection with data in both directions"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    client.send(b'there')
    taken.send(b'back')
    moved()
    equal('data', (taken.recv(20), client.recv(20)), (b'there', b'back'))
    client.send(b'more')
    equal('more', taken.recv(20), b'more')


@program
def tcp_waiting():
    """a TCP connection that waits to be accepted"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    client.send(b'early')
    moved()
    server.settimeout(3)
    taken, _ = server.accept()
    equal('data', taken.recv(20), b'early')


@program
def tcp_half_closed():
    """a TCP connection that one end has shut"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    client.send(b'last')
    client.shutdown(socket.SHUT_WR)
    moved()
    taken.settimeout(3)
    equal('data', (taken.recv(20), taken.recv(20)), (b'last', b''))
    taken.send(b'answer')
    equal('answer', client.recv(20), b'answer')


@program
def tcp_listener():
    """a listening TCP socket"""
    server = socket.create_server(('127.0.0.1', 0))
    moved()
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    client.send(b'new')
    equal('data', taken.recv(20), b'new')


@program
def netlink():
    """a netlink socket"""
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 0))
    moved()
    s.settimeout(3)
    s.send(struct.pack('IHHIIBxxxI', 32 - 12, 18, 0x301, 1, 0, 0, 0)[:20].ljust(20, b'\0'))
    equal('answer', len(s.recv(65536)) > 0, True)


@program
def terminal():
    """a pseudo terminal with settings and data"""
    import termios
    import tty
    master, slave = os.openpty()
    tty.setraw(slave)
    os.write(master, b'typed')
    before = termios.tcgetattr(slave)
    moved()
    equal('settings', termios.tcgetattr(slave), before)
    equal('data', os.read(slave, 20), b'typed')


@program
def terminal_jobs():
    """job control: a session on a pseudo terminal, its foreground group, the key for interrupt"""
    import fcntl
    import signal
    import termios
    master, slave = os.openpty()

    def leader():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, lambda *_: os._exit(42))
        within(60, lambda: False)
    pid = child(leader)
    within(10, lambda: os.getsid(pid) == pid)
    moved()
    os.write(master, b'\x03')
    ended = []
    within(5, lambda: ended or ended.extend(x for x in [os.waitpid(pid, os.WNOHANG)] if x[0]))
    equal('interrupted', ended and os.waitstatus_to_exitcode(ended[0][1]), 42)


@program
def terminal_by_name():
    """an open /dev/tty, as an interactive dash has it"""
    import fcntl
    import termios
    master, slave = os.openpty()
    r, w = os.pipe()

    def leader():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        own = os.open('/dev/tty', os.O_RDWR)
        os.write(w, b'x')
        within(600, told)
        os.write(own, b'said\n')
        within(600, lambda: False)
    pid = child(leader)
    os.read(r, 1)
    moved()
    equal('said', os.read(master, 100), b'said\r\n')
    os.kill(pid, 9)


def options_kept(of, wanted):
    """Sets options of a socket, each a name with level, number and value, and demands them afterwards."""
    known = {}
    for name, (level, number, value) in wanted.items():
        if name.startswith('SO_PASS') and of.family != socket.AF_UNIX:
            continue  # It means nothing there, and not every kernel takes it.
        try:
            of.setsockopt(level, number, value)
            known[name] = level, number, 64
            of.getsockopt(*known[name])
        except OSError:
            known.pop(name, None)  # Not of this kernel, or kind of socket.
    seen = lambda: {name: of.getsockopt(*which) for name, which in known.items()}
    before = seen()
    moved()
    now = seen()
    differs = [name for name in known if now[name] != before[name]]
    equal('options', {name: now[name].hex() for name in differs}, {name: before[name].hex() for name in differs})


GENERAL = {
    'SO_REUSEADDR': (1, 2, 1), 'SO_SNDBUF': (1, 7, 40000), 'SO_RCVBUF': (1, 8, 50000), 'SO_KEEPALIVE': (1, 9, 1), 'SO_OOBINLINE': (1, 10, 1),
    'SO_PRIORITY': (1, 12, 3), 'SO_LINGER': (1, 13, struct.pack('ii', 1, 7)), 'SO_REUSEPORT': (1, 15, 1), 'SO_PASSCRED': (1, 16, 1), 'SO_RCVLOWAT': (1, 18, 3),
    'SO_RCVTIMEO': (1, 20, struct.pack('ll', 3, 0)), 'SO_SNDTIMEO': (1, 21, struct.pack('ll', 4, 0)), 'SO_TIMESTAMP': (1, 29, 1),
    'SO_PASSSEC': (1, 34, 1), 'SO_TIMESTAMPING': (1, 37, 8 | 16), 'SO_RXQ_OVFL': (1, 40, 1), 'SO_PEEK_OFF': (1, 42, 5), 'SO_NOFCS': (1, 43, 1),
    'SO_SELECT_ERR_QUEUE': (1, 45, 1), 'SO_BUSY_POLL': (1, 46, 0), 'SO_MAX_PACING_RATE': (1, 47, 100000), 
    'SO_ZEROCOPY': (1, 60, 1), 'SO_BUF_LOCK': (1, 72, 3), 'SO_TXREHASH': (1, 74, 0), 'SO_PASSPIDFD': (1, 76, 1), 'SO_RCVMARK': (1, 75, 1), 'SO_RCVPRIORITY': (1, 82, 1),
    'SO_DONTROUTE': (1, 5, 1), 'SO_BROADCAST': (1, 6, 1), 'SO_NO_CHECK': (1, 11, 1),
}
IP = {
    'IP_TOS': (0, 1, 16), 'IP_TTL': (0, 2, 77), 'IP_PKTINFO': (0, 8, 1), 'IP_MTU_DISCOVER': (0, 10, 0), 'IP_RECVERR': (0, 11, 1), 'IP_RECVTTL': (0, 12, 1), 'IP_RECVTOS': (0, 13, 1),
    'IP_FREEBIND': (0, 15, 1), 'IP_MINTTL': (0, 21, 1), 'IP_BIND_ADDRESS_NO_PORT': (0, 24, 1), 'IP_MULTICAST_TTL': (0, 33, 5), 'IP_MULTICAST_LOOP': (0, 34, 0),
    'IP_MULTICAST_ALL': (0, 49, 0), 'IP_UNICAST_IF': (0, 50, struct.pack('!I', 1)), 'IP_LOCAL_PORT_RANGE': (0, 51, struct.pack('HH', 40000, 50000)), 'IP_RECVORIGDSTADDR': (0, 20, 1), 'IP_MULTICAST_IF': (0, 32, socket.inet_aton('127.0.0.1')),
}
IPV6 = {
    'IPV6_V6ONLY': (41, 26, 1), 'IPV6_UNICAST_HOPS': (41, 16, 9), 'IPV6_TCLASS': (41, 67, 16), 'IPV6_RECVPKTINFO': (41, 49, 1), 'IPV6_RECVERR': (41, 25, 1), 'IPV6_MTU_DISCOVER': (41, 23, 0), 'IPV6_DONTFRAG': (41, 62, 1),
    'IPV6_MULTICAST_HOPS': (41, 18, 5), 'IPV6_MULTICAST_LOOP': (41, 19, 0), 'IPV6_RECVTCLASS': (41, 66, 1), 'IPV6_FREEBIND': (41, 78, 1), 'IPV6_RECVHOPLIMIT': (41, 51, 1), 'IPV6_AUTOFLOWLABEL': (41, 70, 0),
}
TCP = {
    'TCP_NODELAY': (6, 1, 1), 'TCP_CORK': (6, 3, 1), 'TCP_KEEPIDLE': (6, 4, 77), 'TCP_KEEPINTVL': (6, 5, 7), 'TCP_KEEPCNT': (6, 6, 4), 'TCP_SYNCNT': (6, 7, 3), 'TCP_LINGER2': (6, 8, 9), 'TCP_DEFER_ACCEPT': (6, 9, 5),
    'TCP_CONGESTION': (6, 13, b'reno'), 'TCP_USER_TIMEOUT': (6, 18, 30000), 'TCP_NOTSENT_LOWAT': (6, 25, 16384),
    'TCP_THIN_LINEAR_TIMEOUTS': (6, 16, 1), 'TCP_INQ': (6, 36, 1), 'TCP_SAVE_SYN': (6, 27, 1), 'TCP_FASTOPEN': (6, 23, 5), 'TCP_RTO_MAX_MS': (6, 44, 5000), 'TCP_FASTOPEN_CONNECT': (6, 30, 1),
}


@program
def tcp_options():
    """options of a TCP connection: no delay, keeping alive, congestion, kind of service, lingering, priority, buffers"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    options_kept(client, GENERAL | IP | TCP)


@program
def tcp_options_listener():
    """options of a listening TCP socket"""
    server = socket.create_server(('127.0.0.1', 0))
    options_kept(server, GENERAL | IP | TCP)


@program
def tcp_options_v6():
    """options of a TCP connection of IPv6"""
    server = socket.socket(socket.AF_INET6)
    server.bind(('::1', 0))
    server.listen()
    client = socket.create_connection(server.getsockname()[:2])
    taken, _ = server.accept()
    options_kept(client, GENERAL | IPV6 | TCP)


@program
def tcp_v6_only():
    """a listening TCP socket of IPv6 alone"""
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(41, 26, 1)
    server.bind(('::', 0))
    server.listen()
    moved()
    equal('option', server.getsockopt(41, 26), 1)
    socket.create_server(server.getsockname()[:2] and ('0.0.0.0', server.getsockname()[1])).close()


@program
def udp_options():
    """options of a UDP socket"""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 0))
    options_kept(s, GENERAL | IP | {'UDP_SEGMENT': (17, 103, 1000), 'UDP_GRO': (17, 104, 1), 'UDP_NO_CHECK6_TX': (17, 101, 1)})


@program
def udp_options_v6():
    """options of a UDP socket of IPv6"""
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.bind(('::1', 0))
    options_kept(s, GENERAL | IPV6)


@program
def unix_options_all():
    """options of a Unix socket"""
    a, b = socket.socketpair()
    options_kept(a, GENERAL)


@program
def unix_options_datagrams():
    """options of a Unix socket of datagrams"""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    options_kept(a, GENERAL)


@program
def unix_peek_offset():
    """where the next look begins (SO_PEEK_OFF)"""
    a, b = socket.socketpair()
    b.setsockopt(1, 42, 0)
    a.send(b'0123456789')
    equal('begun', b.recv(4, socket.MSG_PEEK), b'0123')
    moved()
    equal('looks', b.recv(4, socket.MSG_PEEK), b'4567')
    equal('data', b.recv(20), b'0123456789')


@program
def unix_credentials():
    """a message under way with who has sent it (SCM_CREDENTIALS)"""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def sender():
        os.setresgid(7, 7, 7)
        os.setresuid(5, 5, 5)
        a.send(b'mine')
        within(600, lambda: False)
    pid = child(sender)
    b.recv(10, socket.MSG_PEEK)
    moved()
    data, extra, _, _ = b.recvmsg(10, 100)
    equal('sender', (data, [struct.unpack('iII', value) for _, _, value in extra]), (b'mine', [(pid, 5, 7)]))
    os.kill(pid, 9)


@program
def unix_peer():
    """who is at the other end of a Unix connection (SO_PEERCRED)"""
    server = socket.socket(socket.AF_UNIX)
    server.bind(local('peer'))
    os.chmod(local('peer'), 0o777)
    os.chmod(local(''), 0o777)
    server.listen(5)
    r, w = os.pipe()

    def client():
        os.setresgid(7, 7, 7)
        os.setresuid(5, 5, 5)
        s = socket.socket(socket.AF_UNIX)
        s.connect(local('peer'))
        os.write(w, b'x')
        within(600, lambda: False)
    pid = child(client)
    taken, _ = server.accept()
    peer = lambda: struct.unpack('iII', taken.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    equal('peer', peer(), (pid, 5, 7))
    moved()
    equal('peer', peer(), (pid, 5, 7))
    os.kill(pid, 9)


@program
def unix_urgent():
    """urgent data under way in a Unix stream (MSG_OOB)"""
    a, b = socket.socketpair()
    a.send(b'before')
    try:
        a.send(b'!', socket.MSG_OOB)
    except OSError:
        a = None
    moved()
    if a:
        a.send(b'behind')
        equal('urgent', b.recv(1, socket.MSG_OOB), b'!')
        equal('data', b.recv(20), b'before')


@program
def unix_senders():
    """Unix datagrams of several senders"""
    server, one, two = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    [of.bind(local(name)) for of, name in ((server, 'server'), (one, 'one'), (two, 'two'))]
    one.sendto(b'first', local('server'))
    two.connect(local('server'))
    two.send(b'second')
    moved()
    server.settimeout(3)
    equal('datagrams', [server.recvfrom(20) for _ in range(2)], [(b'first', local('one')), (b'second', local('two'))])


@program
def unix_half_closed():
    """a Unix connection that one end has shut"""
    a, b = socket.socketpair()
    a.send(b'last')
    a.shutdown(socket.SHUT_WR)
    moved()
    b.settimeout(3)
    equal('data', (b.recv(20), b.recv(20)), (b'last', b''))
    b.send(b'answer')
    equal('answer', a.recv(20), b'answer')


@program
def unix_closed():
    """a Unix connection whose other end is closed, with data left"""
    a, b = socket.socketpair()
    a.send(b'last')
    a.close()
    moved()
    b.settimeout(3)
    equal('data', (b.recv(20), b.recv(20)), (b'last', b''))


@program
def unix_deleted():
    """a listening Unix socket whose name has been deleted, with a connection"""
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind(local('gone'))
    server.listen(5)
    client.connect(local('gone'))
    taken, _ = server.accept()
    os.unlink(local('gone'))
    moved()
    client.send(b'found')
    equal('data', taken.recv(20), b'found')
    equal('name', (server.getsockname(), os.path.exists(local('gone'))), (local('gone'), False))


@program
def unix_relative():
    """a listening Unix socket with a name relative to another directory"""
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    os.chdir(local(''))
    server.bind('relative')
    server.listen(5)
    os.chdir('/')
    moved()
    client.connect(local('relative'))
    equal('name', server.getsockname(), 'relative')


@program
def tcp_urgent():
    """urgent data under way in a TCP connection"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    client.send(b'before')
    client.send(b'!', socket.MSG_OOB)
    within(3, lambda: len(taken.recv(20, socket.MSG_PEEK)) == 6)
    moved()
    client.send(b'behind')
    equal('urgent', taken.recv(1, socket.MSG_OOB), b'!')
    equal('data', taken.recv(20), b'before')


@program
def tcp_reset():
    """a TCP connection that the other end has reset"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    taken.setsockopt(1, socket.SO_LINGER, struct.pack('ii', 1, 0))
    taken.close()
    moved()
    try:
        equal('data', client.recv(20), None)
    except ConnectionResetError:
        pass


@program
def tcp_group():
    """listening TCP sockets of one port (SO_REUSEPORT)"""
    servers = []
    for _ in range(3):
        servers.append(socket.socket())
        servers[-1].setsockopt(1, 15, 1)
        servers[-1].bind(servers[0].getsockname())
        servers[-1].listen()
    moved()
    import select
    clients = [socket.create_connection(servers[0].getsockname()) for _ in range(30)]
    equal('served by several', len(select.select(servers, [], [], 2)[0]) > 1, True)


@program
def tcp_closed_with_data():
    """a TCP connection whose other end is closed, with data left"""
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    client.send(b'last')
    client.close()
    moved()
    taken.settimeout(3)
    equal('data', (taken.recv(20), taken.recv(20)), (b'last', b''))


@program
def tcp_bound():
    """a TCP socket with an address that neither listens nor is connected, and a connection that was refused"""
    bound, refused = socket.socket(), socket.socket()
    bound.bind(('127.0.0.1', 0))
    try:
        refused.connect(bound.getsockname())
    except ConnectionRefusedError:
        pass
    name = bound.getsockname()
    moved()
    equal('address', bound.getsockname(), name)
    bound.listen()
    socket.create_connection(name)


@program
def tcp_backlog():
    """how many connections may wait"""
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen(1)
    moved()
    clients = [socket.socket() for _ in range(5)]
    [client.setblocking(False) for client in clients]
    [client.connect_ex(server.getsockname()) for client in clients]
    libc.usleep(200000)
    import select
    equal('connected', len(select.select([], clients, [], 0)[1]), 2)


@program
def tcp_filter():
    """a socket with a filter of packets (SO_ATTACH_FILTER)"""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 0))
    program = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0))
    s.setsockopt(1, 26, struct.pack('HxxxxxxP', 1, ctypes.addressof(program)))
    moved()
    s.settimeout(0.3)
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'filtered', s.getsockname())
    try:
        equal('got', s.recv(20), None)
    except TimeoutError:
        pass


@program
def udp_connected():
    """a UDP socket with a peer"""
    a, b, c = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
    [s.bind(('127.0.0.1', 0)) for s in (a, b, c)]
    a.connect(b.getsockname())
    moved()
    a.settimeout(2)
    c.sendto(b'of another', a.getsockname())
    b.sendto(b'of the peer', a.getsockname())
    equal('datagram', (a.recv(20), a.getpeername()), (b'of the peer', b.getsockname()))


@program
def udp_corked():
    """a UDP datagram that is not complete (MSG_MORE)"""
    a, b = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    b.bind(('127.0.0.1', 0))
    a.connect(b.getsockname())
    a.send(b'first ', socket.MSG_MORE)
    moved()
    a.send(b'second')
    b.settimeout(2)
    equal('datagram', b.recv(20), b'first second')


@program
def udp_multicast():
    """a UDP socket that is in a group (IP_ADD_MEMBERSHIP)"""
    s, sender = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    s.bind(('239.1.2.3', 0))
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.1.2.3') + socket.inet_aton('127.0.0.1'))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))
    moved()
    s.settimeout(2)
    sender.sendto(b'to all', s.getsockname())
    equal('datagram', s.recv(20), b'to all')


@program
def udp_multicast_v6():
    """a UDP socket that is in a group of IPv6"""
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(41, 20, socket.inet_pton(socket.AF_INET6, 'ff01::1234') + struct.pack('I', 1))
    groups = lambda: [line for line in open('/proc/net/igmp6') if '1234' in line.split()[2][-4:]]
    before = len(groups())
    moved()
    equal('groups', len(groups()), before)


@program
def netlink_waiting():
    """a netlink socket with an answer that waits"""
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 0))
    s.send(struct.pack('IHHII', 20, 18, 0x301, 1, 0) + bytes(4))
    moved()
    s.settimeout(3)
    equal('answer', len(s.recv(65536)) > 0, True)


@program
def netlink_groups():
    """a netlink socket that hears of changes"""
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 1))
    s.setsockopt(270, 1, 5)
    groups = ctypes.create_string_buffer(64)
    seen = lambda: s.getsockopt(270, 9, 64)
    before = seen()
    moved()
    equal('groups', seen(), before)


@program
def pipe_closed():
    """a pipe with data whose writer has ended, one whose reader has"""
    (r, w), (r2, w2) = os.pipe(), os.pipe()
    os.write(w, b'last')
    os.close(w)
    os.close(r2)
    moved()
    equal('data', (os.read(r, 10), os.read(r, 10)), (b'last', b''))
    try:
        equal('written', os.write(w2, b'x'), None)
    except BrokenPipeError:
        pass


@program
def terminal_output():
    """output of a pseudo terminal that nobody has read, a line that is not yet complete, size, packets"""
    import fcntl
    import termios
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 33, 77, 1, 2))
    os.write(slave, b'output')
    moved()
    equal('size', struct.unpack('HHHH', fcntl.ioctl(slave, termios.TIOCGWINSZ, bytes(8))), (33, 77, 1, 2))
    os.set_blocking(master, False)
    equal('output', os.read(master, 20), b'output')


def ended_terminal(which):
    ends = os.openpty()
    os.close(ends[which])
    moved()
    os.set_blocking(ends[1 - which], False)
    try:
        equal('read', os.read(ends[1 - which], 1), b'' if which == 0 else None)
    except OSError as e:
        equal('error', e.errno, 5)


@program
def terminal_hung_up():
    """a pseudo terminal whose master is closed"""
    ended_terminal(0)


@program
def terminal_left():
    """the master of a pseudo terminal that nobody has open"""
    ended_terminal(1)


main()
