//! Between the user's terminal and one of a container's own: keys go in, and what is shown comes out, as they are. What keys mean, and what a
//! program at the terminal may change of it, is the inner one's affair; the user's keeps its settings and has them again at the end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::group_of;

/// A terminal gives 4 KiB at a time; so much is taken before it is passed on.
const MOST_AT_ONCE: usize = 64 << 10;
/// The most that is passed on once the command has ended, which is more than a terminal holds: a process that it has left may write on and on.
const MOST_AT_END: usize = 256 << 10;
/// How often one in the background looks whether it has come into the foreground: a shell's `fg` tells only those that were stopped.
const FOREGROUND_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// How often one who waits for a terminal that takes nothing looks whether it is to end.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The terminal that a user sits at, by the standard descriptors that lead to it.
pub(crate) struct UserTerminal {
    terminal: OwnedFd,
    /// Which of the three descriptors are terminals.
    pub(crate) standard: [bool; 3],
}

impl UserTerminal {
    /// The one that this process stands on, if any.
    pub(crate) fn find() -> Result<Option<Self>> {
        let all = [stdin(), stdout(), stderr()];
        let standard = all.map(isatty);
        let Some(at) = standard.iter().position(|is_one| *is_one) else { return Ok(None) };
        let terminal = all[at].try_clone_to_owned().context(|| "terminal")?;
        Ok(Some(Self { terminal, standard }))
    }

    /// Gives another terminal its size and settings. Where others may write to it at the same time, as in a pipeline, it goes on preparing what
    /// is shown, and the other one does not.
    pub(crate) fn copy_to(&self, other: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut settings = tcgetattr(&self.terminal)?;
        if self.is_shared() {
            settings.output_modes.remove(OutputModes::OPOST);
        }
        tcsetattr(other, OptionalActions::Now, &settings)?;
        tcsetwinsize(other, tcgetwinsize(&self.terminal)?)
    }

    /// Whether keys are for us: a terminal that does not rule this session nobody else gets either.
    pub(crate) fn is_in_foreground(&self) -> bool {
        match tcgetpgrp(&self.terminal) {
            Ok(group) => group_of(None).is_ok_and(|own| own == Some(group)),
            Err(Errno::OPNOTSUPP) => group_of(None).is_ok_and(|own| own.is_none()),
            Err(_) => true,
        }
    }

    fn is_shared(&self) -> bool {
        self.standard != [true; 3]
    }
}

/// Passes bytes on between two terminals, without waiting for either.
pub(crate) struct TerminalRelay {
    user: UserTerminal,
    /// What operates the container's terminal; nothing once nobody has that open, or the user's is gone.
    master: Option<OwnedFd>,
    /// Where keys come from; nothing if they are not for the command, or the user's terminal is gone.
    input: Option<OwnedFd>,
    output: OwnedFd,
    /// Keys that are not passed on yet.
    typed: Vec<u8>,
    /// What is not shown yet.
    shown: Vec<u8>,
    /// The settings of the user's terminal while ours are in their place.
    before: Option<Termios>,
    /// The settings of the container's terminal, if it was begun in the background: those of a shell that reads a line meanwhile.
    begun_with: Option<Termios>,
    has_come: bool,
}

/// What can be done without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) master: bool,
    pub(crate) input: bool,
    pub(crate) output: bool,
}

impl TerminalRelay {
    /// Begins: from now on keys are the container's.
    pub(crate) fn begin(user: UserTerminal, master: OwnedFd) -> Result<Self> {
        let about = || "terminal of the container";
        fcntl_setfl(&master, fcntl_getfl(&master).context(about)? | OFlags::NONBLOCK).context(about)?;
        let shows = if user.standard[1] || user.standard[0] { user.terminal.as_fd() } else { stderr() };
        let output = again(shows, OFlags::WRONLY).context(|| "terminal")?;
        let input = user.standard[0].then(|| again(stdin(), OFlags::RDONLY)).transpose();
        let input = input.context(|| "terminal")?;
        let mut relay = Self {
            user,
            master: Some(master),
            input,
            output,
            typed: vec![],
            shown: vec![],
            before: None,
            begun_with: None,
            has_come: false,
        };
        if !relay.user.is_in_foreground() {
            relay.begun_with = relay.master.as_ref().and_then(|master| tcgetattr(master).ok());
        }
        relay.resume();
        Ok(relay)
    }

