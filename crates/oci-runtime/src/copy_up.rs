//! File systems in memory that begin with what the root has at their place (`tmpcopyup`).

use std::fs::File;
use std::io::copy as copy_bytes;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, chownat, fchmod, mkdirat, openat, readlinkat, statat,
    symlinkat,
};
use rustix::process::{Gid, Uid};
use skiff_spec::fault::{Context as _, Result};

use crate::log::Log;

/// So deep are directories followed.
const DEEPEST: u32 = 64;

/// Copies what is in a directory. What is no file, directory or link stays out.
///
/// # Errors
/// The system's.
pub fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, log: &Log) -> Result<()> {
    copy_dir(from, to, log, DEEPEST)
}

fn copy_dir(from: BorrowedFd<'_>, to: BorrowedFd<'_>, log: &Log, deep: u32) -> Result<()> {
    let about = || "tmpcopyup";
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = openat(from, ".", flags, Mode::empty()).context(about)?;
    let to = openat(to, ".", flags, Mode::empty()).context(about)?;
    for entry in Dir::read_from(&from).context(about)? {
        let entry = entry.context(about)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let about = || format!("tmpcopyup: {}", name.to_string_lossy());
        let stat = statat(&from, name, AtFlags::SYMLINK_NOFOLLOW).context(about)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if deep > 0 => {
                mkdirat(&to, name, Mode::RWXU).context(about)?;
                let (below, made) =
                    (openat(&from, name, flags, Mode::empty()), openat(&to, name, flags, Mode::empty()));
                let (below, made) = (below.context(about)?, made.context(about)?);
                copy_dir(below.as_fd(), made.as_fd(), log, deep - 1)?;
                let mode = mode(&stat, own_as(&to, name, &stat));
                fchmod(&made, mode).context(about)?;
            }
            FileType::RegularFile => {
                let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let mut source = File::from(openat(&from, name, read, Mode::empty()).context(about)?);
                let mut made = File::from(openat(&to, name, write, Mode::RUSR | Mode::WUSR).context(about)?);
                copy_bytes(&mut source, &mut made).context(about)?;
                let mode = mode(&stat, own_as(&to, name, &stat));
                fchmod(&made, mode).context(about)?;
            }
            FileType::Symlink => {
                let target = readlinkat(&from, name, vec![]).context(about)?;
                symlinkat(&*target, &to, name).context(about)?;
                own_as(&to, name, &stat);
            }
            _ => log.warn(&format!("{}: not copied", about())),
        }
    }
    Ok(())
}

/// To be set when the owner is: a change of owner takes `setuid` away, and another owner must not get it.
fn mode(stat: &Stat, is_owners: bool) -> Mode {
    Mode::from_raw_mode(stat.st_mode & if is_owners { 0o7777 } else { 0o1777 })
}

/// Whether it has the owner now: one without an id in the container cannot be one there.
fn own_as(dir: impl AsFd, name: &std::ffi::CStr, stat: &Stat) -> bool {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
