//! `refresh`: makes a view of the host's root forget what it looked up, so that the administrator's changes show.
//!
//! The view was mounted by root, so only root can tell it so; the user's overlay above it they refresh themselves. Asking it of
//! another overlay than ours does nothing but cost it its cache: nothing about it is changed.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
use skiff_spec::fault::{Context, Fault as Error, Result};

const OVERLAY_MAGIC: u64 = 0x794c_7630;

/// Forgets the cache of the overlay that the descriptor given along lies in, which must be the root of its mount.
pub fn forget(fds: &[OwnedFd]) -> Result<()> {
    let [dir] = fds else { return Err(Error::new("refresh takes one descriptor")) };
    let stat = rustix::fs::fstatfs(dir).context(|| "view")?;
    if stat.f_type as u64 != OVERLAY_MAGIC {
        return Err(Error::new("refresh: not a view of the host's root"));
    }
    // To lose its cache again and again would make an overlay that all use slow for all (`/` of a node without a disk is one).
    if is_hosts(dir).context(|| "view")? {
        return Err(Error::new("refresh: that is a mount of the host's"));
    }
    match reconfigure(dir, false) {
        // Such is an overlay that has no upper, as our view: it wants to hear that it stays so. Another's must not be told,
        // or any user could make it read-only.
        Err(Errno::ROFS) => reconfigure(dir, true),
        other => other,
    }
    .context(|| "view: forgetting what was looked up")
}

/// Whether a directory's file system is mounted in the mount namespace that we, and so the caller, are in. An environment's is mounted in its
/// own only. (By the file system's number, not the mount's: a copy of a mount has another one.)
fn is_hosts(dir: &OwnedFd) -> std::io::Result<bool> {
    let device = rustix::fs::fstat(dir)?.st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    Ok(mounts
        .split(|byte| *byte == b'\n')
        .any(|line| line.split(|byte| *byte == b' ').nth(2) == Some(device.as_bytes())))
}

fn reconfigure(dir: &OwnedFd, read_only: bool) -> rustix::io::Result<()> {
    let fs = fspick(dir, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    if read_only {
        fsconfig_set_flag(&fs, "ro")?;
    }
    fsconfig_reconfigure(&fs)
}
