//! Locks on parts of a file (POSIX record locks): unlike `flock`'s they can be many in one file, and the kernel says who holds one.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How a part of a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// With others that do the same.
    Shared,
    /// Alone.
    Exclusive,
    /// Not any more.
    None,
}

/// Changes this process's lock on some bytes of a file that it has open for reading and writing; false if another process's lock is in the
/// way. Never waits. All of this process's locks on a file end when it closes any descriptor of that file.
///
/// # Errors
/// `ENOLCK` when the kernel has no memory for one more.
pub fn set(file: BorrowedFd<'_>, bytes: Range<u64>, lock: Lock) -> io::Result<bool> {
    let request = request(bytes, lock)?;
    // SAFETY: the kernel reads a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const request) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        e => Err(e),
    }
}

/// A process whose lock is in the way of an exclusive one; nothing if there is none, or none of this PID namespace.
///
/// # Errors
/// `EBADF` if the file is not open for writing.
pub fn holder(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<Option<u32>> {
    let mut request = request(bytes, Lock::Exclusive)?;
    // SAFETY: the kernel reads and writes a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let free = request.l_type == libc::F_UNLCK as libc::c_short;
    Ok(u32::try_from(request.l_pid).ok().filter(|pid| *pid != 0 && !free))
}

/// Locks some bytes for this open file description: as long as a descriptor of it is open, also in children. False if another has them.
///
/// # Errors
/// `ENOLCK` when the kernel has no memory for one more.
pub fn hold(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<bool> {
    let request = request(bytes, Lock::Exclusive)?;
    // SAFETY: the kernel reads a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        e => Err(e),
    }
}

fn request(bytes: Range<u64>, lock: Lock) -> io::Result<libc::flock> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    // SAFETY: all zeros is a valid flock structure.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    } as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = number(bytes.start)?;
    request.l_len = number(bytes.end.saturating_sub(bytes.start))?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::hold;

    #[test]
    fn bytes_are_held_once_until_the_last_descriptor_is_closed() {
        let path = std::env::temp_dir().join(format!("skiff-lock-test-{}", std::process::id()));
        let open =
            || std::fs::File::options().create(true).truncate(false).write(true).open(&path).expect("file");
        let (first, second) = (open(), open());
        assert!(hold(first.as_fd(), 3..4).expect("lock"));
        assert!(!hold(second.as_fd(), 3..4).expect("lock"), "another has it");
        assert!(hold(second.as_fd(), 4..5).expect("lock"), "another byte");
        let copy = first.try_clone().expect("copy");
        drop(first);
        assert!(!hold(second.as_fd(), 3..4).expect("lock"), "a copy of the descriptor keeps it");
        drop(copy);
        assert!(hold(second.as_fd(), 3..4).expect("lock"));
        std::fs::remove_file(path).expect("removed");
    }
}
