//! The program that the user wants, in the first host's container: its input and output go by way of the agent.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use skiff_launch::frame::Stream;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::{Failed, SpawnAttr};
use skiff_sandbox::terminal;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::Child;
use skiff_sys::signal::send_to_group;

use crate::wire::{Program, ProgramEnd};

/// A running program.
pub struct Script {
    /// Process of the script.
    pub child: Child,
    input: Option<OwnedFd>,
    /// Input that it has not taken yet.
    waiting: VecDeque<u8>,
    no_more: bool,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
}

impl Script {
    /// Starts it: `enter` puts it into its container.
    pub fn start(
        program: Program,
        enter: impl FnOnce(&CommandSpec, SpawnAttr) -> std::result::Result<Child, Failed>,
    ) -> Result<std::result::Result<Self, Failed>> {
        let Program { argv, env, cwd, only_there, terminal } = program;
        let command = CommandSpec { argv, env, cwd, only_there, ..CommandSpec::default() };
        let (ours, theirs) = match terminal {
            None => pipes()?,
            Some(size) => at_terminal(size).context(|| "terminal")?,
        };
        for fd in ours.iter().flatten() {
            fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK)).context(|| "pipe")?;
        }
        let attr = SpawnAttr {
            own_group: terminal.is_none(),
            own_session: terminal.is_some(),
            death_signal: Signal::KILL.as_raw(),
            ..SpawnAttr::default()
        };
        let stdio = theirs.each_ref().map(|fd| Some(fd.as_fd()));
        let started = with_stdio(stdio[0], stdio[1], stdio[2], || enter(&command, attr))?;
        let [input, output, errors] = ours;
        let (waiting, no_more) = (VecDeque::new(), false);
        Ok(started.map(|child| Self { child, input, waiting, no_more, output, errors }))
    }

    /// Sets the rows and columns of the script's terminal, if it has one.
    pub fn resize(&self, size: [u16; 2]) {
        self.input.iter().for_each(|input| terminal::resize(input, size).ignore_error("a pipe has none"));
    }

    /// Outputs of the script, as long as it has them open.
    pub fn outputs(&self) -> impl Iterator<Item = (Stream, BorrowedFd<'_>)> {
        let output = self.output.iter().map(|fd| (Stream::Output, fd.as_fd()));
        output.chain(self.errors.iter().map(|fd| (Stream::Errors, fd.as_fd())))
    }

    /// To wait until it takes more input, if any waits for that.
    pub fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().filter(|_| !self.waiting.is_empty()).map(AsFd::as_fd)
    }

    /// Reads what it has said; nothing when there is nothing now.
    pub fn read(&mut self, stream: Stream) -> Option<Vec<u8>> {
        let from = if stream == Stream::Output { &mut self.output } else { &mut self.errors };
        let mut buffer = [0; 32 << 10];
        match rustix::io::read(from.as_ref()?, &mut buffer) {
            Ok(n) if n > 0 => Some(buffer[..n].to_vec()),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok(_) | Err(_) => {
                *from = None;
                None
            }
        }
    }

    /// Nobody reads what it says there any more.
    pub fn close(&mut self, stream: Stream) {
        *if stream == Stream::Output { &mut self.output } else { &mut self.errors } = None;
    }

    /// More input for it; how many bytes are done with.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.waiting.extend(bytes);
        self.flush()
    }

    /// There is no more input; it learns that when it has taken all.
    pub fn end_input(&mut self) {
        self.no_more = true;
        self.flush();
    }

    /// Gives it what it takes; how many bytes are done with.
    pub fn flush(&mut self) -> usize {
        let mut gone = 0;
        while !self.waiting.is_empty() {
            let Some(input) = &self.input else {
                // It reads no more: what comes goes nowhere, as with any closed pipe.
                gone += self.waiting.len();
                self.waiting.clear();
                break;
            };
            match rustix::io::write(input, self.waiting.as_slices().0) {
                Ok(n) => {
                    self.waiting.drain(..n);
                    gone += n;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.input = None,
            }
        }
        if self.no_more && self.waiting.is_empty() {
            self.input = None;
        }
        gone
    }

    /// Sends it a signal, with its whole group.
    pub fn signal(&self, number: i32) {
        send_to_group(self.child.pid, number).ignore_error("it may have ended by now");
    }

    /// How it has ended, when its process says that it has.
    pub fn ended(&self) -> Result<Option<ProgramEnd>> {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = loop {
            match waitid(WaitId::PidFd(self.child.pidfd.as_fd()), flags) {
                Err(Errno::INTR) => {}
                other => break other.context(|| "waiting for the script")?,
            }
        };
        Ok(status.and_then(|status| {
            status
                .exit_status()
                .map(ProgramEnd::Code)
                .or_else(|| status.terminating_signal().map(ProgramEnd::Signal))
        }))
    }
}

/// Our ends of a program's standard files (what two of them share is there once), and its own.
type Ends = ([Option<OwnedFd>; 3], [OwnedFd; 3]);

fn pipes() -> Result<Ends> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).context(|| "pipe");
    let (their_input, input) = pipe()?;
    let (output, their_output) = pipe()?;
    let (errors, their_errors) = pipe()?;
    Ok(([input, output, errors].map(Some), [their_input, their_output, their_errors]))
}

fn at_terminal(size: [u16; 2]) -> rustix::io::Result<Ends> {
    let (master, slave) = terminal::new_pair(size)?;
    let again = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let theirs = [again(&slave)?, again(&slave)?, slave];
    Ok(([Some(again(&master)?), Some(master), None], theirs))
}

/// Does something with other standard files than ours; what is not given is `/dev/null`. Afterwards ours are as before.
pub fn with_stdio<T>(
    input: Option<BorrowedFd<'_>>,
    output: Option<BorrowedFd<'_>>,
    errors: Option<BorrowedFd<'_>>,
    act: impl FnOnce() -> T,
) -> Result<T> {
    let about = || "standard files";
    let null = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).context(about)?;
    let ours = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).context(about)?;
    let set = |input: BorrowedFd<'_>, output: BorrowedFd<'_>, errors: BorrowedFd<'_>| {
        dup2_stdin(input).and_then(|()| dup2_stdout(output)).and_then(|()| dup2_stderr(errors)).context(about)
    };
    let null = null.as_fd();
    set(input.unwrap_or(null), output.unwrap_or(null), errors.unwrap_or(null))?;
    let done = act();
    set(null, null, ours.as_fd())?;
    Ok(done)
}
