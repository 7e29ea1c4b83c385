//! `join`: starts a program as the caller, without any privilege, in an environment of theirs.
//!
//! Only root can put a process that is in no user namespace into namespaces that belong to one. What makes it harmless: the
//! user namespace they belong to was made by the caller, and the process gives up everything right after it has entered the mount
//! namespace, before it looks at a single file in there (all of which the caller controls). Until then it sees the host's files, as the
//! helper does; the caller's processes, whatever they are in their user namespace, can neither trace nor signal it, as it is root's, in
//! none of theirs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use skiff_sandbox::command::NotStarted;
use skiff_sandbox::exec_request::ExecRequest;
use skiff_sandbox::join::SpawnAttr;
use skiff_sandbox::terminal::name_standard_descriptors;
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_spec::wire::{MOST_BYTES, Reply, Request};
use skiff_sys::IgnoreError;
use skiff_sys::process::{CloneFlags, Fork, close_as_exec_does, close_inherited, exit_now, fork};
use skiff_sys::signal::{self, SignalMask};
use skiff_sys::{caps, fdpass, ns, seccomp};

use crate::caller::Caller;
use crate::namespaces::{check_owner, open_ns, own_proc};
use crate::wait;

/// The one that it has with a host name of its own.
const HOST_NAME: (&str, LinkNameSpaceType) = ("uts", LinkNameSpaceType::HostNameAndNISDomainName);

/// Seconds that process 1 has to make the root: its maker waits no longer either. (Some mount file systems of a slow server's.)
const SECONDS_FOR_ROOT: i64 = 60;

/// The kinds of namespaces that an environment may have of its own and its programs see.
const KINDS: [(&str, LinkNameSpaceType); 4] = [
    ("net", LinkNameSpaceType::Network),
    ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ("pid", LinkNameSpaceType::ProcessID),
    ("mnt", LinkNameSpaceType::Mount),
];

/// What the caller has told before they named the process.
pub struct OrderedCommand<'a> {
    /// The command, as [`ExecRequest`] has it.
    pub command: &'a [u8],
    /// Whether it may go at once.
    pub to_go: bool,
    /// Whether this process has the filter that goes along to the command.
    pub filter: Filter,
}

/// Whether a system call filter is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    Loaded,
    None,
}

/// Makes a process in the namespaces of process `pid` and tells of it. When it is told to go, or was before, it becomes the command.
pub fn start(caller: &Caller, pid: u32, told: &OrderedCommand<'_>, socket: &OwnedFd) -> Result<()> {
    let request = ExecRequest::decode(told.command).ok_or_else(|| Error::new("join: not a command"))?;
    let Spaces { mount, others } = Spaces::open(caller, pid, request.own_name)?;
    for (kind, space) in &others {
        move_into_link_name_space(space.as_fd(), Some(*kind)).context(|| entering(pid))?;
    }
    drop(others);
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    match fork(CloneFlags::SIBLING).context(|| "process inside")? {
        Fork::Parent(child) => {
            let number = child.pid.as_raw_nonzero().get().unsigned_abs();
            let handles = [child.pidfd.as_fd(), report.as_fd()];
            let told = fdpass::send(socket.as_fd(), &Reply::Process(number).encode(), &handles);
            told.context(|| "answer")
        }
        Fork::Child => {
            // Not even its own alarm, which a fork ends, is to end it before it is told to go.
            signal::restore(SignalMask::from_bits(u64::MAX));
            let why = become_it(caller, &request, mount.as_ref(), (socket, told), &reporter);
            rustix::io::write(&reporter, &why.to_bytes())
                .ignore_error("the exit code reports the failure, too, and the caller may have exited");
            exit_now(why.exit_code())
        }
    }
}

