//! Being the one who waits: passes signals on, shares the terminal as a shell would, brings back how the command ended.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, set_parent_process_death_signal, waitid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, group_of, positive_pid, session_of};
use skiff_sys::signal::{Received, SignalMask, Signals, send_to_group};

use crate::first::Process;
use crate::helper::Helper;
use crate::init;
use crate::output_pipe::OutputPipe;
use crate::spawn_attr::{SpawnAttr, controlling_terminal};
use crate::start::RunningContainer;
use crate::terminal_relay::{Ready, TerminalRelay};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandExit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A signal that came to end the one who waits.
#[derive(Clone, Copy)]
struct EndRequest {
    signal: i32,
    /// When the command is killed; nothing once it has been.
    deadline: Option<Instant>,
}

impl EndRequest {
    /// After the first signal the command has its grace, after the next it has none.
    fn after(before: Option<Self>, signal: i32, now: Instant, grace: Duration) -> Self {
        match before {
            None => Self { signal, deadline: Some(now + grace) },
            Some(first) => Self { deadline: first.deadline.map(|_| now), ..first },
        }
    }
}

/// What the leader of another terminal's session knows of who relays that: that one continues it, and without that one it ends.
pub(crate) struct Leadership {
    pub(crate) maker: Pid,
    /// Whether the user's terminal is somebody else's, so that a command that wants to read from it stops as it would there.
    pub(crate) in_background: Cell<bool>,
}

/// A waiting process's signals and terminal, taken before the command starts.
pub struct Session {
    signals: Signals,
    terminal: Option<OwnedFd>,
    /// Whether the command has the terminal from us: only then is it ours to take back.
    lent: Cell<bool>,
    /// What the command gets in place of SIGTERM.
    stop: i32,
    /// What the command prints, if it does not stand on our descriptors.
    output: RefCell<Option<OutputPipe>>,
    /// What is between the user's terminal and the command's, if that has one of its own.
    relay: RefCell<Option<TerminalRelay>>,
    /// If this process leads the session of such a terminal: for whom.
    leads: Option<Leadership>,
    /// How long the command may go on after a signal that is to end the one who waits. Without it the command alone decides.
    grace: Option<Duration>,
    end_request: Cell<Option<EndRequest>>,
}

