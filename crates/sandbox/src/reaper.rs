//! The process between process 1 and a command that is to be saved. CRIU saves one tree of processes, and makes its first process a child of
//! its own. So the first is none of the user's: a process that takes over those whose parents end (daemons), and is the parent
//! at whose end the command may want a signal. It ends as the command does, and process 1 ends all others then.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, chdir, getpid, kill_process, set_child_subreaper, setsid};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::plan::inside;
use skiff_sys::process::{CloneFlags, Fork, close_on_exec_from, exec, fork, positive_pid};
use skiff_sys::signal::{self, SignalMask};
use skiff_sys::{IgnoreError, ns};

/// The number of this process inside: always the same, and beside that of [`crate::SERVER_NUMBER`]. So the command has the first number after
/// process 1, as it has in other environments.
pub const NUMBER: i32 = crate::rootless::NUMBER - 1;
/// The highest number of a signal.
const LAST_SIGNAL: i32 = 64;

/// Forks the process that is to become the command, and returns in that. This one becomes the reaper.
///
/// # Errors
/// When there can be none; then there is no other process either.
pub(crate) fn come_between() -> Result<()> {
    let about = || "the process that the command is a child of";
    set_child_subreaper(Some(getpid())).context(about)?;
    match fork(CloneFlags::NONE).context(about)? {
        Fork::Child => Ok(()),
        Fork::Parent(child) => {
            let why = become_reaper(child.pid);
            kill_process(child.pid, Signal::KILL).ignore_error("it may have ended by itself");
            Err(why)
        }
    }
}

/// Keeps nothing of its maker's, and hears no signal.
fn become_reaper(command: Pid) -> Fault {
    let about = || inside::REAPER;
    let ready = setsid().context(about).and_then(|_| chdir("/").context(about));
    if let Err(why) = ready.and_then(|()| close_on_exec_from(0).context(about)) {
        return why;
    }
    (1..=LAST_SIGNAL).for_each(signal::default_action);
    signal::restore(SignalMask::from_bits(u64::MAX));
    // Neither has a zero byte in it.
    let words = ["skiff-reaper", &command.as_raw_nonzero().to_string()].map(CString::new);
    let argv: Vec<CString> = words.into_iter().flatten().collect();
    Fault::new(format!("{}: {}", inside::REAPER, exec(inside::REAPER.as_ref(), &argv, &[])))
}

/// Whether the process of this number out here is one.
#[must_use]
pub fn is_reaper(outer: i32) -> bool {
    fs::read_link(format!("/proc/{outer}/exe")).is_ok_and(|exe| exe == Path::new(inside::REAPER))
}

/// The command whose reaper this is, by its number out here; another process is itself one. Nothing if the command has ended.
pub(crate) fn command_of(process: Pid) -> Option<Pid> {
    let outer = process.as_raw_nonzero().get();
    if !is_reaper(outer) {
        return Some(process);
    }
    let words = fs::read(format!("/proc/{outer}/cmdline")).ok()?;
    let number: i32 = str::from_utf8(words.split(|byte| *byte == 0).nth(1)?).ok()?.parse().ok()?;
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).ok()?;
    let mut children = children.split_whitespace();
    let command = children.find(|child| number_inside(child) == Some(number));
    command.and_then(|child| child.parse().ok()).and_then(positive_pid)
}

/// The number that a process has in the innermost of its PID namespaces.
fn number_inside(outer: &str) -> Option<i32> {
    let status = fs::read(format!("/proc/{outer}/status")).ok()?;
    ns::number_inside(&String::from_utf8_lossy(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_a_reaper_is_itself() {
        let own = getpid();
        assert!(!is_reaper(own.as_raw_nonzero().get()));
        assert_eq!(command_of(own), Some(own));
        // In tests there is no other PID namespace within this process's.
        assert_eq!(number_inside(&own.as_raw_nonzero().to_string()), Some(own.as_raw_nonzero().get()));
    }
}
