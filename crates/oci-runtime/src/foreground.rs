//! Waits for a process that a call has started, hands signals on to it, and operates its terminal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::signal::{Signals, send_to_process};

/// So much is read at once. (A terminal gives up to 4 KiB.)
const READ: usize = 8192;
/// So often is read after the end of the process: 32 KiB, which is more than a terminal holds.
const MOST_READS: usize = 8;
/// A pipe that is ready takes so much without waiting.
const PIPE_BUF: usize = 4096;
/// What the key for the end of the input types.
const END_OF_INPUT: u8 = 4;
/// How long after the end of the input that key is typed again; each time twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
    let mut relay = Relay::new(master).context(about)?;
    let raw = relay.master.as_ref().map(|_| RawTerminal::begin());
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

/// Passes bytes between the container's terminal and the standard descriptors. A program may write while it does not read: so neither side is
/// waited for alone, and what one has not taken yet is kept.
struct Relay {
    master: Option<OwnedFd>,
    reads_input: bool,
    /// When the end of the input is typed again, and the pause until then.
    end_again: Option<(Instant, Duration)>,
    /// From standard input, on its way to the terminal.
    typed: Vec<u8>,
    /// From the terminal, on its way to standard output.
    shown: Vec<u8>,
}

impl Relay {
    fn new(master: Option<OwnedFd>) -> rustix::io::Result<Self> {
        if let Some(master) = &master {
            fcntl_setfl(master, fcntl_getfl(master)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { reads_input: master.is_some(), master, end_again: None, typed: vec![], shown: vec![] })
    }

    /// Passes on what there is; whether the process has ended.
    fn wait(&mut self, pidfd: BorrowedFd<'_>, signals: &Signals) -> rustix::io::Result<bool> {
        self.repeat_end();
        let (may_read, may_type) = (self.shown.is_empty(), !self.typed.is_empty());
        let flag = |is_set, flag| if is_set { flag } else { PollFlags::empty() };
        let at_master = flag(may_read, PollFlags::IN) | flag(may_type, PollFlags::OUT);
        // One that is asked nothing would still tell that it is closed, again and again.
        let master = self.master.as_ref().filter(|_| !at_master.is_empty());
        let reads_input = self.reads_input && self.typed.is_empty() && self.master.is_some();
        let waited = [
            Some((pidfd, PollFlags::IN)),
            Some((signals.as_fd(), PollFlags::IN)),
            master.map(|master| (master.as_fd(), at_master)),
            reads_input.then_some((stdin(), PollFlags::IN)),
            (!may_read).then_some((stdout(), PollFlags::OUT)),
        ];
        let [ended, _, master, input, output] = ready(waited, self.patience())?;
        if may_type && !master.is_empty() {
            self.type_in();
        }
        if may_read && master.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.read_terminal();
        }
        if !output.is_empty() {
            self.show();
        }
        if !input.is_empty() {
            self.read_input();
        }
        Ok(!ended.is_empty())
    }

    fn read_terminal(&mut self) {
        let read = self.master.as_ref().and_then(|master| read_some(master.as_fd()));
        match read {
            Some(bytes) => self.shown = bytes,
            // Nobody has the terminal open any more.
            None => self.master = None,
        }
    }

    fn show(&mut self) {
        // Others may use standard output, too: it stays one that waits, and so gets no more than it takes at once.
        let part = self.shown.len().min(PIPE_BUF);
        match write(stdout(), &self.shown[..part]) {
            Ok(count) => drop(self.shown.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.hang_up(),
        }
    }

    /// Where nobody reads standard output any more, the container's terminal ends as one whose window is closed.
    fn hang_up(&mut self) {
        self.shown.clear();
        self.master = None;
    }

    fn read_input(&mut self) {
        match read_some(stdin()) {
            Some(bytes) => self.typed = bytes,
            None => {
                // Whoever reads at the terminal is told as by the key.
                self.typed = vec![END_OF_INPUT];
                self.reads_input = false;
                self.end_again = Some((Instant::now() + FIRST_PAUSE, FIRST_PAUSE));
            }
        }
    }

    /// Types the end of the input again when its time has come. A program that sets up the terminal for itself, as a shell does, loses what was typed
    /// before; and who reads from a file that has ended finds its end each time.
    fn repeat_end(&mut self) {
        if let Some((next, pause)) = self.end_again.filter(|_| self.can_repeat_end())
            && Instant::now() >= next
        {
            let pause = (pause * 2).min(LONGEST_PAUSE);
            self.typed = vec![END_OF_INPUT];
            self.end_again = Some((Instant::now() + pause, pause));
        }
    }

    /// Whether the last one has been taken, and somebody may want one more.
    fn can_repeat_end(&self) -> bool {
        self.master.is_some() && self.typed.is_empty()
    }

    /// How long to wait at most.
    fn patience(&self) -> Option<Duration> {
        let (next, _) = self.end_again.filter(|_| self.can_repeat_end())?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn type_in(&mut self) {
        let Some(master) = &self.master else { return };
        match write(master, &self.typed) {
            Ok(count) => drop(self.typed.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => {
                self.typed.clear();
                self.reads_input = false;
            }
        }
    }

    /// What has been written before the end. A process that has the terminal still, and writes on and on, does not keep the call from ending.
    fn rest(&mut self) {
        for _ in 0..MOST_READS {
            if !self.show_all() {
                return;
            }
            let Some(master) = &self.master else { return };
            let mut waited = [PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN)];
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            if !poll(&mut waited, Some(&none)).is_ok_and(|count| count > 0) {
                return;
            }
            self.read_terminal();
        }
        self.show_all();
    }

    fn show_all(&mut self) -> bool {
        write_all(stdout(), &std::mem::take(&mut self.shown))
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

/// What can be read now, nothing at the end.
fn read_some(from: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; READ];
    match read(from, &mut bytes) {
        Ok(0) => None,
        Ok(count) => {
            bytes.truncate(count);
            Some(bytes)
        }
        Err(Errno::INTR | Errno::AGAIN) => Some(vec![]),
        Err(_) => None,
    }
}

/// Waits until one of some descriptors is ready, or for so long; for each, what it is ready for.
fn ready<const N: usize>(
    waited: [Option<(BorrowedFd<'_>, PollFlags)>; N],
    patience: Option<Duration>,
) -> rustix::io::Result<[PollFlags; N]> {
    let asked = waited.iter().flatten();
    let mut asked: Vec<PollFd<'_>> = asked.map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
    match poll(&mut asked, patience.as_ref()) {
        Err(Errno::INTR) => return Ok([PollFlags::empty(); N]),
        polled => polled?,
    };
    let mut answers = asked.iter().map(PollFd::revents);
    Ok(waited.map(|fd| fd.and_then(|_| answers.next()).unwrap_or(PollFlags::empty())))
}