impl Session {
    /// Takes over this process's signals.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn begin() -> Result<Self> {
        let signals = Signals::block(&[]).context(|| "signals")?;
        let stop = Signal::TERM.as_raw();
        let (lent, output) = (Cell::new(false), RefCell::new(None));
        let terminal = controlling_terminal();
        let (relay, leads) = (RefCell::new(None), None);
        let (grace, end_request) = (None, Cell::new(None));
        Ok(Self { signals, terminal, lent, stop, output, relay, leads, grace, end_request })
    }

    /// For one who waits for the leader of another terminal's session, and relays that terminal.
    pub(crate) fn relaying(self, relay: TerminalRelay) -> Self {
        Self { relay: RefCell::new(Some(relay)), ..self }
    }

    /// For such a leader.
    pub(crate) fn leading(self, leads: Leadership) -> Self {
        Self { leads: Some(leads), ..self }
    }

    /// For a command that is not to reach the terminal: it gets a session of its own, and what it prints comes by this pipe.
    #[must_use]
    pub fn without_terminal(self, output: OutputPipe) -> Self {
        Self { output: RefCell::new(Some(output)), ..self }
    }

    /// For one who ends at the first signal that ends programs: the command gets it too, and is killed after `grace`, or at the next such signal.
    /// That is done for commands that [`Session::wait_first`] waits for.
    #[must_use]
    pub fn ends_within(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }

    /// The first signal that came to end a session with [`Session::ends_within`].
    #[must_use]
    pub fn ended_by(&self) -> Option<i32> {
        self.end_request.get().map(|request| request.signal)
    }

    fn shares_terminal(&self) -> bool {
        self.output.borrow().is_none()
    }

    /// A command that is to be ended by another signal than SIGTERM: it gets this one in its place.
    #[must_use]
    pub fn stopped_by(self, stop: i32) -> Self {
        Self { stop, ..self }
    }

    /// How the command shall stand to the terminal.
    #[must_use]
    pub fn spawn_attr(&self, death_signal: i32) -> SpawnAttr {
        if !self.shares_terminal() {
            return SpawnAttr { own_session: true, death_signal, ..SpawnAttr::default() };
        }
        let is_ours = self.have_terminal() && !self.is_in_background();
        let foreground = is_ours && rustix::termios::isatty(rustix::stdio::stdin());
        self.lent.set(foreground);
        SpawnAttr { own_group: true, foreground, own_session: false, death_signal }
    }

    /// The signal mask that the command must get back.
    #[must_use]
    pub fn mask(&self) -> SignalMask {
        self.signals.before()
    }

    /// Waits for the end of a child of ours.
    ///
    /// # Errors
    /// What waiting says; it does not happen to a child of ours.
    pub fn wait(self, child: &Child) -> Result<CommandExit> {
        // Not before: who enters an environment changes its credentials, which takes this back.
        self.leads.as_ref().map_or(Ok(()), |leads| end_with(leads.maker))?;
        self.until_ended(child.pidfd.as_fd(), || Some(child.pid), || poll_child(child))
    }

    /// Waits for the end of the command that an environment was made for; the environment ends with it. When this returns, no
    /// process of it is left, except that process 1 and (after a very short command) the helper may still be in their very
    /// end: there the kernel takes mounts down, for which it waits several times.
    ///
    /// # Errors
    /// What waiting says.
    pub fn wait_first(&self, instance: RunningContainer, mut process: Process) -> Result<CommandExit> {
        let helper = RefCell::new(process.helper.take());
        let lost = Cell::new(false);
        let control = instance.control.as_fd();
        let look = || {
            // Its end wakes us, too.
            helper.borrow_mut().iter_mut().for_each(Helper::bury);
            if self.is_overdue() {
                // The command may ignore all other signals, and may have left its group. With process 1 all processes inside end.
                kill_process(instance.init.pid, Signal::KILL)
                    .ignore_error("it may be dead already, which the next look shows");
            }
            hear(control, &lost)
        };
        let ended = self.until_ended(control, || process.group(), look);
        if lost.get() || ended.is_err() {
            instance.end();
        }
        helper.into_inner().iter_mut().for_each(Helper::bury);
        ended
    }

    fn until_ended(
        &self,
        news: BorrowedFd<'_>,
        group: impl Fn() -> Option<Pid>,
        look: impl Fn() -> Result<Option<Change>>,
    ) -> Result<CommandExit> {
        loop {
            while let Some(change) = look()? {
                match change {
                    Change::Ended(ended) => {
                        self.take_terminal_back();
                        if let Some(output) = self.output.take() {
                            output.finish(|| self.is_to_end());
                        }
                        if let Some(relay) = self.relay.take() {
                            relay.finish(|| self.is_to_end());
                        }
                        return Ok(ended);
                    }
                    Change::Stopped(signal) => self.stopped(signal, group()),
                }
            }
            self.wait_for_something(news)?;
            if self.relay.borrow_mut().as_mut().is_some_and(TerminalRelay::has_come_to_foreground) {
                send(group(), Signal::CONT.as_raw());
            }
            while let Ok(Some(signal)) = self.signals.next() {
                self.pass(signal, group());
            }
        }
    }

    /// Waits for signals, news, or what the command prints, which is passed on.
    fn wait_for_something(&self, news: BorrowedFd<'_>) -> Result<()> {
        let (mut output, mut relay) = (self.output.borrow_mut(), self.relay.borrow_mut());
        let (of_relay, look_again) = relay.as_mut().map_or(([None, None, None], None), TerminalRelay::wanted);
        let is_wanted = of_relay.each_ref().map(Option::is_some);
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&news, PollFlags::IN)];
        fds.extend(of_relay.into_iter().flatten());
        fds.extend(output.as_ref().and_then(OutputPipe::wanted));
        match poll(&mut fds, self.time_left().as_ref().or(look_again)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context(|| "waiting for the command"),
        }
        let mut ready = fds.iter().skip(2).map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        drop(fds);
        let [master, input, output_ready] = is_wanted.map(|is_one| is_one && ready.next() == Some(true));
        if let Some(relay) = &mut *relay {
            relay.go_on(Ready { master, input, output: output_ready });
        }
        if let (Some(output), Some(true)) = (&mut *output, ready.next()) {
            output.go_on();
        }
        Ok(())
    }

    /// Whether a signal has come that ends programs, for one who waits for nothing but a reader of its words.
    fn is_to_end(&self) -> bool {
        let mut ends = false;
        while let Ok(Some(signal)) = self.signals.next() {
            ends |= ends_programs(signal.number);
            self.note_end(signal.number);
        }
        ends
    }

    /// Notes a signal that is to end the one who waits.
    fn note_end(&self, signal: i32) {
        let Some(grace) = self.grace.filter(|_| ends_programs(signal)) else { return };
        self.end_request.set(Some(EndRequest::after(self.end_request.get(), signal, Instant::now(), grace)));
    }

    /// Whether the command has to be killed now; it is said once.
    fn is_overdue(&self) -> bool {
        let Some(request) = self.end_request.get() else { return false };
        let overdue = request.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if overdue {
            self.end_request.set(Some(EndRequest { deadline: None, ..request }));
        }
        overdue
    }

    /// How long may be waited until the command has to be killed.
    fn time_left(&self) -> Option<Timespec> {
        let deadline = self.end_request.get()?.deadline?;
        deadline.saturating_duration_since(Instant::now()).try_into().ok()
    }

    fn pass(&self, signal: Received, group: Option<Pid>) {
        let number = signal.number;
        if number == Signal::CHILD.as_raw() || number == Signal::TTOU.as_raw() {
            return;
        }
        if let Some(relay) = &mut *self.relay.borrow_mut() {
            return pass_to_leader(relay, number, group);
        }
        if number == Signal::CONT.as_raw() {
            self.come_to_foreground();
            // Whoever continues us has decided who has the terminal: in the background it is not us.
            self.lent.set(self.lent.get() && group.is_some() && self.foreground() == group);
            self.give_terminal(group);
        }
        self.note_end(number);
        let number = match Signal::from_named_raw(number) {
            Some(Signal::TERM) => self.stop,
            // What the terminal's key would do stops no group that has a session of its own.
            Some(Signal::TSTP) if !self.shares_terminal() => Signal::STOP.as_raw(),
            _ => number,
        };
        send(group, number);
    }

    /// The command has stopped: for the terminal, which it can have if we do; else because the user wants their shell.
    fn stopped(&self, signal: i32, group: Option<Pid>) {
        if let Some(relay) = &mut *self.relay.borrow_mut() {
            relay.pause();
        }
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if !(wants_terminal && self.have_terminal() && !self.is_in_background()) {
            self.take_terminal_back();
            self.stop_job(group);
        }
        self.come_to_foreground();
        match &mut *self.relay.borrow_mut() {
            Some(relay) => relay.resume(),
            None => self.give_terminal(group),
        }
        send(group, Signal::CONT.as_raw());
    }

    /// Stops our whole job as the outer shell sees it, as the terminal's key would have; its `fg` continues us here.
    fn stop_job(&self, group: Option<Pid>) {
        if self.leads.is_none() && nobody_continues_us() {
            // The kernel stops no such group either.
            return;
        }
        rustix::process::kill_current_process_group(Signal::TSTP)
            .ignore_error("to its own group anybody may send signals");
        while let Ok(Some(signal)) = self.signals.next() {
            if signal.number != Signal::TSTP.as_raw() {
                self.pass(signal, group);
            }
        }
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)
            .ignore_error("to itself anybody may send signals");
    }

    /// The process group that has the terminal.
    fn foreground(&self) -> Option<Pid> {
        self.terminal.as_ref().and_then(|t| tcgetpgrp(t).ok())
    }

    /// Whether the user's terminal, which another process relays to ours, is somebody else's.
    fn is_in_background(&self) -> bool {
        self.leads.as_ref().is_some_and(|leads| leads.in_background.get())
    }

    fn come_to_foreground(&self) {
        if let Some(leads) = &self.leads {
            leads.in_background.set(false);
        }
    }

    fn have_terminal(&self) -> bool {
        self.foreground().is_some_and(|group| own_group() == Some(group))
    }

    fn give_terminal(&self, group: Option<Pid>) {
        if self.have_terminal()
            && let (Some(terminal), Some(group)) = (&self.terminal, group)
        {
            self.lent.set(tcsetpgrp(terminal, group).is_ok());
        }
    }

    fn take_terminal_back(&self) {
        if self.lent.take()
            && let (Some(terminal), Some(group)) = (&self.terminal, own_group())
        {
            // The group that had it is gone or has stopped.
            tcsetpgrp(terminal, group).ignore_error("a terminal that is gone needs no group");
        }
    }
}

