//! Puts a process into a running environment: as root inside, or as the user.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_spec::fault::{Context, Fault};
use skiff_spec::wire::Request;
use skiff_sys::process::{Child, CloneFlags, Fork, exit_now, fork};
use skiff_sys::signal::{self, SignalMask};

use crate::child::{read_all, reap};
use crate::clocks;
use crate::command::CommandSpec;
use crate::confine::Confinement;
use crate::exec_request::ExecRequest;
use crate::helper::Helper;
use crate::terminal::name_standard_descriptors;

pub use crate::failed::Failed;
pub use crate::spawn_attr::{SpawnAttr, controlling_terminal};

/// Whose network namespace an environment is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetSpace {
    /// The one that this process is in too.
    Ours,
    /// One of the environment's own.
    Its,
    /// One of its own, with a host name of its own, as a node of a group has it.
    Machine,
    /// Ours, but the host name is its own, as that of a node of a group without networks.
    MachineInOurs,
}

impl NetSpace {
    /// With a host name of the environment's own, if it has one.
    #[must_use]
    pub fn named(self, has_own_name: bool) -> Self {
        match (self, has_own_name) {
            (Self::Its, true) => Self::Machine,
            (Self::Ours, true) => Self::MachineInOurs,
            (other, _) => other,
        }
    }

    /// Whether the network namespace is the environment's own.
    #[must_use]
    pub fn is_its(self) -> bool {
        matches!(self, Self::Its | Self::Machine)
    }

    /// Whether the host name is the environment's own.
    #[must_use]
    pub fn has_own_name(self) -> bool {
        matches!(self, Self::Machine | Self::MachineInOurs)
    }
}

/// Starts `command` as root of the environment whose process 1 is `init`, as a child of this process; which moves, for
/// that, into the environment's user namespace, and has no privilege there either when this returns.
///
/// # Errors
/// When the environment is gone, or the command could not be started; see [`Failed`].
pub fn as_root(
    init: BorrowedFd<'_>,
    net: NetSpace,
    command: &CommandSpec,
    attr: SpawnAttr,
    mask: SignalMask,
) -> std::result::Result<Child, Failed> {
    let gone = |e: Fault| e.hint("the environment may just have been stopped");
    // Not into its mount namespace: that is to go when the environment does, not when we do.
    let clocks = clocks::space(init).map_err(gone)?;
    let mut ours = ThreadNameSpaceType::USER | ThreadNameSpaceType::PROCESS_ID | clocks;
    if net.is_its() {
        ours |= ThreadNameSpaceType::NETWORK;
    }
    move_into_thread_name_spaces(init, ours).context(|| "the environment's namespaces").map_err(gone)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let Fork::Parent(child) = fork(CloneFlags::NONE).context(|| "process inside").map_err(gone)? else {
        let e = become_root(init, net, command, attr, mask);
        e.report(&reporter);
        exit_now(e.exit_code())
    };
    drop(reporter);
    skiff_sys::caps::set_to(CapabilitySet::empty()).context(|| "capabilities")?;
    match Failed::reported(&read_all(report.as_fd()), command) {
        None => Ok(child),
        Some(why) => {
            reap(child.pid);
            Err(why)
        }
    }
}

fn become_root(
    init: BorrowedFd<'_>,
    net: NetSpace,
    command: &CommandSpec,
    attr: SpawnAttr,
    mask: SignalMask,
) -> Failed {
    let mut theirs = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    if net.has_own_name() {
        theirs |= ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    }
    let ready = move_into_thread_name_spaces(init, theirs)
        .context(|| "the environment's namespaces")
        // This process was forked into the PID namespace already.
        .and_then(|()| Confinement::of_running(Pid::INIT))
        .and_then(|confinement| confinement.drop_bounding().and_then(|()| confinement.confine(true)))
        .and_then(|()| attr.apply().context(|| "terminal and group of the process inside"));
    match ready {
        Ok(()) => {
            name_standard_descriptors();
            become_command(command, mask)
        }
        Err(e) => e.into(),
    }
}

/// The last step.
pub(crate) fn become_command(command: &CommandSpec, mask: SignalMask) -> Failed {
    signal::default_action(rustix::process::Signal::PIPE.as_raw());
    signal::restore(mask);
    Failed::to_start(command, &command.exec())
}

/// Starts a command in the environment whose process 1 is `init`, as the user: no user namespace, no capability. With `own_name` it
/// sees the host name that the environment has of its own, otherwise the host's.
///
/// # Errors
/// As [`as_root`], and what the helper refuses.
pub fn as_me(
    program: &Path,
    (init, own_name): (Pid, bool),
    command: &CommandSpec,
    attr: SpawnAttr,
    mask: SignalMask,
) -> std::result::Result<Child, Failed> {
    let helper = Helper::spawn(program)?;
    let request = ExecRequest::new(command, attr, mask, own_name);
    if command.unfiltered {
        helper.ask(&Request::Unfiltered, &[])?;
    }
    let asked = helper.ask_to_run(&request, init).and_then(|()| helper.go());
    let joined = asked.map_err(Failed::from).and_then(|()| helper.joined(command));
    helper.finish();
    joined
}

/// Starts `command` where this process is, as what it is.
///
/// # Errors
/// As [`as_root`].
pub fn as_we_are(
    command: &CommandSpec,
    attr: SpawnAttr,
    mask: SignalMask,
) -> std::result::Result<Child, Failed> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let Fork::Parent(child) = fork(CloneFlags::NONE).context(|| "process")? else {
        let e = match attr.apply().context(|| "terminal and group of the process") {
            Ok(()) => become_command(command, mask),
            Err(e) => e.into(),
        };
        e.report(&reporter);
        exit_now(e.exit_code())
    };
    drop(reporter);
    match Failed::reported(&read_all(report.as_fd()), command) {
        None => Ok(child),
        Some(why) => {
            reap(child.pid);
            Err(why)
        }
    }
}

/// Whether a process still lives.
#[must_use]
pub fn alive(pidfd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)], Some(&none)) == Ok(0)
}
