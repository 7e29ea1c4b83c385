//! The agents on the hosts of a cluster, as whoever has had them started sees them: how they are started and come in, that they are
//! still there, whose fault it is if not, and how all end.

mod blame;
mod ending;
mod remote;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_spec::fault::{Fault, Result};

use crate::wire::{AgentMessage, ContainerSpec, HeadMessage, SshAddress};
pub use remote::{Remote, RemoteState};
use skiff_launch::channel::{Channel, Incoming};
use skiff_launch::handshake::Call;
use skiff_launch::hosts::{self, Host};
use skiff_launch::launcher::Launcher;
use skiff_launch::listener::CallbackListener;
use skiff_launch::manager::Launch;
use skiff_sys::IgnoreError;

/// How often in a row each side may miss hearing that the other is there. Counted, not measured: who was stopped for an hour with all
/// the others has missed one.
pub const MOST_MISSED: u32 = 6;

/// How often each says so, if it may be silent for so many seconds.
#[must_use]
pub fn beat(silence: u32) -> Duration {
    Duration::from_secs(silence.max(1).into()) / MOST_MISSED
}

/// How long hosts may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To answer.
    pub answer: Duration,
    /// To start what they are there for: an image may have to be fetched.
    pub start: Duration,
}

/// The agents, what has started them, and where they call back.
pub struct Fleet {
    /// One for each host, in the order of the hosts.
    pub remotes: Vec<Remote>,
    hosts: Vec<Host>,
    wanted: ContainerSpec,
    launchers: Vec<Launcher>,
    listener: Option<CallbackListener>,
    limits: Limits,
    /// By when all must have done what they are at.
    deadline: Option<Instant>,
    next_beat: Instant,
    /// Whether somebody was lost without a word: what has started them will not hear of their end.
    has_silent: bool,
}

/// What a descriptor is of that one waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// Somebody calls back.
    Listener,
    /// A launcher has ended.
    Launcher(usize),
    /// A launcher has said something.
    Said(usize),
    /// An agent has said something, or has gone.
    From(usize),
    /// An agent takes more of what is for it.
    To(usize),
}

/// One descriptor, what it is of, and what is waited for there.
pub type Waited<'a, O> = (O, BorrowedFd<'a>, PollFlags);

impl Fleet {
    /// Nothing is started yet. The hosts are to be what `wanted` says.
    #[must_use]
    pub fn new(
        hosts: &[Host],
        wanted: &ContainerSpec,
        limits: Limits,
        listener: Option<CallbackListener>,
    ) -> Self {
        Self {
            remotes: hosts.iter().map(|host| Remote::new(&host.name)).collect(),
            hosts: hosts.to_vec(),
            wanted: wanted.clone(),
            launchers: vec![],
            listener,
            limits,
            deadline: Some(Instant::now() + limits.answer),
            next_beat: Instant::now() + beat(wanted.silence),
            has_silent: false,
        }
    }

    /// Has agents started.
    ///
    /// # Errors
    /// When the manager's command is not there, above all.
    pub fn launch(&mut self, launches: &[Launch], call: &Call) -> Result<()> {
        for launch in launches {
            let (launcher, channel) = Launcher::start(launch, call)?;
            self.launchers.push(launcher);
            if let (Some(channel), Some(at)) = (channel, launch.hosts.first()) {
                self.connect(*at, channel);
            }
        }
        Ok(())
    }

    /// An agent is there.
    fn connect(&mut self, at: usize, mut channel: Channel) {
        channel.tell(&HeadMessage::Prepare(ContainerSpec { index: at, ..self.wanted.clone() }));
        self.remotes[at].channel = Some(channel);
    }

    /// Says something to one of them, if it is there.
    pub fn tell(&mut self, at: usize, order: &HeadMessage) {
        self.remotes[at].channel.iter_mut().for_each(|channel| channel.tell(order));
    }

    /// The host that was asked for at this place.
    #[must_use]
    pub fn host(&self, at: usize) -> &Host {
        &self.hosts[at]
    }

