//! Nodes on the hosts of an allocation or of a file, or on a network of the site's: an agent each makes and ends them, as the supervisor
//! says. That of the controller is on this host, and comes after those of the workers.

mod again;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{PidfdFlags, pidfd_open};
use skiff_launch::channel::Incoming;
use skiff_launch::handshake::{Call, SharedSecret};
use skiff_launch::hosts::Host;
use skiff_launch::launching::Launching;
use skiff_launch::{address, hosts, sealed_box};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_spec::members::Member;
use skiff_spec::network::Net;
use skiff_sys::IgnoreError;
use skiff_sys::process::positive_pid;

use crate::fleet::{self, Fleet, FleetEvent, Limits, Remote, Waited};
use crate::launching;
use crate::slurm;
use crate::wire::{self, AgentMessage, ContainerSpec, HeadMessage, Role, SshAddress};

/// What is to be on which hosts.
pub struct HostsSpec {
    /// The hosts, and how they are reached.
    pub launching: Launching,
    /// The network that the agents are in.
    pub net: Net,
    /// What the nodes are to be.
    pub wanted: ContainerSpec,
    /// What takes the words of the controller's daemon.
    pub log: PathBuf,
    /// How long the hosts may take.
    pub limits: Limits,
    /// How many workers are there from the beginning.
    pub first: u16,
    /// How many processors each says it has, if not as many as its host.
    pub cpus: Option<u16>,
}

/// The nodes' hosts.
pub struct Hosts {
    spec: HostsSpec,
    fleet: Fleet,
    /// What only the head and the agent of each host know; nothing where nobody else hears the two.
    proofs: Vec<Option<SharedSecret>>,
    members: Vec<wire::ClusterMember>,
    /// The controller's process 1, once that is there.
    controller: Option<OwnedFd>,
    conf: String,
    key: String,
    /// Whoever is making the cluster: there is something to hear, or they are gone, as long as it is not made.
    maker: Option<OwnedFd>,
}

/// What becomes known of a host.
enum News {
    /// The host's node has ended by itself.
    Left(End, String),
    /// The host is lost, or could not do what it was told.
    Failed(Error),
}

/// A node that has ended by itself: which, how if that is known, and what is known of it.
pub type Lost = (Member, Option<End>, String);

impl Hosts {
    /// Has agents started on all hosts; returns when it is known where all will be.
    pub fn begin(mut spec: HostsSpec, key: String, maker: &OwnedFd) -> Result<Self> {
        spec.wanted.duty = duty(&spec)?;
        let mut launches = spec.launching.launches();
        launches.push(spec.launching.one_more_here());
        let mut entrance = launching::open(&spec.launching, &launches)?;
        let maker = maker.try_clone().context(|| "descriptors")?;
        let here = Host { name: spec.launching.here.clone(), slots: None };
        let all = [&spec.launching.hosts[..], &[here]].concat();
        let fleet = Fleet::new(&all, &spec.wanted, spec.limits, entrance.listener.take());
        let mut proofs = vec![entrance.call.secret.clone(); spec.launching.hosts.len()];
        // It is a child of ours: nobody hears the two.
        proofs.push(None);
        let mut hosts = Self {
            spec,
            fleet,
            proofs,
            members: vec![],
            controller: None,
            conf: String::new(),
            key,
            maker: Some(maker),
        };
        let all: Vec<usize> = (0..hosts.proofs.len()).collect();
        let launched = hosts.fleet.launch(&launches, &entrance.call);
        let prepared = launched.and_then(|()| hosts.until_prepared(&all));
        prepared.inspect_err(|_| hosts.fleet.end())?;
        hosts.fleet.settle();
        hosts.describe();
        Ok(hosts)
    }

    /// Puts down where all are.
    fn describe(&mut self) {
        let places: Vec<SshAddress> =
            self.fleet.remotes.iter().filter_map(|remote| remote.place().cloned()).collect();
        if let Some((controller, workers)) = places.split_last() {
            let address = (controller.address, controller.port).into();
            self.conf = slurm::conf(address, as_configured(&self.spec, workers));
        }
        let named = |(at, place)| wire::ClusterMember { name: self.member(at).to_string(), slots: 1, place };
        self.members = places.into_iter().enumerate().map(named).collect();
    }

    /// How many workers there can be.
    fn most(&self) -> usize {
        self.spec.launching.hosts.len()
    }

    /// Which node is held by which agent.
    fn member(&self, at: usize) -> Member {
        match u16::try_from(at + 1) {
            Ok(number) if at < self.most() => Member::Worker(number),
            _ => Member::Controller,
        }
    }

    fn number(&self, member: Member) -> Option<usize> {
        match member {
            Member::Worker(n) => Some(usize::from(n) - 1).filter(|at| *at < self.most()),
            Member::Controller => Some(self.most()),
        }
    }

