//! The process outside that a cluster belongs to: it holds the group of nodes, hears which of them have ended, and answers the user's
//! commands. When it ends, all nodes do.

mod acts;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketFlags, SocketType, accept_with};
use rustix::process::{PidfdFlags, Signal, pidfd_open};
use skiff_output as output;
use skiff_plan::{self as plan, Relocation};
use skiff_runtime::control::{CONTROL, listen_at};
use skiff_runtime::supervisor::apart;
use skiff_sandbox::group::{GroupNetwork, UsernsGroup};
use skiff_sandbox::start::detach_stdio;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_spec::members::Member;
use skiff_spec::plan::{Plan, inside};
use skiff_spec::scratch::ScratchPlace;
use skiff_sys::IgnoreError;
use skiff_sys::process::session_of;
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;
use skiff_user::scratch::{self, Scratch};

use crate::fleet::{self, Waited};
use crate::hub::{self, HubReply, HubRequest, NodeTemplate};
use crate::local::errand::Errand;
use crate::local::hosts::{Hosts, HostsSpec, Lost};
use crate::local::record::{ClusterDir, UnpublishedDir};
use crate::local::wire::{SupervisorReply, SupervisorRequest};
use crate::slurm_node;

struct Supervisor {
    record: ClusterDir,
    held: Held,
    nodes: BTreeMap<Member, HeldNode>,
    /// The first process of the job that this is, where nothing else tells its end.
    job: Option<OwnedFd>,
    /// Whoever is making the cluster, until it is made.
    maker: Option<OwnedFd>,
    listener: OwnedFd,
    signals: Signals,
    /// What is being told to the cluster's Slurm.
    errands: Vec<Errand>,
}

/// What holds the nodes.
enum Held {
    /// A group on this host, with a network of its own.
    Here {
        group: UsernsGroup,
        /// Where the nodes' changes go, if not to memory.
        scratch: Option<Scratch>,
    },
    /// An agent each.
    Hosts(Box<Hosts>),
}

/// What is to hold them.
pub enum NodeBackend {
    /// A group: the root of each node, and where changes to it go.
    Here(Box<Plan>, ScratchPlace),
    /// An agent each.
    Hosts(Box<HostsSpec>),
}

struct HeldNode {
    /// Process 1 of the node, if that is on this host.
    init: Option<OwnedFd>,
    since: u64,
    lost: Option<End>,
}

/// What there may be to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SupervisorEvent {
    Signals,
    Group,
    Listener,
    Errand,
    Job,
    Maker,
    Host(fleet::FleetEvent),
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    /// The end; whoever comes finds what is left, and can see why it came.
    End,
    /// The end, and nobody will come.
    EndForGood,
}

/// Starts it; returns when it takes commands, or why it does not. It ends if whoever makes the cluster does before a byte has come by
/// `maker`. Only the supervisor names what is kept of the cluster: whoever makes the cluster may be killed at any moment, and nobody else would
/// then remove it.
pub fn launch(
    context: &UserContext,
    record: &ClusterDir,
    wanted: NodeBackend,
    (unnamed, maker): (UnpublishedDir, &OwnedFd),
) -> Result<()> {
    let begin = || {
        record.publish(&unnamed).map_err(|e| e.to_bytes())?;
        match Supervisor::begin(context, record, wanted, maker) {
            Ok((supervisor, note)) => Ok((supervisor, note.unwrap_or_default().into_bytes())),
            Err(e) => {
                record.remove().ignore_error("what stays, `skiff sweep` removes");
                Err(e.to_bytes())
            }
        }
    };
    let kept = [unnamed.lock.as_fd(), maker.as_fd()];
    match apart(&kept, begin, Supervisor::serve, |begun| {
        begun.into_iter().for_each(|supervisor| supervisor.end(true));
    })? {
        Some(Ok(note)) if note.is_empty() => Ok(()),
        Some(Ok(note)) => {
            output::note(&String::from_utf8_lossy(&note));
            Ok(())
        }
        Some(Err(why)) => Err(Error::from_bytes(&why)),
        // It was killed: what is left of the cluster is removed by the next one of that name, or by `skiff sweep`.
        None => Err(Error::new(format!("cluster {}: its supervisor ended without a word", record.name))),
    }
}

impl Supervisor {
    fn begin(
        context: &UserContext,
        record: &ClusterDir,
        wanted: NodeBackend,
        maker: &OwnedFd,
    ) -> Result<(Self, Option<String>)> {
        let job = if let NodeBackend::Hosts(spec) = &wanted { job(spec) } else { None };
        rustix::process::setsid().context(|| "session")?;
        detach_stdio();
        let signals = Signals::block(&[]).context(|| "signals")?;
        skiff_sys::title::set(&format!("skiff-cluster {}", record.name));
        let (held, note) = Held::begin(context, record, wanted, maker)?;
        let maker = maker.try_clone().context(|| "descriptors");
        // Last: whoever can connect finds it running.
        let begun =
            maker.and_then(|maker| Ok((maker, listen_at(&record.dir, CONTROL, SocketType::SEQPACKET)?)));
        match begun {
            Ok((maker, listener)) => {
                let (record, maker) = (record.clone(), Some(maker));
                let (nodes, errands) = (BTreeMap::new(), vec![]);
                Ok((Self { record, held, nodes, job, maker, listener, signals, errands }, note))
            }
            Err(e) => {
                held.end();
                Err(e)
            }
        }
    }

