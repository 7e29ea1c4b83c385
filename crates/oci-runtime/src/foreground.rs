//! Waits for a process that a call has started, hands signals on to it, and operates its terminal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::signal::{Signals, send_to_process};

/// So much is read at once.
const READ: usize = 8192;
/// 64 KiB in all are read after the end of the process, which is more than a terminal holds ...
const MOST_READS: usize = (64 << 10) / READ;
/// ... and no longer than this.
const LATEST: Duration = Duration::from_millis(100);

/// The user's terminal, which passes each key on; as it was again when this is dropped.
struct RawTerminal(Option<Termios>);

impl RawTerminal {
    fn begin() -> Self {
        let before = isatty(stdin()).then(|| tcgetattr(stdin()).ok()).flatten();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(stdin(), OptionalActions::Now, &raw).ignore_error("then keys are passed on by lines");
        }
        Self(before)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            tcsetattr(stdin(), OptionalActions::Now, before)
                .ignore_error("a terminal that is gone needs nothing");
        }
    }
}

/// Has signals wait for [`wait`], which hands them on.
///
/// # Errors
/// When descriptors are used up.
pub fn signals() -> Result<Signals> {
    Signals::block(&[]).context(|| "signals for the container")
}

/// Waits for the end of a child; its exit code, or 128 and its signal.
///
/// # Errors
/// The system's.
pub fn wait(pid: Pid, master: Option<OwnedFd>, signals: Signals) -> Result<i32> {
    let about = || "waiting for the container";
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context(about)?;
    let raw = master.as_ref().map(|_| RawTerminal::begin());
    let mut relay = Relay { master, reads_input: true };
    relay.resize();
    loop {
        let ready = relay.wait(pidfd.as_fd(), &signals).context(about)?;
        while let Some(signal) = signals.next().context(about)? {
            match Signal::from_named_raw(signal.number) {
                Some(Signal::CHILD) => {}
                Some(Signal::WINCH) => relay.resize(),
                _ => send_to_process(pidfd.as_fd(), signal.number)
                    .ignore_error("it has ended, which the next look shows"),
            }
        }
        if ready {
            break;
        }
    }
    relay.rest();
    drop(raw);
    signals.end();
    let status = waitpid(Some(pid), WaitOptions::empty()).context(about)?;
    let (_, status) = status.ok_or(Errno::CHILD).context(about)?;
    Ok(status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or_default()))
}

struct Relay {
    master: Option<OwnedFd>,
    reads_input: bool,
}

impl Relay {
    /// Passes on what there is; whether the process has ended.
    fn wait(&mut self, pidfd: BorrowedFd<'_>, signals: &Signals) -> rustix::io::Result<bool> {
        let input = stdin();
        let mut waited = vec![
            PollFd::from_borrowed_fd(pidfd, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        if let Some(master) = &self.master {
            waited.push(PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN));
            if self.reads_input {
                waited.push(PollFd::from_borrowed_fd(input, PollFlags::IN));
            }
        }
        match poll(&mut waited, None) {
            Err(Errno::INTR) => return Ok(false),
            polled => polled?,
        };
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(waited);
        if ready.get(2) == Some(&true) && !self.show() {
            // Nobody has the terminal open any more.
            self.master = None;
        }
        if ready.get(3) == Some(&true) {
            self.reads_input = self.type_in();
        }
        Ok(ready[0])
    }

    /// From the container's terminal to standard output; false at its end.
    fn show(&self) -> bool {
        let mut buffer = [0; READ];
        let Some(master) = &self.master else { return false };
        match read(master, &mut buffer) {
            Ok(0) => false,
            Ok(count) => write_all(stdout(), &buffer[..count]),
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    fn type_in(&self) -> bool {
        let mut buffer = [0; READ];
        let Some(master) = &self.master else { return false };
        match read(stdin(), &mut buffer) {
            // Who reads at the terminal is told as by the key.
            Ok(0) => {
                write_all(master.as_fd(), &[4]);
                false
            }
            Ok(count) => write_all(master.as_fd(), &buffer[..count]),
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    /// What has been written before the end. A process that has the terminal still, and writes on and on, does not keep the call from ending.
    fn rest(&mut self) {
        let begun = Instant::now();
        for _ in 0..MOST_READS {
            let Some(master) = &self.master else { return };
            let mut waited = [PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN)];
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let is_ready = poll(&mut waited, Some(&none)).is_ok_and(|count| count > 0);
            if !is_ready || begun.elapsed() > LATEST || !self.show() {
                return;
            }
        }
    }

    fn resize(&self) {
        if let (Some(master), Ok(size)) = (&self.master, tcgetwinsize(stdin())) {
            tcsetwinsize(master, size).ignore_error("a terminal that is gone needs no size");
        }
    }
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
