"""Memory of every kind."""
import ctypes
import mmap
import os

from moved import call, child, equal, libc, local, main, moved, place, program, told, within

PAGE = mmap.PAGESIZE


@program
def anonymous():
    """private memory, some of it never touched"""
    m = mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m[5 * PAGE:6 * PAGE] = b'a' * PAGE
    moved()
    equal('touched', m[5 * PAGE:6 * PAGE], b'a' * PAGE)
    equal('untouched', m[6 * PAGE:7 * PAGE], bytes(PAGE))


@program
def anonymous_shared():
    """memory shared with a child by mmap"""
    m = mmap.mmap(-1, 16 * PAGE)
    m[:6] = b'before'
    pid = child(lambda: within(60, lambda: m[PAGE] == 1) and m.__setitem__(2 * PAGE, 7))
    moved()
    equal('content', m[:6], b'before')
    m[PAGE] = 1
    os.waitpid(pid, 0)
    equal('what the child wrote', m[2 * PAGE], 7)


@program
def anonymous_shared_in_part():
    """memory shared with a child by mmap, of which each has another part"""
    m = mmap.mmap(-1, 6 * PAGE)
    for number in range(6):
        m[number * PAGE] = 10 + number
    address = ctypes.addressof(ctypes.c_char.from_buffer(m))
    seen = lambda first, end: [ctypes.string_at(address + number * PAGE, 1)[0] for number in range(first, end)]

    def other():
        call('munmap', ctypes.c_void_p(address + 3 * PAGE), 3 * PAGE)
        equal('in the child', (within(600, told), seen(0, 3)), (True, [10, 11, 12]))
        ctypes.memmove(address + 2 * PAGE + 1, b'r', 1)
        equal('in common', within(60, lambda: seen(2, 3) == [99]), True)
    pid = child(other)
    call('munmap', ctypes.c_void_p(address), 2 * PAGE)
    moved()
    equal('content', seen(2, 6), [12, 13, 14, 15])
    equal('read in the child', within(60, lambda: ctypes.string_at(address + 2 * PAGE + 1, 1) == b'r'), True)
    ctypes.memmove(address + 2 * PAGE, b'c', 1)
    equal('child', os.waitpid(pid, 0)[1], 0)


@program
def anonymous_shared_beyond_room():
    """a part of memory shared by mmap that may hold far more than there is room for"""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    size = 1 << 44
    address = libc.mmap(None, size, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    call('munmap', ctypes.c_void_p(address), PAGE)
    ctypes.memmove(address + PAGE, b'kept', 4)
    moved()
    equal('content', ctypes.string_at(address + PAGE, 4), b'kept')


@program
def copied_on_write():
    """memory that parent and child have from before a fork"""
    data = bytearray(b'x' * (1 << 20))

    def check():
        moved_child = within(600, told)
        equal('in the child', (moved_child, bytes(data[:4])), (True, b'xxxx'))
    pid = child(check)
    data[0] = 1
    moved()
    equal('child', os.waitpid(pid, 0)[1], 0)
    equal('in the parent', (data[0], data[1]), (1, 120))


@program
def protection():
    """pages without access, read-only ones, a guard in between"""
    m = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m[:] = b'p' * (4 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(m))
    call('mprotect', ctypes.c_void_p(address + PAGE), PAGE, 0)
    call('mprotect', ctypes.c_void_p(address + 2 * PAGE), PAGE, 1)
    moved()
    lines = {line.split()[0].split('-')[0]: line.split()[1] for line in open('/proc/self/maps')}
    equal('protection', (lines.get(f'{address + PAGE:x}'), lines.get(f'{address + 2 * PAGE:x}')), ('---p', 'r--p'))
    equal('content', m[2 * PAGE], 112)


@program
def locked():
    """mlock"""
    m = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m[:] = b'l' * (4 * PAGE)
    call('mlock', ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(m))), 4 * PAGE)
    kept = lambda: next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmLck'))
    before = kept()
    moved()
    equal('VmLck', kept(), before)


@program
def advised():
    """madvise: not for children, not in cores, huge pages"""
    m = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m[:PAGE] = b'm' * PAGE
    for advice in (mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP, mmap.MADV_HUGEPAGE):
        try:
            m.madvise(advice)
        except OSError:
            pass  # A kernel without huge pages.
    address = f'{ctypes.addressof(ctypes.c_char.from_buffer(m)):x}-'

    def flags():
        here = False
        for line in open('/proc/self/smaps'):
            here = line.startswith(address) if '-' in line.split()[0] else here
            if here and line.startswith('VmFlags'):
                return {flag for flag in line.split() if flag in ('dc', 'dd', 'hg')}
    before = flags()
    moved()
    equal('VmFlags', flags(), before)


