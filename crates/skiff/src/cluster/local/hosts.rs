//! Workers on the hosts of an allocation or of a file: an agent on each makes and ends them, as the supervisor says.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use skiff_cluster::channel::Come;
use skiff_cluster::fleet::{self, Fleet, Limits, Of, Remote, Waited};
use skiff_cluster::greeting::Call;
use skiff_cluster::local::members::{CONTROLLER, Member};
use skiff_cluster::local::slurm;
use skiff_cluster::wire::{self, Duty, Order, Place, Report, Wanted};
use skiff_cluster::{address, files, hosts, seal};
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::instance::End;

use crate::cluster::launching::Launching;
use crate::network::own_hosts;

/// What is to be on which hosts.
pub struct Spec {
    /// The hosts, and how they are reached.
    pub launching: Launching,
    /// What the workers are to be.
    pub wanted: Wanted,
    /// How long the hosts may take.
    pub limits: Limits,
    /// How many workers are there from the beginning.
    pub first: u16,
    /// How many processors each says it has, if not as many as its host.
    pub cpus: Option<u16>,
}

/// The workers' hosts.
pub struct Hosts {
    spec: Spec,
    fleet: Fleet,
    /// What only the head and the agent of each host know.
    proofs: Vec<String>,
    members: Vec<wire::Member>,
    conf: String,
    key: String,
    /// Whoever is making the cluster: there is something to hear, or he is gone, as long as it is not made.
    maker: Option<OwnedFd>,
    /// The controller's port: held, so that nobody else gets it before that has it.
    _port: OwnedFd,
}

/// What becomes known of a host.
enum News {
    /// Its worker has ended by itself.
    Left(End, String),
    /// It is lost, or could not do what it was told.
    Failed(Error),
}

/// A worker that has ended by itself: which, how if that is known, and what is known of it.
pub type Lost = (Member, Option<End>, String);

impl Hosts {
    /// Has agents started on all hosts; returns when it is known where all will be.
    pub fn begin(mut spec: Spec, key: String, maker: &OwnedFd) -> Result<Self> {
        let (address, is_among) = own_address(&spec.launching)?;
        let (held, port) = address::hold_port(address, None)?;
        spec.wanted.duty = Duty::Node { port: None, controller: (!is_among).then_some(address) };
        let launches = spec.launching.launches();
        let mut entrance = spec.launching.open(&launches)?;
        let maker = maker.try_clone().context(|| "descriptors")?;
        let fleet = Fleet::new(&spec.launching.hosts, &spec.wanted, spec.limits, entrance.door.take());
        let proofs = vec![entrance.call.secret.clone(); spec.launching.hosts.len()];
        let mut hosts = Self {
            spec,
            fleet,
            proofs,
            members: vec![],
            conf: String::new(),
            key,
            maker: Some(maker),
            _port: held,
        };
        let all: Vec<usize> = (0..hosts.proofs.len()).collect();
        let launched = hosts.fleet.launch(&launches, &entrance.call);
        let prepared = launched.and_then(|()| hosts.until_prepared(&all));
        prepared.inspect_err(|_| hosts.fleet.end())?;
        hosts.fleet.settle();
        hosts.describe((address, port).into());
        Ok(hosts)
    }

    /// Puts down where all are.
    fn describe(&mut self, controller: SocketAddr) {
        let places: Vec<Place> =
            self.fleet.remotes.iter().filter_map(|remote| remote.place().cloned()).collect();
        self.conf = slurm::conf(controller, workers(&self.spec, &places));
        let at = |place: &Place, address: SocketAddr| Place {
            address: address.ip(),
            port: address.port(),
            ..place.clone()
        };
        let named = |name: String, place: Place| wire::Member { name, slots: 1, place };
        let first = places.first().map(|place| named(CONTROLLER.into(), at(place, controller)));
        let rest = places.iter().enumerate().map(|(n, place)| named(worker(n).to_string(), place.clone()));
        self.members = first.into_iter().chain(rest).collect();
    }

