//! What commands that were killed have left of checkpoints that they made or removed.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_user::checkpoints::homes;
use skiff_user::context::UserContext;
use skiff_user::dirs;

use super::renames::lock_and_undo;
use crate::stored;

/// What was killed while it was made or removed.
pub fn leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let homes = homes(context)?;
    homes.iter().for_each(|home| {
        lock_and_undo(home).ignore_error("whoever publishes the next one does it");
    });
    Ok(homes.iter().flat_map(|home| dirs::leftovers(home)).collect())
}

/// Removes it.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let left = leftovers(context)?;
    for dir in &left {
        fs::remove_dir_all(dir).context(|| dir.display().to_string())?;
    }
    homes(context)?.iter().for_each(|home| stored::tell_uncollected(stored::collect(home)));
    Ok(left)
}

/// Removes what commands of this host that were killed have left, in all directories of checkpoints.
pub fn remove_all_left(context: &UserContext) {
    for home in homes(context).default_on_error("who looks for checkpoints says why") {
        remove_left(&home).ignore_error("`skiff sweep` removes what stays, and says why it cannot");
    }
}

/// The same in `home`: it may be as large as a checkpoint.
pub(super) fn remove_left(home: &Path) -> Result<()> {
    if dirs::leftovers(home).is_empty() {
        return Ok(());
    }
    lock_and_undo(home)?;
    for left in dirs::leftovers(home) {
        // Whoever makes it may have its number in another PID namespace.
        if let Some(_held) = lock_dir(&left)? {
            fs::remove_dir_all(&left).context(|| left.display().to_string())?;
        }
    }
    Ok(())
}

/// Locks the directory of a new checkpoint; nothing if somebody else has it.
pub(super) fn lock_dir(dir: &Path) -> Result<Option<OwnedFd>> {
    let about = || dir.display().to_string();
    let file = fs::File::open(dir).context(about)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file.into())),
        Err(Errno::AGAIN) => Ok(None),
        Err(e) => Err(e).context(about),
    }
}
