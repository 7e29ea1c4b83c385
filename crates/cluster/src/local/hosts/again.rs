//! An agent in the place of one that was lost.

use std::time::{Duration, Instant};

use skiff_spec::fault::{Fault as Error, Result};

use crate::launching;
use crate::local::hosts::{Hosts, Lost};
use crate::wire::Role;

/// How long to wait before it is looked again whether an address is free.
const AGAIN: Duration = Duration::from_millis(100);

impl Hosts {
    /// Has agents started on those of these hosts that have lost theirs: they are to be where those were.
    pub(super) fn call_again(&mut self, ats: &[usize]) -> Result<Vec<Lost>> {
        let mut lost = vec![];
        let is_alone = |at: &usize| self.fleet.remotes[*at].channel.is_none();
        let alone: Vec<usize> = ats.iter().copied().filter(is_alone).collect();
        let until = Instant::now() + self.spec.limits.answer;
        for at in alone {
            let was = self.members.get(at).map(|member| member.place.clone());
            loop {
                lost.extend(self.call_one_again(at, was.as_ref().map(|place| place.port))?);
                let found = self.fleet.remotes[at].place().map(|place| place.address);
                if found == was.as_ref().map(|place| place.address) {
                    break;
                }
                self.fleet.dismiss(at);
                if Instant::now() > until {
                    let (node, host) = (self.member(at), &self.fleet.host(at).name);
                    return Err(Error::new(format!(
                        "node {node}: host {host} gives its address to others now"
                    ))
                    .hint("where it is cannot change as long as the cluster is up: make it anew"));
                }
                // The kernel lets go of the namespace that had it some time after its last process has ended.
                std::thread::sleep(AGAIN);
            }
        }
        Ok(lost)
    }

    fn call_one_again(&mut self, at: usize, was: Option<u16>) -> Result<Vec<Lost>> {
        if let Role::Node { port, .. } = &mut self.spec.wanted.duty {
            *port = was;
        }
        let launches = self.spec.launching.launch(at);
        let mut entrance = launching::open(&self.spec.launching, &launches)?;
        self.proofs[at].clone_from(&entrance.call.secret);
        self.fleet.begin_again(at, &self.spec.wanted, entrance.listener.take());
        self.fleet.launch(&launches, &entrance.call)?;
        let lost = self.until_prepared(&[at])?;
        self.fleet.settle();
        Ok(lost)
    }
}
