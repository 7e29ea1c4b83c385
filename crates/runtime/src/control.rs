//! What commands and the supervisor of a running environment say to each other: one message of one byte, one answer. A session that sends `l`
//! is told by the same byte when it is the last.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::Pid;
use skiff_ipc::{Codec, Framing, Protocol};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{Child, positive_pid};
use skiff_user::dirs::with_umask;

mod ending;

pub use crate::supervisor_process::HeldDirectories;
pub use ending::{end_at, end_if_idle, stop_at};

/// The socket for the user's own commands, in the environment's directory.
pub const CONTROL: &str = "control.sock";
/// The socket shown inside.
pub const HOST: &str = "host.sock";

/// What a session says that wants to be told when it is the last.
const LAST: u8 = b'l';

/// How long a command waits for a supervisor.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a list waits for one of many.
const LIST_PATIENCE: Duration = Duration::from_secs(2);

/// What a command wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// To run something inside: the answer is process 1; the connection lasts as long as the session.
    Session,
    /// That it ends, with everything inside.
    Stop,
    /// That what it is kept for is asked to end.
    End,
    /// The environment is to end, if no session and no process is left in it.
    EndIfIdle,
    /// To know about it.
    Status,
    /// The command of the instance is to get this signal.
    Signal(u8),
    /// To have descriptors kept for whoever asks for them next.
    Hold,
    /// The descriptors that were kept, in a message of its own behind the answer.
    TakeHeld,
}

/// In a byte with the number of a signal: that it is one.
const SIGNAL: u8 = 0x80;
/// The highest number of a signal.
const LAST_SIGNAL: u8 = 64;

impl ControlRequest {
    /// As its byte.
    pub fn byte(self) -> u8 {
        match self {
            Self::Session => b's',
            Self::Stop => b'k',
            Self::End => b'e',
            Self::EndIfIdle => b'i',
            Self::Status => b'?',
            Self::Signal(number) => SIGNAL | number,
            Self::Hold => b'h',
            Self::TakeHeld => b't',
        }
    }

    /// From its byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        if byte & SIGNAL != 0 {
            return Some(byte & !SIGNAL).filter(|n| (1..=LAST_SIGNAL).contains(n)).map(Self::Signal);
        }
        let all =
            [Self::Session, Self::Stop, Self::End, Self::EndIfIdle, Self::Status, Self::Hold, Self::TakeHeld];
        all.into_iter().find(|w| w.byte() == byte)
    }
}

/// What a supervisor answers; a handle of process 1 comes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process1 {
    /// PID of the process.
    pub pid: Pid,
    /// How many sessions there were before this one.
    pub sessions: u32,
    /// Whether it is known to see all that a quick look at the host would find.
    pub sees_host: bool,
}

impl Codec for ControlRequest {
    const LONGEST: usize = 1;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(vec![self.byte()])
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [byte] = bytes else { return None };
        Self::from_byte(*byte)
    }
}

impl Codec for Process1 {
    const LONGEST: usize = 9;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = [self.pid.as_raw_nonzero().get().to_le_bytes(), self.sessions.to_le_bytes()].concat();
        bytes.push(self.sees_host.into());
        Some(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pid, sessions) = bytes.split_first_chunk()?;
        let pid = positive_pid(i32::from_le_bytes(*pid))?;
        let (sessions, rest) = sessions.split_first_chunk()?;
        // A supervisor that has been running since before an upgrade of Skiff says nothing of the host.
        let sees_host = match rest {
            [] | [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Self { pid, sessions: u32::from_le_bytes(*sessions), sees_host })
    }
}

impl Protocol for ControlRequest {
    type Answer = Process1;
    const NAME: &'static str = "Supervisor";
    const SIDES: [&'static str; 2] = ["`skiff`", "the supervisor of an environment"];
    const FRAMING: Framing = Framing::Own(
        "It is on the way of every start: a packet of one byte, and one of nine with the handle.",
    );
}

/// A running environment, from outside. Its files go only when it has ended.
pub struct Live {
    connection: OwnedFd,
    /// A handle of process 1.
    pub init: OwnedFd,
    /// PID of the process.
    pub pid: Pid,
    /// How many sessions there were before this one.
    pub sessions: u32,
    /// Whether it is known to see all that a quick look at the host would find.
    pub sees_host: bool,
}

/// What a list says of a supervisor.
pub enum SupervisorStatus {
    /// Nothing is running.
    NotRunning,
    /// The supervisor has answered.
    Running(Live),
    /// Something holds its socket and has not answered in time.
    Silent,
}

/// What came of a question.
enum Answer {
    /// Nothing is running.
    Nobody,
    From(Live),
    /// No answer came in time.
    Silence,
    /// The connection ended without an answer.
    CutOff,
}

impl Live {
    /// Makes sure that it runs still, so that what was read of its files was all there.
    ///
    /// # Errors
    /// It has ended.
    pub fn still_runs(&self, name: &str) -> Result<()> {
        let now = Timespec::default();
        match poll(&mut [PollFd::from_borrowed_fd(self.init.as_fd(), PollFlags::IN)], Some(&now)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            _ => Err(Error::new(format!("{name}: it was stopped meanwhile"))
                .hint("nothing was made of it; try again")),
        }
    }

