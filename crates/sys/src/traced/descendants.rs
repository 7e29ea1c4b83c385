//! Following a process and all that it forks, to give them other sockets than those that they bind to abstract names.
//!
//! An abstract name is seen, and a datagram socket that has one is written to, by everybody in its network namespace. Which that is, is settled when
//! the socket is made. So a socket of another namespace is put in its place, as soon as it is bound.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, getpid};

use super::{Own, PRCTL, RESULT, Request, ask, call, registers_of, set_registers_of};
use crate::memory::read_of;
use crate::process::positive_pid;
use crate::signal::Signals;

/// `PTRACE_GET_SYSCALL_INFO`, with the size of what it gives, and what it says of where a process stands. Source: `linux/ptrace.h`.
const GET_CALL: Request = 0x420e;
const CALL_SIZE: usize = 88;
const IS_ENTRY: u8 = 1;
const IS_EXIT: u8 = 2;
/// Where it has the number of the call, and its arguments.
const NUMBER: usize = 24;
const ARGUMENTS: usize = 32;
/// The signal of a stop at a system call, where that is asked for.
const AT_CALL: i32 = libc::SIGTRAP | 0x80;
/// Longest address of a Unix socket: its family and its name.
const LONGEST: usize = 110;

/// A process that is traced with all that it forks. This thread, and no other, may ask for anything of them. When the thread ends, the kernel lets
/// all go on.
pub struct TracedDescendants {
    maker: Pid,
    processes: HashMap<Pid, TraceStage>,
    signals: Signals,
    moved: usize,
    gives_up: bool,
}

/// What has been done for the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// How many sockets were replaced.
    pub moved: usize,
    /// Whether the first process was made, and is a subreaper.
    pub is_adopting: bool,
}

/// How far a process is.
enum TraceStage {
    /// Stops at each call.
    Watched,
    /// Binds this socket to this name.
    Binding(u64, Vec<u8>),
    /// Runs on.
    Done,
}

/// Where a process stands.
enum CallStop {
    Entry(u64, [u64; 3]),
    Exit,
    Elsewhere,
}

impl TracedDescendants {
    /// Begins to trace a process, which runs on. This process must have one thread, whose signals are blocked.
    ///
    /// # Errors
    /// `EPERM` if another traces it, or this process may not.
    pub fn trace(maker: Pid) -> io::Result<Self> {
        let signals = Signals::block(&[])?;
        // Threads are not followed: they are made by another call.
        let options = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACESYSGOOD;
        ask(libc::PTRACE_SEIZE, maker, 0, options as usize)?;
        let processes = HashMap::from([(maker, TraceStage::Done)]);
        Ok(Self { maker, processes, signals, moved: 0, gives_up: false })
    }

    /// Follows them until `end` is readable or closed, or the maker has ended. `first` becomes a subreaper before it does anything. `socket_for` gives the
    /// socket that takes the place of one with an abstract name, if there is to be any; this process must be one that the others may trace. If not
    /// even the first can be replaced, none is.
    ///
    /// # Errors
    /// When some sockets have been replaced and another cannot be, or the kernel refuses.
    pub fn follow(
        mut self,
        end: BorrowedFd<'_>,
        first: Option<Pid>,
        mut socket_for: impl FnMut(&[u8]) -> io::Result<Option<OwnedFd>>,
    ) -> io::Result<Followed> {
        let mut is_adopting = false;
        while let Some((pid, status)) = self.next_stop(end)? {
            if !libc::WIFSTOPPED(status) {
                self.processes.remove(&pid);
                if pid == self.maker {
                    break;
                }
                continue;
            }
            let handled = if !self.processes.contains_key(&pid) {
                let new = if self.gives_up { TraceStage::Done } else { TraceStage::Watched };
                self.processes.insert(pid, new);
                let adopts = Some(pid) == first;
                is_adopting |= adopts;
                if adopts { adopt_orphans(pid) } else { Ok(()) }
            } else if libc::WSTOPSIG(status) == AT_CALL {
                self.at_call(pid, &mut socket_for)
            } else {
                Ok(())
            };
            ignore_ended(handled.and_then(|()| self.proceed(pid, status)))?;
        }
        Ok(Followed { moved: self.moved, is_adopting })
    }

