//! The head of a cluster: has agents started on all hosts at once, brings them together, has the program run on the first, and
//! sees to it that nothing is left at the end, whatever that was.

mod outlet;
mod remote;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_sandbox::{Error, Result};
use skiff_sys::signal::Signals;

use crate::channel::{Channel, Come};
use crate::greeting::Call;
use crate::hosts::{self, Host};
use crate::key;
use crate::launch::{Door, Launcher};
use crate::manager::Launch;
use crate::wire::{End, Member, Order, Place, Program, Report, Stream, VERSION, Wanted};
use outlet::Outlet;
use remote::{Remote, Stage};

/// How often each side says that it is there, and how often it may miss hearing so. Counted, not measured: who was stopped for an
/// hour with all the others has missed one.
pub const BEAT: Duration = Duration::from_secs(10);
/// As above.
pub const MOST_MISSED: u32 = 6;

/// How long the end may take before it is made to come.
const ENDING: Duration = Duration::from_secs(15);

/// So much of the program's output may wait for whoever reads it.
const MOST_WAITING: usize = 1 << 20;

/// So much of its input may be under way.
const INPUT_WINDOW: usize = 128 << 10;

/// How to mend it where no agent comes up.
const NOT_THERE: &str =
    "skiff must be installed at the same place on all hosts; `--dry-run` shows what is run";

/// What is to be done.
pub struct Task<'a> {
    /// The hosts.
    pub hosts: &'a [Host],
    /// What starts the agents.
    pub launches: &'a [Launch],
    /// What the containers are to be.
    pub wanted: &'a Wanted,
    /// What runs in the first.
    pub program: Program,
    /// How long the hosts may take to answer.
    pub answer_within: Duration,
    /// How long they may take to start: an image may have to be fetched.
    pub start_within: Duration,
    /// Where words for the user go that are no data.
    pub note: &'a dyn Fn(&str),
}

/// Carries it out; how the program ended.
///
/// # Errors
/// Why there was no cluster, or is none any more. In any case nothing of it is left.
pub fn run(task: &Task<'_>, door: Option<Door>, call: &Call, signals: &Signals) -> Result<End> {
    let mut head = Head::new(task, door, signals);
    let outcome = head.launch(call).and_then(|()| head.serve());
    head.end();
    outcome
}

struct Head<'a> {
    task: &'a Task<'a>,
    signals: &'a Signals,
    door: Option<Door>,
    launchers: Vec<Launcher>,
    remotes: Vec<Remote>,
    /// By when all must have done what they are at.
    deadline: Option<Instant>,
    next_beat: Instant,
    running: bool,
    output: Outlet,
    errors: Outlet,
    /// Bytes of input that have not been passed on yet; nothing when there is no more.
    input: Option<usize>,
    ended: Option<End>,
}

/// What a descriptor that we wait for is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Signals,
    Door,
    Input,
    Outlet,
    Launcher(usize),
    Said(usize),
    From(usize),
    To(usize),
}

impl<'a> Head<'a> {
    fn new(task: &'a Task<'a>, door: Option<Door>, signals: &'a Signals) -> Self {
        Self {
            task,
            signals,
            door,
            launchers: vec![],
            remotes: task.hosts.iter().map(|host| Remote::new(&host.name)).collect(),
            deadline: Some(Instant::now() + task.answer_within),
            next_beat: Instant::now() + BEAT,
            running: false,
            output: Outlet::stdout(),
            errors: Outlet::stderr(),
            input: Some(0),
            ended: None,
        }
    }

