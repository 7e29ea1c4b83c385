//! The end, whatever led to it.

use std::time::{Duration, Instant};

use skiff_launch::launcher::Launcher;

use super::{Fleet, FleetEvent, ready};
use crate::wire::{AgentMessage, HeadMessage};

/// How long it may take before it is made to come.
const ENDING: Duration = Duration::from_secs(15);

/// How long a launcher may take that is told to end.
const CLEARING_UP: Duration = Duration::from_secs(2);

impl Fleet {
    /// Ends all containers and agents; when this returns they are gone, or cannot be reached any more.
    pub fn end(&mut self) {
        let until = Instant::now() + ENDING;
        for at in 0..self.remotes.len() {
            self.tell(at, &HeadMessage::End);
        }
        // Without a listener, an agent that comes late finds nobody, and ends.
        self.listener = None;
        while Instant::now() < until {
            let busy = self.remotes.iter().any(|remote| remote.channel.is_some());
            if !busy && self.launchers.iter().all(|launcher| launcher.ended) {
                return;
            }
            if !busy && (self.has_silent || self.remotes.iter().any(|remote| remote.place().is_none())) {
                // It still tries to start what nobody waits for, or does not hear that it has ended.
                break;
            }
            for of in self.wait_for_the_end(until) {
                match of {
                    FleetEvent::From(at) => self.hear_the_end(at),
                    FleetEvent::To(at) => self.flush(at),
                    FleetEvent::Said(at) => drop(self.words(at)),
                    FleetEvent::Launcher(at) => drop(self.launchers[at].bury()),
                    FleetEvent::Listener => {}
                }
            }
        }
        self.end_launchers();
    }

    /// Ends those that were there for one host alone.
    pub(super) fn forget_launchers(&mut self, at: usize) {
        let (of_it, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.launchers).into_iter().partition(|launcher| launcher.hosts == [at]);
        self.launchers = others;
        of_it.iter().for_each(Launcher::terminate);
        let until = Instant::now() + CLEARING_UP;
        // Those that do not end by then are killed when they are let go of.
        of_it.iter().filter(|launcher| !launcher.ended).for_each(|launcher| launcher.wait_until(until));
    }

    fn wait_for_the_end(&self, until: Instant) -> Vec<FleetEvent> {
        let mut waited = vec![];
        self.wait_for(&mut waited, |of| of, None);
        ready(&waited, until)
    }

    /// Ends the launchers that are left: first so that they can clear up on the hosts (srun cancels its step), then by force.
    fn end_launchers(&mut self) {
        self.launchers.iter().for_each(Launcher::terminate);
        let until = Instant::now() + CLEARING_UP;
        for launcher in self.launchers.iter_mut().filter(|launcher| !launcher.ended) {
            launcher.wait_until(until);
            launcher.kill();
        }
    }

    /// Whatever it says: what counts is that it goes.
    fn hear_the_end(&mut self, at: usize) {
        let Some(channel) = &mut self.remotes[at].channel else { return };
        let is_there = channel.receive();
        let is_sound = loop {
            match channel.take::<AgentMessage>() {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !is_there || !is_sound {
            self.remotes[at].channel = None;
        }
    }
}
