//! A step of a job: processes of its own over a root that other steps share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};
use skiff_sys::title::Start;

use crate::child::{read_all, reap};
use crate::confine::confine_init;
use crate::init::{self, Wards};
use crate::start::{detach_stdio, die_with_maker};
use crate::{Context, Error, Result, mounts};

/// A running step, as its maker holds it.
pub struct Step {
    /// Process 1 of its PID namespace.
    pub init: Child,
    /// The maker's end of the socket to process 1; closing it ends the step.
    pub control: OwnedFd,
}

/// Moves this process into the environment whose process 1 is `environment`, and starts process 1 of a new PID namespace there.
/// The step lives as long as this process.
///
/// # Errors
/// When the environment is gone or its `/proc` cannot be made anew.
pub fn begin(environment: BorrowedFd<'_>) -> Result<Step> {
    let spaces = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    move_into_thread_name_spaces(environment, spaces).context(|| "the environment's namespaces")?;
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context(|| "control socket")?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let Fork::Parent(child) =
        fork(CloneFlags::PID.and(CloneFlags::MOUNT)).context(|| "process 1 of the step")?
    else {
        drop((control, report));
        become_init(&theirs, reporter);
    };
    drop((theirs, reporter));
    match read_all(report.as_fd()).split_first() {
        Some((b'+', _)) => Ok(Step { init: child, control }),
        Some((_, why)) => {
            reap(child.pid);
            Err(Error::from_bytes(why))
        }
        None => Err(Error::new("process 1 of the step ended without a word")),
    }
}

fn become_init(control: &OwnedFd, reporter: OwnedFd) -> ! {
    let made =
        die_with_maker(control.as_fd()).and_then(|()| mounts::own_processes()).and_then(|()| confine_init());
    let word = match &made {
        Ok(()) => b"+".to_vec(),
        Err(e) => [b"-", &e.to_bytes()[..]].concat(),
    };
    init::hide_maker(Start::find());
    // If even the report fails, the maker sees an end without a word.
    rustix::io::write(&reporter, &word).unwrap_or_default();
    if made.is_err() {
        exit_now(125);
    }
    drop(reporter);
    close_all_except(&[control.as_fd()]);
    detach_stdio();
    init::serve(control, Wards::default())
}
