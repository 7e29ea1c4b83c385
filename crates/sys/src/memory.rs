//! Memory that is there before it is needed, and that of other processes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Has the kernel find memory for a part of a file in memory (tmpfs), so that whoever writes there later need not wait for it. The file must
/// be long enough; `offset` is a multiple of the size of pages.
///
/// # Errors
/// `ENOMEM` and `ENOSPC` when there is none, `EINVAL` before Linux 5.14.
pub fn populate(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<()> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so no memory of ours is touched; the descriptor is open.
    let at =
        unsafe { libc::mmap(ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), offset) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: exactly what has just been mapped; it changes nothing of what is in it.
    let populated = match unsafe { libc::madvise(at, length, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: exactly what has been mapped, and nobody has a pointer into it.
    unsafe { libc::munmap(at, length) };
    populated.map_err(|e| match e.raw_os_error() {
        // What would be SIGBUS for who touches it: the file system is full.
        Some(libc::EFAULT) => io::Error::from_raw_os_error(libc::ENOSPC),
        _ => e,
    })
}

/// The first page of a file, mapped only so that the kernel tells what it is (`/proc/self/maps`). It is not read.
pub struct MappedPage {
    at: *mut libc::c_void,
}

impl MappedPage {
    /// Maps it.
    ///
    /// # Errors
    /// `ENODEV` of what cannot be mapped, `EACCES` if the file is not open to be read.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let (length, rights) = (page_size(), libc::PROT_READ);
        // SAFETY: the kernel chooses the address, so no memory of ours is touched; the descriptor is open.
        let at =
            unsafe { libc::mmap(ptr::null_mut(), length, rights, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { at }) }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.at.addr() as u64
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nobody has a pointer into it.
        unsafe { libc::munmap(self.at, page_size()) };
    }
}

/// Asks the kernel for huge pages where nothing has been written yet: much memory is there sooner then. It may decline.
pub fn prefer_huge_pages(unused: &mut [MaybeUninit<u8>]) {
    let size = page_size();
    let askew = unused.as_ptr().addr().wrapping_neg() % size;
    let Some(whole) = unused.get_mut(askew..) else { return };
    let length = whole.len() / size * size;
    // SAFETY: these are whole pages of memory that is ours alone; what is in them does not change.
    unsafe { libc::madvise(whole.as_mut_ptr().cast(), length, libc::MADV_HUGEPAGE) };
}

/// Bytes of a page of this host's memory.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: it only asks.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Reads memory of another process; how many bytes, from the first on, could be.
///
/// # Errors
/// `EFAULT` where none can be, `EPERM` and `ESRCH`; `EINVAL` if it is a process of our own.
pub fn read_of(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let there = elsewhere(pid, address, into.len())?;
    // SAFETY: the kernel writes to `into`, which is ours alone, and nowhere else of ours.
    count(unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) })
}

/// Writes memory of another process, which must be writable there; how many bytes, from the first on, could be.
///
/// # Errors
/// As [`read_of`], and `ENOMEM`.
pub fn write_of(pid: i32, address: u64, bytes: &[u8]) -> io::Result<usize> {
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = elsewhere(pid, address, bytes.len())?;
    // SAFETY: the kernel reads `bytes`; what it writes is another process's, which `elsewhere` has seen to.
    count(unsafe { libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0) })
}

/// What lies there in a process that is not this one: nothing of ours changes behind our back.
fn elsewhere(pid: i32, address: u64, length: usize) -> io::Result<libc::iovec> {
    // SAFETY: signal 0 is none; it only tells whether `pid` is a thread of ours.
    if unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), pid, 0) } == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let address = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(libc::iovec { iov_base: ptr::without_provenance_mut(address), iov_len: length })
}

fn count(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_populated_takes_up_memory_and_nothing_is_lost() {
        let file =
            File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"));
        std::os::unix::fs::FileExt::write_all_at(&file, b"kept", 4096).expect("written");
        file.set_len(1 << 20).expect("longer");
        populate(file.as_fd(), 4096, 64 << 10).expect("populated");
        assert_eq!(file.metadata().expect("known").blocks() * 512, 64 << 10);
        let mut text = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut text, 4096).expect("read");
        assert_eq!(&text, b"kept");
        let askew = populate(file.as_fd(), 1, 4096).expect_err("not on a page");
        assert_eq!(askew.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn memory_with_huge_pages_is_as_any_other() {
        for length in [0, 1, 5000, 5 << 20] {
            let mut bytes: Vec<u8> = Vec::with_capacity(length);
            prefer_huge_pages(bytes.spare_capacity_mut());
            bytes.resize(length, 7);
            assert!(bytes.iter().all(|byte| *byte == 7), "{length}");
        }
    }

    #[test]
    fn memory_of_another_process_is_read_and_written() {
        let mut bytes = *b"from before";
        let address = bytes.as_ptr().addr() as u64;
        // It has a copy of ours, at the same place.
        let crate::process::Fork::Parent(child) =
            crate::process::fork(crate::process::CloneFlags::NONE).expect("a process")
        else {
            loop {
                std::thread::park();
            }
        };
        let pid = child.pid.as_raw_nonzero().get();
        bytes.fill(0);
        let mut there = [0; 11];
        assert_eq!(read_of(pid, address, &mut there).expect("read"), 11);
        assert_eq!(&there, b"from before");
        assert_eq!(write_of(pid, address, b"since").expect("written"), 5);
        assert_eq!(read_of(pid, address, &mut there).expect("read"), 11);
        assert_eq!(&there, b"sincebefore");
        let nothing = read_of(pid, 8, &mut there).expect_err("nothing is there");
        assert_eq!(nothing.raw_os_error(), Some(libc::EFAULT));
        rustix::process::kill_process(child.pid, rustix::process::Signal::KILL).expect("killed");
        rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty()).expect("gone");
        let own = i32::try_from(std::process::id()).expect("a number");
        assert_eq!(write_of(own, address, b"x").expect_err("its own").kind(), io::ErrorKind::InvalidInput);
        assert_eq!(bytes, [0; 11]);
    }
}
