//! A step of a job: processes of its own over a root that other steps share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_ipc::{Reporter, ReportingChild};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::process::{Child, CloneFlags, close_all_except, close_inherited, exit_now, pid_of};

use crate::confine::Confinement;
use crate::init::{self, Wards};
use crate::join::NetSpace;
use crate::mounts;
use crate::start::{detach_stdio, die_with_maker};

/// A running step, as its maker holds it.
pub struct RunningStep {
    /// Process 1 of its PID namespace.
    pub init: Child,
    /// The maker's end of the socket to process 1; closing it ends the step.
    pub control: OwnedFd,
}

/// Moves this process into the environment whose process 1 is `environment`, and starts process 1 of a new PID namespace there.
/// The step lives as long as this process. It gets a copy of the mounts that `environment` sees. (That may be another step's process 1.)
///
/// # Errors
/// When the environment is gone or its `/proc` cannot be made anew.
pub fn begin(environment: BorrowedFd<'_>, net: NetSpace) -> Result<RunningStep> {
    let mut spaces = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    if net.is_its() {
        spaces |= ThreadNameSpaceType::NETWORK;
    }
    if net.has_own_name() {
        spaces |= ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    }
    let of_environment =
        || pid_of(environment).map_or(Ok(None), |pid| Confinement::of_running(pid).map(Some));
    let confinement = of_environment()?.ok_or_else(|| Fault::new("the job's environment has ended"))?;
    move_into_thread_name_spaces(environment, spaces).context(|| "the environment's namespaces")?;
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context(|| "control socket")?;
    let flags = CloneFlags::PID.and(CloneFlags::MOUNT);
    let child = ReportingChild::fork("process 1 of the step", flags, |reporter| {
        close_inherited(&[control.as_fd()]);
        become_init(confinement, &theirs, reporter)
    })?;
    drop(theirs);
    child.begun().map(|(init, ())| RunningStep { init, control })
}

fn become_init(confinement: Confinement, control: &OwnedFd, reporter: Reporter<()>) -> ! {
    let made = die_with_maker(control.as_fd())
        .and_then(|()| mounts::own_processes())
        .and_then(|()| confinement.confine_init());
    init::hide_maker();
    if !reporter.tell(&made) || made.is_err() {
        exit_now(125);
    }
    close_all_except(&[control.as_fd()]);
    detach_stdio();
    init::serve(control, Wards::default())
}
