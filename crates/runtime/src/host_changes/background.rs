//! The full look, by a child of the supervisor that nobody waits for.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, WaitStatus, nice, set_parent_process_death_signal};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

use super::full::FullLook;
use super::state::HostState;
use super::watch::{HostWatch, watch_all};
use super::{TICK, ViewOfHost, full, quick};
use crate::package_database;

/// The least time from one full look to the next, and the longest: on a busy host a look takes long, and costs no more for that.
const REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(10);
/// How many times as long as a look took nothing is looked at: on a host that is not busy this takes a fiftieth of a processor at most.
const SHARE: u32 = 50;
/// The environment's first command goes first.
const PAUSE: Duration = Duration::from_millis(50);

/// Exit codes of the child: the environment sees all that there is in the directories of the quick look and in the host's package database,
/// and they are watched; or not.
const SEEN: i32 = 0;
const NOT_SURE: i32 = 1;

/// The full looks of a running environment, one at a time.
pub struct BackgroundLook {
    /// Since when the environment sees what the host has.
    begun: SystemTime,
    /// When the next one is due; nothing before the first.
    due: Option<Instant>,
    child: Option<(Pid, Instant)>,
    /// A session has begun since the last look did.
    is_wanted: bool,
    watch: Option<HostWatch>,
}

impl BackgroundLook {
    /// For an environment that is about to begin.
    pub fn from_now() -> Self {
        let begun = SystemTime::now() - TICK;
        Self { begun, due: None, child: None, is_wanted: false, watch: HostWatch::new() }
    }

    /// How long until [`Self::begin`] is to be called again, for a session that has begun too early for a look.
    pub fn patience(&self) -> Option<Duration> {
        let due = self.due.filter(|_| self.is_wanted && self.child.is_none())?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// Begins one for the environment in `dir`, or notes that one is wanted once it is due.
    pub fn begin(&mut self, dir: &Path, helper: &Path, init: &Child) {
        let (is_first, now) = (self.due.is_none(), Instant::now());
        self.is_wanted = self.child.is_some() || self.due.is_some_and(|due| now < due);
        if self.is_wanted {
            return;
        }
        self.due = Some(now + REST);
        self.watch.iter_mut().for_each(HostWatch::begin);
        match fork(CloneFlags::NONE) {
            Ok(Fork::Parent(child)) => self.child = Some((child.pid, now)),
            Ok(Fork::Child) => {
                // Whoever waits for the environment's end must not wait for this.
                let inotify = self.watch.as_ref().map(AsFd::as_fd);
                let kept: Vec<_> = inotify.into_iter().chain([init.pidfd.as_fd()]).collect();
                close_all_except(&kept);
                let view = ViewOfHost { dir, helper, init: init.pidfd.as_fd() };
                let done = set_parent_process_death_signal(Some(Signal::KILL))
                    .context(|| "signal at the supervisor's end")
                    .and_then(|()| if is_first { first(dir, self.begun) } else { again(&view) });
                let is_seen = done.is_ok()
                    && inotify.is_some_and(|inotify| watch_all(inotify, dir))
                    && package_database::is_up_to_date(dir);
                exit_now(if is_seen { SEEN } else { NOT_SURE })
            }
            // The next session tries again.
            Err(_) => {}
        }
    }

    /// Whether the environment is known to see all that a quick look would find.
    pub fn is_unchanged(&mut self) -> bool {
        self.watch.as_mut().is_some_and(HostWatch::is_unchanged)
    }

    /// Notes that a child of the supervisor has ended.
    pub fn reaped(&mut self, pid: Pid, status: WaitStatus) {
        if let Some((_, begun)) = self.child.take_if(|(child, _)| *child == pid) {
            self.due = Some(Instant::now() + (begun.elapsed() * SHARE).clamp(REST, LONGEST_REST));
            let sees_all = status.exit_status() == Some(SEEN);
            self.watch.iter_mut().for_each(|watch| watch.end(sees_all));
        }
    }
}

/// Writes down what there was when the environment began; what has changed since then is unknown.
fn first(dir: &Path, begun: SystemTime) -> Result<()> {
    std::thread::sleep(PAUSE);
    HostState { dirs: quick::directories(begun), full: None }.write(dir)?;
    make_way();
    let noted = package_database::note_base(dir);
    let found = full::look(None).look.sure(begun);
    // A session may have refreshed meanwhile.
    let known = HostState::read(dir).unwrap_or_default();
    HostState { full: Some(found), ..known }.write(dir)?;
    // A database that cannot be read hides no other change.
    noted
}

fn again(view: &ViewOfHost<'_>) -> Result<()> {
    make_way();
    let noted = package_database::note_base(view.dir);
    let known = HostState::read(view.dir).unwrap_or_default();
    let found = full::look(None).look;
    match is_seen(&known, found) {
        true => Ok(()),
        false => view.forget(Some(found)),
    }?;
    noted
}

/// Whether an environment that knows this sees all that a look has found. If the first look has not come to its end, nothing is known.
/// The full look leaves out /var, where the quick look, whose time is short, may have missed a change.
fn is_seen(known: &HostState, found: FullLook) -> bool {
    known.full.is_some_and(|full| full.is_same(found)) && known.changed().is_empty()
}

fn make_way() {
    nice(19).ignore_error("it takes its turn as others do");
}

#[cfg(test)]
mod tests {
    use super::super::walk::{ChangeTime, stamp};
    use super::*;

    #[test]
    fn a_change_that_the_full_look_leaves_out_is_not_seen() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = vec![(dir.path().to_owned(), stamp(&rustix::fs::stat(dir.path()).unwrap()))];
        let look = |sum| FullLook { sum: Some(sum), newest: ChangeTime::default() };
        let known = HostState { dirs, full: Some(look(1)) };
        assert!(is_seen(&known, look(1)));
        assert!(!is_seen(&known, look(2)), "another sum");
        assert!(!is_seen(&HostState { full: None, ..known.clone() }, look(1)), "no full look yet");
        assert!(!is_seen(&HostState::default(), look(1)), "nothing is known");
        std::fs::remove_dir(dir.path()).unwrap();
        assert!(!is_seen(&known, look(1)), "a directory of the quick look alone");
    }

    #[test]
    fn a_session_that_begins_too_early_for_a_look_gets_one_later() {
        let mut look = BackgroundLook { is_wanted: true, ..BackgroundLook::from_now() };
        assert_eq!(look.patience(), None, "the first is begun without a session");
        look.due = Some(Instant::now() + Duration::from_secs(100));
        assert!(look.patience().is_some_and(|left| left > Duration::from_secs(90)));
        look.due = Some(Instant::now());
        assert_eq!(look.patience(), Some(Duration::ZERO));
        look.child = Some((rustix::process::getpid(), Instant::now()));
        assert_eq!(look.patience(), None, "one at a time");
        (look.child, look.is_wanted) = (None, false);
        assert_eq!(look.patience(), None, "nobody wants one");
    }
}
