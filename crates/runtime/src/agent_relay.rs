//! A way to an ssh agent: a process that leads whoever comes to a socket to the agent's own.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, send};
use rustix::process::{Signal, WaitOptions, geteuid, kill_process, set_parent_process_death_signal, wait};
use skiff_sandbox::start::{detach_stdio, reap};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};
use skiff_sys::signal::block_all;

use crate::control::new_socket;

/// How many programs can ask at a time. More wait.
const AT_ONCE: usize = 16;

/// A longer message is none of an agent's, in bytes: OpenSSH's own limit.
const LONGEST: usize = 256 << 10;
/// Types of messages: draft-miller-ssh-agent.
const FAILURE: u8 = 5;
const LIST_KEYS: u8 = 11;
const SIGN: u8 = 13;
const EXTENSION: u8 = 27;
/// By this a client says for which host it asks, so that keys bound to hosts can be used.
const BOUND: &[u8] = b"\0\0\0\x18session-bind@openssh.com";

/// What may be asked of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    /// Anything, by the user's own id.
    OfUser,
    /// Which keys it has, and signatures; by whoever can reach the socket.
    ToSign,
}

/// The way, which is closed when this is dropped.
pub struct AgentRelay {
    server: Child,
}

impl AgentRelay {
    /// Opens it from a listening socket.
    ///
    /// # Errors
    /// When there can be no such process.
    pub fn start(listener: OwnedFd, agent: &Path, requests: Requests) -> Result<Self> {
        match fork(CloneFlags::NONE).context(|| "process for the ssh agent")? {
            Fork::Parent(server) => Ok(Self { server }),
            Fork::Child => {
                close_all_except(&[listener.as_fd()]);
                end_with_parent();
                // Ctrl-C ends the command, not this process.
                block_all(&[]);
                detach_stdio();
                serve(&listener, agent, requests)
            }
        }
    }
}

impl Drop for AgentRelay {
    fn drop(&mut self) {
        kill_process(self.server.pid, Signal::KILL).ignore_error("it may have ended by itself");
        reap(self.server.pid);
    }
}

fn end_with_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).ignore_error("it can only fail for a wrong signal");
}

/// Leads each program that comes to the agent, by a process of its own.
fn serve(listener: &OwnedFd, agent: &Path, requests: Requests) -> ! {
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
        let is_user = || socket_peercred(&program).is_ok_and(|peer| peer.uid == geteuid());
        if requests == Requests::OfUser && !is_user() {
            continue;
        }
        match fork(CloneFlags::NONE) {
            Ok(Fork::Parent(_)) => running += 1,
            Ok(Fork::Child) => {
                end_with_parent();
                let relayed = reach(agent).and_then(|agent| match requests {
                    Requests::OfUser => pass_all(&program, &agent),
                    Requests::ToSign => pass_some(&program, &agent),
                });
                relayed.ignore_error("the program sees its connection's end");
                exit_now(0)
            }
            Err(_) => {}
        }
    }
}

fn reach(agent: &Path) -> rustix::io::Result<OwnedFd> {
    let other = new_socket(SocketType::STREAM)?;
    connect(&other, &SocketAddrUnix::new(agent)?)?;
    Ok(other)
}

