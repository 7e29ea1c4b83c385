//! The agent that `ssh -A` forwards. Its socket lies in the host's `/tmp`, of which an environment shows nothing: one of the same name in the
//! environment's own `/tmp` leads to it as long as the session lasts.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use rustix::io::{Errno, read};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, send,
};
use rustix::process::{
    Signal, WaitOptions, geteuid, getpid, kill_process, set_parent_process_death_signal, wait,
};
use skiff_output as output;
use skiff_plan::ssh_agent::{PLACE, VARIABLE, parts};
use skiff_plan::{parse_mount, parse_mounts};
use skiff_runtime::control::new_socket;
use skiff_runtime::environments::Environment;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::start::{detach_stdio, reap};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::Mount;
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};
use skiff_sys::signal::block_all;
use skiff_user::context::UserContext;

/// How many programs inside can ask at a time. More wait.
const AT_ONCE: usize = 16;

/// The way to an agent, which is closed when this is dropped.
pub struct ForwardedAgent {
    server: Child,
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
    command: &mut CommandSpec,
) -> Option<ForwardedAgent> {
    let agent = PathBuf::from(command.var(VARIABLE)?);
    let (dir, name) = parts(&agent)?;
    let unreachable = |why: &dyn Display| {
        output::note(&format!("no way to the ssh agent from inside: {why}"));
        None
    };
    let (listener, socket) = match open_way(context, env, (dir, name)) {
        Ok(found) => found?,
        Err(e) => return unreachable(&e.message),
    };
    match fork(CloneFlags::NONE) {
        Ok(Fork::Parent(server)) => {
            command.set(VARIABLE, Path::new(PLACE).join(dir).join(&socket.name));
            Some(ForwardedAgent { server, _socket: socket })
        }
        Ok(Fork::Child) => {
            close_all_except(&[listener.as_fd()]);
            end_with_parent();
            // Ctrl-C ends the command, not this process.
            block_all(&[]);
            detach_stdio();
            serve(&listener, &agent)
        }
        Err(e) => unreachable(&e),
    }
}

fn open_way(
    context: &UserContext,
    env: &Environment,
    (dir_name, name): (&OsStr, &OsStr),
) -> Result<Option<(OwnedFd, Socket)>> {
    if mounts(context, env)?.iter().any(|mount| mount.target.starts_with(PLACE)) {
        return Ok(None);
    }
    let place = env.dir.join("tmp");
    let about = || place.join(dir_name).display().to_string();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let all = openat(CWD, &place, flags, Mode::empty()).context(about)?;
    match mkdirat(&all, dir_name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e).context(about),
    }
    let dir = openat(&all, dir_name, flags, Mode::empty()).context(about)?;
    let meta = fstat(&dir).context(about)?;
    // Other users inside can make names in `/tmp`.
    if meta.st_uid != geteuid().as_raw() || meta.st_mode & 0o077 != 0 {
        return Err(Error::new(format!("{}: another user's, or open to others", about())));
    }
    let (listener, name) = listen_in(&dir, name).context(about)?;
    Ok(Some((listener, Socket { all, dir, dir_name: dir_name.into(), name })))
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

impl Drop for ForwardedAgent {
    fn drop(&mut self) {
        kill_process(self.server.pid, Signal::KILL).ignore_error("it may have ended by itself");
        reap(self.server.pid);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Self { all, dir, dir_name, name } = &*self;
        unlinkat(dir, name, AtFlags::empty()).ignore_error("who works inside may have removed it");
        unlinkat(all, dir_name, AtFlags::REMOVEDIR).ignore_error("another session may still have one in it");
    }
}

fn end_with_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).ignore_error("it can only fail for a wrong signal");
}

/// Leads each program that comes to the agent, by a process of its own.
fn serve(listener: &OwnedFd, agent: &Path) -> ! {
    let mut running = 0;
    loop {
        while running > 0
            && let Ok(Some(_)) =
                wait(if running < AT_ONCE { WaitOptions::NOHANG } else { WaitOptions::empty() })
        {
            running -= 1;
        }
        let Ok(program) = accept_with(listener, SocketFlags::CLOEXEC) else { exit_now(1) };
        // Root inside and the user themselves; nobody else whom the environment has.
        if !socket_peercred(&program).is_ok_and(|peer| peer.uid == geteuid()) {
            continue;
        }
        match fork(CloneFlags::NONE) {
            Ok(Fork::Parent(_)) => running += 1,
            Ok(Fork::Child) => {
                end_with_parent();
                relay(&program, agent).ignore_error("the program sees its connection's end");
                exit_now(0)
            }
            Err(_) => {}
        }
    }
}

/// Passes on both ways, until one of them has had enough.
fn relay(program: &OwnedFd, agent: &Path) -> rustix::io::Result<()> {
    let other = new_socket(SocketType::STREAM)?;
    connect(&other, &SocketAddrUnix::new(agent)?)?;
    loop {
        let mut fds = [PollFd::new(program, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        poll(&mut fds, None)?;
        let ready = [0, 1].map(|at| !fds[at].revents().is_empty());
        for ((from, to), ready) in [(program, &other), (&other, program)].into_iter().zip(ready) {
            if ready && !pass_on(from, to)? {
                return Ok(());
            }
        }
    }
}

/// Passes on what has come; whether more may.
fn pass_on(from: &OwnedFd, to: &OwnedFd) -> rustix::io::Result<bool> {
    let mut buffer = [0; 4096];
    let n = read(from, &mut buffer)?;
    let mut rest = &buffer[..n];
    while !rest.is_empty() {
        rest = &rest[send(to, rest, SendFlags::NOSIGNAL)?..];
    }
    Ok(n > 0)
}