    /// Puts what is to be waited for to the rest, without the words of an agent whom nobody listens to now.
    pub fn wait_for<'a, O>(
        &'a self,
        waited: &mut Vec<Waited<'a, O>>,
        of: impl Fn(FleetEvent) -> O,
        deaf: Option<usize>,
    ) {
        let mut wait = |what, fd, flags| waited.push((of(what), fd, flags));
        self.listener
            .iter()
            .flat_map(CallbackListener::descriptors)
            .for_each(|fd| wait(FleetEvent::Listener, fd, PollFlags::IN));
        for (at, launcher) in self.launchers.iter().enumerate() {
            launcher.end().into_iter().for_each(|fd| wait(FleetEvent::Launcher(at), fd, PollFlags::IN));
            launcher.words().into_iter().for_each(|fd| wait(FleetEvent::Said(at), fd, PollFlags::IN));
        }
        for (at, remote) in self.remotes.iter().enumerate() {
            let Some(channel) = &remote.channel else { continue };
            if deaf != Some(at) {
                wait(FleetEvent::From(at), channel.input(), PollFlags::IN);
            }
            channel.output().into_iter().for_each(|fd| wait(FleetEvent::To(at), fd, PollFlags::OUT));
        }
    }

    /// Forgets the agent of one host, with what had started only that, and lets another come in its place, which is told this.
    pub fn begin_again(&mut self, at: usize, wanted: &ContainerSpec, listener: Option<CallbackListener>) {
        self.forget_launchers(at);
        self.remotes[at] = Remote::new(&self.hosts[at].name);
        self.wanted = wanted.clone();
        self.listener = listener;
    }

    /// Has nothing more to do with an agent, which ends when it notices.
    pub fn dismiss(&mut self, at: usize) {
        self.tell(at, &HeadMessage::End);
        self.remotes[at].channel = None;
    }

    /// When something has to be done though nobody has said a word.
    #[must_use]
    pub fn wakes_at(&self) -> Instant {
        self.deadline.map_or(self.next_beat, |deadline| deadline.min(self.next_beat))
    }

    /// Lets those in who call back and prove to be ours.
    ///
    /// # Errors
    /// When one of them is on a host that is none of ours.
    pub fn accept(&mut self) -> Result<()> {
        for (name, channel) in self.listener.iter_mut().flat_map(CallbackListener::serve).collect::<Vec<_>>()
        {
            let known = |remote: &Remote| hosts::same(&remote.name, &name);
            match self.remotes.iter().position(known) {
                Some(at) if self.remotes[at].channel.is_none() => self.connect(at, channel),
                // A second one on the same host is not needed, and ends when we close the connection.
                Some(_) => {}
                None => {
                    return Err(Fault::new(format!(
                        "host {name}: called back, but is not one of this cluster"
                    ))
                    .hint("the manager's names of the hosts must be those that the hosts give themselves"));
                }
            }
        }
        Ok(())
    }

    /// What a launcher has said.
    pub fn words(&mut self, launcher: usize) -> Vec<u8> {
        self.launchers[launcher].hear()
    }

    /// Sends what an agent has not taken yet.
    pub fn flush(&mut self, at: usize) {
        self.remotes[at].channel.iter_mut().for_each(Channel::flush);
    }

    /// Reads what an agent has to say, to be taken with [`Fleet::take`]; whether it is still there.
    pub fn receive(&mut self, at: usize) -> bool {
        let Some(channel) = &mut self.remotes[at].channel else { return false };
        let is_there = channel.receive();
        self.remotes[at].missed = 0;
        is_there
    }

    /// The next that it has said.
    ///
    /// # Errors
    /// When it does not talk as we do.
    pub fn take(&mut self, at: usize) -> Result<Option<Incoming<AgentMessage>>> {
        self.remotes[at].take()
    }

    /// Notes where an agent will be reached.
    ///
    /// # Errors
    /// When that would lead others astray.
    pub fn prepared(&mut self, at: usize, place: SshAddress) -> Result<()> {
        let name = &self.remotes[at].name;
        remote::check(name, &place)?;
        let twin = self.remotes.iter().find(|remote| remote.place().is_some_and(|it| it.is_at(&place)));
        if let Some(twin) = twin {
            return Err(Fault::new(format!(
                "host {name}: its address is {}, and so is that of host {}",
                place.address, twin.name
            ))
            .hint("administrator: on a network that joins hosts each gives away addresses of its own: `[nodes]`"));
        }
        self.remotes[at].stage = RemoteState::Prepared(place);
        Ok(())
    }

    /// Where all will be reached, once all have said so. Nobody else is to come then, and they may be told to start.
    pub fn all_prepared(&mut self) -> Option<Vec<SshAddress>> {
        let place = |remote: &Remote| remote.place().cloned();
        let places = self.remotes.iter().map(place).collect::<Option<Vec<_>>>()?;
        self.listener = None;
        self.deadline = Some(Instant::now() + self.limits.start);
        Some(places)
    }

    /// There is nothing that hosts could be late with any more, and nobody to come.
    pub fn settle(&mut self) {
        self.listener = None;
        self.deadline = None;
        self.launchers.iter_mut().for_each(Launcher::forget);
    }

    /// Deadlines and beats; `lost` is what to say of a host that is. `deaf` is an agent that nobody listens to now, and that can therefore not be missed.
    ///
    /// # Errors
    /// Which host is late or lost.
    pub fn keep_time(&mut self, deaf: Option<usize>, lost: &str) -> Result<()> {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(self.all_late());
        }
        match self.beat(now, deaf).first() {
            Some(at) => Err(self.silent(*at, lost)),
            None => Ok(()),
        }
    }

    /// Says that we are there, when it is time to; which hosts have not said so for too long.
    pub fn beat(&mut self, now: Instant, deaf: Option<usize>) -> Vec<usize> {
        if now < self.next_beat {
            return vec![];
        }
        self.next_beat = now + beat(self.wanted.silence);
        let mut silent = vec![];
        for at in 0..self.remotes.len() {
            self.tell(at, &HeadMessage::Beat);
            let remote = &mut self.remotes[at];
            // While it starts, it may be busy.
            if matches!(remote.stage, RemoteState::Started(_)) && remote.channel.is_some() && deaf != Some(at)
            {
                remote.missed += 1;
            }
            if remote.missed > MOST_MISSED {
                silent.push(at);
            }
        }
        silent
    }
}

/// Which of these are ready, at the latest when it is time.
#[must_use]
pub fn ready<O: Copy>(waited: &[Waited<'_, O>], until: Instant) -> Vec<O> {
    let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    let mut fds: Vec<PollFd<'_>> =
        waited.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    poll(&mut fds, Some(&limit)).ignore_error("interrupted, nothing is ready");
    let ready = waited.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
    ready.map(|((of, ..), _)| *of).collect()
}

#[cfg(test)]
mod tests;
