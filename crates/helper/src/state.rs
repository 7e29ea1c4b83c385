//! `/run/skiff`, where the helper keeps what lives until the next boot.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, chownat, fstat, mkdirat, openat2};
use rustix::io::Errno;
use skiff_spec::fault::{Context, Result};

use crate::files::refuse_unless_owned;

/// The directory's path.
pub const DIR: &str = "/run/skiff";

/// Makes a directory of root's group, too: it would have that of whoever calls the helper first.
pub fn make(at: impl AsFd, name: &str, mode: u32) -> rustix::io::Result<()> {
    mkdirat(&at, name, Mode::from_raw_mode(mode))?;
    chownat(&at, name, None, Some(Gid::ROOT), AtFlags::SYMLINK_NOFOLLOW)
}

/// The directory, made and checked: nobody but root may put things there.
pub fn dir() -> Result<OwnedFd> {
    let name = || DIR;
    match make(CWD, DIR, 0o755) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => {
            return Err(e)
                .context(name)
                .map_err(|e| e.hint("the helper keeps its state there: /run must be writable"));
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(CWD, DIR, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).context(name)?;
    refuse_unless_owned(&fstat(&dir).context(name)?, Path::new(DIR), 0o022, 0).map(|()| dir)
}
