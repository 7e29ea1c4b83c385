//! Being the one who waits: passes signals on, shares the terminal as a shell would, brings back how the command ended.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use skiff_sys::process::Child;
use skiff_sys::signal::{Mask, Received, Signals};

use crate::join::{Place, controlling_terminal};
use crate::{Context, Result};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A waiting process's signals and terminal, taken before the command starts.
pub struct Session {
    signals: Signals,
    terminal: Option<OwnedFd>,
    /// Whether the command has the terminal from us: only then is it ours to take back.
    lent: Cell<bool>,
}

/// Ends when the session ends: someone else to listen to meanwhile.
pub trait Meanwhile {
    /// The descriptors to watch.
    fn watch(&self) -> Vec<BorrowedFd<'_>>;
    /// One of them (by its place in [`Meanwhile::watch`]) has something.
    fn ready(&mut self, which: usize);
}

impl Session {
    /// Takes over this process's signals.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn begin() -> Result<Self> {
        let signals = Signals::block(&[]).context(|| "signals")?;
        Ok(Self { signals, terminal: controlling_terminal(), lent: Cell::new(false) })
    }

    /// Where the command shall stand.
    #[must_use]
    pub fn place(&self, death_signal: i32) -> Place {
        let foreground = self.have_terminal() && rustix::termios::isatty(rustix::stdio::stdin());
        self.lent.set(foreground);
        Place { own_group: true, foreground, own_session: false, death_signal }
    }

    /// The signal mask that the command must get back.
    #[must_use]
    pub fn mask(&self) -> Mask {
        self.signals.before()
    }

    /// Waits for the command's end.
    ///
    /// # Errors
    /// What waiting says; it does not happen to a child of ours.
    pub fn wait(self, child: &Child, mut meanwhile: Option<&mut dyn Meanwhile>) -> Result<Ended> {
        loop {
            let ended = self.poll_child(child)?;
            if let Some(ended) = ended {
                self.take_terminal_back();
                return Ok(ended);
            }
            let which = {
                let others = meanwhile.as_deref().map(Meanwhile::watch).unwrap_or_default();
                let mut fds =
                    vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&child.pidfd, PollFlags::IN)];
                fds.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e).context(|| "waiting for the command"),
                }
                fds[2..].iter().position(|fd| !fd.revents().is_empty())
            };
            if let (Some(which), Some(m)) = (which, meanwhile.as_deref_mut()) {
                m.ready(which);
            }
            while let Ok(Some(signal)) = self.signals.next() {
                self.pass(signal, child);
            }
        }
    }

    fn poll_child(&self, child: &Child) -> Result<Option<Ended>> {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        loop {
            let status = match waitid(WaitId::PidFd(child.pidfd.as_fd()), flags) {
                Err(Errno::INTR) => continue,
                other => other.context(|| "waiting for the command")?,
            };
            let Some(status) = status else { return Ok(None) };
            if let Some(code) = status.exit_status() {
                return Ok(Some(Ended::Code(code)));
            }
            if let Some(signal) = status.terminating_signal() {
                return Ok(Some(Ended::Signal(signal)));
            }
            if let Some(signal) = status.stopping_signal() {
                self.stopped(signal, child);
            }
        }
    }

    fn pass(&self, signal: Received, child: &Child) {
        let Some(number) = Signal::from_named_raw(signal.number) else {
            return;
        };
        if number == Signal::CHILD || number == Signal::TTOU {
            return;
        }
        if number == Signal::CONT {
            // Whoever continues us has decided who has the terminal: in the background it is not us.
            self.lent.set(self.lent.get() && self.foreground() == Some(child.pid));
            self.give_terminal(child.pid);
        }
        // Its group: what a shell's job is. It may be gone already, which the next look at the child shows.
        rustix::process::kill_process_group(child.pid, number).unwrap_or_default();
    }

    /// The command has stopped: for the terminal, which it can have if we do; else because the user wants his shell.
    fn stopped(&self, signal: i32, child: &Child) {
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if !(wants_terminal && self.have_terminal()) {
            self.take_terminal_back();
            self.stop_job(child);
        }
        self.give_terminal(child.pid);
        rustix::process::kill_process_group(child.pid, Signal::CONT).unwrap_or_default();
    }

    /// Stops our whole job as the outer shell sees it, as the terminal's key would have; its `fg` continues us here.
    fn stop_job(&self, child: &Child) {
        if nobody_continues_us() {
            // The kernel stops no such group either.
            return;
        }
        rustix::process::kill_process_group(rustix::process::getpgrp(), Signal::TSTP).unwrap_or_default();
        while let Ok(Some(signal)) = self.signals.next() {
            if signal.number != Signal::TSTP.as_raw() {
                self.pass(signal, child);
            }
        }
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).unwrap_or_default();
    }

    /// The process group that has the terminal.
    fn foreground(&self) -> Option<Pid> {
        self.terminal.as_ref().and_then(|t| tcgetpgrp(t).ok())
    }

    fn have_terminal(&self) -> bool {
        self.foreground() == Some(rustix::process::getpgrp())
    }

    fn give_terminal(&self, group: Pid) {
        if self.have_terminal()
            && let Some(terminal) = &self.terminal
        {
            self.lent.set(tcsetpgrp(terminal, group).is_ok());
        }
    }

    fn take_terminal_back(&self) {
        if self.lent.take()
            && let Some(terminal) = &self.terminal
        {
            // The group that had it is gone or has stopped.
            tcsetpgrp(terminal, rustix::process::getpgrp()).unwrap_or_default();
        }
    }
}

/// Whether our process group has no shell above it that would notice a stop (an "orphaned" group): a command that sshd runs
/// in a session of its own, for one.
fn nobody_continues_us() -> bool {
    let (group, session) = (rustix::process::getpgrp(), rustix::process::getsid(None).ok());
    let mut above = rustix::process::getppid();
    while let Some(pid) = above {
        if rustix::process::getsid(Some(pid)).ok() != session {
            return true;
        }
        if rustix::process::getpgid(Some(pid)) != Ok(group) {
            return false;
        }
        above = parent_of(pid);
    }
    true
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses too.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
    Pid::from_raw(parent.parse().ok()?)
}
