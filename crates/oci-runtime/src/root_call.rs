//! Root's calls on a user's container, as Slurm makes them to clean up. They end in time, whatever that user does: else the node would be
//! drained. The process that becomes the user can be stopped by them, and may wait for a file system of theirs; so another one waits for it
//! that stays root's.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, pidfd_send_signal, waitpid};
use skiff_output as output;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, fork};

/// How long a call may take. Slurm makes up to three of them at the end of a step, and drains the node after 60 s (`UnkillableStepTimeout`).
const LIMIT: Duration = Duration::from_secs(15);
/// How long what has been killed may take to be gone.
const DYING: Duration = Duration::from_secs(1);

/// Makes a call in a process of its own, which is killed when the time is over.
///
/// # Errors
/// When it is not done in time, or no process can be made. The call itself tells its own errors.
pub fn within_limit(call: impl FnOnce() -> Result<i32>) -> Result<i32> {
    match fork(CloneFlags::NONE).context(|| "process for the call")? {
        Fork::Child => std::process::exit(call().unwrap_or_else(|fault| {
            output::complain(&fault);
            output::FAILURE
        })),
        Fork::Parent(child) => wait(&child),
    }
}

fn wait(child: &Child) -> Result<i32> {
    let is_done = has_ended(child, LIMIT)?;
    let late = || format!("not done within {} s", LIMIT.as_secs());
    if !is_done {
        pidfd_send_signal(&child.pidfd, Signal::KILL).ignore_error("it has just ended");
        if !has_ended(child, DYING)? {
            return Err(Fault::new(format!("{}, and cannot be ended", late()))
                .hint("it waits in the kernel, perhaps for a file server"));
        }
    }
    let status = waitpid(Some(child.pid), WaitOptions::empty()).context(|| "process for the call")?;
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(code) => Ok(code),
        None if is_done => Err(Fault::new("process for the call: ended by a signal")
            .hint("while it has become the container's user, that user can end it")),
        None => Err(Fault::new(late()).hint("the container's user holds it up, or a file server does")),
    }
}

/// Whether it ends within that time.
fn has_ended(child: &Child, limit: Duration) -> Result<bool> {
    let until = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&child.pidfd, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready.context(|| "process for the call")? > 0),
        }
    }
}
