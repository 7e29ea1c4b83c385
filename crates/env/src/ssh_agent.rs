//! The agent that `ssh -A` forwards. Its socket lies in the host's `/tmp`, of which an environment shows nothing: one of the same name in the
//! environment's own `/tmp` leads to it as long as the session lasts.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socketpair,
};
use rustix::process::{geteuid, getpid};
use skiff_output as output;
use skiff_plan::inside::ProcessArgs;
use skiff_plan::ssh_agent::{PLACE, VARIABLE, directory, parts};
use skiff_plan::{parse_mount, parse_mounts};
use skiff_runtime::agent_relay::{AgentRelay, Requests};
use skiff_runtime::control::new_socket;
use skiff_runtime::environments::Environment;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::inside::act_inside;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::{Mount, Plan, Source};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_user::context::UserContext;

/// The way to an agent, which is closed when this is dropped.
pub struct ForwardedAgent {
    _relay: AgentRelay,
    _socket: Socket,
}

/// A socket in a directory of its own in an environment's `/tmp`, which is removed when this is dropped.
struct Socket {
    all: OwnedFd,
    dir: OwnedFd,
    dir_name: OsString,
    name: OsString,
}

/// Opens the way for a command that is about to run in an environment, and tells it by its variable. Nothing if there is no agent, or one
/// that is shown inside anyway.
pub fn forward(
    context: &UserContext,
    env: &Environment,
    inside: &ProcessArgs,
    command: &mut CommandSpec,
) -> Option<ForwardedAgent> {
    forward_by(context, inside, command, |_| tmp_of_environment(context, env))
}

/// The same for a command that is about to run in an instance, which shows the agent of the session that it was started in.
pub fn forward_to_instance(
    context: &UserContext,
    (init, plan): (BorrowedFd<'_>, &Plan),
    inside: &ProcessArgs,
    command: &mut CommandSpec,
) -> Option<ForwardedAgent> {
    forward_by(context, inside, command, |dir| tmp_of_instance(init, plan, dir))
}

/// Opens the way by the directory inside that programs there see as [`PLACE`]; nothing if that shows `dir` of the host's.
fn forward_by(
    context: &UserContext,
    inside: &ProcessArgs,
    command: &mut CommandSpec,
    tmp: impl FnOnce(&Path) -> Result<Option<OwnedFd>>,
) -> Option<ForwardedAgent> {
    let shown = directory(context, command, inside)?;
    let agent = PathBuf::from(command.var(VARIABLE)?);
    let (dir, name) = parts(&agent)?;
    let unreachable = |why: &dyn Display| {
        output::note(&format!("no way to the ssh agent from inside: {why}"));
        None
    };
    let opened = tmp(&shown).and_then(|tmp| tmp.map(|tmp| open_way(tmp, (dir, name))).transpose());
    let (listener, socket) = match opened {
        Ok(found) => found?,
        Err(e) => return unreachable(&e.message),
    };
    match AgentRelay::start(listener, &agent, Requests::OfUser) {
        Ok(relay) => {
            command.set(VARIABLE, Path::new(PLACE).join(dir).join(&socket.name));
            Some(ForwardedAgent { _relay: relay, _socket: socket })
        }
        Err(e) => unreachable(&e),
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An environment's own, whether it runs or not.
fn tmp_of_environment(context: &UserContext, env: &Environment) -> Result<Option<OwnedFd>> {
    if mounts(context, env)?.iter().any(|mount| mount.target.starts_with(PLACE)) {
        return Ok(None);
    }
    let place = env.dir.join("tmp");
    openat(CWD, &place, DIRECTORY, Mode::empty()).context(|| place.display().to_string()).map(Some)
}

/// An instance's, which need not be on a disk: a process inside hands it out. Contained ones are told of no agent.
fn tmp_of_instance(init: BorrowedFd<'_>, plan: &Plan, shown: &Path) -> Result<Option<OwnedFd>> {
    let shows = |mount: &Mount| {
        let is_hosts = mount.target == Path::new(PLACE) && matches!(mount.source, Source::Bind(_));
        is_hosts || mount.target == shown
    };
    if plan.contain || plan.untrusted || plan.mounts.iter().any(shows) {
        return Ok(None);
    }
    let about = || format!("{PLACE} of the instance");
    let flags = SocketFlags::CLOEXEC;
    let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).context(about)?;
    act_inside(init, || {
        let tmp = openat(CWD, PLACE, DIRECTORY, Mode::empty()).context(about)?;
        fdpass::send(other.as_fd(), b"t", &[tmp.as_fd()]).context(about)
    })?;
    let (_, received) = fdpass::receive(own.as_fd(), 1).context(about)?;
    Ok(received.into_iter().next())
}

fn open_way(all: OwnedFd, (dir_name, name): (&OsStr, &OsStr)) -> Result<(OwnedFd, Socket)> {
    let about = || Path::new(PLACE).join(dir_name).display().to_string();
    match mkdirat(&all, dir_name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e).context(about),
    }
    let dir = openat(&all, dir_name, DIRECTORY, Mode::empty()).context(about)?;
    let meta = fstat(&dir).context(about)?;
    // Other users inside can make names in `/tmp`.
    if meta.st_uid != geteuid().as_raw() || meta.st_mode & 0o077 != 0 {
        return Err(Error::new(format!("{}: another user's, or open to others", about())));
    }
    let (listener, name) = listen_in(&dir, name).context(about)?;
    Ok((listener, Socket { all, dir, dir_name: dir_name.into(), name }))
}

/// What the site and the environment's user have mounted in it.
fn mounts(context: &UserContext, env: &Environment) -> Result<Vec<Mount>> {
    let mut all = vec![];
    for text in &env.settings()?.mounts {
        all.extend(parse_mounts(text)?);
    }
    for text in &context.config.mounts {
        all.push(parse_mount(text)?);
    }
    Ok(all)
}

/// Listens under this name, or under another beside it where another session of the user's does. Gives the name.
fn listen_in(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<(OwnedFd, OsString)> {
    let mut name = name.to_owned();
    let address = |name: &OsStr| {
        SocketAddrUnix::new(Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
    };
    let listener = new_socket(SocketType::STREAM)?;
    match bind(&listener, &address(&name)?) {
        Err(Errno::ADDRINUSE) => {
            match connect(new_socket(SocketType::STREAM)?, &address(&name)?) {
                Err(Errno::CONNREFUSED) => unlinkat(dir, &name, AtFlags::empty())?,
                _ => name.push(format!(".{}", getpid().as_raw_nonzero())),
            }
            bind(&listener, &address(&name)?)?;
        }
        bound => bound?,
    }
    listen(&listener, 16)?;
    Ok((listener, name))
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Self { all, dir, dir_name, name } = &*self;
        unlinkat(dir, name, AtFlags::empty()).ignore_error("who works inside may have removed it");
        unlinkat(all, dir_name, AtFlags::REMOVEDIR).ignore_error("another session may still have one in it");
    }
}