    /// The cluster is made, and stays whoever is gone.
    pub fn made(&mut self) {
        self.maker = None;
    }

    /// The text of `slurm.conf`.
    pub fn conf(&self) -> &str {
        &self.conf
    }

    /// The text of `/etc/hosts` of the controller.
    pub fn names(&self) -> String {
        files::etc_hosts(&self.members, &own_hosts())
    }

    /// The address of a member, and its host.
    pub fn place(&self, member: Member) -> Option<(String, String)> {
        let name = member.to_string();
        let address = self.members.iter().find(|known| known.name == name)?.place.address.to_string();
        let host = match number(member) {
            Some(at) => self.fleet.remotes.get(at)?.name.clone(),
            None => self.spec.launching.here.clone(),
        };
        Some((address, host))
    }

    /// Whether no host is left on which there could be a worker: the allocation has ended.
    pub fn are_gone(&self) -> bool {
        self.fleet.remotes.iter().all(|remote| remote.channel.is_none())
    }

    /// What to wait for.
    pub fn wait_for<'a, O>(&'a self, waited: &mut Vec<Waited<'a, O>>, of: impl Fn(Of) -> O) {
        self.fleet.wait_for(waited, of, None);
    }

    /// When there is something to do though nobody has said a word.
    pub fn wakes_at(&self) -> Instant {
        self.fleet.wakes_at()
    }

    /// Does what there is to do; workers that have ended by themselves.
    pub fn attend(&mut self, ready: &[Of]) -> Vec<Lost> {
        // Nobody is at the door, which is where something could be wrong with all.
        self.news(ready).unwrap_or_default().into_iter().map(lost).collect()
    }

    /// What has become known of the hosts.
    fn news(&mut self, ready: &[Of]) -> Result<Vec<(usize, News)>> {
        let mut news = vec![];
        for of in ready {
            match of {
                Of::Door => self.fleet.open_door()?,
                Of::Launcher(at) => {
                    news.extend(self.fleet.bury(*at).err().map(|(at, e)| (at, News::Failed(e))))
                }
                Of::Said(at) => drop(self.fleet.words(*at)),
                Of::To(at) => self.fleet.flush(*at),
                Of::From(at) => news.extend(self.hear(*at).map(|news| (*at, news))),
            }
        }
        for at in self.fleet.beat(Instant::now(), None) {
            let e = self.fleet.lost(at, "lost", fleet::SILENT);
            self.fleet.dismiss(at);
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
                Come::Message(Report::Prepared(place)) => self.fleet.prepared(at, place)?,
                Come::Message(Report::Started) => self.fleet.remotes[at].started(),
                Come::Message(Report::Left(end, words)) => {
                    self.fleet.remotes[at].stopped();
                    news = Some(News::Left(end, words));
                }
                Come::Message(Report::Failed(message, hint)) => {
                    let host = format!("host {}", self.fleet.remotes[at].name);
                    return Err(Error { message, hint }.about(&host));
                }
                Come::Message(_) | Come::Data(..) => {}
            }
        }
        Ok(news)
    }

    /// Makes these workers, all at once; if one cannot be made, none is there. Gives those that were lost meanwhile.
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
        let there = self.fleet.remotes.len();
        let ats: Option<Vec<usize>> =
            members.iter().map(|member| number(*member).filter(|at| *at < there)).collect();
        ats.ok_or_else(|| Error::new(format!("there are {there} hosts, and each takes one node")))
    }

    /// Tells the agents of these hosts to make their workers.
    fn tell_to_serve(&mut self, ats: &[usize]) -> Result<()> {
        for at in ats {
            let opener = self.fleet.remotes[*at].place().map_or(&[][..], |place| &place.opener);
            let key = seal::seal(self.key.as_bytes(), opener, &self.proofs[*at])?;
            let (members, conf) = (self.members.clone(), self.conf.clone());
            let node = wire::Node { name: worker(*at), members, conf, key };
            self.fleet.tell(*at, &Order::Serve(Box::new(node)));
        }
        Ok(())
    }

    /// Has agents started on those of these hosts that have lost theirs: they are to be where those were.
    fn call_again(&mut self, ats: &[usize]) -> Result<Vec<Lost>> {
        let mut lost = vec![];
        let is_alone = |at: &usize| self.fleet.remotes[*at].channel.is_none();
        let alone: Vec<usize> = ats.iter().copied().filter(is_alone).collect();
        for at in alone {
            if let Duty::Node { port, .. } = &mut self.spec.wanted.duty {
                *port = self.members.get(at + 1).map(|member| member.place.port);
            }
            let launches = self.spec.launching.launch(at);
            let mut entrance = self.spec.launching.open(&launches)?;
            self.proofs[at].clone_from(&entrance.call.secret);
            self.fleet.begin_again(at, &self.spec.wanted, entrance.door.take());
            self.fleet.launch(&launches, &entrance.call)?;
            lost.extend(self.until_prepared(&[at])?);
            self.fleet.settle();
        }
        Ok(lost)
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
                let mut waited: Vec<Waited<'_, Option<Of>>> = maker.collect();
                self.fleet.wait_for(&mut waited, Some, None);
                fleet::ready(&waited, self.fleet.wakes_at().min(end))
            };
            let ready = ready.into_iter().collect::<Option<Vec<Of>>>();
            let ready = ready.ok_or_else(|| Error::new("whoever was making the cluster is gone"))?;
            for (at, news) in self.news(&ready)? {
                match news {
                    News::Failed(e) if ats.contains(&at) => return Err(e),
                    news => all.push(lost((at, news))),
                }
            }
        }
    }

    /// Has the agent of a worker call somebody.
    pub fn admit(&mut self, member: Member, call: Call) {
        if let Some(at) = number(member) {
            self.fleet.tell(at, &Order::Admit(call));
        }
    }

    /// Ends a worker, if it is there.
    pub fn end(&mut self, member: Member) {
        if let Some(at) = number(member).filter(|at| *at < self.fleet.remotes.len()) {
            self.fleet.tell(at, &Order::Leave);
            self.fleet.remotes[at].stopped();
        }
    }

    /// Ends all, with their agents.
    pub fn end_all(&mut self) {
        self.fleet.end();
    }
}

