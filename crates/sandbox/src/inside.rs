//! Doing something as root of a running environment, by this program's own code: with no more rights than a program inside has where root
//! may not mount.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::{Signal, chdir, set_parent_process_death_signal, setsid, umask};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::ns::unshare_network;
use skiff_sys::process::CloneFlags;

use crate::confine::Confinement;
use crate::program;

/// The process, in messages.
const NAME: &str = "process in the environment";
/// How long it may take. Root inside can mount what never answers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What hangs there.
pub(crate) fn not_answered() -> Fault {
    Fault::new(format!("the environment's files have not answered within {} s", PATIENCE.as_secs()))
        .hint("unmount what hangs inside, or end the environment: skiff env stop NAME")
}

/// Runs `act` in a process in the environment whose process 1 is `init`; gives what that gave. The processes that `act` starts are the environment's.
///
/// # Errors
/// The process's own, or that the environment is gone.
pub fn act_inside<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let child = ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::All, || {
        become_root(init, Isolation::None)?;
        act()
    })?;
    child.end_by(Instant::now() + PATIENCE)?.ok_or_else(not_answered)
}

/// Begins what starts programs of the environment, by [`program::run_program`]. These have less than those of a session have: a network namespace of
/// their own with nothing in it, no terminal, no variable, and no descriptor of this process but `keep`. They end when this process ends.
///
/// # Errors
/// When there can be no such process.
pub fn begin_isolated<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> Result<T>,
) -> Result<ReportingChild<T>> {
    let kept = [keep, &[init]].concat();
    ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::Only(&kept), || {
        setsid().context(|| "session of the process in the environment")?;
        program::close_standard()?;
        become_root(init, Isolation::Full)?;
        chdir("/").context(|| "root of the environment")?;
        umask(Mode::from_raw_mode(0o022));
        act()
    })
}

/// Begins what takes as long as it takes, as [`act_inside`] does it. Of this process's descriptors it has the standard ones and `keep`.
///
/// # Errors
/// When there can be no such process.
pub fn begin_inside<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    keep: &[BorrowedFd<'_>],
    act: impl FnOnce() -> T,
) -> Result<ReportingChild<T>> {
    let kept = [keep, &[init]].concat();
    ReportingChild::begin(NAME, CloneFlags::NONE, Descriptors::Only(&kept), || {
        become_root(init, Isolation::None)?;
        Ok(act())
    })
}

/// What a process in an environment has of its caller's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Isolation {
    /// Network and System V IPC: it runs nothing of the environment's.
    None,
    /// Nothing.
    Full,
}

/// Goes into the environment. Nobody in it sees this process, which stays in the PID namespace that it is in.
fn become_root(init: BorrowedFd<'_>, isolation: Isolation) -> Result<()> {
    let mut spaces = ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::PROCESS_ID;
    if isolation == Isolation::Full {
        spaces |= ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    }
    move_into_thread_name_spaces(init, spaces)
        .context(|| "the environment's namespaces")
        .map_err(|e| e.hint("the environment may just have been stopped"))?;
    if isolation == Isolation::Full {
        // Not the environment's network either: of a site's network it may be that only its sessions are on it.
        unshare_network().context(|| "network namespace of the process in the environment")?;
    }
    Confinement::STRICT.drop_bounding()?;
    // Only now: a change of credentials takes this back.
    set_parent_process_death_signal(Some(Signal::KILL)).context(|| "signal at the caller's end")?;
    Confinement::STRICT.confine(true)
}