    fn serve(mut self) {
        loop {
            let ready = self.wait();
            let what = self.attend(&ready);
            // Without its controller a cluster is none; nor is it when the last of its hosts has gone, as they do with an allocation.
            let headless = self.nodes.get(&Member::Controller).is_some_and(|node| node.lost.is_some());
            let homeless = self.hosts().is_some_and(Hosts::are_gone);
            if what != Next::GoOn || headless || homeless {
                return self.end(homeless || what == Next::EndForGood);
            }
        }
    }

    fn wait(&self) -> Vec<SupervisorEvent> {
        let mut waited: Vec<Waited<'_, SupervisorEvent>> = vec![
            (SupervisorEvent::Signals, self.signals.as_fd(), PollFlags::IN),
            (SupervisorEvent::Listener, self.listener.as_fd(), PollFlags::IN),
        ];
        waited
            .extend(self.errands.iter().map(|errand| (SupervisorEvent::Errand, errand.end(), PollFlags::IN)));
        waited.extend(self.job.iter().map(|job| (SupervisorEvent::Job, job.as_fd(), PollFlags::IN)));
        waited.extend(self.maker.iter().map(|maker| (SupervisorEvent::Maker, maker.as_fd(), PollFlags::IN)));
        let mut until = Instant::now() + Duration::from_secs(3600);
        match &self.held {
            Held::Here { group, .. } => {
                waited.push((SupervisorEvent::Group, group.control.as_fd(), PollFlags::IN))
            }
            Held::Hosts(hosts) => {
                hosts.wait_for(&mut waited, SupervisorEvent::Host);
                until = hosts.wakes_at();
            }
        }
        fleet::ready(&waited, until)
    }

    /// Does what there is to do.
    fn attend(&mut self, ready: &[SupervisorEvent]) -> Next {
        let mut told_to_end = false;
        while let Ok(Some(signal)) = self.signals.next() {
            told_to_end |= signal.number == Signal::TERM.as_raw();
        }
        self.errands.retain_mut(|errand| matches!(errand.wait(Duration::ZERO), Ok(None)));
        if ready.contains(&SupervisorEvent::Group) && self.hear().is_err() {
            return Next::End;
        }
        let of_hosts: Vec<fleet::FleetEvent> = ready
            .iter()
            .filter_map(|of| if let SupervisorEvent::Host(of) = of { Some(*of) } else { None })
            .collect();
        let lost = self.hosts_mut().map(|hosts| hosts.attend(&of_hosts)).unwrap_or_default();
        self.bury(lost);
        let is_alone = ready.contains(&SupervisorEvent::Maker) && !self.is_made();
        if told_to_end || is_alone || ready.contains(&SupervisorEvent::Job) {
            return Next::EndForGood;
        }
        if ready.contains(&SupervisorEvent::Listener) && !self.answer_one() { Next::End } else { Next::GoOn }
    }

    /// Whether the cluster is as it was wanted; otherwise its maker is gone.
    fn is_made(&mut self) -> bool {
        let made = self.maker.take().is_some_and(|maker| rustix::io::read(maker, &mut [0]) == Ok(1));
        if made {
            self.hosts_mut().into_iter().for_each(Hosts::made);
        }
        made
    }

    /// Ends all; what is kept goes, too, unless somebody may want to know how it came.
    fn end(self, leave_nothing: bool) {
        self.held.end();
        if leave_nothing {
            self.record.remove().ignore_error("what stays, `skiff sweep` removes");
        }
    }

    fn hosts(&self) -> Option<&Hosts> {
        if let Held::Hosts(hosts) = &self.held { Some(hosts) } else { None }
    }

    fn hosts_mut(&mut self) -> Option<&mut Hosts> {
        if let Held::Hosts(hosts) = &mut self.held { Some(hosts) } else { None }
    }

    /// Notes that nodes which agents hold have ended by themselves.
    fn bury(&mut self, lost: Vec<Lost>) {
        for (member, end, words) in lost {
            if !words.is_empty() {
                self.record
                    .write_down(member, words.trim_end())
                    .ignore_error("if it cannot be written, it is not known");
            }
            // Of one whose host is gone nobody knows how it has ended: as if it had been killed.
            self.mark_lost(member, end.unwrap_or(End::Killed(Signal::KILL.as_raw())));
        }
    }

    fn mark_lost(&mut self, member: Member, end: End) {
        if let Some(node) = self.nodes.get_mut(&member).filter(|node| node.lost.is_none()) {
            node.lost = Some(end);
            self.tell_lost(member);
        }
    }

    /// Takes what the hub says by itself; gives what else it says.
    fn hear(&mut self) -> Result<Option<(HubReply, Vec<OwnedFd>)>> {
        match hub::receive(self.group()?.control.as_fd())? {
            (HubReply::Ended(member, end), _) => {
                self.mark_lost(member, end);
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    fn group(&self) -> Result<&UsernsGroup> {
        match &self.held {
            Held::Here { group, .. } => Ok(group),
            Held::Hosts(_) => Err(Error::new("the nodes are held by agents")),
        }
    }

    /// Tells the cluster's Slurm of a lost node: it would notice only when it asks the node the next time, and jobs would wait for that.
    fn tell_lost(&mut self, member: Member) {
        if self.nodes.get(&Member::Controller).is_some_and(|controller| controller.lost.is_none()) {
            let node = format!("NodeName={member}");
            let words = ["scontrol", "update", &node, "State=DOWN", "Reason=lost"];
            // If it cannot be told, it will notice.
            self.errands.extend(Errand::start(&self.record, &words).ok());
        }
    }

    /// Has the hub do something, and waits for it.
    fn order(&mut self, ask: &HubRequest) -> Result<Vec<OwnedFd>> {
        hub::send(self.group()?.control.as_fd(), ask, &[])?;
        loop {
            match self.hear()? {
                Some((HubReply::Failed(why), _)) => return Err(why),
                Some((_, fds)) => return Ok(fds),
                None => {}
            }
        }
    }

    /// Answers a command; whether to go on.
    fn answer_one(&mut self) -> bool {
        let Ok(connection) = accept_with(&self.listener, SocketFlags::CLOEXEC) else { return true };
        // One that says nothing for a second wants nothing.
        let limit = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&limit)) != Ok(1) {
            return true;
        }
        let Ok((want, _)) = hub::receive::<SupervisorRequest>(connection.as_fd()) else { return true };
        let (answer, handle) = match self.act(&want) {
            Ok(answer) => answer,
            Err(why) => (SupervisorReply::Failed(why), None),
        };
        let handle: Vec<BorrowedFd<'_>> = handle.iter().map(AsFd::as_fd).collect();
        hub::send(connection.as_fd(), &answer, &handle)
            .ignore_error("if the command is gone there is nobody to tell");
        !matches!(want, SupervisorRequest::Down)
    }
}

