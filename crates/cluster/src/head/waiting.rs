//! What the head waits for: everything at once.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Head, MOST_WAITING};
use crate::launch::Door;

/// So much of the program's input may be under way.
const INPUT_WINDOW: usize = 128 << 10;

/// What a descriptor that we wait for is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Signals,
    Door,
    Input,
    Outlet,
    Launcher(usize),
    Said(usize),
    From(usize),
    To(usize),
}

impl Head<'_> {
    /// Waits until there is something to do.
    pub(super) fn wait(&self) -> Vec<Of> {
        let mut waited: Vec<(Of, BorrowedFd<'_>, PollFlags)> =
            vec![(Of::Signals, self.signals.as_fd(), PollFlags::IN)];
        let mut wait = |of, fd, flags| waited.push((of, fd, flags));
        self.door.iter().flat_map(Door::descriptors).for_each(|fd| wait(Of::Door, fd, PollFlags::IN));
        if self.wants_input() {
            wait(Of::Input, rustix::stdio::stdin(), PollFlags::IN);
        }
        for outlet in [&self.output, &self.errors] {
            outlet.waits().into_iter().for_each(|fd| wait(Of::Outlet, fd, PollFlags::OUT));
        }
        for (at, launcher) in self.launchers.iter().enumerate() {
            if !launcher.ended {
                wait(Of::Launcher(at), launcher.pidfd.as_fd(), PollFlags::IN);
            }
            launcher.errors.iter().for_each(|fd| wait(Of::Said(at), fd.as_fd(), PollFlags::IN));
        }
        let full = self.output.waiting() + self.errors.waiting() > MOST_WAITING;
        for (at, remote) in self.remotes.iter().enumerate() {
            let Some(channel) = &remote.channel else { continue };
            if !(full && at == 0) {
                wait(Of::From(at), channel.input(), PollFlags::IN);
            }
            channel.output().into_iter().for_each(|fd| wait(Of::To(at), fd, PollFlags::OUT));
        }
        let until = self.deadline.map_or(self.next_beat, |deadline| deadline.min(self.next_beat));
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        // Never more than a beat.
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> =
            waited.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        // Interrupted, nothing is ready.
        poll(&mut fds, Some(&limit)).unwrap_or_default();
        let ready = waited.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        let mut ready: Vec<Of> = ready.map(|((of, ..), _)| *of).collect();
        ready.dedup();
        ready
    }

    fn wants_input(&self) -> bool {
        self.running
            && self.input.is_some_and(|under_way| under_way < INPUT_WINDOW)
            && self.remotes[0].channel.as_ref().is_some_and(|channel| channel.backlog() < INPUT_WINDOW)
    }
}
