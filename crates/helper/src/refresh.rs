//! `refresh`: makes a view of the host's root forget what it looked up, so that the administrator's changes show.
//!
//! The view was mounted by root, so only root can tell it so; the user's overlay above it he refreshes himself. Asking it of
//! another overlay than ours does nothing but cost it its cache: nothing about it is changed.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
use skiff_sandbox::{Context, Error, Result};

const OVERLAY_MAGIC: u64 = 0x794c_7630;

/// Forgets the cache of the overlay that the descriptor given along lies in, which must be the root of its mount.
pub fn forget(fds: &[OwnedFd]) -> Result<()> {
    let [dir] = fds else { return Err(Error::new("refresh takes one descriptor")) };
    let stat = rustix::fs::fstatfs(dir).context(|| "view")?;
    if stat.f_type as u64 != OVERLAY_MAGIC {
        return Err(Error::new("refresh: that is no view of the host's root"));
    }
    match reconfigure(dir, false) {
        // Such is an overlay that has no upper, as our view: it wants to hear that it stays so. Another's must not be told,
        // or any user could make it read-only.
        Err(Errno::ROFS) => reconfigure(dir, true),
        other => other,
    }
    .context(|| "view: forgetting what was looked up")
}

fn reconfigure(dir: &OwnedFd, read_only: bool) -> rustix::io::Result<()> {
    let fs = fspick(dir, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    if read_only {
        fsconfig_set_flag(&fs, "ro")?;
    }
    fsconfig_reconfigure(&fs)
}