    /// Asks the supervisor of what is in `dir` whether it is running. One that hangs must not keep a list from showing the others.
    pub fn status(dir: &Path) -> Result<SupervisorStatus> {
        Self::ask(dir, ControlRequest::Status, LIST_PATIENCE)
    }

    /// Asks the supervisor of the environment in `dir`; nothing if none runs.
    pub fn connect(dir: &Path, want: ControlRequest) -> Result<Option<Self>> {
        match Self::ask(dir, want, PATIENCE)? {
            SupervisorStatus::NotRunning => Ok(None),
            SupervisorStatus::Running(live) => Ok(Some(live)),
            SupervisorStatus::Silent => Err(Error::new(format!(
                "environment {}: its supervisor does not answer",
                dir.display()
            ))
            .hint(
                "`skiff env stop` or `skiff instance stop` ends it; the environment's files stay as they are",
            )),
        }
    }

    fn ask(dir: &Path, want: ControlRequest, patience: Duration) -> Result<SupervisorStatus> {
        let until = Instant::now() + patience;
        loop {
            // A supervisor answers at once, or something is badly wrong with it.
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match Self::ask_once(dir, want, left)? {
                Answer::Nobody => return Ok(SupervisorStatus::NotRunning),
                Answer::From(live) => return Ok(SupervisorStatus::Running(live)),
                Answer::Silence => return Ok(SupervisorStatus::Silent),
                // It is just ending, which shows by its socket; or too many others are there.
                Answer::CutOff if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                Answer::CutOff => return Ok(SupervisorStatus::Silent),
            }
        }
    }

    fn ask_once(dir: &Path, want: ControlRequest, patience: Duration) -> Result<Answer> {
        let name = || format!("environment {}", dir.display());
        let socket = match dial_within(dir, patience)? {
            None => return Ok(Answer::Nobody),
            Some(None) => return Ok(Answer::Silence),
            Some(Some(socket)) => socket,
        };
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience)).context(name)?;
        let asked = fdpass::send(socket.as_fd(), &[want.byte()], &[])
            .and_then(|()| fdpass::receive(socket.as_fd(), 64));
        let (bytes, fds) = match asked {
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(Answer::CutOff);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Answer::Silence),
            other => other.context(name)?,
        };
        let Some(init) = fds.into_iter().next() else { return Ok(Answer::CutOff) };
        let Process1 { pid, sessions, sees_host } = Process1::from_bytes(&bytes)
            .ok_or_else(|| Error::new(format!("{}: its supervisor sent an invalid answer", name())))?;
        Ok(Answer::From(Self { connection: socket, init, pid, sessions, sees_host }))
    }

    /// The connection that makes it a session.
    pub fn connection(&self) -> std::os::fd::BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Waits until this is the last session, of the watcher of a job's step.
    pub fn wait_for_others(&self) -> Result<()> {
        let about = || "the step's other tasks";
        sockopt::set_socket_timeout(&self.connection, Timeout::Recv, None).context(about)?;
        let told = fdpass::send(self.connection(), &[LAST], &[])
            .and_then(|()| fdpass::receive(self.connection(), 1))
            .context(about)?;
        if told.0.is_empty() { Err(Error::new("the step has ended")) } else { Ok(()) }
    }

    /// Ends the session (for one that did not become any).
    pub fn leave(self) {
        drop(self.connection);
    }
}

/// Has the supervisor of what runs in `dir` keep descriptors, in place of those that it has. It has them open itself: descriptors that wait in a socket
/// count against what all of the user's processes may have so. It closes them at its own end. One of an older Skiff keeps only the last.
///
/// # Errors
/// When none runs or it does not answer.
pub fn hold(dir: &Path, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let (socket, name) = dialled(dir)?;
    fdpass::send(socket.as_fd(), &[ControlRequest::Hold.byte()], descriptors)
        .and_then(|()| fdpass::receive(socket.as_fd(), 64))
        .context(|| name)
        .map(drop)
}

