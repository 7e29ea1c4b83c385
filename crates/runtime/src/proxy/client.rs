//! The inner side: Skiff called by a host command's name. To the user it must look as if the command ran right here: its
//! terminal, its signals, its stops, its exit.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::stat;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketType, connect};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};
use skiff_ipc::Codec;
use skiff_output as output;
use skiff_sandbox::command::{CommandSpec, NotStarted, own_args, own_env};
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::inside;
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{group_of, own_umask};
use skiff_sys::signal::{Signals, die_by};

use crate::control::new_socket;
use crate::proxy::broadcast;
use crate::proxy::server::FileOf;
use crate::proxy::words::{CommandRequest, CommandState, DirectoryId, OURSELVES, SHIM_DIRS, SIGNAL};

/// How often a command in the background looks whether it has come into the foreground: a shell's `fg` tells only those that were stopped.
const FOREGROUND_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Does what the host's command `name` would do; the exit code.
pub fn run_as(name: &OsStr) -> Result<i32> {
    let mut words = own_args(1);
    if name == broadcast::COMMAND {
        words = broadcast::redirect(words).map_err(|e| e.about(broadcast::COMMAND))?;
    }
    match supervisor()? {
        Some(socket) => through(name, words, &socket, stdio().map(isatty)),
        None => Err(directly(name, words)),
    }
}

/// Has this very command of ours, with its arguments, done by the supervisor outside; nothing if there is none. Only what works at a terminal
/// has one of its own there: that of any other goes along as a file would, so that what is typed ahead stays for the next command.
pub fn call_outside(works_at_terminal: bool) -> Result<Option<i32>> {
    let terminals = if works_at_terminal { stdio().map(isatty) } else { [false; 3] };
    let outside = |socket| through(OsStr::new(OURSELVES), own_args(1), &socket, terminals);
    supervisor()?.map(outside).transpose()
}

fn supervisor() -> Result<Option<OwnedFd>> {
    let socket = new_socket(SocketType::STREAM).context(|| "socket")?;
    let address = SocketAddrUnix::new(inside::SOCKET).context(|| inside::SOCKET)?;
    Ok(connect(&socket, &address).is_ok().then_some(socket))
}

fn stdio() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

/// Without a supervisor to ask (in a job): the host's command as it is, by the user as they are.
fn directly(name: &OsStr, words: Vec<OsString>) -> Error {
    if rustix::process::getuid().is_root() {
        return Error::new(format!("{}: not as root of an environment without a supervisor", name.display()))
            .hint("use an environment that stays (`skiff env enter`), or `skiff run --me`");
    }
    let host = |dir: &&str| Path::new(inside::HOST).join(dir.trim_start_matches('/')).join(name);
    let Some(real) = SHIM_DIRS.iter().map(host).find(|p| p.exists()) else {
        return Error::new(format!("{}: not installed on the host", name.display()));
    };
    let argv = std::iter::once(real.into_os_string()).chain(words).collect();
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let command =
        CommandSpec { argv, argv0: Some(name.to_owned()), env: own_env(), cwd, ..CommandSpec::default() };
    let (NotStarted::User(e)
    | NotStarted::Directory(e)
    | NotStarted::Program(e)
    | NotStarted::Untrusted(e)
    | NotStarted::Limits(e)) = command.exec();
    Error::new(format!("{}: {e}", name.display()))
}

fn through(name: &OsStr, words: Vec<OsString>, socket: &OwnedFd, terminals: [bool; 3]) -> Result<i32> {
    let stdio = stdio();
    let terminal = stdio.into_iter().zip(terminals).find(|(_, t)| *t).map(|(fd, _)| fd);
    let size = terminal.and_then(|t| tcgetwinsize(t).ok()).map_or([24, 80], |w| [w.ws_row, w.ws_col]);
    let request = CommandRequest {
        argv: std::iter::once(name.to_owned()).chain(words).map(bytes).collect(),
        env: own_env().into_iter().map(|(n, v)| [n.as_bytes(), b"=", v.as_bytes()].concat()).collect(),
        cwd: std::env::current_dir().map(|d| bytes(d.into_os_string())).unwrap_or_else(|_| b"/".to_vec()),
        directory: own_directory(),
        terminals,
        size,
        umask: own_umask(),
    };
    let signals = Signals::block(&[]).context(|| "signals")?;
    let lost = || "the environment's supervisor";
    fdpass::send(socket.as_fd(), b"r", &stdio).context(lost)?;
    request.write(&mut FileOf(socket)).context(lost)?;
    let mut relay = Relay {
        socket,
        signals,
        terminal,
        terminals,
        master: None,
        cooked: None,
        output_modes: None,
        begun_with: None,
    };
    let ended = relay.run();
    relay.restore();
    match ended? {
        CommandExit::Code(code) => Ok(code),
        CommandExit::Signal(signal) => die_by(signal),
    }
}