/// What comes to one who relays a terminal is for the command, whose leader passes it on, unless it is about the user's terminal.
fn pass_to_leader(relay: &mut TerminalRelay, number: i32, leader: Option<Pid>) {
    match Signal::from_named_raw(number) {
        Some(Signal::WINCH) => return relay.resize(),
        Some(Signal::CONT) => relay.resume(),
        _ => {}
    }
    send(leader, number);
}

/// Has this process end with its maker, however that ends.
fn end_with(maker: Pid) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context(|| "signal at the maker's end")?;
    match getppid() == Some(maker) {
        true => Ok(()),
        false => Err(Fault::new("the process that relays the terminal has ended")),
    }
}

/// Whether a signal ends programs that do nothing about it, by the wish of who sends it.
fn ends_programs(number: i32) -> bool {
    const ENDS: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
    ENDS.iter().any(|end| end.as_raw() == number)
}

/// Our process group, if it has a number here: whoever started us in a PID namespace may have left us in a group outside.
fn own_group() -> Option<Pid> {
    group_of(None).ok().flatten()
}

/// Whether our process group has no shell above it that would notice a stop (an "orphaned" group): a command that sshd runs
/// in a session of its own, for one.
fn nobody_continues_us() -> bool {
    let (group, session) = (own_group(), session_of(None).ok());
    let mut above = rustix::process::getppid();
    while let Some(pid) = above {
        if session_of(Some(pid)).ok() != session {
            return true;
        }
        if group_of(Some(pid)).ok() != Some(group) {
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
    positive_pid(parent.parse().ok()?)
}

/// What a look at the command shows.
enum Change {
    Stopped(i32),
    Ended(CommandExit),
}

/// Looks at a child of ours.
fn poll_child(child: &Child) -> Result<Option<Change>> {
    let flags = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let status = loop {
        match waitid(WaitId::PidFd(child.pidfd.as_fd()), flags) {
            Err(Errno::INTR) => {}
            other => break other.context(|| "waiting for the command")?,
        }
    };
    Ok(status.and_then(|status| {
        let ended = status
            .exit_status()
            .map(CommandExit::Code)
            .or_else(|| status.terminating_signal().map(CommandExit::Signal));
        ended.map(Change::Ended).or_else(|| status.stopping_signal().map(Change::Stopped))
    }))
}

/// How the command that an environment was made for has ended, if process 1 has told so by `control` or was lost. For one who does not
/// wait: what stops it for a while is no matter.
///
/// # Errors
/// What reading says.
pub fn ended(control: BorrowedFd<'_>) -> Result<Option<CommandExit>> {
    loop {
        match hear(control, &Cell::new(false))? {
            Some(Change::Ended(ended)) => return Ok(Some(ended)),
            Some(Change::Stopped(_)) => {}
            None => return Ok(None),
        }
    }
}

/// Listens to process 1, and notes whether it was lost without a word.
fn hear(control: BorrowedFd<'_>, lost: &Cell<bool>) -> Result<Option<Change>> {
    let mut word = [0; 2];
    let n = loop {
        match rustix::net::recv(control, &mut word, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            other => break other.context(|| "waiting for the command")?.0,
        }
    };
    let number = i32::from(word[1]);
    Ok(Some(match (n, word[0]) {
        (2, init::STOPPED) => Change::Stopped(number),
        (2, init::EXITED) => Change::Ended(CommandExit::Code(number)),
        (2, init::KILLED) => Change::Ended(CommandExit::Signal(number)),
        // Process 1 itself was killed, and the command with it.
        _ => {
            lost.set(true);
            Change::Ended(CommandExit::Signal(Signal::KILL.as_raw()))
        }
    }))
}

/// To the command's group: what a shell's job is. It may be gone already, which the next look shows.
fn send(group: Option<Pid>, signal: i32) {
    if let Some(group) = group {
        send_to_group(group, signal).ignore_error("the group may be gone already, which the next look shows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_leaves_no_grace() {
        let (now, grace) = (Instant::now(), Duration::from_secs(2));
        let first = EndRequest::after(None, 2, now, grace);
        assert_eq!((first.signal, first.deadline), (2, Some(now + grace)));
        let later = now + Duration::from_millis(1);
        let second = EndRequest::after(Some(first), 15, later, grace);
        assert_eq!((second.signal, second.deadline), (2, Some(later)));
        // A command that was killed is not killed again.
        let killed = EndRequest { deadline: None, ..second };
        assert_eq!(EndRequest::after(Some(killed), 2, later, grace).deadline, None);
    }
}