    /// Takes the user's terminal over, if it is ours.
    pub(crate) fn resume(&mut self) {
        if self.master.is_none() || !self.user.is_in_foreground() {
            return;
        }
        self.resize();
        if self.input.is_none() {
            return;
        }
        let Ok(now) = tcgetattr(&self.user.terminal) else { return };
        self.follow_shell();
        let mut raw = now.clone();
        raw.make_raw();
        if self.user.is_shared() {
            raw.output_modes = now.output_modes;
        }
        // What was typed ahead stays.
        tcsetattr(&self.user.terminal, OptionalActions::Now, &raw)
            .ignore_error("a terminal that is gone needs no settings");
        self.before.get_or_insert(now);
    }

    /// Gives the user's terminal back as it was. If somebody else has it by now, as after `kill -STOP` of this process and `bg`, it has that one's settings.
    pub(crate) fn pause(&mut self) {
        if let Some(before) = self.before.take()
            && self.user.is_in_foreground()
        {
            tcsetattr(&self.user.terminal, OptionalActions::Now, &before)
                .ignore_error("a terminal that is gone needs no settings");
        }
    }

    /// Gives the container's terminal the size of the user's; who works at it is told by the kernel.
    pub(crate) fn resize(&self) {
        if let (Some(master), Ok(size)) = (&self.master, tcgetwinsize(&self.user.terminal)) {
            tcsetwinsize(master, size).ignore_error("a terminal whose command has ended needs no size");
        }
    }

    /// Gives the container's terminal the settings that a shell has given the user's for the command, unless that has changed its own.
    fn follow_shell(&mut self) {
        let (Some(begun_with), Some(master)) = (self.begun_with.take(), &self.master) else { return };
        let modes = |of: &Termios| (of.input_modes, of.output_modes, of.local_modes);
        if tcgetattr(master).is_ok_and(|now| modes(&now) == modes(&begun_with)) {
            self.user
                .copy_to(master.as_fd())
                .ignore_error("a terminal whose command has ended needs nothing");
        }
    }

    /// Whether one that was in the background has come into the foreground since this was asked: nobody says so.
    pub(crate) fn has_come_to_foreground(&mut self) -> bool {
        std::mem::take(&mut self.has_come)
    }

