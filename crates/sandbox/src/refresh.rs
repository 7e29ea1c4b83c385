//! Making the administrator's changes show in an environment that runs.
//!
//! The kernel remembers in two overlays what it has looked up: the user's, which root inside may tell to forget, and the view of the
//! host below it, which only the helper may. First the lower one, or the upper one would ask it and learn the old.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use skiff_spec::wire::Request;
use skiff_sys::fdpass;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork};

use crate::helper::Helper;
use crate::start::reap;
use crate::{Context, Error, Result};

/// Makes the environment whose process 1 is `init` forget what it has looked up; `view` is where it shows the view of the host.
///
/// # Errors
/// When the environment is gone or the helper refuses.
pub fn refresh(helper: Option<&Path>, init: BorrowedFd<'_>, view: &str) -> Result<()> {
    let helper = helper.ok_or_else(|| Error::new("refresh: there is no helper"))?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context(|| "socket")?;
    let Fork::Parent(child) = fork(CloneFlags::NONE).context(|| "fork")? else {
        drop(ours);
        exit_now(i32::from(inside(init, view, theirs.as_fd()).is_err()));
    };
    drop(theirs);
    let (_, fds) = fdpass::receive(ours.as_fd(), 16).context(|| "the environment's view of the host")?;
    let lower = match fds.first() {
        Some(fd) => ask(helper, fd.as_fd()),
        None => Err(Error::new("the environment's view of the host could not be opened")),
    };
    // Then the one inside goes on; or learns by our end that it must not.
    let done = lower.and_then(|()| {
        fdpass::send(ours.as_fd(), b"go", &[]).context(|| "refresh")?;
        fdpass::receive(ours.as_fd(), 16).context(|| "refresh")
    });
    drop(ours);
    reap(child.pid);
    match done? {
        (word, _) if word == b"done" => Ok(()),
        _ => Err(Error::new("the environment's own overlay could not be refreshed")),
    }
}

fn ask(helper: &Path, view: BorrowedFd<'_>) -> Result<()> {
    let helper = Helper::spawn(helper)?;
    helper.ask(Request::Refresh, &[view])?;
    helper.answer()?;
    helper.finish()
}

fn inside(init: BorrowedFd<'_>, view: &str, socket: BorrowedFd<'_>) -> Result<()> {
    let spaces = ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT;
    move_into_thread_name_spaces(init, spaces).context(|| "the environment's namespaces")?;
    let view = openat(CWD, view, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context(|| view)?;
    fdpass::send(socket, b"view", &[view.as_fd()]).context(|| "refresh")?;
    drop(view);
    if fdpass::receive(socket, 16).context(|| "refresh")?.0.is_empty() {
        return Err(Error::new("refused"));
    }
    let overlay = fspick(CWD, "/", FsPickFlags::FSPICK_CLOEXEC).context(|| "/")?;
    fsconfig_reconfigure(&overlay).context(|| "/")?;
    fdpass::send(socket, b"done", &[]).context(|| "refresh")
}
