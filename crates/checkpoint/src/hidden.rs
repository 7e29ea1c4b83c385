//! What the kernel shows of a process to that process alone, and CRIU leaves out: it is asked while it stands still. A process that came back
//! without what confines it could do more than before.

use std::io;

use rustix::io::Errno;
use rustix::process::Pid;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::landlock;
use skiff_sys::process::{Shared, positive_pid};
use skiff_sys::traced::{Traced, TracedThrough};

use crate::obstacles::SavedProcess;

/// Refuses processes, which `tracer` has stopped, that Landlock confines, that may not run what they have written (`PR_SET_MDWE`), or that have tiles.
///
/// # Errors
/// One is such, or cannot be asked.
pub(crate) fn refuse(processes: &[SavedProcess], tracer: Option<i32>) -> Result<()> {
    let Some(tracer) = tracer.and_then(positive_pid) else { return Ok(()) };
    let first = processes.first().and_then(|process| positive_pid(process.pid));
    let traced = Traced::stop(tracer).context(|| "CRIU")?;
    let reference =
        first.filter(|_| landlock::version().is_some()).and_then(|pid| Reference::of(&traced, pid));
    let found = processes.iter().find_map(|process| {
        // Landlock confines threads, each by itself.
        let threads = process.threads.iter().filter_map(|thread| positive_pid(*thread));
        let why = threads.map(|thread| {
            let reference = reference.as_ref().filter(|reference| reference.is_for(thread));
            confined(&TracedThrough::new(&traced, thread), reference)
        });
        match why.fold(Ok(None), first_of) {
            Ok(None) => None,
            Ok(Some(why)) => {
                let (pid, name) = (process.pid, &process.name);
                Some(Fault::new(format!("it cannot be saved: process {pid} ({name}): {why}")))
            }
            // It has ended, and not been waited for.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::SRCH) => None,
            Err(e) => Some(Fault::new(format!("process {}: what confines it: {e}", process.pid))),
        }
    });
    traced.release().context(|| "CRIU")?;
    found.map_or(Ok(()), Err)
}

/// The first that confines something, or that failed otherwise than by having ended.
fn first_of(
    found: io::Result<Option<&'static str>>,
    next: io::Result<Option<&'static str>>,
) -> io::Result<Option<&'static str>> {
    match (found, next) {
        (Ok(None), Err(e)) if Errno::from_io_error(&e) == Some(Errno::SRCH) => Ok(None),
        (Ok(None), next) => next,
        (found, _) => found,
    }
}

/// What confines a process. `reference` is a process that it could look into, if nothing kept it from that.
fn confined(process: &TracedThrough<'_>, reference: Option<&Reference>) -> io::Result<Option<&'static str>> {
    if process.denies_write_and_execute()? {
        return Ok(Some(
            "memory that is written can never be run there (PR_SET_MDWE), which could not be set again",
        ));
    }
    if process.may_use_tiles()? {
        return Ok(Some("it has asked for tiles of matrices (AMX), which CRIU does not give back"));
    }
    let Some(reference) = reference else { return Ok(None) };
    // Nobody whom Landlock confines looks into a process that it does not confine likewise.
    match process.compare_shared(reference.pid, Shared::Memory) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::PERM) => {
            Ok(Some("Landlock confines it, as a sandbox does, which could not be set again"))
        }
        Err(e) => Err(e),
        Ok(()) => Ok(None),
    }
}

/// The reaper, which nothing confines, as others could look into it: those of the same user and group who have all capabilities that it has.
/// Source: `__ptrace_may_access` of the kernel's `kernel/ptrace.c`.
struct Reference {
    pid: Pid,
    rights: Rights,
}

/// Real, effective, saved and file system ids of a process, and what capabilities it may have.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    users: Vec<u32>,
    groups: Vec<u32>,
    permitted: u64,
}

impl Reference {
    fn of(tracer: &Traced, pid: Pid) -> Option<Self> {
        let is_open = TracedThrough::new(tracer, pid).is_dumpable().is_ok_and(|is_open| is_open);
        let rights = Rights::of(pid).filter(|_| is_open)?;
        Some(Self { pid, rights })
    }

    fn is_for(&self, pid: Pid) -> bool {
        pid != self.pid && Rights::of(pid).is_some_and(|of| self.rights.is_within(&of))
    }
}

impl Rights {
    fn of(pid: Pid) -> Option<Self> {
        let status = std::fs::read(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
        Self::parse(&String::from_utf8_lossy(&status))
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids = |name| -> Option<Vec<u32>> {
            field(name)?.split_whitespace().map(|id| id.parse().ok()).collect()
        };
        let permitted = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
        Some(Self { users: ids("Uid:")?, groups: ids("Gid:")?, permitted })
    }

    /// Whether a process with those rights may look into one with these.
    fn is_within(&self, those: &Self) -> bool {
        let same = |all: &[u32], of: &[u32]| all.iter().all(|id| of.first() == Some(id));
        same(&self.users, &those.users)
            && same(&self.groups, &those.groups)
            && self.permitted & !those.permitted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_look_into_whom_is_told() {
        let rights = |users: &str, permitted: &str| {
            Rights::parse(&format!("Name:\ta\nUid:\t{users}\nGid:\t0\t0\t0\t0\nCapPrm:\t{permitted}\n"))
        };
        let reaper = rights("0\t0\t0\t0", "00000000000000ff").expect("parsed");
        for (users, permitted, may) in [
            ("0\t0\t0\t0", "00000000000001ff", true),
            ("0\t5\t5\t5", "00000000000000ff", true),
            ("0\t0\t0\t0", "000000000000007f", false),
            ("5\t0\t0\t0", "00000000000000ff", false),
        ] {
            assert_eq!(
                reaper.is_within(&rights(users, permitted).expect("parsed")),
                may,
                "{users} {permitted}"
            );
        }
    }
}
