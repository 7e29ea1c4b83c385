//! `exec`: a further process in a container that runs.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior, setsid};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, close_inherited, fork};
use skiff_sys::signal::{SignalMask, restore};

use crate::config::ProcessConfig;
use crate::create::{Console, fork_through, write_pid};
use crate::log::Log;
use crate::namespaces::KINDS;
use crate::process::ProcessSetup;
use crate::seccomp::SeccompFilter;
use crate::state::{ContainerId, ContainerStatus, States};
use crate::sync::{self, InitStatus};
use crate::terminal::Terminal;
use crate::{cgroup, check};

/// What is to run.
pub struct Execution<'a> {
    pub id: &'a ContainerId,
    pub process: ProcessConfig,
    pub pid_file: Option<&'a Path>,
    pub console: Console<'a>,
    pub kept: u32,
    /// The signals that it has blocked, where this process has others.
    pub mask: Option<SignalMask>,
}

/// Starts it; its PID, a child of this process.
///
/// # Errors
/// When the container does not run, or the process cannot be had.
pub fn exec(states: &States, execution: Execution<'_>, log: &Log) -> Result<Pid> {
    let Execution { id, process, pid_file, console, kept, mask } = execution;
    check::check_process(&process, log)?;
    let container = states.container(id)?;
    let record = container.whole_record()?;
    let status = container.status(Some(&record));
    let init = record.process.and_then(|process| process.alive());
    let (Some(init), ContainerStatus::Running | ContainerStatus::Created) = (init, status) else {
        return Err(Fault::new(format!("container {id} is {status}: nothing can be started in it")));
    };
    let about = || format!("container {id}");
    let pidfd = pidfd_open(init, PidfdFlags::empty()).context(about)?;
    // Now the number cannot come to mean another process.
    if record.process.and_then(|process| process.alive()).is_none() {
        return Err(Fault::new(format!("{}: it has just ended", about())));
    }
    let config = container.config()?;
    let filter = config.linux.seccomp.as_ref().map(SeccompFilter::new).transpose()?;
    let console = console.open()?;
    let setup = ProcessSetup::new(&process, filter.as_ref(), kept, record.is_single, log)?;
    let kinds = others(init)?;
    // Until it has become its program it is this runtime's own, and not dumpable: an ordinary user may not even look which namespaces it has.
    if kinds.is_empty() && status == ContainerStatus::Created {
        return Err(Fault::new(format!(
            "container {id} is created: nothing can be started in it before it runs"
        ))
        .hint(format!("`skiff oci start {id}` begins its program")));
    }
    let (call, sync) = sync::pair()?;
    let inside =
        Inside { process: &process, setup: &setup, console: console.as_ref(), sync: &sync, mask, log };
    let join = || {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).context(about)?;
        move_into_thread_name_spaces(pidfd.as_fd(), kinds).context(|| format!("namespaces of container {id}"))
    };
    let pid = begin(join, &inside, &call)?;
    drop(sync);
    if let Some(cgroup) = &record.cgroup {
        cgroup::add(cgroup, pid)?;
    }
    sync::release(&call)?;
    match sync::receive(&call)? {
        InitStatus::Closed => {}
        InitStatus::Failed(fault) => return Err(fault),
        _ => return Err(Fault::new(format!("{}: an unexpected message", about()))),
    }
    pid_file.map_or(Ok(()), |path| write_pid(path, pid))?;
    Ok(pid)
}

/// The namespaces of a process that are not this one's.
fn others(init: Pid) -> Result<ThreadNameSpaceType> {
    let mut kinds = ThreadNameSpaceType::empty();
    for kind in &KINDS {
        let open = |path: String| openat(CWD, &*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let own = open(format!("/proc/self/ns/{}", kind.file));
        let its = open(format!("/proc/{}/ns/{}", init.as_raw_nonzero(), kind.file));
        // A kernel without time namespaces has no such file.
        let (Ok(own), Ok(its)) = (own, its) else { continue };
        if !skiff_sys::ns::same(own.as_fd(), its.as_fd()).context(|| "namespaces of the container")? {
            kinds |= kind.thread;
        }
    }
    Ok(kinds)
}

struct Inside<'a> {
    process: &'a ProcessConfig,
    setup: &'a ProcessSetup<'a>,
    console: Option<&'a OwnedFd>,
    sync: &'a OwnedFd,
    mask: Option<SignalMask>,
    log: &'a Log,
}

fn begin(join: impl FnOnce() -> Result<()>, inside: &Inside<'_>, call: &OwnedFd) -> Result<Pid> {
    let forked = || {
        close_inherited(&[call.as_fd()]);
        join().and_then(|()| fork(CloneFlags::SIBLING).context(|| "process in the container"))
    };
    fork_through(forked, (inside.sync, call), || inside.run())
}

impl Inside<'_> {
    fn run(&self) -> i32 {
        self.mask.into_iter().for_each(restore);
        let Err(fault) = self.prepare().and_then(|program| self.setup.exec_program(&program, self.log));
        sync::send(self.sync, &InitStatus::Failed(fault)).ignore_error("the call has ended");
        1
    }

    fn prepare(&self) -> Result<std::ffi::CString> {
        sync::wait(self.sync)?;
        self.setup.limit()?;
        setsid().context(|| "session")?;
        if self.process.terminal {
            let console =
                self.console.ok_or_else(|| Fault::new("process.terminal: nobody operates the terminal"))?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let terminals = openat(CWD, "/dev/pts", flags, Mode::empty()).ok();
            let terminal = Terminal::new(terminals.as_ref().map(AsFd::as_fd), self.process.console_size)?;
            terminal.send(console.as_fd())?;
            terminal.take()?;
        }
        self.setup.find()
    }
}
