//! `refresh`: makes a view of the host's root forget what it looked up, so that the administrator's changes show.
//!
//! The view was mounted by root, so only root can tell it so; the user's overlay above it he refreshes himself. Asking it of
//! another overlay than ours does nothing but cost it its cache: no option is given.

use std::os::fd::OwnedFd;

use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};
use skiff_sandbox::{Context, Error, Result};

const OVERLAY_MAGIC: u64 = 0x794c_7630;

/// Forgets the cache of the overlay that the descriptor given along lies in, which must be the root of its mount.
pub fn forget(fds: &[OwnedFd]) -> Result<(u32, Vec<OwnedFd>)> {
    let [dir] = fds else { return Err(Error::new("refresh takes one descriptor")) };
    let stat = rustix::fs::fstatfs(dir).context(|| "view")?;
    if stat.f_type as u64 != OVERLAY_MAGIC {
        return Err(Error::new("refresh: that is no view of the host's root"));
    }
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let fs = fspick(dir, "", flags).context(|| "view")?;
    fsconfig_reconfigure(&fs).context(|| "view")?;
    Ok((0, vec![]))
}
