//! Work that must not take longer than so long, as it waits for file servers or for other programs.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_sandbox::start::{detach_stdio, reap};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exit_now, fork};

/// Does something in a process of its own, which messages call `name`; nothing if it is not done by `end`. One that waits for a dead file server cannot be
/// killed before that answers, so it is left behind, and holds nothing of ours.
pub fn until<T: Serialize + DeserializeOwned>(
    name: &'static str,
    end: Instant,
    act: impl FnOnce() -> Result<T>,
) -> Result<Option<T>> {
    until_with(name, end, &[], act)
}

/// The same in a process that keeps these descriptors.
pub fn until_with<T: Serialize + DeserializeOwned>(
    name: &'static str,
    end: Instant,
    kept: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<Option<T>> {
    let child = ReportingChild::begin(name, CloneFlags::NONE, Descriptors::Only(kept), || {
        set_parent_process_death_signal(Some(Signal::KILL)).context(|| "parent's death signal")?;
        act()
    });
    child?.end_by(end)
}

/// Does something of little importance in a process that nobody waits for, for at most `limit`. It is not a child of this process, since nobody here
/// would reap it. `otherwise` says what it means that it fails.
pub fn in_background(
    name: &'static str,
    limit: Duration,
    otherwise: &'static str,
    act: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match fork(CloneFlags::NONE).context(|| "fork")? {
        Fork::Parent(child) => reap(child.pid),
        Fork::Child => {
            if let Ok(Fork::Child) = fork(CloneFlags::NONE) {
                close_all_except(&[]);
                detach_stdio();
                until(name, Instant::now() + limit, act).ignore_error(otherwise);
            }
            exit_now(0)
        }
    }
    Ok(())
}
