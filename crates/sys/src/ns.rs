//! Asking namespaces who they belong to: the facts on which the helper decides.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// From linux/nsfs.h; libc has them only as of late.
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

/// The uid of whoever made a user namespace, as seen from here.
///
/// # Errors
/// `ENOTTY` or `EINVAL` if `user_ns` is not one.
pub fn owner_uid(user_ns: BorrowedFd<'_>) -> io::Result<u32> {
    let mut uid: libc::uid_t = u32::MAX;
    // SAFETY: the kernel writes one uid_t to the address, which lives through the call.
    let r = unsafe { libc::ioctl(user_ns.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    if r == 0 { Ok(uid) } else { Err(io::Error::last_os_error()) }
}

/// The user namespace that has power over a namespace of any other kind.
///
/// # Errors
/// `EPERM` if it is outside what the caller may see.
pub fn owning_user_ns(ns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    request_fd(ns, NS_GET_USERNS)
}

/// The number that a process or thread has in the innermost of its PID namespaces, by the text of its `status` in `/proc`.
#[must_use]
pub fn number_inside(status: &str) -> Option<i32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// Whether that is `user_ns`.
///
/// # Errors
/// As above.
pub fn belongs_to(ns: BorrowedFd<'_>, user_ns: BorrowedFd<'_>) -> io::Result<bool> {
    same(owning_user_ns(ns)?.as_fd(), user_ns)
}

/// The parent of a user or PID namespace.
///
/// # Errors
/// `EPERM` if it has none that the caller may see.
pub fn parent(ns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    request_fd(ns, NS_GET_PARENT)
}

/// Whether a descriptor is a user namespace; anything that is no namespace is not.
#[must_use]
pub fn is_user_ns(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the request takes no argument.
    unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE) == libc::CLONE_NEWUSER }
}

/// Whether two descriptors are the same namespace.
///
/// # Errors
/// What `fstat` says.
pub fn same(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<bool> {
    let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Gives this process a mount namespace of its own, a copy of the one it was in.
///
/// # Errors
/// `EPERM` without `SYS_ADMIN`.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: a plain integer; unlike CLONE_FILES this takes no descriptor away from anybody.
    let r = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives this process a network namespace of its own, without a device in use. It belongs to the user namespace we are in.
///
/// # Errors
/// `EPERM` without `SYS_ADMIN`.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: as above.
    let r = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the children that this process makes from now on be in a time namespace of their own, whose offsets can be set until one is. It belongs to
/// the user namespace we are in.
///
/// # Errors
/// `EPERM` without `SYS_ADMIN`, `EINVAL` where the kernel has no time namespaces.
pub fn unshare_time() -> io::Result<()> {
    // SAFETY: as above.
    let r = unsafe { libc::unshare(libc::CLONE_NEWTIME) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn request_fd(ns: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<OwnedFd> {
    // SAFETY: these requests take no argument and give a new descriptor or -1.
    let fd = unsafe { libc::ioctl(ns.as_raw_fd(), request) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}
