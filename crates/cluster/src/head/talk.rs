//! What agents say, and what that leads to.

use std::time::Instant;

use skiff_sandbox::{Error, Result};

use super::Head;
use super::remote::{Remote, Stage};
use crate::channel::Come;
use crate::hosts::Host;
use crate::key;
use crate::wire::{Member, Order, Place, Report, Stream, VERSION};

impl Head<'_> {
    /// An agent has said something, or has gone.
    pub(super) fn hear(&mut self, at: usize) -> Result<()> {
        let Some(channel) = &mut self.remotes[at].channel else { return Ok(()) };
        let is_there = channel.receive();
        self.remotes[at].missed = 0;
        loop {
            match self.remotes[at].take()? {
                None => break,
                Some(Come::Data(stream, bytes)) => {
                    let outlet = if stream == Stream::Output { &mut self.output } else { &mut self.errors };
                    outlet.push(&bytes);
                    if outlet.is_closed() {
                        // The program is to learn of it as it would of a pipe.
                        self.tell(0, &Order::Closed(stream));
                    }
                }
                Some(Come::Message(report)) => self.take(at, report)?,
            }
        }
        if is_there || self.ended.is_some() {
            return Ok(());
        }
        self.remotes[at].channel = None;
        Err(self.lost(at, ""))
    }

    fn take(&mut self, at: usize, report: Report) -> Result<()> {
        let name = self.remotes[at].name.clone();
        match report {
            Report::Prepared(place) => {
                check(&name, &place)?;
                self.remotes[at].stage = Stage::Prepared(place);
                self.start_if_all_are_prepared();
            }
            Report::Started => {
                self.remotes[at].stage = Stage::Started;
                self.run_if_all_have_started();
            }
            Report::Note(text) => (self.task.note)(&format!("host {name}: {text}")),
            Report::Took(n) => {
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                self.input = self.input.map(|under_way| under_way.saturating_sub(n));
            }
            Report::Ended(end) if at == 0 => self.ended = Some(end),
            Report::Ended(_) => {}
            Report::Failed(message, hint) => {
                return Err(Error { message, hint }.about(&format!("host {name}")));
            }
            Report::Beat => {}
        }
        Ok(())
    }

    fn start_if_all_are_prepared(&mut self) {
        let member = |(remote, host): (&Remote, &Host)| {
            let Stage::Prepared(place) = &remote.stage else { return None };
            let slots = host.slots.unwrap_or(place.processors).max(1);
            Some(Member { name: host.name.clone(), slots, place: place.clone() })
        };
        let members = self.remotes.iter().zip(self.task.hosts).map(member).collect::<Option<Vec<_>>>();
        let Some(members) = members else { return };
        // Nobody else is to come.
        self.door = None;
        self.deadline = Some(Instant::now() + self.task.start_within);
        let order = Order::Start(members);
        (0..self.remotes.len()).for_each(|at| self.tell(at, &order));
    }

    fn run_if_all_have_started(&mut self) {
        if self.running || !self.remotes.iter().all(|remote| matches!(remote.stage, Stage::Started)) {
            return;
        }
        self.deadline = None;
        self.running = true;
        self.launchers.iter_mut().for_each(|launcher| launcher.said.clear());
        let program = self.task.program.clone();
        self.tell(0, &Order::Run(Box::new(program)));
    }
}

/// Refuses a place that would lead others astray.
fn check(name: &str, place: &Place) -> Result<()> {
    if place.version != VERSION {
        return Err(Error::new(format!(
            "host {name}: its skiff is version {}, ours {VERSION}",
            place.version
        ))
        .hint("have the same version installed on all hosts"));
    }
    if !key::is_public(&place.host_key) || !key::is_public(&place.user_key) || place.port == 0 {
        return Err(Error::new(format!("host {name}: it gives no keys or no port")));
    }
    Ok(())
}