    /// Waits until one has stopped or ended; nothing once it is enough.
    fn next_stop(&self, end: BorrowedFd<'_>) -> io::Result<Option<(Pid, i32)>> {
        // Other threads' children are nobody's business here.
        let options = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
        loop {
            let mut status = 0;
            // SAFETY: the status lives through the call.
            let changed = unsafe { libc::waitpid(-1, &raw mut status, options) };
            if let Some(pid) = positive_pid(changed) {
                return Ok(Some((pid, status)));
            }
            if changed < 0 {
                let e = io::Error::last_os_error();
                return if e.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(e) };
            }
            let mut ready = [self.signals.as_fd(), end].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            if !ready[1].revents().is_empty() {
                return Ok(None);
            }
            // Before the next look: whatever stops after that gives another one.
            while self.signals.next()?.is_some() {}
        }
    }

    /// Lets one go on. A signal goes on its way; a stop of another kind has none.
    fn proceed(&self, pid: Pid, status: i32) -> io::Result<()> {
        let is_signal = status >> 16 == 0 && libc::WSTOPSIG(status) != AT_CALL;
        let signal = if is_signal { libc::WSTOPSIG(status) } else { 0 };
        let is_done = matches!(self.processes.get(&pid), None | Some(TraceStage::Done));
        let how = if is_done { libc::PTRACE_CONT } else { libc::PTRACE_SYSCALL };
        ask(how, pid, 0, signal.unsigned_abs() as usize)
    }

    fn at_call(
        &mut self,
        pid: Pid,
        socket_for: &mut impl FnMut(&[u8]) -> io::Result<Option<OwnedFd>>,
    ) -> io::Result<()> {
        match (call_stop(pid)?, self.processes.get(&pid)) {
            (CallStop::Entry(number, [socket, address, length]), Some(TraceStage::Watched))
                if number == libc::SYS_bind as u64 =>
            {
                if let Some(name) = abstract_name(pid, address, length) {
                    self.processes.insert(pid, TraceStage::Binding(socket, name));
                }
            }
            (CallStop::Exit, Some(TraceStage::Binding(socket, name))) => {
                let replaced = socket_for(name).and_then(|new| match new {
                    Some(new) => replace(pid, *socket, new.as_fd()).map(|()| true),
                    None => Ok(false),
                });
                self.note(pid, replaced)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes whether a socket was replaced.
    fn note(&mut self, pid: Pid, replaced: io::Result<bool>) -> io::Result<()> {
        let next = match replaced {
            Err(e) if self.moved == 0 && e.raw_os_error() != Some(libc::ESRCH) => {
                self.give_up();
                TraceStage::Done
            }
            Err(e) => return Err(e),
            Ok(false) => TraceStage::Watched,
            Ok(true) => {
                self.moved += 1;
                TraceStage::Done
            }
        };
        self.processes.insert(pid, next);
        Ok(())
    }

    /// All sockets stay where they are: then they still reach each other.
    fn give_up(&mut self) {
        self.gives_up = true;
        self.processes.values_mut().for_each(|progress| *progress = TraceStage::Done);
    }
}

/// A process that somebody has killed needs nothing more. Its end comes next.
fn ignore_ended(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

fn adopt_orphans(pid: Pid) -> io::Result<()> {
    call(pid, [PRCTL, libc::PR_SET_CHILD_SUBREAPER as u64, 1, 0, 0, 0]).map(drop)
}

fn call_stop(pid: Pid) -> io::Result<CallStop> {
    let mut info = [0_u8; CALL_SIZE];
    // The call gives how many bytes there are, which is no error.
    ask(GET_CALL, pid, CALL_SIZE, info.as_mut_ptr().addr())?;
    let word = |at: usize| info[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    Ok(match info[0] {
        IS_ENTRY => CallStop::Entry(word(NUMBER), [0, 8, 16].map(|offset| word(ARGUMENTS + offset))),
        IS_EXIT => CallStop::Exit,
        _ => CallStop::Elsewhere,
    })
}

/// The abstract name in an address of a process's memory, without the zero byte in front of it.
fn abstract_name(pid: Pid, address: u64, length: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(length).ok().filter(|length| (4..=LONGEST).contains(length))?;
    let mut bytes = vec![0; length];
    let read = read_of(pid.as_raw_nonzero().get(), address, &mut bytes).ok()?;
    let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    (read == length && family == libc::AF_UNIX && bytes[2] == 0).then(|| bytes.split_off(3))
}

/// Puts a socket of this process in the place of one of a process that has just bound it. So whether somebody else had the name makes no difference.
fn replace(pid: Pid, socket: u64, new: BorrowedFd<'_>) -> io::Result<()> {
    let of = |number: libc::c_long, [one, two, three]: [u64; 3]| {
        call(pid, [number.cast_unsigned(), one, two, three, 0, 0])
    };
    let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    let pidfd = of(libc::SYS_pidfd_open, [own, 0, 0])?;
    let copied = of(libc::SYS_pidfd_getfd, [pidfd, new.as_raw_fd() as u64, 0]);
    of(libc::SYS_close, [pidfd, 0, 0])?;
    let copy = copied?;
    of(libc::SYS_dup3, [copy, socket, libc::O_CLOEXEC as u64])?;
    of(libc::SYS_close, [copy, 0, 0])?;
    let mut registers = registers_of(&Own(pid))?;
    registers[RESULT] = 0;
    set_registers_of(&Own(pid), registers)
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, socket_with,
    };
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::process::{CloneFlags, Fork, exit_now, fork};

    fn bound(name: &str) -> io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(socket)
    }

    fn name_of(socket: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let address = SocketAddrUnix::try_from(getsockname(socket).ok()?).ok()?;
        address.abstract_name().map(<[u8]>::to_vec)
    }

    /// A process, and two that it makes, bind names and say which they have then. The names are taken: so each needs what it is given.
    fn bind_three(prefix: &str, tell: BorrowedFd<'_>) -> i32 {
        let say = |place: usize| {
            let Ok(socket) = bound(&format!("{prefix}{place}")) else { return 1 };
            let name = name_of(socket.as_fd()).unwrap_or_default();
            i32::from(rustix::io::write(tell, &[&name[..], b"\n"].concat()).is_err())
        };
        match fork(CloneFlags::NONE) {
            Ok(Fork::Child) if say(1) == 0 => match fork(CloneFlags::NONE) {
                Ok(Fork::Child) => exit_now(say(2)),
                Ok(Fork::Parent(child)) => crate::traced::wait_for(child.pid).map_or(1, |status| status),
                Err(_) => 1,
            },
            Ok(Fork::Parent(child)) => crate::traced::wait_for(child.pid).map_or(1, |status| status),
            _ => 1,
        }
    }

    #[test]
    fn what_descendants_bind_is_replaced() {
        let own = std::process::id();
        let (prefix, other) = (format!("skiff-test-{own}-a"), format!("skiff-test-{own}-b"));
        let taken = [1, 2].map(|place| bound(&format!("{prefix}{place}")).expect("free"));
        let (go, gate) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let (said, tell) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let (end, _open) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let Fork::Parent(maker) = fork(CloneFlags::NONE).expect("forked") else {
            drop(gate);
            // Traced from then on.
            let _told = rustix::io::read(&go, &mut [0]);
            exit_now(bind_three(&prefix, tell.as_fd()))
        };
        let Fork::Parent(tracer) = fork(CloneFlags::NONE).expect("forked") else {
            let followed = TracedDescendants::trace(maker.pid).and_then(|traced| {
                rustix::io::write(&gate, b"g")?;
                traced.follow(end.as_fd(), None, |name| {
                    let name = String::from_utf8_lossy(name);
                    let Some(place) = name.strip_prefix(&prefix) else { return Ok(None) };
                    bound(&format!("{other}{place}")).map(Some)
                })
            });
            let wanted = Followed { moved: 2, is_adopting: false };
            exit_now(i32::from(followed.ok() != Some(wanted)));
        };
        assert_eq!(crate::traced::wait_for(tracer.pid).expect("ended"), 0);
        assert_eq!(crate::traced::wait_for(maker.pid).expect("ended"), 0);
        drop((tell, taken));
        let mut names = String::new();
        io::Read::read_to_string(&mut std::fs::File::from(said), &mut names).expect("read");
        assert_eq!(names, format!("{other}1\n{other}2\n"));
    }
}
