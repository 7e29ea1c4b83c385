//! The hub: makes and ends nodes as it is told by a socket that keeps messages apart, and tells of those that have ended.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use skiff_ipc::{Framing, Message, Protocol, receive_packet, send_packet};
use skiff_net::switch::{self, Switch};
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::first::{Apart, First, Stdio};
use skiff_sandbox::group::{GroupNetwork, GroupNode, GroupResources, NetworkSetup};
use skiff_sandbox::join::SpawnAttr;
use skiff_sandbox::session::{self, CommandExit};
use skiff_sandbox::start::RunningContainer;
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::instance::End;
use skiff_spec::members::{Member, PREFIX};
use skiff_spec::plan::Plan;
use skiff_sys::IgnoreError;
use skiff_sys::signal::SignalMask;

/// The longest message in bytes: it names all nodes that there can be.
pub const LONGEST: usize = 128 << 10;

/// What the supervisor asks for. Each is answered by one [`HubReply`] that is not [`HubReply::Ended`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HubRequest {
    /// A node.
    Make(Member),
    /// The end of one.
    End(Member),
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HubReply {
    /// The node is there; a handle of its process 1 comes along.
    Made,
    /// The node has ended.
    Gone,
    /// The node could not be made.
    Failed(Fault),
    /// A node has ended by itself, as its program has.
    Ended(Member, End),
}

impl Message for HubRequest {
    const LONGEST: usize = LONGEST;
}

impl Message for HubReply {
    const LONGEST: usize = LONGEST;
    const DESCRIPTORS: usize = 1;
}

impl Protocol for HubRequest {
    type Answer = HubReply;
    const NAME: &'static str = "Hub of a cluster";
    const SIDES: [&'static str; 2] = ["the cluster's supervisor", "the hub, which makes its nodes"];
    const FRAMING: Framing = Framing::Packets;
}

/// Sends a message.
///
/// # Errors
/// That the other side is gone.
pub fn send<M: Message>(socket: BorrowedFd<'_>, message: &M, fds: &[BorrowedFd<'_>]) -> Result<()> {
    send_packet(socket, message, fds).map_err(|e| Fault::from(e).about("message to the cluster"))
}

/// Takes one.
///
/// # Errors
/// That the other side is gone, or does not make sense.
pub fn receive<M: Message>(socket: BorrowedFd<'_>) -> Result<(M, Vec<OwnedFd>)> {
    receive_packet(socket).map_err(|e| Fault::from(e).about("message from the cluster"))
}

/// What nodes are made by.
pub struct NodeTemplate<'a> {
    /// The root of each.
    pub plan: &'a dyn Fn(Member) -> Result<Plan>,
    /// What it is there for.
    pub command: &'a dyn Fn(Member) -> CommandSpec,
    /// The file inside that takes what that writes.
    pub output: &'a Path,
    /// What is to be done when one has been ended.
    pub gone: &'a dyn Fn(Member),
}

struct Hub<'a> {
    resources: &'a GroupResources,
    pattern: &'a NodeTemplate<'a>,
    control: &'a OwnedFd,
    /// Nothing where the nodes are in the host's network.
    switch: Option<Switch>,
    nodes: BTreeMap<Member, RunningContainer>,
}

/// Serves until the supervisor's end of `control` is closed.
///
/// # Errors
/// That there can be no network.
pub fn serve(resources: &GroupResources, control: &OwnedFd, pattern: &NodeTemplate<'_>) -> Result<()> {
    skiff_sys::title::set("skiff-hub");
    let switch = (resources.network() == GroupNetwork::Own).then(Switch::make).transpose();
    let switch = switch
        .context(|| "bridge of the cluster")
        .map_err(|e| e.hint("the kernel needs bridges and veth devices in users' own network namespaces"));
    let mut hub = match switch {
        Ok(switch) => Hub { resources, pattern, control, switch, nodes: BTreeMap::new() },
        Err(e) => {
            // Whatever is asked, this is the answer.
            receive::<HubRequest>(control.as_fd())?;
            return send(control.as_fd(), &HubReply::Failed(e), &[]);
        }
    };
    loop {
        hub.step()?;
    }
}

impl Hub<'_> {
    fn step(&mut self) -> Result<()> {
        let members: Vec<Member> = self.nodes.keys().copied().collect();
        let mut fds = vec![PollFd::new(self.control, PollFlags::IN)];
        fds.extend(self.nodes.values().map(|node| PollFd::new(&node.control, PollFlags::IN)));
        poll(&mut fds, None).ignore_error("interrupted or not: what is ready shows");
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (member, _) in members.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            self.look(*member)?;
        }
        if ready[0] {
            let (ask, _) = receive(self.control.as_fd())?;
            self.answer(&ask)?;
        }
        Ok(())
    }

    fn answer(&mut self, ask: &HubRequest) -> Result<()> {
        match ask {
            HubRequest::Make(member) => match self.make(*member) {
                Ok(node) => {
                    send(self.control.as_fd(), &HubReply::Made, &[node.init.pidfd.as_fd()])?;
                    self.nodes.insert(*member, node);
                    Ok(())
                }
                Err(e) => {
                    let why = HubReply::Failed(e.about(&format!("node {member}")));
                    send(self.control.as_fd(), &why, &[])
                }
            },
            HubRequest::End(member) => {
                self.nodes.remove(member).into_iter().for_each(RunningContainer::end);
                (self.pattern.gone)(*member);
                send(self.control.as_fd(), &HubReply::Gone, &[])
            }
        }
    }

    /// Hears what a node has to say: how its program has ended, and it with it.
    fn look(&mut self, member: Member) -> Result<()> {
        let Some(node) = self.nodes.get(&member) else { return Ok(()) };
        let Some(ended) = session::ended(node.control.as_fd())? else { return Ok(()) };
        let end = match ended {
            CommandExit::Code(code) => End::Exited(code),
            CommandExit::Signal(number) => End::Killed(number),
        };
        self.nodes.remove(&member).into_iter().for_each(RunningContainer::end);
        send(self.control.as_fd(), &HubReply::Ended(member, end), &[])
    }

    fn make(&mut self, member: Member) -> Result<RunningContainer> {
        let (plan, command) = ((self.pattern.plan)(member)?, (self.pattern.command)(member));
        let name = member.to_string();
        let about = || format!("network of node {member}");
        let switch = self.switch.as_mut().map(std::cell::RefCell::new);
        let wire = |pid| {
            let joined = switch.as_ref().map(|it| it.borrow_mut().join(&name, pid, member.address()));
            joined.transpose().map(drop).context(about)
        };
        let settle = || switch::settle(member.address(), PREFIX).context(about);
        let network = switch.is_some().then_some(NetworkSetup { wire: &wire, settle: &settle });
        let node = GroupNode { name: &name, network };
        let attr =
            SpawnAttr { own_session: true, death_signal: Signal::KILL.as_raw(), ..SpawnAttr::default() };
        let stdio = Stdio::Apart(Apart { output: self.pattern.output, filter: true, reaper: false });
        let first = First { command: &command, attr, mask: SignalMask::from_bits(0), stdio };
        let (instance, _) =
            self.resources.start_node(&plan, &node, &first).map_err(|why| why.into_error())?;
        Ok(instance)
    }
}
