//! What agents say, and what that leads to.

use skiff_launch::channel::Incoming;
use skiff_launch::frame::Stream;
use skiff_launch::hosts::Host;
use skiff_spec::fault::{Fault, Result};

use super::Head;
use super::terminal::Raw;
use crate::wire::{AgentMessage, ClusterMember, HeadMessage, SshAddress};

impl Head<'_> {
    /// An agent has said something, or has gone.
    pub(super) fn hear(&mut self, at: usize) -> Result<()> {
        let is_there = self.fleet.receive(at);
        loop {
            match self.fleet.take(at)? {
                None => break,
                Some(Incoming::Data(stream, bytes)) => {
                    let outlet = if stream == Stream::Output { &mut self.output } else { &mut self.errors };
                    outlet.push(&bytes);
                    if outlet.is_closed() {
                        // The program is to learn of it as it would of a pipe.
                        self.fleet.tell(0, &HeadMessage::Closed(stream));
                    }
                }
                Some(Incoming::Message(report)) => self.take(at, report)?,
            }
        }
        if is_there || self.ended.is_some() {
            return Ok(());
        }
        self.fleet.remotes[at].channel = None;
        Err(self.fleet.lost(at, super::ENDS, ""))
    }

    fn take(&mut self, at: usize, report: AgentMessage) -> Result<()> {
        let name = self.fleet.remotes[at].name.clone();
        match report {
            AgentMessage::Prepared(place) => {
                self.fleet.prepared(at, place)?;
                self.start_if_all_are_prepared();
            }
            AgentMessage::Started => {
                self.fleet.remotes[at].started();
                self.run_if_all_have_started();
            }
            AgentMessage::Note(text) => (self.task.note)(&format!("host {name}: {text}")),
            AgentMessage::Took(n) => {
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                self.input = self.input.map(|under_way| under_way.saturating_sub(n));
            }
            AgentMessage::Ended(end) if at == 0 => self.ended = Some(end),
            AgentMessage::Ended(_) | AgentMessage::Left(..) | AgentMessage::Serves(_) => {}
            AgentMessage::Failed(message, hint) => {
                return Err(Fault::new(message).hint(hint).about(&format!("host {name}")));
            }
            AgentMessage::Beat => {}
        }
        Ok(())
    }

    fn start_if_all_are_prepared(&mut self) {
        let Some(places) = self.fleet.all_prepared() else { return };
        let member = |(host, place): (&Host, SshAddress)| {
            let slots = host.slots.unwrap_or(place.processors).max(1);
            ClusterMember { name: host.name.clone(), slots, place }
        };
        let order = HeadMessage::Start(self.task.hosts.iter().zip(places).map(member).collect());
        (0..self.fleet.remotes.len()).for_each(|at| self.fleet.tell(at, &order));
    }

    fn run_if_all_have_started(&mut self) {
        if self.running || !self.fleet.remotes.iter().all(|remote| remote.has_started()) {
            return;
        }
        self.fleet.settle();
        self.running = true;
        let program = self.task.program.clone();
        // Until now the keys that end us were ours.
        self.raw = program.terminal.and_then(|_| Raw::begin());
        self.fleet.tell(0, &HeadMessage::Run(Box::new(program)));
    }
}
