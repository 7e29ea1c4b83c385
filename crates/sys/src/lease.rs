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
    // By default whoever opens the file has the kernel end this process, by SIGIO. This signal is ignored by default.
    // SAFETY: F_SETSIG takes a number and touches no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: F_SETLEASE takes a number and touches no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::c_int::from(libc::F_WRLCK as i16)) }
        == 0
    {
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
