//! The head of a cluster: has agents started on all hosts at once, brings them together, has the program run on the first, and
//! sees to it that nothing is left at the end, whatever that was.

mod blame;
mod ending;
mod outlet;
mod remote;
mod talk;
mod waiting;

use std::io;
use std::time::{Duration, Instant};

use skiff_sandbox::{Error, Result};
use skiff_sys::signal::Signals;

use crate::channel::Channel;
use crate::greeting::Call;
use crate::hosts::{self, Host};
use crate::launch::{Door, Launcher};
use crate::manager::Launch;
use crate::wire::{End, Order, Program, Stream, Wanted};
use outlet::Outlet;
use remote::{Remote, Stage};
use waiting::Of;

/// How often each side says that it is there, and how often it may miss hearing so. Counted, not measured: who was stopped for an
/// hour with all the others has missed one.
pub const BEAT: Duration = Duration::from_secs(5);
/// As above.
pub const MOST_MISSED: u32 = 6;

/// So much of the program's output may wait for whoever reads it.
const MOST_WAITING: usize = 1 << 20;

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
                return Err(self.lost(at, "it has not said a word for half a minute"));
            }
        }
        Ok(())
    }

    /// Has what the program has said written, as far as whoever reads it takes it.
    fn drain(&mut self) {
        self.output.finish();
        self.errors.finish();
    }
}

/// The name that this host gives itself.
///
/// # Errors
/// None in practice.
pub fn own_name() -> io::Result<String> {
    Ok(rustix::system::uname().nodename().to_string_lossy().into_owned())
}