fn lost((at, news): (usize, News)) -> Lost {
    match news {
        News::Left(end, words) => (worker(at), Some(end), words),
        News::Failed(e) => (worker(at), None, e.message),
    }
}

/// Which worker is on which host: there is one on each.
fn worker(at: usize) -> Member {
    Member::Worker(u16::try_from(at + 1).unwrap_or(u16::MAX))
}

fn number(member: Member) -> Option<usize> {
    match member {
        Member::Worker(n) => Some(usize::from(n) - 1),
        Member::Controller => None,
    }
}

/// The address by which the hosts reach this one, and whether it is one of them.
fn own_address(launching: &Launching) -> Result<(IpAddr, bool)> {
    let is_here = |name: &str| name == "localhost" || hosts::same(name, &launching.here);
    let names = launching.hosts.iter().map(|host| host.name.as_str());
    let others: Vec<&str> = names.clone().filter(|name| !is_here(name)).collect();
    Ok((address::among(&others)?, names.count() > others.len()))
}

/// The workers as the controller is to know them: all hosts, of which the first have one from the beginning.
fn workers(spec: &Spec, places: &[Place]) -> Vec<slurm::Worker> {
    let worker = |(at, place): (usize, &Place)| slurm::Worker {
        name: worker(at),
        address: (place.address, place.port).into(),
        cpus: spec.cpus.map_or(place.processors as usize, usize::from),
        megabytes: place.megabytes,
        is_there: at < usize::from(spec.first),
    };
    places.iter().enumerate().map(worker).collect()
}
