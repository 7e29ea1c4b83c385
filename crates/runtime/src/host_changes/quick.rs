//! The directories in which an administrator's changes are likely.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::state::HostState;
use super::walk::{ChangeTime, DirStamp, DirWalk};

/// Where package managers keep their databases first: hardly anything changes without them.
const LIKELY: [(&str, usize); 12] = [
    ("/var/lib/dpkg", 0),
    ("/var/lib/rpm", 0),
    ("/usr/lib/sysimage/rpm", 0),
    ("/var/lib/pacman/local", 0),
    ("/", 0),
    ("/var", 0),
    ("/var/lib", 0),
    ("/usr/local", 3),
    ("/opt", 2),
    ("/srv", 1),
    ("/etc", 2),
    ("/usr", 2),
];
/// More than this cannot be looked at in the time that there is.
const MOST: usize = 2000;
/// The time to list them all, which happens after a change only.
const LIST: Duration = Duration::from_secs(1);
/// How often the clock is asked.
const STRIDE: usize = 32;

/// The directories with the time of their last change. Those that have changed since `unsure` are recorded as unknown.
pub(super) fn directories(unsure: SystemTime) -> Vec<(PathBuf, DirStamp)> {
    let unsure = ChangeTime::from(unsure);
    let (mut seen, mut found) = (BTreeSet::new(), vec![]);
    let mut visit = |path: &Path, stamp: DirStamp| {
        if seen.insert(path.to_owned()) {
            found.push((path.to_owned(), if stamp.changed < unsure { stamp } else { DirStamp::default() }));
        }
    };
    let mut walk = DirWalk::begin(MOST, Instant::now() + LIST, &mut visit);
    LIKELY.iter().for_each(|(path, depth)| walk.tree(Path::new(path), *depth));
    found
}

impl HostState {
    /// Whether any of the directories has changed, as far as the time suffices. The likeliest are looked at in any case: to read the
    /// state from a file server may have taken all of it.
    pub(super) fn has_changed(&self, until: Instant) -> bool {
        let mut chunks = self.dirs.chunks(STRIDE).enumerate();
        chunks.any(|(at, dirs)| (at == 0 || Instant::now() < until) && dirs.iter().any(is_changed))
    }

    /// The directories that have changed.
    pub(super) fn changed(&self) -> Vec<PathBuf> {
        self.dirs.iter().filter(|dir| is_changed(dir)).map(|(path, _)| path.clone()).collect()
    }
}

fn is_changed((path, known): &(PathBuf, DirStamp)) -> bool {
    // No automount is made for this, and no file server asked for what is known of it.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, path, flags, StatxFlags::INO | StatxFlags::CTIME) {
        Ok(now) => {
            let changed = ChangeTime(now.stx_ctime.tv_sec, now.stx_ctime.tv_nsec);
            *known != DirStamp { inode: now.stx_ino, changed }
        }
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::stamp;
    use super::*;

    #[test]
    fn the_likeliest_are_looked_at_even_when_no_time_is_left() {
        let root = (PathBuf::from("/"), stamp(&rustix::fs::stat("/").unwrap()));
        let missing = (PathBuf::from("/nosuch"), DirStamp::default());
        let state = |at: usize| {
            let mut dirs = vec![root.clone(); STRIDE + 1];
            dirs[at] = missing.clone();
            HostState { dirs, full: None }
        };
        let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(100));
        assert!(state(STRIDE - 1).has_changed(past));
        assert!(!state(STRIDE).has_changed(past) && state(STRIDE).has_changed(future));
    }
}