@program
def mapped_file():
    """a shared mapping of a file in the home"""
    with open(place('.data'), 'w+b') as f:
        f.write(b'f' * 2 * PAGE)
        f.flush()
        m = mmap.mmap(f.fileno(), 2 * PAGE)
    m[:5] = b'begun'
    moved()
    m[5:9] = b'ends'
    equal('file', open(place('.data'), 'rb').read(9), b'begunends')


@program
def mapped_deleted():
    """a mapping of a file that has been deleted"""
    with open(local('mapped'), 'w+b') as f:
        f.write(b'd' * PAGE)
        f.flush()
        m = mmap.mmap(f.fileno(), PAGE)
    os.unlink(local('mapped'))
    moved()
    equal('content', m[:4], b'dddd')


@program
def mapped_renamed_back():
    """a mapping of a file that was deleted and has its name again, and a program of which that is so"""
    import shutil
    import subprocess
    path = local('mapped')
    with open(path, 'w+b') as f:
        f.write(b'n' * PAGE)
        f.flush()
        # Python's own mmap keeps the file open.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        address = libc.mmap(None, PAGE, 3, mmap.MAP_SHARED, f.fileno(), 0)
    run = local('sleeps')
    shutil.copy('/bin/sleep', run)
    into, out = os.pipe()
    sleeper = subprocess.Popen([run, '600'], stdin=into)
    within(60, lambda: os.readlink(f'/proc/{sleeper.pid}/exe') == run)
    for name in path, run:
        os.link(name, name + '.other')
        os.unlink(name)
        os.rename(name + '.other', name)
    equal('seems deleted', ['(deleted)' in line for line in open('/proc/self/maps') if path in line], [True])
    equal('the program does', os.readlink(f'/proc/{sleeper.pid}/exe'), f'{run} (deleted)')
    moved()
    ctypes.memmove(address, b'wrote', 5)
    equal('by its name', open(path, 'rb').read(6), b'wroten')
    equal('the program is that of its name', os.path.samefile(run, f'/proc/{sleeper.pid}/exe'), True)
    sleeper.kill()
    equal('ended', sleeper.wait(), -9)


@program
def memfd():
    """a memfd that is open, with data and a position"""
    fd = os.memfd_create('kept')
    os.write(fd, b'in a memfd')
    os.lseek(fd, 3, 0)
    moved()
    equal('content', os.read(fd, 20), b'a memfd')


@program
def memfd_shared():
    """a shared mapping of a memfd: mapping and descriptor are one object"""
    fd = os.memfd_create('shared')
    os.ftruncate(fd, 4 * PAGE)
    m = mmap.mmap(fd, 4 * PAGE)
    m[:6] = b'mapped'
    os.pwrite(fd, b'written', PAGE)
    moved()
    equal('by the mapping', (m[:6], m[PAGE:PAGE + 7]), (b'mapped', b'written'))
    equal('by the descriptor', (os.pread(fd, 6, 0), os.pread(fd, 7, PAGE)), (b'mapped', b'written'))
    m[2 * PAGE:2 * PAGE + 3] = b'new'
    equal('whether both are one', os.pread(fd, 3, 2 * PAGE), b'new')


@program
def memfd_shared_closed():
    """a shared mapping of a memfd whose descriptor is closed"""
    fd = os.memfd_create('closed')
    os.ftruncate(fd, 2 * PAGE)
    m = mmap.mmap(fd, 2 * PAGE)
    os.close(fd)
    m[:6] = b'mapped'
    moved()
    equal('content', m[:6], b'mapped')


@program
def memfd_shared_by_two():
    """a memfd that two processes have mapped"""
    fd = os.memfd_create('two')
    os.ftruncate(fd, PAGE)
    m = mmap.mmap(fd, PAGE)

    def other():
        theirs = mmap.mmap(fd, PAGE)
        within(60, lambda: theirs[0] == 1)
        theirs[1] = 2
    pid = child(other)
    moved()
    m[0] = 1
    os.waitpid(pid, 0)
    equal('what the other wrote', m[1], 2)


