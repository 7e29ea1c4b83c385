//! What an agent is told to be: a container for programs that come by ssh, a node of a cluster's own Slurm, or nothing but somebody who
//! lets a program in.

use std::net::{IpAddr, Ipv4Addr};

use skiff_launch::handshake::Call;
use skiff_launch::sealed_box::Opener;
use skiff_launch::{address, hosts};
use skiff_plan as plan;
use skiff_runtime::network;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::instance;
use skiff_sys::IgnoreError;
use skiff_sys::kernel::host_name;
use skiff_sys::process::pid_of;
use skiff_user::scratch;

use crate::agent::{Agent, PreparedRole};
use crate::container::{self, SshContainer};
use crate::files::{self, Keys};
use crate::fleet::beat;
use crate::key::SshKey;
use crate::node::RunningNode;
use crate::root::ResolvedBase;
use crate::slurm_node;
use crate::wire::{self, AgentMessage, ClusterMember, ContainerSpec, Role, SshAddress, VERSION};

/// Where ssh daemons listen in networks of their own.
const SSH_PORT: u16 = 22;

impl Agent<'_> {
    pub(super) fn prepare(&mut self, wanted: ContainerSpec) -> Result<()> {
        if wanted.version != VERSION {
            return Err(Error::new(format!("its skiff is version {VERSION}, the head's {}", wanted.version))
                .hint("have the same version installed on all hosts"));
        }
        plan::refuse_inside(self.context)?;
        self.beat = beat(wanted.silence);
        let (port, controller) = match &wanted.duty {
            Role::Node { port, controller } => (*port, controller.map(|address| address.to_string())),
            // It is there, and reached by no ports of ours.
            Role::Visit => (Some(SSH_PORT), None),
            Role::Script => {
                container::needs_helper(self.context)?;
                (None, None)
            }
        };
        let (address, port, held) = match network::address() {
            Some(address) => (IpAddr::V4(address), port.unwrap_or(SSH_PORT), None),
            None if wanted.duty == Role::Visit => (Ipv4Addr::LOCALHOST.into(), SSH_PORT, None),
            None => {
                let address = address::among(&others(&wanted, controller.as_deref())?)?;
                let (held, port) = address::hold_port(address, port)?;
                (address, port, Some(held))
            }
        };
        let keys =
            Keys { host: SshKey::generate("skiff-cluster")?, user: SshKey::generate("skiff-cluster")? };
        let opener = Opener::generate(self.secret.as_ref())?;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.channel.tell(&AgentMessage::Prepared(SshAddress {
            version: VERSION.into(),
            address,
            port,
            host_key: keys.host.public.clone(),
            user_key: keys.user.public.clone(),
            processors: u32::try_from(processors).unwrap_or(1),
            megabytes: slurm_node::memory().unwrap_or(1024),
            opener: opener.request(),
        }));
        self.wanted = Some(PreparedRole { wanted, keys, opener: Some(opener), key: vec![], _port: held });
        Ok(())
    }

    pub(super) fn start(&mut self, members: &[ClusterMember]) -> Result<()> {
        let strange = || Error::new("the cluster's head: orders in a strange sequence");
        let PreparedRole { wanted, keys, _port, .. } = self.wanted.take().ok_or_else(strange)?;
        if wanted.index >= members.len() || self.container.is_some() {
            return Err(strange());
        }
        if wanted.duty == Role::Visit {
            self.channel.tell(&AgentMessage::Started);
            return Ok(());
        }
        let made = files::all(members, wanted.index, &keys, &wanted.variables);
        let (scratch, note) = scratch::make(self.context, &wanted.scratch)?;
        // All hosts would say the same.
        note.filter(|_| wanted.index == 0)
            .into_iter()
            .for_each(|note| self.channel.tell(&AgentMessage::Note(note)));
        let upper = scratch.as_ref().map(|scratch| scratch.upper(scratch::ONLY)).transpose()?;
        self.scratch = scratch;
        let upper = upper.unwrap_or_else(|| container::memory(self.context));
        let options = container::options(&wanted, upper, self.net, made, (members, &network::own_hosts()));
        let facts = ResolvedBase::on_node(self.context, &wanted.root)?.facts(self.context)?;
        let facts = facts.with_devices(&options.asked.mounts, options.asked.contain)?;
        let plan = plan::build(options, facts)?;
        let container = SshContainer::start(self.context, &plan, wanted.identity)?;
        container.notes().iter().for_each(|note| self.channel.tell(&AgentMessage::Note(note.clone())));
        self.container = Some(container);
        self.channel.tell(&AgentMessage::Started);
        Ok(())
    }

    pub(super) fn be_node(&mut self, node: &wire::NodeSpec) -> Result<()> {
        let strange = || Error::new("the cluster's head: orders in a strange sequence");
        let Some(prepared) = self.wanted.as_mut().filter(|_| self.node.is_none()) else {
            return Err(strange());
        };
        // Each opens one secret, which is the same as long as the cluster lives.
        if let Some(opener) = prepared.opener.take() {
            prepared.key = opener.open(&node.key)?;
        }
        let key = String::from_utf8(prepared.key.clone()).map_err(|_| strange())?;
        let made = RunningNode::start(self.context, &prepared.wanted, node, key)?;
        self.channel
            .tell(&AgentMessage::Serves(pid_of(made.init()).map_or(0, |pid| pid.as_raw_nonzero().get())));
        self.node = Some(made);
        Ok(())
    }

    /// Lets somebody in who does not come by us.
    pub(super) fn admit(&mut self, call: Call) {
        let key =
            self.wanted.as_ref().and_then(|prepared| std::str::from_utf8(&prepared.key).ok()?.parse().ok());
        let (Some(node), Some(key)) = (&self.node, key) else { return };
        let call = Call { secret: Some(key), ..call };
        let context = self.context;
        self.visitors
            .admit(node, &call, |node| super::receive(context, node))
            .ignore_error("whoever has asked hears nothing then, and says so");
    }

    /// Notes that the node has ended by itself. The agent stays: another may come in its place.
    pub(super) fn hear_node(&mut self) -> Result<()> {
        let Some(node) = &self.node else { return Ok(()) };
        let ended = match node.ended() {
            Ok(None) => return Ok(()),
            Ok(Some(end)) => end,
            // Its group has.
            Err(_) => instance::End::Killed(rustix::process::Signal::KILL.as_raw()),
        };
        self.channel.tell(&AgentMessage::Left(ended, node.words()));
        self.node.take().into_iter().for_each(RunningNode::end);
        Ok(())
    }
}

/// By which names or addresses this host may know the others. (The controller's agent is not in the list, though its host may be.)
fn others<'a>(wanted: &'a ContainerSpec, controller: Option<&'a str>) -> Result<Vec<&'a str>> {
    let here = host_name();
    let is_other = |name: &&str| match wanted.hosts.get(wanted.index) {
        Some(own) => name != own,
        None => !hosts::is_here(name, &here),
    };
    Ok(wanted.hosts.iter().map(String::as_str).filter(is_other).chain(controller).collect())
}
