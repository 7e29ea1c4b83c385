//! Work that must not take longer than so long, as it waits for file servers or for other programs.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::process::CloneFlags;

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