@program
def memfd_private():
    """a private mapping of a memfd: own pages, and untouched ones of the object"""
    fd = os.memfd_create('private')
    os.write(fd, b'o' * 3 * PAGE)
    m = mmap.mmap(fd, 3 * PAGE, flags=mmap.MAP_PRIVATE)
    m[:3] = b'own'
    moved()
    equal('own page', m[:4], b'owno')
    equal('untouched page', m[PAGE:PAGE + 4], b'oooo')
    equal('object', os.pread(fd, 4, 0), b'oooo')


@program
def memfd_sealed():
    """a memfd with seals"""
    import fcntl
    fd = os.memfd_create('sealed', os.MFD_ALLOW_SEALING)
    os.write(fd, b'sealed')
    fcntl.fcntl(fd, 1033, 2 | 4)
    moved()
    equal('seals', fcntl.fcntl(fd, 1034), 6)
    equal('content', os.pread(fd, 6, 0), b'sealed')


@program
def memfd_secret():
    """secret memory"""
    fd = libc_secret()
    if fd is not None:
        os.ftruncate(fd, PAGE)
        m = mmap.mmap(fd, PAGE)
        m[:3] = b'sec'
    moved()
    equal('content', fd is None or m[:3], fd is None or b'sec')


def libc_secret():
    import ctypes
    fd = ctypes.CDLL(None).syscall(447, 0)
    return None if fd < 0 else fd


@program
def shm_file():
    """POSIX shared memory, mapped by two"""
    fd = os.open('/dev/shm/corpus', os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, PAGE)
    m = mmap.mmap(fd, PAGE)
    os.close(fd)

    def other():
        theirs = mmap.mmap(os.open('/dev/shm/corpus', os.O_RDWR), PAGE)
        within(60, lambda: theirs[0] == 1)
        theirs[1] = 2
    pid = child(other)
    m[10:14] = b'kept'
    moved()
    m[0] = 1
    os.waitpid(pid, 0)
    equal('content', (m[1], m[10:14]), (2, b'kept'))
    equal('file', open('/dev/shm/corpus', 'rb').read()[10:14], b'kept')


@program
def shm_deleted():
    """POSIX shared memory without a name, as multiprocessing has it"""
    fd = os.open('/dev/shm/gone', os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, PAGE)
    m = mmap.mmap(fd, PAGE)
    os.unlink('/dev/shm/gone')
    m[:4] = b'kept'
    moved()
    equal('content', (m[:4], os.pread(fd, 4, 0)), (b'kept', b'kept'))
    m[:4] = b'more'
    equal('whether both are one', os.pread(fd, 4, 0), b'more')


@program
def shm_deleted_closed():
    """the same, mapped only"""
    fd = os.open('/dev/shm/gone', os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, PAGE)
    m = mmap.mmap(fd, PAGE)
    os.unlink('/dev/shm/gone')
    os.close(fd)
    m[:4] = b'kept'
    moved()
    equal('content', m[:4], b'kept')


libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