    /// What is to be waited for before [`TerminalRelay::go_on`], in the order of [`Ready`]'s parts, and for how long.
    pub(crate) fn wanted(&mut self) -> ([Option<PollFd<'_>>; 3], Option<&'static Timespec>) {
        let is_typing = self.input.is_some() && self.master.is_some();
        let in_foreground = is_typing && self.user.is_in_foreground();
        if in_foreground && self.before.is_none() {
            self.resume();
            self.has_come = true;
        }
        let mut of_master = PollFlags::empty();
        of_master.set(PollFlags::IN, self.shown.is_empty());
        of_master.set(PollFlags::OUT, !self.typed.is_empty());
        let master = self.master.as_ref().filter(|_| !of_master.is_empty());
        let input = self.input.as_ref().filter(|_| in_foreground && self.typed.is_empty());
        let wanted = [
            master.map(|master| PollFd::new(master, of_master)),
            input.map(|input| PollFd::new(input, PollFlags::IN)),
            (!self.shown.is_empty()).then(|| PollFd::new(&self.output, PollFlags::OUT)),
        ];
        (wanted, (is_typing && !in_foreground).then_some(&FOREGROUND_LOOK))
    }

    /// Does what can be done without waiting.
    pub(crate) fn go_on(&mut self, ready: Ready) {
        if ready.input {
            self.take_keys();
        }
        if ready.master || ready.input {
            self.type_in();
        }
        if ready.master {
            self.take_shown(MOST_AT_ONCE);
        }
        if ready.output || ready.master {
            self.show();
        }
    }

    /// Passes on what there is now that the command has ended, and gives the user's terminal back.
    pub(crate) fn finish(mut self, mut gives_up: impl FnMut() -> bool) {
        self.input = None;
        let mut left = MOST_AT_END;
        loop {
            if self.shown.is_empty() {
                left -= self.take_shown(left.min(MOST_AT_ONCE));
                if self.shown.is_empty() {
                    break;
                }
            }
            match poll(&mut [PollFd::new(&self.output, PollFlags::OUT)], Some(&PATIENCE)) {
                Ok(1) => self.show(),
                _ if gives_up() => break,
                _ => {}
            }
        }
        self.pause();
    }

    fn take_keys(&mut self) {
        let Some(input) = &self.input else { return };
        let mut keys = [0; 4096];
        match retry_on_intr(|| read(input, &mut keys)) {
            Ok(0) => self.input = None,
            Ok(count) => self.typed.extend(&keys[..count]),
            Err(Errno::AGAIN) => {}
            // In the background it fails, too.
            Err(_) if self.user.is_in_foreground() => self.input = None,
            Err(_) => {}
        }
    }

    fn type_in(&mut self) {
        let Some(master) = self.master.as_ref().filter(|_| !self.typed.is_empty()) else { return };
        match retry_on_intr(|| write(master, &self.typed)) {
            Ok(count) => drop(self.typed.drain(..count)),
            Err(Errno::AGAIN) => {}
            Err(_) => self.typed.clear(),
        }
    }

    /// Takes at most so many bytes of what is to be shown; how many there were.
    fn take_shown(&mut self, most: usize) -> usize {
        let mut piece = [0; 4096];
        let begun_with = self.shown.len();
        while self.shown.len() < most {
            let Some(master) = &self.master else { break };
            let room = piece.len().min(most - self.shown.len());
            match retry_on_intr(|| read(master, &mut piece[..room])) {
                Ok(count) if count > 0 => self.shown.extend(&piece[..count]),
                Err(Errno::AGAIN) => break,
                // Nobody has it open any more.
                _ => self.master = None,
            }
        }
        self.shown.len() - begun_with
    }

    fn show(&mut self) {
        if self.shown.is_empty() {
            return;
        }
        match retry_on_intr(|| write(&self.output, &self.shown)) {
            Ok(count) => drop(self.shown.drain(..count)),
            Err(Errno::AGAIN) => {}
            // The user's terminal is gone: so is the container's, and who works at it is told.
            Err(_) => {
                self.shown.clear();
                self.master = None;
            }
        }
    }
}

/// However it ends.
impl Drop for TerminalRelay {
    fn drop(&mut self) {
        self.pause();
    }
}

/// A terminal once more, so that nobody who shares the first descriptor with us finds it changed: who may not open it (as after `su`) waits.
fn again(terminal: BorrowedFd<'_>, mode: OFlags) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let flags = mode | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(CWD, Path::new(&path), flags, Mode::empty())
        .or_else(|_| rustix::io::fcntl_dupfd_cloexec(terminal, 3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::new_pair;

    /// A relay between two terminals, and the ends at which a user and a program sit.
    fn relay(standard: [bool; 3]) -> (TerminalRelay, [OwnedFd; 2]) {
        let (screen, terminal) = new_pair([24, 80]).unwrap();
        let (master, slave) = new_pair([0, 0]).unwrap();
        let output = again(terminal.as_fd(), OFlags::WRONLY).unwrap();
        let input = Some(again(terminal.as_fd(), OFlags::RDONLY).unwrap());
        let user = UserTerminal { terminal, standard };
        user.copy_to(slave.as_fd()).unwrap();
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        let (typed, shown, before, begun_with) = (vec![], vec![], None, None);
        let master = Some(master);
        let has_come = false;
        let mut relay =
            TerminalRelay { user, master, input, output, typed, shown, before, begun_with, has_come };
        relay.resume();
        (relay, [screen, slave])
    }

    const ALL: Ready = Ready { master: true, input: true, output: true };

    fn seen(screen: &OwnedFd, wanted: usize) -> Vec<u8> {
        let (mut all, mut piece) = (vec![], [0; 4096]);
        while all.len() < wanted {
            let n = read(screen, &mut piece).unwrap();
            all.extend(&piece[..n]);
        }
        all
    }

    #[test]
    fn keys_and_lines_are_those_of_one_terminal() {
        let (mut relay, [screen, slave]) = relay([true; 3]);
        assert_eq!(write(&screen, b"ab\n"), Ok(3));
        relay.go_on(ALL);
        // The line, and its echo, which the inner terminal alone gives.
        assert_eq!(seen(&slave, 3), b"ab\n");
        relay.go_on(ALL);
        assert_eq!(seen(&screen, 4), b"ab\r\n");
        assert_eq!(write(&slave, b"x\n"), Ok(2));
        relay.go_on(ALL);
        assert_eq!(seen(&screen, 3), b"x\r\n");
    }

    #[test]
    fn what_others_write_beside_it_looks_the_same() {
        let (mut relay, [screen, slave]) = relay([true, false, true]);
        assert_eq!(write(&slave, b"x\n"), Ok(2));
        relay.go_on(ALL);
        assert_eq!(write(&relay.user.terminal, b"y\n"), Ok(2));
        assert_eq!(seen(&screen, 6), b"x\r\ny\r\n");
    }

    #[test]
    fn the_settings_come_back_and_the_size_goes_in() {
        let (mut relay, [screen, slave]) = relay([true; 3]);
        let cooked = relay.before.clone().unwrap();
        let now = || tcgetattr(&relay.user.terminal).unwrap();
        assert_ne!(now().local_modes, cooked.local_modes);
        crate::terminal::resize(&screen, [7, 9]).unwrap();
        relay.resize();
        let size = tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (7, 9));
        relay.pause();
        let terminal = relay.user.terminal.try_clone().unwrap();
        let modes = |of: Termios| (of.input_modes, of.output_modes, of.local_modes);
        assert_eq!(modes(tcgetattr(&terminal).unwrap()), modes(cooked.clone()));
        relay.resume();
        drop(relay);
        assert_eq!(modes(tcgetattr(&terminal).unwrap()), modes(cooked));
    }

    #[test]
    fn what_was_shown_before_the_end_is_shown() {
        let (relay, [screen, slave]) = relay([true; 3]);
        let text = vec![b'.'; 3000];
        assert_eq!(write(&slave, &text), Ok(3000));
        drop(slave);
        relay.finish(|| false);
        assert_eq!(seen(&screen, 3000), text);
    }

    #[test]
    fn who_shows_nothing_is_not_waited_for_for_ever() {
        let (mut relay, [_screen, slave]) = relay([true; 3]);
        fcntl_setfl(&slave, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        for _ in 0..100 {
            // Nobody looks at the screen: at some point nobody takes any more.
            match write(&slave, &[b'.'; 4096]) {
                Ok(_) | Err(Errno::AGAIN) => relay.go_on(ALL),
                Err(e) => panic!("{e}"),
            }
        }
        assert!(!relay.shown.is_empty());
        relay.finish(|| true);
    }

    #[test]
    fn a_terminal_that_is_gone_takes_the_inner_one_along() {
        let (mut relay, [screen, slave]) = relay([true; 3]);
        drop(screen);
        assert_eq!(write(&slave, b"x"), Ok(1));
        relay.go_on(ALL);
        assert!(relay.master.is_none() && relay.input.is_none());
        assert_eq!(write(&slave, b"x"), Err(Errno::IO));
    }
}
