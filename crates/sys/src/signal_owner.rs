//! Who gets the signals of an open file description, for which no library has a function.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, open};

/// Source: `linux/fcntl.h`; not every C library declares these.
const F_GETOWN_EX: libc::c_int = 16;
const F_GETOWNER_UIDS: libc::c_int = 17;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// Whether somebody gets signals of it: `F_SETOWN`, `F_NOTIFY` and leases have set that.
///
/// The kernel does not name an owner that is a thread, as one that calls `F_NOTIFY` is. Then it is seen by the user whom the owner belonged to,
/// unless that is the host's root, which a file without an owner has there, too.
///
/// # Errors
/// `EBADF` of a descriptor that is only a path.
pub fn has_owner(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut owner = Owner { kind: 0, pid: 0 };
    // SAFETY: the kernel writes such a structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_GETOWN_EX, &raw mut owner) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let without = open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(owner.pid != 0 || users(file) != users(without.as_fd()))
}

/// Whether one thread gets its signals, not a process or a group (`F_SETOWN_EX`).
///
/// # Errors
/// `EBADF` of a descriptor that is only a path.
pub fn is_thread(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut owner = Owner { kind: -1, pid: 0 };
    // SAFETY: the kernel writes such a structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_GETOWN_EX, &raw mut owner) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(owner.kind == F_OWNER_TID && owner.pid != 0)
}

/// The real and the effective user of the owner; nothing where the kernel does not tell (`CONFIG_CHECKPOINT_RESTORE`).
fn users(file: BorrowedFd<'_>) -> Option<[libc::uid_t; 2]> {
    let mut users = [0; 2];
    // SAFETY: the kernel writes two numbers, which live through the call.
    let told = unsafe { libc::fcntl(file.as_raw_fd(), F_GETOWNER_UIDS, users.as_mut_ptr()) };
    (told == 0).then_some(users)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn an_owner_is_seen() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::open(dir.path()).expect("opened");
        assert!(!has_owner(file.as_fd()).expect("asked"));
        // SAFETY: plain integers.
        let owned = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETOWN, libc::getpid()) };
        assert_eq!(owned, 0);
        assert!(has_owner(file.as_fd()).expect("asked"));
    }
}
