//! Making the administrator's changes show in an environment that runs.
//!
//! The kernel remembers in two overlays what it has looked up: the user's, which root inside may tell to forget, and the view of
//! the host below it, which only the helper may. What the upper one remembers holds on to what the lower one does: so first the
//! upper, then the lower. What somebody inside has open is held on to in any case, until they close it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::wire::Request;
use skiff_sys::fdpass;
use skiff_sys::process::{CloneFlags, close_inherited};

use crate::helper::Helper;
use crate::inside::{PATIENCE, not_answered};

/// Makes the environment whose process 1 is `init` forget what it has looked up; `view` is where it shows the view of the host.
///
/// # Errors
/// When the environment is gone or the helper refuses.
pub fn refresh(helper: Option<&Path>, init: BorrowedFd<'_>, view: &str) -> Result<()> {
    let helper = helper.ok_or_else(|| Fault::new("refresh: the helper is not installed"))?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context(|| "socket")?;
    // Root inside can mount what never answers.
    sockopt::set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE)).context(|| "socket")?;
    let child =
        ReportingChild::begin("process in the environment", CloneFlags::NONE, Descriptors::All, || {
            close_inherited(&[ours.as_fd()]);
            inside(init, view, theirs.as_fd())
        })?;
    drop(theirs);
    let done = (0..ROUNDS).try_for_each(|_| {
        let (_, fds) = fdpass::receive(ours.as_fd(), 16).context(|| "the environment's own overlay")?;
        let view =
            fds.first().ok_or_else(|| Fault::new("the environment's own overlay could not be refreshed"))?;
        ask(helper, view.as_fd())?;
        fdpass::send(ours.as_fd(), b"go", &[]).context(|| "refresh")
    });
    // It learns by our end that it must not go on.
    drop(ours);
    // It says more exactly what it could not do.
    match child.end_by(Instant::now() + PATIENCE)? {
        Some(()) => done,
        None => Err(not_answered()),
    }
}

/// Whoever looks something up between our two steps makes them vain for that file; hardly ever twice.
const ROUNDS: usize = 2;

fn ask(helper: &Path, view: BorrowedFd<'_>) -> Result<()> {
    let helper = Helper::spawn(helper)?;
    helper.ask(&Request::Refresh, &[view])?;
    let answer = helper.done();
    helper.finish();
    answer
}

fn inside(init: BorrowedFd<'_>, view: &str, socket: BorrowedFd<'_>) -> Result<()> {
    let spaces = ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT;
    move_into_thread_name_spaces(init, spaces).context(|| "the environment's namespaces")?;
    let view = openat(CWD, view, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context(|| view)?;
    for _ in 0..ROUNDS {
        let overlay = fspick(CWD, "/", FsPickFlags::FSPICK_CLOEXEC).context(|| "/")?;
        fsconfig_reconfigure(&overlay).context(|| "/")?;
        fdpass::send(socket, b"view", &[view.as_fd()]).context(|| "refresh")?;
        let (go, _) = fdpass::receive(socket, 16).context(|| "refresh")?;
        if go.is_empty() {
            // Whoever began this has a reason of their own.
            return Ok(());
        }
    }
    Ok(())
}
