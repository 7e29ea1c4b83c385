//! Namespaces of processes, and whose they are.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_sys::ns;

use crate::caller::Caller;

/// Opens a namespace of a process.
pub fn open_ns(proc: BorrowedFd<'_>, kind: &str) -> rustix::io::Result<OwnedFd> {
    // This one link of /proc must be followed: what it leads to is the namespace, whatever the process calls it.
    openat(proc, format!("ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Refuses unless `user_ns` was made by the caller directly below the user namespace we are in.
pub fn check_owner(caller: &Caller, user_ns: BorrowedFd<'_>, name: &str) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::new(format!("{name}: {why}")).hint("the helper serves only what you have made yourself"))
    };
    if !ns::is_user_ns(user_ns) {
        return refuse("not a user namespace");
    }
    if ns::owner_uid(user_ns).context(|| name.to_owned())? != caller.uid {
        return refuse("its user namespace was made by somebody else");
    }
    let ours = open_ns(own_proc()?.as_fd(), "user").context(|| "own user namespace")?;
    match ns::parent(user_ns) {
        Ok(parent) if ns::same(parent.as_fd(), ours.as_fd()).context(|| name.to_owned())? => Ok(()),
        _ => refuse("it is not directly below the host's user namespace"),
    }
}

/// `/proc/self`.
pub fn own_proc() -> Result<OwnedFd> {
    openat(CWD, "/proc/self", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context(|| "/proc/self")
}