/// Takes the descriptors that the supervisor of what runs in `dir` keeps: from then on it keeps none. Nothing if there were none, or the supervisor is
/// of an older Skiff.
///
/// # Errors
/// When none runs or it does not answer.
pub fn take_held(dir: &Path) -> Result<Vec<OwnedFd>> {
    let (socket, name) = dialled(dir)?;
    let receive = || fdpass::receive(socket.as_fd(), 64).context(|| name.clone());
    fdpass::send(socket.as_fd(), &[ControlRequest::TakeHeld.byte()], &[]).context(|| name.clone())?;
    if receive()?.0.is_empty() {
        return Ok(vec![]);
    }
    Ok(receive()?.1)
}

fn dialled(dir: &Path) -> Result<(OwnedFd, String)> {
    let name = format!("environment {}", dir.display());
    let socket = dial(dir)?.ok_or_else(|| Error::new(format!("{name}: is not running")))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(LIST_PATIENCE)).context(|| name.clone())?;
    Ok((socket, name))
}

/// A connection to the supervisor of what runs at `dir`; nothing if none does.
pub fn dial(dir: &Path) -> Result<Option<OwnedFd>> {
    match dial_within(dir, PATIENCE)? {
        Some(None) => Err(Error::new(format!("{}: its supervisor does not answer", dir.display()))),
        dialled => Ok(dialled.flatten()),
    }
}

/// The outer option is empty where nothing is running, the inner one where too many others are being connected.
fn dial_within(dir: &Path, patience: Duration) -> Result<Option<Option<OwnedFd>>> {
    let name = || dir.display().to_string();
    // What runs inside may have put a link there, to a file server of its user's that lets whoever follows it wait for ever.
    if std::fs::symlink_metadata(dir.join(CONTROL)).is_ok_and(|found| !found.file_type().is_socket()) {
        return Ok(None);
    }
    let socket = new_socket(SocketType::SEQPACKET).context(name)?;
    let Ok(address) = Address::of(dir, CONTROL) else { return Ok(None) };
    // It is this one that bounds connect(2).
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience)).context(name)?;
    match connect(&socket, &address.unix) {
        Ok(()) => Ok(Some(Some(socket))),
        Err(Errno::AGAIN) => Ok(Some(None)),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(e) => Err(e).context(name),
    }
}

/// A listening socket in an environment's directory; one that a dead supervisor left is replaced.
pub fn listen_at(dir: &Path, name: &str, kind: SocketType) -> Result<OwnedFd> {
    let shown = || dir.join(name).display().to_string();
    let address = Address::of(dir, name).context(shown)?;
    match std::fs::remove_file(dir.join(name)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).context(shown),
        _ => {}
    }
    let socket = new_socket(kind).context(shown)?;
    with_umask(|| bind(&socket, &address.unix)).context(shown)?;
    listen(&socket, 64).context(shown)?;
    Ok(socket)
}

/// Answers what is said of process 1, with its handle.
pub fn answer(connection: &OwnedFd, init: &Child, process1: Process1) -> std::io::Result<()> {
    let bytes = process1.to_bytes().unwrap_or_default();
    fdpass::send(connection.as_fd(), &bytes, &[init.pidfd.as_fd()])
}

/// Whether a session that has said something goes on, and waits to be the last.
pub fn wants_to_be_last(connection: &OwnedFd) -> bool {
    fdpass::receive(connection.as_fd(), 1).is_ok_and(|(bytes, _)| bytes == [LAST])
}

/// Tells a session that there is no other any more; if it has gone, that shows by itself.
pub fn tell_last(connection: &OwnedFd) {
    fdpass::send(connection.as_fd(), &[LAST], &[]).ignore_error("that the session has gone shows by itself");
}

/// A new Unix socket.
pub fn new_socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

/// The address of a socket in a directory of any length: the kernel takes 107 bytes, so the directory goes by descriptor.
struct Address {
    unix: SocketAddrUnix,
    _dir: Option<OwnedFd>,
}

impl Address {
    fn of(dir: &Path, name: &str) -> rustix::io::Result<Self> {
        if let Ok(unix) = SocketAddrUnix::new(dir.join(name)) {
            return Ok(Self { unix, _dir: None });
        }
        let fd = openat(CWD, dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        Ok(Self { unix: SocketAddrUnix::new(path)?, _dir: Some(fd) })
    }
}
