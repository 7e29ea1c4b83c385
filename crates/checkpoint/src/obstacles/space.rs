//! What belongs to no process: System V objects and POSIX message queues of the instance's IPC namespace. CRIU works in that namespace, takes
//! it for its own, and leaves all of it out. System V objects are kept by [`crate::sysv`], as far as that can be.

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::sysv::Kind;

use super::keys;
use crate::mappings::SharedMemory;
use crate::sysv_tables::{self as sysv, Entry};

/// What there is of these and of keys in the instance, as it is told to the user.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SpaceReport {
    /// What cannot be saved.
    pub obstacles: Vec<String>,
    /// Processes that may have semaphores to be set back when they end.
    pub undo_lists: Vec<i32>,
    /// What may be of keys.
    pub notes: Vec<String>,
    /// `/dev/shm`, if that is in memory. (Who is not inside may not get there.)
    pub shared_memory: SharedMemory,
}

/// Looks at the instance of these processes, which are given with their threads.
///
/// # Errors
/// When the instance has ended.
pub(super) fn look(inside: EnterTarget<'_>, processes: &[(i32, Vec<i32>)]) -> Result<SpaceReport> {
    enter::run(EnterTarget { number: None, ..inside }, &[], || {
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
        if !sysv::table(Kind::Semaphores)?.is_empty() {
            found.undo_lists = sysv::with_undo_lists(processes)?;
        }
        let queues = queues()?.into_iter();
        found.obstacles.extend(queues.map(|name| format!("POSIX message queue /{name}: it would be empty")));
        let (held, apart) = keys::look()?;
        found.obstacles.extend(held);
        found.notes = apart;
        found.shared_memory = SharedMemory::of(processes.iter().map(|(process, _)| *process));
        Ok(found)
    })
}

/// The keys of these objects, if there are any.
fn keys_of(entries: &[Entry]) -> Option<String> {
    let keys: Vec<String> = entries.iter().map(|entry| format!("key {:#x}", entry.key)).collect();
    (!keys.is_empty()).then(|| keys.join(", "))
}

/// The names of the namespace's queues, whether or not anybody has mounted them.
fn queues() -> Result<Vec<String>> {
    let about = || "POSIX message queues";
    let Ok(context) = fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC) else {
        // A kernel without them.
        return Ok(vec![]);
    };
    fsconfig_create(&context).context(about)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).context(about)?;
    let root = openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let entries = Dir::new(root.context(about)?).context(about)?;
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let names =
        entries.map(|entry| entry.map(name)).collect::<rustix::io::Result<Vec<_>>>().context(about)?;
    Ok(names.into_iter().filter(|name| name != "." && name != "..").collect())
}
