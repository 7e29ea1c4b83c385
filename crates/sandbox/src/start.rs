//! Starts an environment: its namespaces, its root, its process 1.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use skiff_spec::plan::{Plan, Route};
use skiff_spec::wire::Request;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

use crate::helper::Helper;
use crate::root::{self, Extras};
use crate::{Context, Error, Result, init, map, rootless};

/// A running environment, as its maker holds it.
pub struct Instance {
    /// Process 1.
    pub init: Child,
    /// Its end of the talk with process 1; closing it ends the environment.
    pub control: OwnedFd,
    /// How many ids there are inside.
    pub ids: u32,
}

/// What an environment is started with besides its plan.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// The helper, where the plan's route is the helper's.
    pub helper: Option<&'a Path>,
    /// The supervisor's socket, shown inside.
    pub socket: Option<&'a Path>,
}

/// Carries out `plan`. The environment lives as long as the calling process and the returned control socket.
///
/// # Errors
/// Whatever could not be made, named; nothing of it is left then.
pub fn start(plan: &Plan, options: Options<'_>) -> Result<Instance> {
    let program = std::env::current_exe().context(|| "own program")?;
    let helper = match (plan.route, options.helper) {
        (Route::Helper, Some(path)) => Some(Helper::spawn(path)?),
        (Route::Helper, None) => return Err(Error::new("the plan wants the helper, but there is none")),
        (Route::Rootless, _) => None,
    };
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context(|| "control socket")?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let (go, gate) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    let flags = CloneFlags::USER.and(CloneFlags::MOUNT).and(CloneFlags::PID).and(CloneFlags::IPC);
    let made = fork(flags).context(|| "new namespaces").map_err(|e| {
        e.hint("user namespaces may be closed to users here (sysctl user.max_user_namespaces, AppArmor): `skiff doctor`")
    })?;
    let Fork::Parent(child) = made else {
        drop((control, report, gate));
        let extras = Extras { program: &program, socket: options.socket };
        become_init(plan, helper.as_ref(), extras, go, reporter, &theirs)
    };
    drop((theirs, reporter, go));
    let asked = open_gate(child.pid, helper, gate);
    let told = read_all(report.as_fd());
    // The child's own words come first: it saw what the helper answered.
    match (told.split_first(), asked) {
        (Some((b'+', ids)), Ok(())) => {
            let ids = ids.try_into().map_or(1, u32::from_le_bytes);
            Ok(Instance { init: child, control, ids })
        }
        (Some((b'-', why)), _) => {
            reap(child.pid);
            Err(Error::from_bytes(why))
        }
        (_, asked) => {
            drop(control);
            // It may have ended by itself; then there is nobody to kill.
            rustix::process::kill_process(child.pid, Signal::KILL).unwrap_or_default();
            reap(child.pid);
            Err(asked
                .err()
                .unwrap_or_else(|| Error::new("process 1 of the environment ended without a word")))
        }
    }
}

/// The maker's part in the map: ask the helper (whose answer process 1 takes), or do without.
fn open_gate(pid: Pid, helper: Option<Helper>, gate: OwnedFd) -> Result<()> {
    match helper {
        Some(helper) => {
            helper.ask(Request::Base { pid: pid.as_raw_nonzero().get().unsigned_abs() }, &[])?;
            helper.finish()
        }
        None => {
            let ids = map::write(pid)?;
            rustix::io::write(&gate, &ids.to_le_bytes()).map(drop).context(|| "pipe")
        }
    }
}

fn become_init(
    plan: &Plan,
    helper: Option<&Helper>,
    extras: Extras<'_>,
    go: OwnedFd,
    reporter: OwnedFd,
    control: &OwnedFd,
) -> ! {
    match make_root(plan, helper, extras, go) {
        Err(e) => {
            // If even the report fails, the maker sees an end without a word.
            rustix::io::write(&reporter, &[b"-", &e.to_bytes()[..]].concat()).unwrap_or_default();
            exit_now(125)
        }
        Ok(made) => {
            rustix::io::write(&reporter, &[b"+", &made.ids.to_le_bytes()[..]].concat()).unwrap_or_default();
            drop(reporter);
            close_all_except(&[control.as_fd()]);
            detach_stdio();
            init::serve(control, made.background)
        }
    }
}

/// What process 1 knows after its work.
struct Made {
    ids: u32,
    /// Processes of ours that stay with it and do not count as somebody's.
    background: usize,
}

fn make_root(plan: &Plan, helper: Option<&Helper>, extras: Extras<'_>, go: OwnedFd) -> Result<Made> {
    set_parent_process_death_signal(Some(Signal::KILL)).context(|| "parent's death signal")?;
    let made = match helper {
        Some(helper) => {
            let layers = helper.layers()?;
            let ids = layers.ids;
            root::build(plan, layers, extras)?;
            Made { ids, background: 0 }
        }
        None => {
            let ids = read_all(go.as_fd());
            rootless::build(plan, extras)?;
            Made { ids: ids.try_into().map_or(1, u32::from_le_bytes), background: 1 }
        }
    };
    confine_init()?;
    Ok(made)
}

/// Process 1 needs no more than any root inside has: so whoever took it over inside would gain nothing.
pub(crate) fn confine_init() -> Result<()> {
    skiff_sys::caps::limit_to(skiff_sys::caps::INSIDE_ROOT).context(|| "capabilities of process 1")?;
    rustix::thread::set_no_new_privs(true).context(|| "no_new_privs")
}

/// A process that stays must not keep its maker's terminal or pipes open.
pub fn detach_stdio() {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    if let Ok(null) = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for dup in [dup2_stdin, dup2_stdout, dup2_stderr] {
            dup(&null).unwrap_or_default();
        }
    }
}

/// Takes the exit status of a child that has ended or is about to.
pub(crate) fn reap(pid: Pid) {
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
}

/// All that comes until the other side closes.
pub(crate) fn read_all(fd: BorrowedFd<'_>) -> Vec<u8> {
    let mut all = vec![];
    let mut buffer = [0; 1024];
    loop {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend(&buffer[..n]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return all,
        }
    }
}
