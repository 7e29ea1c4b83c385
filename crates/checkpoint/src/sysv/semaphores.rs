//! Sets of semaphores.

use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::sysv::{self, Kind};

use super::object::{as_process, named};
use crate::sysv_tables::{Entry, SystemVObject};

/// A set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Semaphores {
    pub(super) object: SystemVObject,
    /// Whether anybody has waited for or changed one: programs tell by it whether they must set them first.
    pub(super) used: bool,
    /// Value of each, and the process that has last changed it.
    pub(super) all: Vec<(u16, i32)>,
}

impl Semaphores {
    pub(super) fn read(entry: Entry) -> Result<Self> {
        let about = || named(Kind::Semaphores, entry.id);
        let count = i32::try_from(entry.size).map_err(|_| Fault::new(about()))?;
        let mut all = vec![];
        for number in 0..count {
            let value = sysv::semaphore_value(entry.id, number).context(about)?;
            all.push((value, sysv::semaphore_pid(entry.id, number).context(about)?));
        }
        // When one was last used.
        let used = entry.number(8) != 0;
        Ok(Self { object: entry.object, used, all })
    }

    pub(super) fn make(&self) -> Result<()> {
        let id = self.object.id;
        let about = || named(Kind::Semaphores, id);
        let count = i32::try_from(self.all.len()).map_err(|_| Fault::new(about()))?;
        self.object.make(Kind::Semaphores, 0, |key, mode| sysv::create_semaphores(key, count, mode))?;
        if self.used {
            // All are zero yet. One that somebody has changed is changed again below.
            let changed = self.all.iter().position(|(_, process)| *process != 0).unwrap_or(0);
            let number = u16::try_from(changed).map_err(|_| Fault::new(about()))?;
            let process = self.all.get(changed).map_or(0, |(_, process)| *process);
            as_process(process, (0, 0), || sysv::use_semaphores(id, number)).context(about)?;
        }
        let mut processes: Vec<i32> = self.all.iter().map(|(_, process)| *process).collect();
        processes.sort_unstable();
        processes.dedup();
        for process in processes {
            let of_it = || (0..).zip(&self.all).filter(|(_, (_, last))| *last == process);
            // One that nobody has changed is zero as it is.
            let changed = || of_it().filter(|(_, (value, last))| *last != 0 || *value != 0);
            if changed().next().is_some() {
                as_process(process, (0, 0), || {
                    changed().try_for_each(|(number, (value, _))| sysv::set_semaphore(id, number, *value))
                })
                .context(about)?;
            }
        }
        self.object.set_owner(Kind::Semaphores, 0)
    }
}
