//! Directories of the host's root file system that are the system's: nothing that is mounted, is somebody's, or can be written by all.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use skiff_sys::IgnoreError;

/// What changes in a directory whenever an entry does.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct DirStamp {
    pub(super) inode: u64,
    pub(super) changed: ChangeTime,
}

/// Seconds since 1970, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChangeTime(pub(super) i64, pub(super) u32);

impl From<SystemTime> for ChangeTime {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).default_on_error("before 1970 nothing was changed");
        Self(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
    }
}

/// The uid of the first account that is a person's.
const FIRST_PERSON: u32 = 1000;
/// Each level holds a descriptor.
const DEEPEST: usize = 64;

/// An end to a walk, whatever it meets.
pub(super) struct DirWalk<'a> {
    /// What is done with each directory.
    pub(super) visit: &'a mut dyn FnMut(&Path, DirStamp),
    /// How many more it may be.
    pub(super) left: usize,
    /// Until when.
    pub(super) until: Instant,
    /// The file system's number.
    device: u64,
}

impl<'a> DirWalk<'a> {
    pub(super) fn begin(left: usize, until: Instant, visit: &'a mut dyn FnMut(&Path, DirStamp)) -> Self {
        let device = rustix::fs::stat("/").map_or(0, |root| root.st_dev);
        Self { visit, left, until, device }
    }

    /// Visits a directory by its whole name, and those below it down to `depth`.
    pub(super) fn tree(&mut self, path: &Path, depth: usize) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // `/lib` and its like are links: what they lead to has a name of its own.
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        if let Ok(dir) = openat2(CWD, path, flags, Mode::empty(), resolve) {
            self.directory(dir.as_fd(), &mut path.to_owned(), depth.min(DEEPEST));
        }
    }

    fn directory(&mut self, dir: BorrowedFd<'_>, path: &mut PathBuf, depth: usize) {
        // A look at the clock costs less than the directory.
        if self.left == 0 || Instant::now() > self.until {
            self.left = 0;
            return;
        }
        let Ok(stat) = fstat(dir) else { return };
        if !self.is_systems(&stat) {
            return;
        }
        self.left -= 1;
        (self.visit)(path, stamp(&stat));
        if depth == 0 {
            return;
        }
        // A subdirectory counts as one link, where a file system counts them at all.
        if stat.st_nlink == 2 {
            return;
        }
        let Ok(entries) = Dir::read_from(dir) else { return };
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let may_be = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if !may_be || name == "." || name == ".." {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // What is mounted is not even asked: its server may be gone. What cannot be read is not seen inside either.
            let Ok(below) = openat2(dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) else { continue };
            path.push(name);
            self.directory(below.as_fd(), path, depth - 1);
            path.pop();
        }
    }

    fn is_systems(&self, stat: &Stat) -> bool {
        stat.st_dev == self.device && stat.st_uid < FIRST_PERSON && stat.st_mode & 0o002 == 0
    }
}

pub(super) fn stamp(stat: &Stat) -> DirStamp {
    let nanoseconds = u32::try_from(stat.st_ctime_nsec).unwrap_or(0);
    DirStamp { inode: stat.st_ino, changed: ChangeTime(stat.st_ctime, nanoseconds) }
}
