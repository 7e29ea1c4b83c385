//! Makes an upper that fuse-overlayfs has written into one that the kernel's overlay understands, when an environment made without
//! the helper is entered with it. (The other direction needs nothing.)

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chownat, fgetxattr, fsetxattr, mknodat,
    openat, statat, unlinkat,
};
use rustix::io::Errno;

use skiff_spec::fault::{Context, Result};

/// In the environment's directory: fuse-overlayfs has written to its upper.
const MARK: &str = "fuse-overlayfs";

/// What the host's owners look like to who has no id for them; files of theirs that were copied up have got it.
const NOBODY: u32 = 65534;

/// Remembers that fuse-overlayfs will have written here.
pub fn mark(kept: BorrowedFd<'_>) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match openat(kept, MARK, flags, Mode::from_raw_mode(0o644)) {
        // Whatever it is, it marks.
        Err(Errno::EXIST) => Ok(()),
        made => made.map(drop).context(|| MARK),
    }
}

/// Whether fuse-overlayfs may have written to the upper of the environment in this directory, so that the host's files in it are nobody's.
#[must_use]
pub fn is_marked(dir: &Path) -> bool {
    dir.join(MARK).symlink_metadata().is_ok()
}

/// Converts the upper if it must be. Interrupted, it goes on the next time.
pub fn adopt(kept: BorrowedFd<'_>) -> Result<()> {
    if statat(kept, MARK, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return Ok(());
    }
    let what = || "taking over what fuse-overlayfs has written";
    open_dir(kept, OsStr::new("upper")).and_then(directory).context(what)?;
    unlinkat(kept, MARK, AtFlags::empty()).context(what)
}

fn open_dir(at: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn directory(dir: OwnedFd) -> rustix::io::Result<()> {
    if fgetxattr(&dir, "user.fuseoverlayfs.opaque", &mut [0u8; 1][..]) == Ok(1) {
        fsetxattr(&dir, "user.overlay.opaque", b"y", XattrFlags::empty())?;
    }
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            one(dir.as_fd(), name)?;
        }
    }
    Ok(())
}

fn one(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
        unlinkat(dir, name, AtFlags::empty())?;
        // The other marks say `opaque`, which the attribute says too.
        if !hidden.starts_with(b".") {
            whiteout(dir, OsStr::from_bytes(hidden))?;
        }
        return Ok(());
    }
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let roots = |id: u32| (id == NOBODY).then_some(0);
    let (uid, gid) = (roots(stat.st_uid), roots(stat.st_gid));
    if uid.is_some() || gid.is_some() {
        chownat(dir, name, uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => directory(open_dir(dir, name)?),
        _ => Ok(()),
    }
}

/// How it hides a name where it may make no device.
fn whiteout(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e),
    }
}