/// Passes on both ways, until one of them has had enough.
fn pass_all(program: &OwnedFd, agent: &OwnedFd) -> rustix::io::Result<()> {
    loop {
        let mut fds = [PollFd::new(program, PollFlags::IN), PollFd::new(agent, PollFlags::IN)];
        poll(&mut fds, None)?;
        let ready = [0, 1].map(|at| !fds[at].revents().is_empty());
        for ((from, to), ready) in [(program, agent), (agent, program)].into_iter().zip(ready) {
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
    send_all(to, &buffer[..n])?;
    Ok(n > 0)
}

fn send_all(to: &OwnedFd, mut rest: &[u8]) -> rustix::io::Result<()> {
    while !rest.is_empty() {
        rest = &rest[send(to, rest, SendFlags::NOSIGNAL)?..];
    }
    Ok(())
}

/// Passes on one request after the other with its answer; those that are not allowed have failed.
fn pass_some(program: &OwnedFd, agent: &OwnedFd) -> rustix::io::Result<()> {
    while let Some(request) = message(program)? {
        let is_allowed = match &request[LENGTH..] {
            [LIST_KEYS | SIGN, ..] => true,
            [EXTENSION, what @ ..] => what.starts_with(BOUND),
            _ => false,
        };
        let answer = match is_allowed {
            true => {
                send_all(agent, &request)?;
                message(agent)?.ok_or(Errno::CONNRESET)?
            }
            false => vec![0, 0, 0, 1, FAILURE],
        };
        send_all(program, &answer)?;
    }
    Ok(())
}

/// Bytes in front of a message, which tell its length.
const LENGTH: usize = 4;

/// The next message with its length in front; nothing at the end.
fn message(from: &OwnedFd) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut head = [0; LENGTH];
    if !fill(from, &mut head)? {
        return Ok(None);
    }
    let length = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if length == 0 || length > LONGEST {
        return Err(Errno::BADMSG);
    }
    let mut message = head.to_vec();
    message.resize(LENGTH + length, 0);
    match fill(from, &mut message[LENGTH..])? {
        true => Ok(Some(message)),
        false => Err(Errno::BADMSG),
    }
}

/// Reads as much; whether there was anything before the end.
fn fill(from: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<bool> {
    let mut at = 0;
    while at < buffer.len() {
        match read(from, &mut buffer[at..]) {
            Ok(0) if at == 0 => return Ok(false),
            Ok(0) => return Err(Errno::BADMSG),
            Ok(n) => at += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_keys_are_listed_and_things_signed() {
        for (request, is_passed) in [
            (vec![0, 0, 0, 1, LIST_KEYS], true),
            (vec![0, 0, 0, 3, SIGN, 1, 2], true),
            ([&[0, 0, 0, 30, EXTENSION][..], BOUND, &[9]].concat(), true),
            (vec![0, 0, 0, 2, EXTENSION, 9], false),
            // Adding, removing and locking keys; SSH 1; nothing that is known.
            (vec![0, 0, 0, 2, 17, 1], false),
            (vec![0, 0, 0, 1, 19], false),
            (vec![0, 0, 0, 2, 22, 1], false),
            (vec![0, 0, 0, 1, 1], false),
            (vec![0, 0, 0, 1, 255], false),
        ] {
            let [(mut program, ours), (mut agent, theirs)] =
                [(); 2].map(|()| UnixStream::pair().expect("a pair"));
            program.write_all(&request).expect("asked");
            if is_passed {
                agent.write_all(&[0, 0, 0, 2, 12, 7]).expect("answered");
            }
            program.shutdown(std::net::Shutdown::Write).expect("closed");
            pass_some(&ours.into(), &theirs.into()).expect("passed on");
            let (mut answer, mut passed) = (vec![], vec![]);
            program.read_to_end(&mut answer).expect("an answer");
            agent.read_to_end(&mut passed).expect("what came");
            let want = if is_passed { vec![0, 0, 0, 2, 12, 7] } else { vec![0, 0, 0, 1, FAILURE] };
            assert_eq!(answer, want, "{request:?}");
            assert_eq!(passed, if is_passed { request } else { vec![] });
        }
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        for bytes in [vec![0, 0, 0, 0], vec![0xff; 4], vec![0, 0, 0, 9, 11], vec![0, 0]] {
            let (mut program, ours) = UnixStream::pair().expect("a pair");
            program.write_all(&bytes).expect("written");
            drop(program);
            assert_eq!(message(&ours.into()), Err(Errno::BADMSG), "{bytes:?}");
        }
    }
}
