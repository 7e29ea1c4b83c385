"""Memory of every kind."""
import ctypes
import mmap
import os

from moved import call, child, equal, local, main, moved, place, program, told, within

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


main()