/// The identity of the current directory, if the host has it, too: not on the environment's own root.
fn own_directory() -> Option<DirectoryId> {
    let (here, root) = (stat(".").ok()?, stat("/").ok()?);
    (here.st_dev != root.st_dev).then_some(DirectoryId { device: here.st_dev, inode: here.st_ino })
}

fn bytes(s: OsString) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    s.into_vec()
}

/// Between the user's terminal and the command's.
struct Relay<'a> {
    socket: &'a OwnedFd,
    signals: Signals,
    terminal: Option<BorrowedFd<'a>>,
    terminals: [bool; 3],
    master: Option<OwnedFd>,
    /// The terminal's settings before ours.
    cooked: Option<Termios>,
    /// What the command's terminal does with what is shown.
    output_modes: Option<OutputModes>,
    /// Modes of the command's terminal when it was begun in the background: a shell that reads a line meanwhile shows no keys by itself.
    begun_with: Option<Termios>,
}

impl Relay<'_> {
    fn run(&mut self) -> Result<CommandExit> {
        loop {
            let is_working = self.master.is_some() && self.terminal.is_some();
            let in_foreground = is_working && self.in_foreground();
            let typing = in_foreground && self.terminals[0];
            if in_foreground && self.cooked.is_none() {
                self.make_raw();
            }
            let mut fds =
                vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(self.socket, PollFlags::IN)];
            if let Some(master) = &self.master {
                fds.push(PollFd::new(master, PollFlags::IN));
                if typing {
                    fds.push(PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN));
                }
            }
            let limit = (is_working && !in_foreground).then_some(&FOREGROUND_LOOK);
            match poll(&mut fds, limit) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context(|| "poll"),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready.get(2) == Some(&true) {
                self.show();
            }
            if ready.get(3) == Some(&true) {
                self.type_in();
            }
            if ready[0] {
                self.pass_signals();
            }
            if ready[1]
                && let Some(end) = self.hear()?
            {
                while self.show() {}
                return Ok(end);
            }
        }
    }

    /// One word of the server's; how the command ended, if it did.
    fn hear(&mut self) -> Result<Option<CommandExit>> {
        let lost = || "the environment's supervisor";
        let (mut word, fds) = fdpass::receive(self.socket.as_fd(), 1).context(lost)?;
        if let Some(first) = word.first() {
            let mut rest = vec![0; CommandState::length(*first) - 1];
            std::io::Read::read_exact(&mut FileOf(self.socket), &mut rest).context(lost)?;
            word.extend(rest);
        }
        match CommandState::from_bytes(&word) {
            Some(CommandState::Started) => {
                self.master = fds.into_iter().next();
                if !self.in_foreground() {
                    self.begun_with = self.master.as_ref().and_then(|master| tcgetattr(master).ok());
                }
                self.make_raw();
            }
            Some(CommandState::Stopped) => {
                self.restore();
                kill_process(getpid(), Signal::STOP).ignore_error("to itself anybody may send signals");
                self.make_raw();
                self.send_signal(Signal::CONT.as_raw());
            }
            Some(CommandState::Exited(code)) => return Ok(Some(CommandExit::Code(code))),
            Some(CommandState::Killed(signal)) => return Ok(Some(CommandExit::Signal(signal))),
            None => {
                return Err(
                    Error::new("the environment's supervisor has gone").hint("was the environment stopped?")
                );
            }
        }
        Ok(None)
    }

    /// From the command's terminal to the user's; whether there was anything.
    fn show(&mut self) -> bool {
        let Some(master) = &self.master else { return false };
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waiting = poll(&mut [PollFd::new(master, PollFlags::IN)], Some(&none));
        if !matches!(waiting, Ok(1)) {
            return false;
        }
        self.follow();
        let Some(master) = &self.master else { return false };
        let mut buffer = [0; 16 << 10];
        match rustix::io::read(master, &mut buffer) {
            Ok(n) if n > 0 => {
                let out = if self.terminals[1] {
                    rustix::stdio::stdout()
                } else {
                    self.terminal.unwrap_or(rustix::stdio::stderr())
                };
                write_all(out, &self.as_written(&buffer[..n]))
            }
            _ => {
                // The last process has closed it.
                self.master = None;
                false
            }
        }
    }

    fn type_in(&mut self) {
        let mut buffer = [0; 4096];
        let n = rustix::io::read(rustix::stdio::stdin(), &mut buffer).unwrap_or(0);
        if let Some(master) = &self.master {
            write_all(master.as_fd(), &buffer[..n]);
        }
    }

    fn pass_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.next() {
            let number = Signal::from_named_raw(signal.number);
            match (number, &self.master, self.terminal) {
                (Some(Signal::WINCH), Some(master), Some(terminal)) => {
                    if let Ok(size) = tcgetwinsize(terminal) {
                        tcsetwinsize(master, size)
                            .ignore_error("a terminal whose command has ended needs no size");
                    }
                }
                (Some(Signal::CONT), ..) => {
                    self.make_raw();
                    self.send_signal(signal.number);
                }
                (Some(Signal::CHILD | Signal::WINCH | Signal::TTIN | Signal::TTOU), ..) => {}
                _ => self.send_signal(signal.number),
            }
        }
    }

    fn send_signal(&self, number: i32) {
        if let Ok(number) = u8::try_from(number) {
            fdpass::send(self.socket.as_fd(), &[SIGNAL, number], &[])
                .ignore_error("if the server has gone, the next look at the socket shows it");
        }
    }

    fn in_foreground(&self) -> bool {
        let own = group_of(None).ok().flatten();
        self.terminal.is_some_and(|t| tcgetpgrp(t).is_ok_and(|group| own == Some(group)))
    }

    /// Keys go to the command's terminal, which knows what they mean.
    fn make_raw(&mut self) {
        if self.master.is_none() || !self.in_foreground() {
            return;
        }
        if let Some(terminal) = self.terminal
            && let Ok(now) = tcgetattr(terminal)
        {
            self.begin_in_foreground(&now);
            let mut raw = now.clone();
            raw.make_raw();
            raw.output_modes = self.output_modes.unwrap_or(now.output_modes);
            // What was typed ahead stays.
            tcsetattr(terminal, OptionalActions::Drain, &raw)
                .ignore_error("a terminal that is gone needs no mode");
            self.cooked.get_or_insert(now);
        }
    }

    /// Gives the command's terminal the modes that the shell has given the user's for it, unless the command has changed its own.
    fn begin_in_foreground(&mut self, modes: &Termios) {
        let (Some(before), Some(master)) = (self.begun_with.take(), &self.master) else { return };
        let is_same = |now: Termios| {
            (now.input_modes, now.output_modes, now.local_modes)
                == (before.input_modes, before.output_modes, before.local_modes)
        };
        if tcgetattr(master).is_ok_and(is_same) {
            tcsetattr(master, OptionalActions::Now, modes)
                .ignore_error("a terminal whose command has ended needs no mode");
        }
    }

    /// Does with what is shown as the command's own terminal does: others (in a pipe with the command) may write to the user's too.
    fn follow(&mut self) {
        let Some(Ok(modes)) = self.master.as_ref().map(tcgetattr) else { return };
        if self.output_modes != Some(modes.output_modes) {
            self.output_modes = Some(modes.output_modes);
            self.make_raw();
        }
    }

    /// Takes back what the command's terminal has done, for the user's does it again.
    fn as_written(&self, shown: &[u8]) -> Vec<u8> {
        let modes = self.output_modes.unwrap_or(OutputModes::empty());
        if !modes.contains(OutputModes::OPOST | OutputModes::ONLCR) {
            return shown.to_vec();
        }
        let next = shown.iter().skip(1).map(Some).chain([None]);
        shown.iter().zip(next).filter(|pair| *pair != (&b'\r', Some(&b'\n'))).map(|(byte, _)| *byte).collect()
    }

    fn restore(&mut self) {
        if let (Some(cooked), Some(terminal)) = (self.cooked.take(), self.terminal) {
            tcsetattr(terminal, OptionalActions::Drain, &cooked)
                .ignore_error("a terminal that is gone needs nothing");
        }
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => {
                output::note(&format!("terminal: {e}"));
                return false;
            }
        }
    }
    true
}
