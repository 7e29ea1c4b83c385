//! What belongs to no process: System V objects and POSIX message queues of the instance's IPC namespace. CRIU works in that namespace, takes
//! it for its own, and leaves all of it out. They are kept by [`crate::sysv`] and [`crate::posix_queues`], as far as that can be.

use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::EnterTarget;
use skiff_spec::fault::Result;
use skiff_sys::sysv::Kind;

use super::keys;
use crate::mappings::NamedFiles;
use crate::posix_queues;
use crate::sysv_tables::{self as sysv, Entry};
use crate::waiting::WaitingProcess;

/// What there is of these and of keys in the instance, as it is told to the user.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SpaceReport {
    /// What cannot be saved.
    pub obstacles: Vec<String>,
    /// What may be of keys.
    pub notes: Vec<String>,
    /// Mapped files that have names. (Who is not inside may not get there.)
    pub named_files: NamedFiles,
}

/// A process inside that looks when it is asked: for processes, by their numbers inside.
pub(crate) type WaitingLook = WaitingProcess<Vec<i32>, SpaceReport>;

/// Starts it.
///
/// # Errors
/// When there are no processes or descriptors to be had.
pub(crate) fn begin_look(inside: EnterTarget<'_>) -> Result<WaitingLook> {
    WaitingProcess::begin(inside, &[], |processes: Vec<i32>| {
        let mut found = SpaceReport::default();
        for (kind, what) in [
            (Kind::Semaphores, "System V semaphores"),
            (Kind::Queue, "System V message queues"),
            (Kind::Segment, "System V shared memory"),
        ] {
            let keys = keys_of(&sysv::table(kind)?);
            if keys.is_none() || sysv::can_number(kind) {
                continue;
            }
            let why = |keys| format!("{what} ({keys}): this kernel cannot restore their ids");
            found.obstacles.extend(keys.map(why));
        }
        let why =
            |name| format!("POSIX message queue /{name}: a process waits to be notified of it (mq_notify)");
        found.obstacles.extend(posix_queues::notified()?.into_iter().map(why));
        let (held, apart) = keys::look()?;
        found.obstacles.extend(held);
        found.notes = apart;
        found.named_files = NamedFiles::of(processes.iter().copied());
        Ok(found)
    })
}

/// The keys of these objects, if there are any.
fn keys_of(entries: &[Entry]) -> Option<String> {
    let keys: Vec<String> = entries.iter().map(|entry| format!("key {:#x}", entry.key)).collect();
    (!keys.is_empty()).then(|| keys.join(", "))
}
