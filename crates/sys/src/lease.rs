//! Leases, only as the answer to a question: whether anybody else has a file open.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `F_SETSIG` of `fcntl(2)`, which the libc crate does not have for every target.
const F_SETSIG: libc::c_int = 10;

/// Whether nobody else, on this host, has a file open: no process by another descriptor, no loop device, no file system that is mounted from it.
/// If so, the descriptor has a lease until it is closed: whoever opens the file meanwhile with `O_NONBLOCK` gets `EAGAIN`, and without waits
/// until then. So ask only of a file that nobody else has reason to open.
///
/// # Errors
/// `EINVAL` where the file system has no leases, `EACCES` if the file is another user's. Network file systems may answer for this host alone.
pub fn is_alone(file: BorrowedFd<'_>) -> io::Result<bool> {
    take(file, libc::c_int::from(libc::F_WRLCK as i16))
}

/// Whether nobody on this host has a file open to be written. Who only reads it does not count. `file` is open to be read only. The lease is
/// given back before this returns.
///
/// # Errors
/// As of [`is_alone`].
pub fn is_unwritten(file: BorrowedFd<'_>) -> io::Result<bool> {
    let taken = take(file, libc::c_int::from(libc::F_RDLCK as i16))?;
    if taken {
        // SAFETY: F_SETLEASE takes a number and touches no memory.
        let given = unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::c_int::from(libc::F_UNLCK as i16))
        };
        if given != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(taken)
}

/// Whether the kernel grants a lease of this kind.
fn take(file: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<bool> {
    // By default whoever opens the file has the kernel end this process, by SIGIO. This signal is ignored by default.
    // SAFETY: F_SETSIG takes a number and touches no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: F_SETLEASE takes a number and touches no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn who_only_reads_a_file_does_not_count_as_a_writer() {
        let path = std::env::temp_dir().join(format!("skiff-lease-readers-{}", std::process::id()));
        std::fs::write(&path, b"x").expect("written");
        let file = File::open(&path).expect("opened");
        let _reader = File::open(&path).expect("opened");
        let writer = File::options().append(true).open(&path).expect("opened");
        assert!(!is_unwritten(file.as_fd()).expect("asked"));
        drop(writer);
        // A child that another test starts may have a copy until it executes its program.
        let unwritten = || is_unwritten(file.as_fd()).expect("asked");
        let wait = || std::thread::sleep(std::time::Duration::from_millis(10));
        assert!((0..100).any(|_| unwritten() || (wait(), false).1));
        // No lease is left, which would have this wait.
        drop(File::options().append(true).open(&path).expect("opened"));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_file_that_another_descriptor_has_open_is_not_alone() {
        let path = std::env::temp_dir().join(format!("skiff-lease-test-{}", std::process::id()));
        std::fs::write(&path, b"x").expect("written");
        let open = || File::open(&path).expect("opened");
        let (first, second) = (open(), open());
        assert!(!is_alone(first.as_fd()).expect("asked"));
        drop(second);
        // A child that another test starts may have a copy until it executes its program.
        let alone = || is_alone(first.as_fd()).expect("asked");
        assert!(
            (0..100).any(|_| alone() || (std::thread::sleep(std::time::Duration::from_millis(10)), false).1)
        );
        std::fs::remove_file(path).expect("removed");
    }
}
