//! The part of the new mount interface that rustix lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Attributes of a mount (`MOUNT_ATTR_*`), as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountAttr(u64);

impl MountAttr {
    /// None.
    pub const NONE: Self = Self(0);
    /// Read-only.
    pub const RDONLY: Self = Self(libc::MOUNT_ATTR_RDONLY);
    /// Setuid bits and file capabilities mean nothing.
    pub const NOSUID: Self = Self(libc::MOUNT_ATTR_NOSUID);
    /// Device nodes cannot be opened.
    pub const NODEV: Self = Self(libc::MOUNT_ATTR_NODEV);
    /// Symbolic links are not followed.
    pub const NOEXEC: Self = Self(libc::MOUNT_ATTR_NOEXEC);
    /// No symbolic link is followed.
    pub const NOSYMFOLLOW: Self = Self(libc::MOUNT_ATTR_NOSYMFOLLOW);
    /// Times of access are noted where they tell something new.
    pub const RELATIME: Self = Self(libc::MOUNT_ATTR_RELATIME);
    /// No time of access is noted.
    pub const NOATIME: Self = Self(libc::MOUNT_ATTR_NOATIME);
    /// Every access is noted.
    pub const STRICTATIME: Self = Self(libc::MOUNT_ATTR_STRICTATIME);
    /// No access to a directory is noted.
    pub const NODIRATIME: Self = Self(libc::MOUNT_ATTR_NODIRATIME);
    /// All that says which times of access are noted: to be cleared where one of them is set.
    pub const ANY_ATIME: Self = Self(libc::MOUNT_ATTR__ATIME);

    /// Both sets together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without those of another.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of another set are in this one.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Sets attributes on a mount (or, with `recursive`, the tree of mounts) that `mount` refers to.
///
/// # Errors
/// `EINVAL` for attributes that the kernel does not know, `EPERM` without rights over the mount.
pub fn set_attributes(mount: BorrowedFd<'_>, attr: MountAttr, recursive: bool) -> io::Result<()> {
    set(mount, attr.0, None, 0, recursive)
}

/// Sets some attributes and takes others away.
///
/// # Errors
/// `EPERM` for one that whoever made the mount has locked, besides those of [`set_attributes`].
pub fn change_attributes(
    mount: BorrowedFd<'_>,
    attr: MountAttr,
    cleared: MountAttr,
    recursive: bool,
) -> io::Result<()> {
    set_all(mount, (attr.0, cleared.0), None, 0, recursive)
}

/// Makes a detached mount show its files' owners through the id map of `user_ns`, with these attributes. It is private from then
/// on: a copy of a shared mount would stay its peer, so whatever its new owner mounts on it would appear on the host as well.
///
/// # Errors
/// `EINVAL` where the file system or the kernel (before 5.12) has no id-mapped mounts.
pub fn set_id_map(mount: BorrowedFd<'_>, user_ns: BorrowedFd<'_>, attr: MountAttr) -> io::Result<()> {
    set(mount, attr.0 | libc::MOUNT_ATTR_IDMAP, Some(user_ns), libc::MS_PRIVATE, false)
}

/// How mounts take part in what others mount (`MS_PRIVATE` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountPropagation {
    /// Not at all.
    Private,
    /// As receivers that give nothing.
    Slave,
    /// Not at all, and they are no source of a bind mount.
    Unbindable,
    /// Both ways.
    Shared,
}

/// Sets that of the tree of mounts that `mount` refers to.
///
/// # Errors
/// As [`set_attributes`].
pub fn set_propagation(mount: BorrowedFd<'_>, propagation: MountPropagation) -> io::Result<()> {
    set_propagation_of(mount, propagation, true)
}

/// The same of the mount alone, or with `recursive` of the tree.
///
/// # Errors
/// As [`set_attributes`].
pub fn set_propagation_of(
    mount: BorrowedFd<'_>,
    propagation: MountPropagation,
    recursive: bool,
) -> io::Result<()> {
    let propagation = match propagation {
        MountPropagation::Private => libc::MS_PRIVATE,
        MountPropagation::Slave => libc::MS_SLAVE,
        MountPropagation::Unbindable => libc::MS_UNBINDABLE,
        MountPropagation::Shared => libc::MS_SHARED,
    };
    set(mount, 0, None, propagation, recursive)
}

fn set(
    mount: BorrowedFd<'_>,
    set: u64,
    user_ns: Option<BorrowedFd<'_>>,
    propagation: u64,
    recursive: bool,
) -> io::Result<()> {
    set_all(mount, (set, 0), user_ns, propagation, recursive)
}

fn set_all(
    mount: BorrowedFd<'_>,
    (set, clear): (u64, u64),
    user_ns: Option<BorrowedFd<'_>>,
    propagation: u64,
    recursive: bool,
) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: set,
        attr_clr: clear,
        propagation,
        userns_fd: user_ns.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, attr lives through the call and its size is given with it.
    let r = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
