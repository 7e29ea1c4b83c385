//! Doing something as root of a running environment, by this program's own code: with no more rights than a program inside has where root
//! may not mount.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::process::CloneFlags;

use crate::confine::Confinement;

/// How long it may take. Root inside can mount what never answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `act` in a process in the environment whose process 1 is `init`; gives what that gave. The processes that `act` starts are the environment's.
///
/// # Errors
/// The process's own, or that the environment is gone.
pub fn act_inside<T: Serialize + DeserializeOwned>(
    init: BorrowedFd<'_>,
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let child =
        ReportingChild::begin("process in the environment", CloneFlags::NONE, Descriptors::All, || {
            let spaces =
                ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::PROCESS_ID;
            move_into_thread_name_spaces(init, spaces).context(|| "the environment's namespaces")?;
            Confinement::STRICT.drop_bounding()?;
            Confinement::STRICT.confine(true)?;
            act()
        })?;
    child.end_by(Instant::now() + PATIENCE)?.ok_or_else(|| {
        Fault::new(format!("the environment's files have not answered within {} s", PATIENCE.as_secs()))
            .hint("is something mounted in it that hangs? `skiff env stop` ends it")
    })
}