impl Held {
    /// Begins; the second is what is worth knowing of it.
    fn begin(
        context: &UserContext,
        record: &ClusterDir,
        wanted: NodeBackend,
        maker: &OwnedFd,
    ) -> Result<(Self, Option<String>)> {
        let (plan, scratch) = match wanted {
            NodeBackend::Here(plan, scratch) => (plan, scratch),
            NodeBackend::Hosts(spec) => {
                let mut hosts = Hosts::begin(*spec, record.key()?, maker)?;
                let configured = record.configure(hosts.conf());
                configured.inspect_err(|_| hosts.end_all())?;
                return Ok((Self::Hosts(Box::new(hosts)), None));
            }
        };
        let (scratch, note) = scratch::make(context, &scratch)?;
        let pattern = NodeTemplate {
            plan: &|member| of_member(&plan, record, scratch.as_ref(), member),
            command: &|member| slurm_node::command(member, GroupNetwork::Own),
            output: inside::OUTPUT.as_ref(),
            // What stays is removed with all of them.
            gone: &|member| {
                scratch
                    .as_ref()
                    .map_or(Ok(()), |it| it.forget(&member.to_string()))
                    .ignore_error("what stays is removed with all of them");
            },
        };
        // There it makes and removes what each node changes.
        let kept: Vec<_> = scratch.iter().map(Scratch::dir).collect();
        let group = slurm_node::group(context, &plan, GroupNetwork::Own, &pattern, &kept)?;
        Ok((Self::Here { group, scratch }, note))
    }

    /// Ends all that it holds.
    fn end(self) {
        match self {
            Self::Here { group, scratch } => {
                group.end();
                drop(scratch);
            }
            Self::Hosts(mut hosts) => hosts.end_all(),
        }
    }
}

/// The first process of the job that this is: managers have one lead a session. (Slurm ends its step, and so do all agents; but others may
/// leave those alone that they do not know, as an agent on this very host that is our child.)
fn job(spec: &HostsSpec) -> Option<OwnedFd> {
    // Without a leader in sight there is only the loss of the hosts.
    let leader = spec.launching.manager.leads_session().then(|| session_of(None).ok().flatten())??;
    pidfd_open(leader, PidfdFlags::empty()).ok()
}

/// The root of one node on this host.
fn of_member(plan: &Plan, record: &ClusterDir, scratch: Option<&Scratch>, member: Member) -> Result<Plan> {
    let (name, output) = (member.to_string(), record.log(member));
    std::fs::File::options()
        .append(true)
        .create(true)
        .open(&output)
        .context(|| output.display().to_string())?;
    let upper = scratch.map(|scratch| scratch.upper(&name)).transpose()?;
    let upper = upper.unwrap_or_else(|| plan.upper.clone());
    let unpacked = plan.unpacked.clone();
    plan::relocate(plan.clone(), Relocation { name, upper, layers: None, unpacked, output })
}