    /// The cluster is made, and stays whoever is gone.
    pub fn made(&mut self) {
        self.maker = None;
    }

    /// The text of `slurm.conf`.
    pub fn conf(&self) -> &str {
        &self.conf
    }

    /// The address of a member, and its host.
    pub fn place(&self, member: Member) -> Option<(String, String)> {
        let at = self.number(member)?;
        let address = self.members.get(at)?.place.address.to_string();
        Some((address, self.fleet.host(at).name.clone()))
    }

    /// Whether no other host is left on which there could be a worker: the allocation has ended.
    pub fn are_gone(&self) -> bool {
        let workers = &self.fleet.remotes[..self.most()];
        self.spec.launching.is_elsewhere && workers.iter().all(|remote| remote.channel.is_none())
    }

    /// Process 1 of a node that is held here.
    pub fn handle(&self, member: Member) -> Option<&OwnedFd> {
        self.controller.as_ref().filter(|_| member == Member::Controller)
    }

    /// What to wait for.
    pub fn wait_for<'a, O>(&'a self, waited: &mut Vec<Waited<'a, O>>, of: impl Fn(FleetEvent) -> O) {
        self.fleet.wait_for(waited, of, None);
    }

    /// When there is something to do though nobody has said a word.
    pub fn wakes_at(&self) -> Instant {
        self.fleet.wakes_at()
    }

    /// Does what there is to do; workers that have ended by themselves.
    pub fn attend(&mut self, ready: &[FleetEvent]) -> Vec<Lost> {
        self.news(ready)
            .default_on_error("only accepting an agent can fail, and by now no listener is open")
            .into_iter()
            .map(|news| self.lost(news))
            .collect()
    }

    /// What has become known of the hosts.
    fn news(&mut self, ready: &[FleetEvent]) -> Result<Vec<(usize, News)>> {
        let mut news = vec![];
        for of in ready {
            match of {
                FleetEvent::Listener => self.fleet.accept()?,
                FleetEvent::Launcher(at) => {
                    news.extend(self.fleet.bury(*at).err().map(|(at, e)| (at, News::Failed(e))))
                }
                FleetEvent::Said(at) => drop(self.fleet.words(*at)),
                FleetEvent::To(at) => self.fleet.flush(*at),
                FleetEvent::From(at) => news.extend(self.hear(*at).map(|news| (*at, news))),
            }
        }
        for at in self.fleet.beat(Instant::now(), None) {
            let e = self.fleet.silent(at, "lost");
            news.push((at, News::Failed(e)));
        }
        Ok(news)
    }

    fn hear(&mut self, at: usize) -> Option<News> {
        let is_there = self.fleet.receive(at);
        let news = self.take_all(at);
        if news.is_ok() && is_there {
            return news.ok().flatten();
        }
        let e = news.err().unwrap_or_else(|| self.fleet.lost(at, "lost", ""));
        self.fleet.dismiss(at);
        Some(News::Failed(e))
    }

    fn take_all(&mut self, at: usize) -> Result<Option<News>> {
        let mut news = None;
        while let Some(come) = self.fleet.take(at)? {
            match come {
                Incoming::Message(AgentMessage::Prepared(place)) => self.fleet.prepared(at, place)?,
                Incoming::Message(AgentMessage::Serves(pid)) => self.serves(at, pid)?,
                Incoming::Message(AgentMessage::Left(end, words)) => {
                    self.fleet.remotes[at].stopped();
                    news = Some(News::Left(end, words));
                }
                Incoming::Message(AgentMessage::Failed(message, hint)) => {
                    let host = format!("host {}", self.fleet.remotes[at].name);
                    return Err(Error::new(message).hint(hint).about(&host));
                }
                Incoming::Message(_) | Incoming::Data(..) => {}
            }
        }
        Ok(news)
    }

    fn serves(&mut self, at: usize, pid: i32) -> Result<()> {
        self.fleet.remotes[at].started();
        if at == self.most() {
            let pid = positive_pid(pid).ok_or_else(|| Error::new("controller: it has no number here"))?;
            let handle = pidfd_open(pid, PidfdFlags::empty()).context(|| "controller")?;
            self.controller = Some(handle);
        }
        Ok(())
    }

    /// Makes these nodes, all at once; if one cannot be made, none is there. Gives those that were lost meanwhile.
    pub fn make(&mut self, members: &[Member]) -> Result<Vec<Lost>> {
        let ats = self.numbers(members)?;
        let made = self.call_again(&ats).and_then(|mut lost| {
            self.tell_to_serve(&ats)?;
            lost.extend(self.until(&ats, Remote::has_started, "start", self.spec.limits.start)?);
            Ok(lost)
        });
        made.inspect_err(|_| members.iter().for_each(|member| self.end(*member)))
    }

    fn numbers(&self, members: &[Member]) -> Result<Vec<usize>> {
        let ats: Option<Vec<usize>> = members.iter().map(|member| self.number(*member)).collect();
        ats.ok_or_else(|| Error::new(format!("there are {} workers at most", self.most())))
    }

    /// Tells these agents to make their nodes.
    fn tell_to_serve(&mut self, ats: &[usize]) -> Result<()> {
        for at in ats {
            let opener = self.fleet.remotes[*at].place().map_or(&[][..], |place| &place.opener);
            let key = sealed_box::seal(self.key.as_bytes(), opener, self.proofs[*at].as_ref())?;
            let (members, conf) = (self.members.clone(), self.conf.clone());
            let log = (*at == self.most()).then(|| self.spec.log.clone());
            let node = wire::NodeSpec { name: self.member(*at), members, conf, key, log };
            self.fleet.tell(*at, &HeadMessage::Serve(Box::new(node)));
        }
        Ok(())
    }

    fn until_prepared(&mut self, ats: &[usize]) -> Result<Vec<Lost>> {
        let prepared = |remote: &Remote| remote.place().is_some();
        self.until(ats, prepared, "answer", self.spec.limits.answer)
    }

    /// Waits until these hosts are so far; if one of them fails, that is the error. Gives workers that were lost on others meanwhile.
    fn until(
        &mut self,
        ats: &[usize],
        is_so_far: impl Fn(&Remote) -> bool,
        what: &str,
        limit: Duration,
    ) -> Result<Vec<Lost>> {
        let (end, mut all) = (Instant::now() + limit, vec![]);
        loop {
            let late: Vec<usize> =
                ats.iter().copied().filter(|at| !is_so_far(&self.fleet.remotes[*at])).collect();
            if late.is_empty() {
                return Ok(all);
            }
            if Instant::now() > end {
                return Err(self.fleet.late(&late, what, limit));
            }
            let ready = {
                let maker = self.maker.iter().map(|maker| (None, maker.as_fd(), PollFlags::IN));
                let mut waited: Vec<Waited<'_, Option<FleetEvent>>> = maker.collect();
                self.fleet.wait_for(&mut waited, Some, None);
                fleet::ready(&waited, self.fleet.wakes_at().min(end))
            };
            let ready = ready.into_iter().collect::<Option<Vec<FleetEvent>>>();
            let ready = ready.ok_or_else(|| Error::new("whoever was making the cluster is gone"))?;
            for (at, news) in self.news(&ready)? {
                match news {
                    News::Failed(e) if ats.contains(&at) => return Err(e),
                    news => all.push(self.lost((at, news))),
                }
            }
        }
    }

    /// Has the agent of a worker call somebody.
    pub fn admit(&mut self, member: Member, call: Call) {
        if let Some(at) = self.number(member) {
            self.fleet.tell(at, &HeadMessage::Admit(call));
        }
    }

    /// Ends a node, if it is there.
    pub fn end(&mut self, member: Member) {
        if let Some(at) = self.number(member) {
            self.fleet.tell(at, &HeadMessage::Leave);
            self.fleet.remotes[at].stopped();
        }
    }

    /// Ends all, with their agents.
    pub fn end_all(&mut self) {
        self.fleet.end();
    }

    fn lost(&self, (at, news): (usize, News)) -> Lost {
        match news {
            News::Left(end, words) => (self.member(at), Some(end), words),
            News::Failed(e) => (self.member(at), None, e.message),
        }
    }
}

