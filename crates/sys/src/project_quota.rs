//! Project quotas: a limit of bytes for a directory and all below it, whoever owns that. XFS (`pquota`) and ext4 (`prjquota`) have them.
//!
//! A project is a number that each file has. A new file gets that of its directory, if the directory says so.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `QCMD(Q_XSETQLIM, PRJQUOTA)` and `QCMD(Q_XGETQSTAT, PRJQUOTA)`: ext4 understands XFS' calls.
const SET_LIMIT: libc::c_long = 0x0058_0402;
const GET_STATE: libc::c_long = 0x0058_0502;
/// `FS_QUOTA_PDQ_ENFD`: the limits of projects are enforced.
const IS_ENFORCED: u16 = 1 << 5;
/// `FS_DQ_BSOFT | FS_DQ_BHARD`.
const LIMITS: u16 = 1 << 2 | 1 << 3;
/// `FS_PROJ_QUOTA`.
const OF_PROJECT: i8 = 1 << 1;
/// Limits are counted in these.
const BLOCK: u64 = 512;

/// `_IOR('X', 31, struct fsxattr)` and `_IOW('X', 32, struct fsxattr)`.
const GET_ATTRIBUTES: u32 = 0x801C_581F;
const SET_ATTRIBUTES: u32 = 0x401C_5820;
/// `FS_XFLAG_PROJINHERIT`.
const IS_INHERITED: u32 = 0x200;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copied_extent_size: u32,
    padding: [u8; 8],
}

/// `struct fs_disk_quota`.
#[repr(C)]
#[derive(Default)]
struct Limit {
    version: i8,
    flags: i8,
    fields: u16,
    id: u32,
    hard: u64,
    soft: u64,
    // Files, what is used, times, warnings and real-time extents: none of them is set.
    rest: [u64; 11],
}

/// `struct fs_quota_stat`.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    flags: u16,
    rest: [u64; 9],
}

/// Whether the file system of a directory keeps projects to their limits.
#[must_use]
pub fn is_enforced(dir: BorrowedFd<'_>) -> bool {
    let mut state = State { version: 1, ..State::default() };
    // SAFETY: the structure is as large as the kernel's and lives through the call; it points to nothing.
    let failed =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, dir.as_raw_fd(), GET_STATE, 0, &raw mut state) };
    failed == 0 && state.flags & IS_ENFORCED != 0
}

/// Lets the files of a project take up so many bytes on the file system of a directory; without a number as many as there is room for. Needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// Of the kernel: `ESRCH` or `EINVAL` where the file system has no such quotas, `ENOSYS` before Linux 5.14.
pub fn limit(dir: BorrowedFd<'_>, project: u32, bytes: Option<u64>) -> io::Result<()> {
    // To the kernel, zero means without a limit.
    let blocks = bytes.map_or(0, |bytes| bytes.div_ceil(BLOCK).max(1));
    let limit = Limit {
        version: 1,
        flags: OF_PROJECT,
        fields: LIMITS,
        id: project,
        hard: blocks,
        soft: blocks,
        rest: [0; 11],
    };
    // SAFETY: as above.
    match unsafe {
        libc::syscall(libc::SYS_quotactl_fd, dir.as_raw_fd(), SET_LIMIT, project, &raw const limit)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The project that a directory, open for reading, belongs to; 0 is none.
///
/// # Errors
/// Of the kernel: `EOPNOTSUPP` or `ENOTTY` where the file system has no projects.
pub fn project(dir: BorrowedFd<'_>) -> io::Result<u32> {
    attributes(dir).map(|attributes| attributes.project)
}

fn attributes(dir: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the structure has the kernel's layout and lives through the call; it points to nothing.
    match unsafe { libc::ioctl(dir.as_raw_fd(), GET_ATTRIBUTES as libc::Ioctl, &raw mut attributes) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a directory, open for reading, one of a project, and with it all that is made below from now on.
///
/// # Errors
/// Of the kernel: `EOPNOTSUPP` or `ENOTTY` where the file system has no projects, `EPERM` where the directory is another user's.
pub fn assign(dir: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut attributes = attributes(dir)?;
    attributes.project = project;
    attributes.flags |= IS_INHERITED;
    // SAFETY: as above.
    match unsafe { libc::ioctl(dir.as_raw_fd(), SET_ATTRIBUTES as libc::Ioctl, &raw const attributes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const _: () = assert!(size_of::<Attributes>() == 28 && size_of::<Limit>() == 112 && size_of::<State>() == 80);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_file_system_of_the_kernel_s_has_no_projects() {
        let proc = std::fs::File::open("/proc").expect("/proc");
        assert!(!is_enforced(proc.as_fd()));
        assert!(limit(proc.as_fd(), 7, Some(1)).is_err());
        assert!(assign(proc.as_fd(), 7).is_err());
    }
}
