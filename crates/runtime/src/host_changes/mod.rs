//! What the administrator has created, removed or renamed on the host while an environment runs: an overlay remembers the names that it has
//! looked up, and must be made to forget them. Files changed in place show without that.
//!
//! The sign is the change time (ctime) of a directory, which each of these sets and nobody can set back. A *quick look* takes some
//! hundred directories and less than a millisecond, at each session; a *full look* takes all, in the background. Where the kernel tells the
//! supervisor of changes in the directories of the quick look, sessions look only after one.
//! See docs/decisions/024-the-hosts-changes-show-by-themselves.md.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use skiff_sandbox::refresh;
use skiff_spec::fault::Result;
use skiff_spec::plan::inside;

mod background;
mod full;
mod quick;
mod state;
mod walk;
mod watch;

pub use background::BackgroundLook;
use full::FullLook;
use state::HostState;

/// How long a session may be held up by a look that finds nothing.
const QUICK: Duration = Duration::from_micros(800);

/// A directory that changed so recently may change again and have the same time after it: file systems count in ticks of the kernel.
const TICK: Duration = Duration::from_millis(100);

/// A running environment, as far as it takes to make it see the host's changes.
pub struct ViewOfHost<'a> {
    /// Directory of the environment.
    pub dir: &'a Path,
    /// The helper.
    pub helper: &'a Path,
    /// PID 1 of the environment, as a pidfd.
    pub init: std::os::fd::BorrowedFd<'a>,
}

/// Looks at the directories in which changes are likely, within a millisecond; if there are any, the environment sees all the host has.
///
/// # Errors
/// When something has changed and the environment could not be made to see it.
pub fn look(view: &ViewOfHost<'_>) -> Result<()> {
    // To read what is known takes a part of the time, or all.
    let until = Instant::now() + QUICK;
    // Without a state the environment has just begun, and its supervisor writes one.
    let Some(known) = HostState::read(view.dir) else { return Ok(()) };
    if !known.has_changed(until) {
        return Ok(());
    }
    view.forget(known.full)
}

/// Makes the environment see all the host has; gives the directories that have changed since it last did.
///
/// # Errors
/// When the environment could not be made to see them, or a directory of the environment is not the user's.
pub fn refresh(view: &ViewOfHost<'_>) -> Result<Vec<PathBuf>> {
    let known = HostState::read(view.dir).unwrap_or_default();
    let mut changed = known.changed();
    let full = full::look(known.full.map(|full| full.newest));
    changed.extend(full.newer);
    changed.sort();
    changed.dedup();
    view.forget(Some(full.look))?;
    Ok(changed)
}

impl ViewOfHost<'_> {
    /// Makes the kernel forget. What is written down is what was there before: all that comes later shows as a change.
    fn forget(&self, full: Option<FullLook>) -> Result<()> {
        let since = SystemTime::now() - TICK;
        let new = HostState { dirs: quick::directories(since), full };
        refresh::refresh(Some(self.helper), self.init.as_fd(), inside::HOST)?;
        new.write(self.dir)
    }
}
