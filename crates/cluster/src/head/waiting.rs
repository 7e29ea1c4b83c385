//! What the head waits for: everything at once.

use std::os::fd::AsFd;

use rustix::event::PollFlags;

use super::Head;
use crate::fleet::{self, Waited};

/// So much of the program's input may be under way.
const INPUT_WINDOW: usize = 128 << 10;

/// What a descriptor that we wait for is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadEvent {
    Signals,
    Input,
    Outlet,
    Fleet(fleet::FleetEvent),
}

impl Head<'_> {
    /// Waits until there is something to do.
    pub(super) fn wait(&self) -> Vec<HeadEvent> {
        let mut waited: Vec<Waited<'_, HeadEvent>> =
            vec![(HeadEvent::Signals, self.signals.as_fd(), PollFlags::IN)];
        let mut wait = |of, fd, flags| waited.push((of, fd, flags));
        if self.wants_input() {
            wait(HeadEvent::Input, rustix::stdio::stdin(), PollFlags::IN);
        }
        for outlet in [&self.output, &self.errors] {
            outlet.waits().into_iter().for_each(|fd| wait(HeadEvent::Outlet, fd, PollFlags::OUT));
        }
        self.fleet.wait_for(&mut waited, HeadEvent::Fleet, self.deaf());
        let mut ready = fleet::ready(&waited, self.fleet.wakes_at());
        ready.dedup();
        ready
    }

    fn wants_input(&self) -> bool {
        self.running
            && self.input.is_some_and(|under_way| under_way < INPUT_WINDOW)
            && self.fleet.remotes[0].channel.as_ref().is_some_and(|channel| channel.backlog() < INPUT_WINDOW)
    }
}
