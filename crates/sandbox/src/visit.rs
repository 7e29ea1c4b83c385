//! Doing something as root of the user's own ids, without an environment: comparing, packing and removing layers whose files
//! belong to several of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context, Result};
use skiff_spec::plan::Base;
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, close_inherited};

use crate::helper::Helper;
use crate::map;
use crate::start::die_with_maker;

/// Runs `act` in a process that is root of a new user namespace with the user's ids; gives what it gave. `act` gets the view of
/// `base` where the helper makes one.
///
/// # Errors
/// Its own, or that the namespace could not be had.
pub fn as_root_of_ids<T: Serialize + DeserializeOwned>(
    helper: Option<&Path>,
    base: Base,
    act: impl FnOnce(Option<OwnedFd>) -> Result<T>,
) -> Result<T> {
    as_root_of_ids_watched((helper, base), act, || ())
}

/// The same; while it takes long, `waiting` is called each second.
///
/// # Errors
/// As [`as_root_of_ids`].
pub fn as_root_of_ids_watched<T: Serialize + DeserializeOwned>(
    (helper, base): (Option<&Path>, Base),
    act: impl FnOnce(Option<OwnedFd>) -> Result<T>,
    waiting: impl FnMut(),
) -> Result<T> {
    let helper = helper.map(|program| Helper::spawn_for(program, base)).transpose()?;
    let (go, gate) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let child = ReportingChild::begin(NAME, CloneFlags::USER, Descriptors::All, || {
        close_inherited(&[gate.as_fd()]);
        die_with_maker(go.as_fd())?;
        let view = match &helper {
            Some(helper) => Some(helper.layers()?.view),
            None => rustix::io::read(&go, &mut [0]).map(|_| None).context(|| "pipe")?,
        };
        act(view)
    });
    let child = child.map_err(|e| e.hint("`skiff doctor` says whether users may have a user namespace"))?;
    let asked = match &helper {
        Some(helper) => helper.ask_for(base, child.pid()),
        None => {
            map::write(child.pid()).and_then(|_| rustix::io::write(&gate, &[1]).map(drop).context(|| "pipe"))
        }
    };
    if asked.is_err() {
        // It waits for the answer.
        kill_process(child.pid(), Signal::KILL).ignore_error("it may have ended by itself");
    }
    let done = child.end_watched(SECOND, waiting);
    // Not before: until the child has its answer the helper is needed.
    helper.into_iter().for_each(Helper::finish);
    asked.and(done)
}

const SECOND: Duration = Duration::from_secs(1);
/// The child, in messages.
const NAME: &str = "process in a new user namespace";