def pages(count=1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, protection=3):
    """The address of new memory."""
    address = libc.mmap(None, count * PAGE, protection, flags, -1, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return address


def of_mapping(address, field):
    """A field of the mapping that begins there, by /proc/self/smaps."""
    here = False
    for line in open('/proc/self/smaps'):
        words = line.split()
        if '-' in words[0] and not words[0].endswith(':'):
            here = words[0].startswith(f'{address:x}-')
        elif here and words[0] == f'{field}:':
            return words[1:]


def faults(act):
    """The signal that ends a child which does this."""
    status = os.waitpid(child(act), 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status)


@program
def protection_keys():
    """memory with a protection key (pkey_mprotect)"""
    key = libc.syscall(330, 0, 0)
    if key < 0:
        return moved()  # A processor without.
    address = pages()
    ctypes.memmove(address, b'kept', 4)
    equal('set', libc.syscall(329, ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 3, key), 0)
    call('pkey_set', key, 2)
    equal('cannot be written', faults(lambda: ctypes.memset(address, 1, 1)), 11)
    moved()
    equal('content', ctypes.string_at(address, 4), b'kept')
    equal('rights', libc.pkey_get(key), 2)
    equal('key', of_mapping(address, 'ProtectionKey'), [str(key)])
    equal('cannot be written', faults(lambda: ctypes.memset(address, 1, 1)), 11)
    equal('is another', libc.syscall(330, 0, 0) != key, True)


@program
def execute_only():
    """memory that can be run and not read"""
    address = pages()
    ctypes.memmove(address, bytes.fromhex('b82a000000c3'), 6)
    call('mprotect', ctypes.c_void_p(address), PAGE, 4)
    readable = faults(lambda: ctypes.string_at(address, 1))
    moved()
    equal('runs', ctypes.CFUNCTYPE(ctypes.c_int)(address)(), 42)
    equal('cannot be read', faults(lambda: ctypes.string_at(address, 1)), readable)


@program
def droppable():
    """memory that the kernel may drop (MAP_DROPPABLE)"""
    try:
        address = pages(flags=0x8 | mmap.MAP_ANONYMOUS)
    except AssertionError:
        return moved()
    before = of_mapping(address, 'VmFlags')
    moved()
    equal('VmFlags', of_mapping(address, 'VmFlags'), before)


@program
def sealed():
    """memory whose mapping cannot be changed any more (mseal)"""
    address = pages()
    is_sealed = libc.syscall(462, ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0) == 0
    moved()
    equal('can be changed', libc.mprotect(ctypes.c_void_p(address), PAGE, 1), -1 if is_sealed else 0)


@program
def wiped_for_children():
    """memory that children get empty (MADV_WIPEONFORK)"""
    address = pages()
    call('madvise', ctypes.c_void_p(address), PAGE, 18)
    ctypes.memmove(address, b'kept', 4)
    moved()
    equal('content', ctypes.string_at(address, 4), b'kept')
    equal('in a child', os.waitstatus_to_exitcode(os.waitpid(child(lambda: os._exit(ctypes.string_at(address, 1)[0])), 0)[1]), 0)


@program
def merged():
    """memory that may be merged with equal pages (MADV_MERGEABLE)"""
    address = pages()
    libc.madvise(ctypes.c_void_p(address), PAGE, 12)
    before = of_mapping(address, 'VmFlags')
    moved()
    equal('VmFlags', of_mapping(address, 'VmFlags'), before)


@program
def merged_all():
    """a process all of whose memory may be merged (PR_SET_MEMORY_MERGE)"""
    before = libc.prctl(67, 1, 0, 0, 0)
    moved()
    equal('set', libc.prctl(68, 0, 0, 0, 0), -1 if before else 1)


@program
def locked_on_fault():
    """mlock2 with MLOCK_ONFAULT"""
    address = pages(4)
    call('mlock2', ctypes.c_void_p(address), 4 * PAGE, 1)
    ctypes.memmove(address, b'kept', 4)
    rss = lambda: of_mapping(address, 'Rss')
    before = rss()
    moved()
    equal('resident', rss(), before)
    equal('VmFlags', 'lo' in of_mapping(address, 'VmFlags'), True)


@program
def grows_down():
    """memory that grows downwards (MAP_GROWSDOWN)"""
    # The kernel lets it grow only with a gap of 256 pages to what can be read below: nobody else gets memory there.
    address = pages(640, protection=0) + 512 * PAGE
    call('munmap', ctypes.c_void_p(address), 128 * PAGE)
    top = libc.mmap(address + 124 * PAGE, 4 * PAGE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10 | 0x100, -1, 0)
    ctypes.memmove(top, b'kept', 4)
    moved()
    equal('content', ctypes.string_at(top, 4), b'kept')
    ctypes.memset(top - 4, 7, 4)
    equal('below', ctypes.string_at(top - 4, 4), bytes([7] * 4))


@program
def guarded():
    """guard pages within a mapping (MADV_GUARD_INSTALL)"""
    address = pages(4)
    ctypes.memmove(address, b'kept', 4)
    is_known = libc.madvise(ctypes.c_void_p(address + PAGE), PAGE, 102) == 0
    ends = 11 if is_known else False
    moved()
    equal('content', ctypes.string_at(address, 4), b'kept')
    equal('is guarded', faults(lambda: ctypes.memset(address + PAGE, 1, 1)), ends)


@program
def memfd_reopened():
    """a memfd that is open twice, once to be read only, and its mode"""
    fd = os.memfd_create('twice')
    os.write(fd, b'in a memfd')
    os.fchmod(fd, 0o640)
    other = os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)
    moved()
    equal('content', (os.read(other, 4), os.read(fd, 4)), (b'in a', b''))
    os.pwrite(fd, b'IN', 0)
    equal('one object', os.pread(other, 4, 0), b'IN a')
    equal('mode', os.fstat(fd).st_mode & 0o7777, 0o640)
    try:
        equal('written', os.write(other, b'x'), None)
    except OSError as e:
        equal('error', e.errno, 9)


@program
def memfd_secret_open():
    """secret memory that is open and not mapped"""
    fd = libc_secret()
    fd is None or os.ftruncate(fd, PAGE)
    moved()
    equal('size', fd is None or os.fstat(fd).st_size, fd is None or PAGE)


main()
