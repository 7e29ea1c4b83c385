//! Memory that is there before it is needed.

use std::io;
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
        assert!(populate(file.as_fd(), 1, 4096).is_err(), "not on a page");
    }
}
