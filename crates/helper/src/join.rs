//! `join`: starts a program as the caller himself, without any privilege, in an environment of his.
//!
//! Only root can put a process that is in no user namespace into namespaces that belong to one. What makes it harmless: the
//! user namespace they belong to was made by the caller, and the process that enters gives up everything right after, before
//! it looks at a single file in there (all of which the caller controls).

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use skiff_sandbox::command::{Command, NotStarted, own_args, own_env};
use skiff_sandbox::join::{ONLY_THERE, Place};
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::wire::Reply;
use skiff_sys::process::{CloneFlags, Fork, exit_now, fork};
use skiff_sys::signal::{self, Mask};
use skiff_sys::{caps, fdpass, ns, seccomp};

use crate::base::{check_owner, open_ns, own_proc};
use crate::caller::Caller;

/// The namespaces that are entered; the mount namespace last, as nothing of the host can be opened after.
const KINDS: [(&str, LinkNameSpaceType); 4] = [
    ("net", LinkNameSpaceType::Network),
    ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ("pid", LinkNameSpaceType::ProcessID),
    ("mnt", LinkNameSpaceType::Mount),
];

/// Starts the program named by our own arguments and tells its process number; ends when that process is on its own.
pub fn start(caller: &Caller, pid: u32, socket: &OwnedFd) -> Result<()> {
    let (place, mask, command) = from_arguments()?;
    let spaces = open_spaces(caller, pid)?;
    for (kind, ns) in &spaces {
        move_into_link_name_space(ns.as_fd(), Some(*kind))
            .context(|| format!("entering process {pid}'s namespaces"))?;
    }
    drop(spaces);
    match fork(CloneFlags::SIBLING).context(|| "process inside")? {
        Fork::Parent(child) => {
            let number = child.pid.as_raw_nonzero().get().unsigned_abs();
            let told = fdpass::send(socket.as_fd(), &Reply::Done(number).encode(), &[child.pidfd.as_fd()]);
            told.context(|| "answer")
        }
        Fork::Child => {
            let why = match give_up_everything(caller, place) {
                Ok(()) => {
                    signal::restore(mask);
                    command.exec()
                }
                Err(e) => NotStarted::Program(e),
            };
            // If the caller has gone there is nobody to tell; the exit code says it too.
            fdpass::send(socket.as_fd(), &why.to_bytes(), &[]).unwrap_or_default();
            exit_now(why.exit_code())
        }
    }
}

/// Opens the target's namespaces, all of which must belong to a user namespace of the caller's making.
fn open_spaces(caller: &Caller, pid: u32) -> Result<Vec<(LinkNameSpaceType, OwnedFd)>> {
    let name = format!("process {pid}");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).context(|| name.clone())?;
    let user = open_ns(proc.as_fd(), "user").context(|| name.clone())?;
    check_owner(caller, user.as_fd(), &name)?;
    let ours = own_proc()?;
    let mut spaces = vec![];
    for (kind, space) in KINDS {
        let fd = open_ns(proc.as_fd(), kind).context(|| name.clone())?;
        // One that is shared with the host anyway need not be entered.
        let own = open_ns(ours.as_fd(), kind).context(|| name.clone())?;
        if ns::same(fd.as_fd(), own.as_fd()).context(|| name.clone())? {
            continue;
        }
        // A network of the site's belongs to the host. Where one process of the caller is, another may be.
        let ours = open_ns(ours.as_fd(), "user").context(|| name.clone())?;
        let is_hosts = ns::belongs_to(fd.as_fd(), ours.as_fd()).context(|| name.clone())?;
        if space != LinkNameSpaceType::Network || !is_hosts {
            check_belongs(fd.as_fd(), user.as_fd(), &name)?;
        }
        spaces.push((space, fd));
    }
    Ok(spaces)
}

fn check_belongs(space: BorrowedFd<'_>, user: BorrowedFd<'_>, name: &str) -> Result<()> {
    if ns::belongs_to(space, user).context(|| name.to_owned())? {
        return Ok(());
    }
    Err(Error::new(format!("{name}: one of its namespaces belongs to another user namespace")))
}

/// From root to the caller, in the order in which each step still may be taken; then makes sure.
fn give_up_everything(caller: &Caller, place: Place) -> std::io::Result<()> {
    let groups: Vec<Gid> = caller.groups.iter().map(|g| Gid::from_raw(*g)).collect();
    set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    set_thread_res_gid(gid, gid, gid)?;
    // While still root: it needs SETPCAP.
    caps::drop_from_bounding(CapabilitySet::empty())?;
    set_thread_res_uid(uid, uid, uid)?;
    // For root as the caller nothing went by itself.
    caps::set_to(CapabilitySet::empty())?;
    rustix::thread::set_no_new_privs(true)?;
    let ids = (
        rustix::process::getuid(),
        rustix::process::geteuid(),
        rustix::process::getgid(),
        rustix::process::getegid(),
    );
    if ids != (uid, uid, gid, gid)
        || !caps::none_left()?
        || (caller.uid != 0 && rustix::thread::set_thread_uid(Uid::ROOT).is_ok())
    {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    rustix::process::umask(caller.umask);
    place.take()?;
    seccomp::load()?;
    signal::default_action(rustix::process::Signal::PIPE.as_raw());
    Ok(())
}

/// Our arguments after the socket: place, signals to block, whether the directory will do or none, directory, name to show (or nothing), the program and its
/// arguments.
fn from_arguments() -> Result<(Place, Mask, Command)> {
    let mut arguments = own_args(2).into_iter();
    let mut next = || arguments.next().ok_or_else(|| Error::new("join: arguments missing"));
    let place =
        next()?.to_str().and_then(Place::from_word).ok_or_else(|| Error::new("join: no such place"))?;
    let mask = next()?.to_str().and_then(|word| u64::from_str_radix(word, 16).ok());
    let mask = Mask::from_bits(mask.ok_or_else(|| Error::new("join: no such mask"))?);
    let only_there = next()? == ONLY_THERE;
    let cwd = next()?.into();
    let argv0 = Some(next()?).filter(|name| !name.is_empty());
    let argv: Vec<OsString> = arguments.collect();
    if argv.is_empty() {
        return Err(Error::new("join: no program"));
    }
    Ok((place, mask, Command { argv, argv0, env: own_env(), cwd, only_there, user: None }))
}
