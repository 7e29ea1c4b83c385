//! `/run/skiff`, where the helper keeps what lives until the next boot.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use skiff_spec::fault::{Context, Result};

use crate::files::refuse_unless_owned;

/// The directory's path.
pub const DIR: &str = "/run/skiff";

/// The directory, made and checked: nobody but root may put things there.
pub fn dir() -> Result<OwnedFd> {
    let name = || DIR;
    match rustix::fs::mkdir(DIR, Mode::from_raw_mode(0o755)) {
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
