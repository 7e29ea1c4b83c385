//! What `/proc` says of processes.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::signal::send_to_process;

/// A container's process, told from a later one with the same PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitProcess {
    /// In the PID namespace that the container was created in.
    pub pid: i32,
    /// Clock ticks after the kernel's own start.
    pub start_time: u64,
}

impl InitProcess {
    /// One that is there.
    ///
    /// # Errors
    /// When it is not.
    pub fn of(pid: Pid) -> Result<Self> {
        let number = pid.as_raw_nonzero().get();
        let start_time =
            start_time(pid).ok_or_else(|| Fault::new(format!("process {number}: it has ended")))?;
        Ok(Self { pid: number, start_time })
    }

    /// The PID, if it has not ended.
    pub fn alive(&self) -> Option<Pid> {
        let pid = skiff_sys::process::positive_pid(self.pid)?;
        (start_time(pid) == Some(self.start_time) && !is_gone(pid)).then_some(pid)
    }
}

/// Sends a signal to a process, and to no other that has got its number meanwhile.
///
/// # Errors
/// The kernel's, but not that it has ended.
pub fn send(process: InitProcess, number: i32) -> Result<()> {
    let about = || format!("signal {number} to process {}", process.pid);
    let Some(pid) = process.alive() else { return Ok(()) };
    let sent = pidfd_open(pid, PidfdFlags::empty()).map_err(std::io::Error::from).and_then(|pidfd| {
        // From here on the descriptor means one process; whether it is that one shows now.
        match process.alive() {
            Some(_) => send_to_process(pidfd.as_fd(), number),
            None => Ok(()),
        }
    });
    match sent {
        // It has ended meanwhile.
        Err(e) if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
        sent => sent.context(about),
    }
}

/// The fields of a process behind its name; from its state on.
fn fields(pid: Pid) -> Option<Vec<String>> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything, parentheses too.
    let stat = String::from_utf8_lossy(&stat).into_owned();
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(String::from).collect())
}

/// When it was started, in clock ticks after the kernel.
pub fn start_time(pid: Pid) -> Option<u64> {
    fields(pid)?.get(19)?.parse().ok()
}

/// Whether it has ended, and perhaps waits for its parent to take note.
pub fn is_gone(pid: Pid) -> bool {
    fields(pid).is_none_or(|fields| matches!(fields.first().map(String::as_str), Some("Z" | "X") | None))
}

/// A process and its parent.
fn all() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|number: i32| {
            let parent = fields(skiff_sys::process::positive_pid(number)?)?.get(1)?.parse().ok()?;
            Some((number, parent))
        })
        .collect()
}

/// The processes that share its PID namespace, if that is not our own; else itself and those that it and its children have started.
pub fn family(init: Pid) -> Vec<Pid> {
    let space = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let number = init.as_raw_nonzero().get();
    let (own, its) = (space(rustix::process::getpid().as_raw_nonzero().get()), space(number));
    let all = all();
    let mut found = match its.is_some() && its != own {
        true => all.iter().map(|(pid, _)| *pid).filter(|pid| space(*pid) == its).collect(),
        false => vec![number],
    };
    if its == own {
        let mut at = 0;
        while let Some(parent) = found.get(at).copied() {
            found.extend(all.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
            at += 1;
        }
    }
    found.into_iter().filter_map(skiff_sys::process::positive_pid).collect()
}
