//! What the user's commands want of a supervisor.

use std::os::fd::{AsFd, OwnedFd};

use skiff_runtime::record::now;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::members::Member;

use crate::hub::Ask;
use crate::local::supervisor::{Machine, Supervisor};
use crate::local::wire::{Answer, Node, Want};
use crate::machine::number;

impl Supervisor {
    pub(super) fn act(&mut self, want: &Want) -> Result<(Answer, Option<OwnedFd>)> {
        match want {
            Want::Status => return Ok((Answer::Nodes(self.nodes()), None)),
            Want::Enter(member) => {
                let node = self
                    .nodes
                    .get(member)
                    .filter(|node| node.lost.is_none())
                    .ok_or_else(|| not_there(*member))?;
                let init = node.init.as_ref().ok_or_else(|| self.elsewhere(*member))?;
                let handle = init.try_clone().context(|| format!("node {member}"))?;
                return Ok((Answer::Done, Some(handle)));
            }
            Want::Visit(member, call) => {
                let node = self.nodes.get(member).filter(|node| node.lost.is_none());
                let there = node.is_some();
                let hosts = self.hosts_mut().filter(|_| there);
                hosts.ok_or_else(|| not_there(*member))?.admit(*member, call.clone());
            }
            Want::Make(members) => self.make(members)?,
            Want::End(members) => members.iter().try_for_each(|member| self.end_one(*member))?,
            Want::Down => {}
        }
        Ok((Answer::Done, None))
    }

    /// Makes these, or none of them.
    fn make(&mut self, members: &[Member]) -> Result<()> {
        if let Some(member) = members.iter().find(|member| self.nodes.contains_key(member)) {
            return Err(Error::new(format!("node {member}: it is there already")));
        }
        if let Some(hosts) = self.hosts_mut() {
            let lost = hosts.make(members)?;
            let init = |member: &Member| hosts.handle(*member).map(OwnedFd::try_clone).transpose();
            let inits = members.iter().map(init).collect::<std::io::Result<Vec<_>>>();
            let machine = |init| Machine { init, since: now(), lost: None };
            let made = inits.context(|| "handles of nodes")?.into_iter().map(machine);
            self.nodes.extend(members.iter().copied().zip(made));
            self.bury(lost);
            return Ok(());
        }
        for (at, member) in members.iter().enumerate() {
            let made = self.make_here(*member);
            if made.is_err() {
                members[..at].iter().try_for_each(|member| self.end_one(*member))?;
                return made;
            }
        }
        Ok(())
    }

    fn make_here(&mut self, member: Member) -> Result<()> {
        let handle = self.order(&Ask::Make(member))?.into_iter().next();
        let init = handle.ok_or_else(|| Error::new(format!("node {member}: made without a handle")))?;
        self.nodes.insert(member, Machine { init: Some(init), since: now(), lost: None });
        Ok(())
    }

    fn end_one(&mut self, member: Member) -> Result<()> {
        match self.hosts_mut() {
            Some(hosts) => hosts.end(member),
            None => drop(self.order(&Ask::End(member))?),
        }
        self.nodes.remove(&member);
        Ok(())
    }

    fn elsewhere(&self, member: Member) -> Error {
        let host = self.hosts().and_then(|hosts| hosts.place(member)).map(|(_, host)| host);
        Error::new(format!("node {member}: it is on host {}", host.unwrap_or_default()))
    }

    fn nodes(&self) -> Vec<Node> {
        let known = self.nodes.iter().map(|(name, machine)| {
            let place = self.hosts().and_then(|hosts| hosts.place(*name));
            let (address, host) = place.map_or((None, None), |(address, host)| (Some(address), Some(host)));
            Node {
                name: *name,
                address: address.unwrap_or_else(|| name.address().to_string()),
                host,
                pid: machine
                    .init
                    .as_ref()
                    .and_then(|init| number(init.as_fd()))
                    .filter(|_| machine.lost.is_none()),
                since: machine.since,
                lost: machine.lost,
            }
        });
        known.collect()
    }
}

fn not_there(member: Member) -> Error {
    Error::new(format!("node {member}: it is not there"))
        .hint("`skiff cluster status NAME` shows those that are")
}