/// What the agents are to be. On a network of the site's each has all ports of its own; on the hosts', they need to know where
/// the controller is, if that is on none of them: one of them is reached by the address that it has on the way there.
fn duty(HostsSpec { launching, net, .. }: &HostsSpec) -> Result<Role> {
    if matches!(net, Net::Named(_)) {
        return Ok(Role::Node { port: Some(slurm::WORKER_PORT), controller: None });
    }
    let names = launching.hosts.iter().map(|host| host.name.as_str());
    let others: Vec<&str> = names.clone().filter(|name| !hosts::is_here(name, &launching.here)).collect();
    let controller = if others.len() == names.count() { Some(address::among(&others)?) } else { None };
    Ok(Role::Node { port: None, controller })
}

/// The workers as the controller is to know them: all hosts, of which the first have one from the beginning.
fn as_configured(spec: &HostsSpec, places: &[SshAddress]) -> Vec<slurm::Worker> {
    let worker = |((n, name), place): ((usize, Member), &SshAddress)| slurm::Worker {
        name,
        address: (place.address, place.port).into(),
        cpus: spec.cpus.map_or(place.processors as usize, usize::from),
        megabytes: place.megabytes,
        is_there: n < usize::from(spec.first),
    };
    Member::workers().enumerate().zip(places).map(worker).collect()
}