/// In the new process. The mount namespace is entered last: whoever enters gets the root that it has by then, and nothing of the host can
/// be opened after.
fn become_it(
    caller: &Caller,
    request: &ExecRequest<'_>,
    mount: Option<&OwnedFd>,
    (socket, told): (&OwnedFd, &OrderedCommand<'_>),
    reporter: &OwnedFd,
) -> NotStarted {
    // What the helper has open for others of its work is not for them whose paths are looked at in the end: their program's, their directory's.
    // Each process reaches its own descriptors by name, until the exec that would close them. (What they let their programs inherit stays.)
    let kept = [socket.as_fd(), reporter.as_fd(), caller.slot.as_fd()];
    let needed: Vec<_> = kept.into_iter().chain(mount.map(AsFd::as_fd)).collect();
    let ready = close_own(&needed).and_then(|()| leave_what_mounts_do_not_need(caller));
    if !told.to_go {
        await_go(socket);
    }
    let enter = || mount.map_or(Ok(()), |mount| enter_mounts(mount.as_fd()));
    let limits = || caller.limits.restore().and_then(|()| request.stack.apply());
    match ready
        .and_then(|()| enter())
        .and_then(|()| limits())
        .and_then(|()| give_up_everything(caller, request.attr, told.filter))
    {
        Ok(()) => {
            close_inherited(&[socket.as_fd(), caller.slot.as_fd()]);
            mount.iter().for_each(|mount| close_inherited(&[mount.as_fd()]));
            // By a path in the environment, where root inside mounts what it likes: now nothing of the helper's is open.
            name_standard_descriptors();
            caller.restore_alarm_action();
            signal::restore(request.mask);
            request.command.exec()
        }
        Err(e) => NotStarted::Program(e),
    }
}

fn close_own(needed: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptors = openat(CWD, "/proc/self/fd", flags, Mode::empty())?;
    close_as_exec_does(descriptors.as_fd(), needed)?;
    // Closed, as one of them.
    std::mem::forget(descriptors);
    Ok(())
}

/// Without that word there is no root, and nobody who wants anything.
fn await_go(socket: &OwnedFd) {
    if wait(socket.as_fd(), PollFlags::IN, SECONDS_FOR_ROOT).is_empty() {
        exit_now(125);
    }
    let word = fdpass::receive(socket.as_fd(), MOST_BYTES).ok();
    if word.and_then(|(bytes, _)| Request::decode(&bytes)) != Some(Request::Go) {
        exit_now(125);
    }
}

fn enter_mounts(space: BorrowedFd<'_>) -> std::io::Result<()> {
    Ok(move_into_link_name_space(space, Some(LinkNameSpaceType::Mount))?)
}

fn entering(pid: u32) -> String {
    format!("entering process {pid}'s namespaces")
}

/// The namespaces that are entered.
struct Spaces {
    /// Nothing if it is the host's.
    mount: Option<OwnedFd>,
    others: Vec<(LinkNameSpaceType, OwnedFd)>,
}

impl Spaces {
    /// Opens those of a process, all of which must belong to a user namespace of the caller's making.
    fn open(caller: &Caller, pid: u32, own_name: bool) -> Result<Self> {
        let name = format!("process {pid}");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).context(|| name.clone())?;
        let user = open_ns(proc.as_fd(), "user").context(|| name.clone())?;
        check_owner(caller, user.as_fd(), &name)?;
        let ours = own_proc()?;
        let ours_user = open_ns(ours.as_fd(), "user").context(|| name.clone())?;
        let mut spaces = Self { mount: None, others: vec![] };
        let name_space = Some(HOST_NAME).filter(|_| own_name);
        for (kind, space) in name_space.into_iter().chain(KINDS) {
            let fd = open_ns(proc.as_fd(), kind).context(|| name.clone())?;
            // One that is shared with the host anyway need not be entered.
            let own = open_ns(ours.as_fd(), kind).context(|| name.clone())?;
            if ns::same(fd.as_fd(), own.as_fd()).context(|| name.clone())? {
                continue;
            }
            // A network of the site's belongs to the host. Where one process of the caller is, another may be.
            let is_hosts = ns::belongs_to(fd.as_fd(), ours_user.as_fd()).context(|| name.clone())?;
            if space != LinkNameSpaceType::Network || !is_hosts {
                check_belongs(fd.as_fd(), user.as_fd(), &name)?;
            }
            match space {
                LinkNameSpaceType::Mount => spaces.mount = Some(fd),
                _ => spaces.others.push((space, fd)),
            }
        }
        Ok(spaces)
    }
}

fn check_belongs(space: BorrowedFd<'_>, user: BorrowedFd<'_>, name: &str) -> Result<()> {
    if ns::belongs_to(space, user).context(|| name.to_owned())? {
        return Ok(());
    }
    Err(Error::new(format!("{name}: one of its namespaces belongs to another user namespace")))
}

/// What can go while the process still waits for its root: groups, umask, and all that an exec could bring.
fn leave_what_mounts_do_not_need(caller: &Caller) -> std::io::Result<()> {
    let groups: Vec<Gid> = caller.groups.iter().map(|g| Gid::from_raw(*g)).collect();
    set_thread_groups(&groups)?;
    let gid = Gid::from_raw(caller.gid);
    set_thread_res_gid(gid, gid, gid)?;
    rustix::process::umask(caller.umask);
    // While still root: it needs SETPCAP.
    caps::drop_from_bounding(CapabilitySet::empty())?;
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// The rest, from root to the caller; then makes sure.
fn give_up_everything(caller: &Caller, attr: SpawnAttr, filter: Filter) -> std::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    set_thread_res_uid(uid, uid, uid)?;
    // For root as the caller nothing went by itself.
    caps::set_to(CapabilitySet::empty())?;
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
    attr.apply()?;
    // Loaded since the request was known (`confine`).
    if filter == Filter::Loaded && !seccomp::is_loaded() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    signal::default_action(rustix::process::Signal::PIPE.as_raw());
    Ok(())
}
