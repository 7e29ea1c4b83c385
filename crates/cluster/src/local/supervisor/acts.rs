//! What the user's commands want of a supervisor.

use std::os::fd::{AsFd, OwnedFd};

use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::members::Member;
use skiff_sys::clock::now;
use skiff_sys::process::pid_of;

use crate::hub::HubRequest;
use crate::local::supervisor::{HeldNode, Supervisor};
use crate::local::wire::{NodeStatus, SupervisorReply, SupervisorRequest};

impl Supervisor {
    pub(super) fn act(&mut self, want: &SupervisorRequest) -> Result<(SupervisorReply, Option<OwnedFd>)> {
        match want {
            SupervisorRequest::Status => return Ok((SupervisorReply::Nodes(self.nodes()), None)),
            SupervisorRequest::Enter(member) => {
                let node = self
                    .nodes
                    .get(member)
                    .filter(|node| node.lost.is_none())
                    .ok_or_else(|| not_there(*member))?;
                let init = node.init.as_ref().ok_or_else(|| self.elsewhere(*member))?;
                let handle = init.try_clone().context(|| format!("node {member}"))?;
                return Ok((SupervisorReply::Done, Some(handle)));
            }
            SupervisorRequest::Visit(member, call) => {
                let node = self.nodes.get(member).filter(|node| node.lost.is_none());
                let there = node.is_some();
                let hosts = self.hosts_mut().filter(|_| there);
                hosts.ok_or_else(|| not_there(*member))?.admit(*member, call.clone());
            }
            SupervisorRequest::Make(members) => self.make(members)?,
            SupervisorRequest::End(members) => members.iter().try_for_each(|member| self.end_one(*member))?,
            SupervisorRequest::Down => {}
        }
        Ok((SupervisorReply::Done, None))
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
            let node = |init| HeldNode { init, since: now(), lost: None };
            let made = inits.context(|| "handles of nodes")?.into_iter().map(node);
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
        let handle = self.order(&HubRequest::Make(member))?.into_iter().next();
        let init = handle.ok_or_else(|| Error::new(format!("node {member}: made without a handle")))?;
        self.nodes.insert(member, HeldNode { init: Some(init), since: now(), lost: None });
        Ok(())
    }

    fn end_one(&mut self, member: Member) -> Result<()> {
        match self.hosts_mut() {
            Some(hosts) => hosts.end(member),
            None => drop(self.order(&HubRequest::End(member))?),
        }
        self.nodes.remove(&member);
        Ok(())
    }

    fn elsewhere(&self, member: Member) -> Error {
        let host = self.hosts().and_then(|hosts| hosts.place(member)).map(|(_, host)| host);
        Error::new(format!("node {member}: it is on host {}", host.unwrap_or_default()))
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        let known = self.nodes.iter().map(|(name, node)| {
            let place = self.hosts().and_then(|hosts| hosts.place(*name));
            let (address, host) = place.map_or((None, None), |(address, host)| (Some(address), Some(host)));
            NodeStatus {
                name: *name,
                address: address.unwrap_or_else(|| name.address().to_string()),
                host,
                pid: node
                    .init
                    .as_ref()
                    .and_then(|init| pid_of(init.as_fd()))
                    .map(|pid| pid.as_raw_nonzero().get())
                    .filter(|_| node.lost.is_none()),
                since: node.since,
                lost: node.lost,
            }
        });
        known.collect()
    }
}

fn not_there(member: Member) -> Error {
    Error::new(format!("node {member}: it is not there"))
        .hint("`skiff cluster status NAME` shows those that are")
}