    fn launch(&mut self, call: &Call) -> Result<()> {
        for launch in self.task.launches {
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
        channel.tell(&Order::Prepare(Wanted { index: at, ..self.task.wanted.clone() }));
        self.remotes[at].channel = Some(channel);
    }

    fn serve(&mut self) -> Result<End> {
        loop {
            let ready = self.wait();
            for of in ready {
                self.attend(of)?;
            }
            self.keep_time()?;
            if let Some(end) = self.ended {
                self.drain();
                return Ok(end);
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> Vec<Of> {
        let mut waited: Vec<(Of, BorrowedFd<'_>, PollFlags)> =
            vec![(Of::Signals, self.signals.as_fd(), PollFlags::IN)];
        let mut wait = |of, fd, flags| waited.push((of, fd, flags));
        self.door.iter().flat_map(Door::descriptors).for_each(|fd| wait(Of::Door, fd, PollFlags::IN));
        if self.wants_input() {
            wait(Of::Input, rustix::stdio::stdin(), PollFlags::IN);
        }
        for outlet in [&self.output, &self.errors] {
            outlet.waits().into_iter().for_each(|fd| wait(Of::Outlet, fd, PollFlags::OUT));
        }
        for (at, launcher) in self.launchers.iter().enumerate() {
            if !launcher.ended {
                wait(Of::Launcher(at), launcher.pidfd.as_fd(), PollFlags::IN);
            }
            launcher.errors.iter().for_each(|fd| wait(Of::Said(at), fd.as_fd(), PollFlags::IN));
        }
        let full = self.output.waiting() + self.errors.waiting() > MOST_WAITING;
        for (at, remote) in self.remotes.iter().enumerate() {
            let Some(channel) = &remote.channel else { continue };
            if !(full && at == 0) {
                wait(Of::From(at), channel.input(), PollFlags::IN);
            }
            channel.output().into_iter().for_each(|fd| wait(Of::To(at), fd, PollFlags::OUT));
        }
        let until = self.deadline.map_or(self.next_beat, |deadline| deadline.min(self.next_beat));
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        // Never more than a beat.
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> =
            waited.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        // Interrupted, nothing is ready.
        poll(&mut fds, Some(&limit)).unwrap_or_default();
        let ready = waited.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        let mut ready: Vec<Of> = ready.map(|((of, ..), _)| *of).collect();
        ready.dedup();
        ready
    }

    fn attend(&mut self, of: Of) -> Result<()> {
        match of {
            Of::Signals => self.hear_signals()?,
            Of::Door => self.open_door()?,
            Of::Input => self.pass_input(),
            Of::Outlet => {
                self.output.flush();
                self.errors.flush();
            }
            Of::Launcher(at) => self.bury(at)?,
            Of::Said(at) => {
                let said = self.launchers[at].hear();
                if self.running {
                    self.errors.push(&said);
                }
            }
            Of::To(at) => self.remotes[at].channel.iter_mut().for_each(Channel::flush),
            Of::From(at) => self.hear(at)?,
        }
        Ok(())
    }

    fn hear_signals(&mut self) -> Result<()> {
        use rustix::process::Signal;
        while let Ok(Some(signal)) = self.signals.next() {
            let number = signal.number;
            let ends = [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT].map(Signal::as_raw);
            let passes = [Signal::USR1, Signal::USR2, Signal::CONT].map(Signal::as_raw);
            if ends.contains(&number) && !self.running {
                self.ended = Some(End::Signal(number));
            } else if ends.contains(&number) || passes.contains(&number) {
                self.tell(0, &Order::Signal(number));
            }
        }
        Ok(())
    }

    fn tell(&mut self, at: usize, order: &Order) {
        self.remotes[at].channel.iter_mut().for_each(|channel| channel.tell(order));
    }

    fn open_door(&mut self) -> Result<()> {
        for (name, channel) in self.door.iter_mut().flat_map(Door::serve).collect::<Vec<_>>() {
            let known = |remote: &Remote| hosts::same(&remote.name, &name);
            match self.remotes.iter().position(known) {
                Some(at) if self.remotes[at].channel.is_none() => self.connect(at, channel),
                // A second one on the same host is not needed, and ends when we close the connection.
                Some(_) => {}
                None => {
                    return Err(Error::new(format!("host {name}: it has called back, but is none of ours"))
                        .hint(
                            "the manager's names of the hosts must be those that the hosts give themselves",
                        ));
                }
            }
        }
        Ok(())
    }

    fn wants_input(&self) -> bool {
        self.running
            && self.input.is_some_and(|under_way| under_way < INPUT_WINDOW)
            && self.remotes[0].channel.as_ref().is_some_and(|channel| channel.backlog() < INPUT_WINDOW)
    }

    fn pass_input(&mut self) {
        let mut buffer = [0; 32 << 10];
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => {
                self.input = None;
                self.tell(0, &Order::InputEnd);
            }
            Ok(n) => {
                self.input = self.input.map(|under_way| under_way + n);
                let channel = self.remotes[0].channel.iter_mut();
                channel.for_each(|channel| channel.pass(Stream::Input, &buffer[..n]));
            }
        }
    }

    /// A launcher has ended: with its agents, or instead of them.
    fn bury(&mut self, at: usize) -> Result<()> {
        let launcher = &mut self.launchers[at];
        let status = launcher.bury();
        while launcher.errors.is_some() && is_readable(launcher.errors.as_ref()) {
            launcher.hear();
        }
        let gone = launcher.hosts.iter().find(|host| self.remotes[**host].channel.is_none());
        match gone {
            None => Ok(()),
            Some(host) => {
                let name = &self.remotes[*host].name;
                let program = self.task.launches[at].argv[0].to_string_lossy().into_owned();
                let said = launcher.last_words();
                let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                let what = format!("host {name}: {program} could not start anything there ({status}){said}");
                Err(Error::new(what).hint(
                    "skiff must be installed at the same place on all hosts; `--dry-run` shows what is run",
                ))
            }
        }
    }

    /// An agent has said something, or has gone.
    fn hear(&mut self, at: usize) -> Result<()> {
        let Some(channel) = &mut self.remotes[at].channel else { return Ok(()) };
        let is_there = channel.receive();
        self.remotes[at].missed = 0;
        loop {
            match self.remotes[at].take()? {
                None => break,
                Some(Come::Data(stream, bytes)) => match stream {
                    Stream::Output => self.output.push(&bytes),
                    _ => self.errors.push(&bytes),
                },
                Some(Come::Message(report)) => self.take(at, report)?,
            }
        }
        if is_there || self.ended.is_some() {
            return Ok(());
        }
        self.remotes[at].channel = None;
        Err(self.lost(at))
    }

    fn lost(&self, at: usize) -> Error {
        let name = &self.remotes[at].name;
        let launcher = self.launchers.iter().find(|launcher| launcher.hosts.contains(&at));
        let said = launcher.map(Launcher::last_words).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        if !self.remotes[at].is_prepared() {
            return Error::new(format!("host {name}: nothing could be started there{said}")).hint(NOT_THERE);
        }
        Error::new(format!("host {name}: lost; the cluster ends with it{said}"))
    }

    fn take(&mut self, at: usize, report: Report) -> Result<()> {
        let name = self.remotes[at].name.clone();
        match report {
            Report::Prepared(place) => {
                check(&name, &place)?;
                self.remotes[at].stage = Stage::Prepared(place);
                self.start_if_all_are_prepared();
            }
            Report::Started => {
                self.remotes[at].stage = Stage::Started;
                self.run_if_all_have_started();
            }
            Report::Note(text) => (self.task.note)(&format!("host {name}: {text}")),
            Report::Took(n) => {
                let n = usize::try_from(n).unwrap_or(usize::MAX);
                self.input = self.input.map(|under_way| under_way.saturating_sub(n));
            }
            Report::Ended(end) if at == 0 => self.ended = Some(end),
            Report::Ended(_) => {}
            Report::Failed(message, hint) => {
                return Err(Error { message, hint }.about(&format!("host {name}")));
            }
            Report::Beat => {}
        }
        Ok(())
    }

    fn start_if_all_are_prepared(&mut self) {
        let member = |(remote, host): (&Remote, &Host)| {
            let Stage::Prepared(place) = &remote.stage else { return None };
            let slots = host.slots.unwrap_or(place.processors).max(1);
            Some(Member { name: host.name.clone(), slots, place: place.clone() })
        };
        let members = self.remotes.iter().zip(self.task.hosts).map(member).collect::<Option<Vec<_>>>();
        let Some(members) = members else { return };
        // Nobody else is to come.
        self.door = None;
        self.deadline = Some(Instant::now() + self.task.start_within);
        let order = Order::Start(members);
        (0..self.remotes.len()).for_each(|at| self.tell(at, &order));
    }

    fn run_if_all_have_started(&mut self) {
        if self.running || !self.remotes.iter().all(|remote| matches!(remote.stage, Stage::Started)) {
            return;
        }
        self.deadline = None;
        self.running = true;
        self.launchers.iter_mut().for_each(|launcher| launcher.said.clear());
        let program = self.task.program.clone();
        self.tell(0, &Order::Run(Box::new(program)));
    }

    /// Deadlines and beats.
    fn keep_time(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(self.late());
        }
        if now < self.next_beat {
            return Ok(());
        }
        self.next_beat = now + BEAT;
        let full = self.output.waiting() + self.errors.waiting() > MOST_WAITING;
        for at in 0..self.remotes.len() {
            self.tell(at, &Order::Beat);
            let remote = &mut self.remotes[at];
            // Whom we do not listen to we cannot have missed; and while it starts, it may be busy.
            if matches!(remote.stage, Stage::Started) && !(full && at == 0) {
                remote.missed += 1;
            }
            if remote.missed > MOST_MISSED {
                return Err(self.lost(at).hint("it has not said a word for a minute"));
            }
        }
        Ok(())
    }

    fn late(&self) -> Error {
        let is_late = |remote: &&Remote| match (
            &remote.stage,
            &self.door,
            self.remotes.iter().all(Remote::is_prepared),
        ) {
            (Stage::Started, ..) => false,
            (Stage::Prepared(_), _, all_prepared) => all_prepared,
            (Stage::Launched, ..) => true,
        };
        let late: Vec<&str> =
            self.remotes.iter().filter(is_late).map(|remote| remote.name.as_str()).collect();
        let at = self.remotes.iter().position(|remote| Some(&remote.name.as_str()) == late.first());
        let launcher = self.launchers.iter().find(|l| at.is_some_and(|at| l.hosts.contains(&at)));
        let said = launcher.map(Launcher::last_words).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        let started = self.remotes.iter().all(Remote::is_prepared);
        let limit = if started { self.task.start_within } else { self.task.answer_within };
        let (what, plural) = (if started { "start" } else { "answer" }, late.len() > 1);
        let hosts = if plural { "hosts" } else { "host" };
        let does = if plural { "do" } else { "does" };
        Error::new(format!(
            "{hosts} {}: {does} not {what} within {} s{said}",
            late.join(", "),
            limit.as_secs()
        ))
        .hint("is it up, and may it connect to this host? --timeout SECONDS gives it more time")
    }

    /// Has what the program has said written, as far as whoever reads it takes it.
    fn drain(&mut self) {
        self.output.finish();
        self.errors.finish();
    }

    /// Ends all containers and agents; when this returns they are gone, or cannot be reached any more.
    fn end(&mut self) {
        let until = Instant::now() + ENDING;
        for at in 0..self.remotes.len() {
            self.tell(at, &Order::End);
        }
        // Without a door, an agent that comes late finds nobody, and ends.
        self.door = None;
        self.running = false;
        self.ended = self.ended.or(Some(End::Code(0)));
        self.input = None;
        self.deadline = Some(until);
        while Instant::now() < until {
            let busy = self.remotes.iter().any(|remote| remote.channel.is_some());
            let launching = self.launchers.iter().any(|launcher| !launcher.ended);
            if !busy && !launching {
                return;
            }
            if !busy && self.remotes.iter().any(|remote| !remote.is_prepared()) {
                // It still tries to start what nobody waits for.
                break;
            }
            for of in self.wait() {
                match of {
                    Of::From(at) => self.hear_the_end(at),
                    Of::Launcher(at) => drop(self.launchers[at].bury()),
                    // Signals do not make it faster.
                    Of::Signals => while let Ok(Some(_)) = self.signals.next() {},
                    of => self.attend(of).unwrap_or_default(),
                }
            }
        }
        self.launchers.iter_mut().for_each(Launcher::kill);
    }

    /// Whatever it says: what counts is that it goes.
    fn hear_the_end(&mut self, at: usize) {
        let Some(channel) = &mut self.remotes[at].channel else { return };
        let is_there = channel.receive();
        let is_sound = loop {
            match channel.take::<Report>() {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !is_there || !is_sound {
            self.remotes[at].channel = None;
        }
    }
}

/// Refuses a place that would lead others astray.
fn check(name: &str, place: &Place) -> Result<()> {
    if place.version != VERSION {
        return Err(Error::new(format!(
            "host {name}: its skiff is version {}, ours {VERSION}",
            place.version
        ))
        .hint("have the same version installed on all hosts"));
    }
    if !key::is_public(&place.host_key) || !key::is_public(&place.user_key) || place.port == 0 {
        return Err(Error::new(format!("host {name}: it gives no keys or no port")));
    }
    Ok(())
}

fn is_readable(fd: Option<&impl AsFd>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    fd.is_some_and(|fd| poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)) == Ok(1))
}

/// The name that this host gives itself.
///
/// # Errors
/// None in practice.
pub fn own_name() -> io::Result<String> {
    Ok(rustix::system::uname().nodename().to_string_lossy().into_owned())
}
