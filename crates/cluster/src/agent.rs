//! The agent: makes one host's container, looks after it, and ends with it when the head says so or is gone.

mod duties;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;
use skiff_cli::AgentArgs;
use skiff_launch::callback;
use skiff_launch::channel::{Channel, Incoming};
use skiff_launch::frame::Stream;
use skiff_launch::handshake::SharedSecret;
use skiff_launch::sealed_box::Opener;
use skiff_runtime::network;
use skiff_sandbox::join::{Failed, NetSpace, as_root};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::network::Net;
use skiff_sys::IgnoreError;
use skiff_sys::signal::{SignalMask, Signals};
use skiff_user::context::UserContext;
use skiff_user::scratch::Scratch;

use crate::container::{SshContainer, daemon_failed};
use crate::files::Keys;
use crate::fleet::{MOST_MISSED, beat};
use crate::launching::HEAD;
use crate::node::RunningNode;
use crate::script::{Script, with_stdio};
use crate::visit::RemoteExecs;
use crate::wire::{AgentMessage, ContainerSpec, HeadMessage, ProgramEnd};

/// So much of what the script says may wait for the head.
const MOST_WAITING: usize = 1 << 20;

/// So much of what the daemon has said last is kept.
const KEPT: usize = 4096;

/// How long the head may take to hear why we end.
const PATIENCE: Duration = Duration::from_secs(5);
/// So long an ssh daemon that has ended may have been ended with all else of the job: a job manager signals one process after the other.
const SIGNALS_APART: Duration = Duration::from_secs(1);

/// Serves the head until one of the two ends; the exit code.
pub fn run(words: &AgentArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let secret = match (network::attached()?, &words.call) {
        // We have called already, before we got into our network.
        (Some(secret), _) => secret,
        (None, Some(from)) => callback::call(from, HEAD)?,
        (None, None) => None,
    };
    let mut agent = match network::attach(&context, words.net.of_site(), || &secret) {
        Ok(()) => Agent::new(&context, &words.net, secret)?,
        Err(e) => {
            let mut agent = Agent::new(&context, &words.net, secret)?;
            agent.fail(&e);
            return Ok(0);
        }
    };
    if let Err(e) = agent.serve() {
        agent.fail(&e);
    }
    agent.end();
    Ok(0)
}

/// Serves somebody who has a program to run on a node that is there already, and whom we have called by our standard input and output.
pub fn receive(context: &UserContext, init: OwnedFd) -> Result<()> {
    let mut agent = Agent { host: Some(init), ..Agent::new(context, &Net::Host, None)? };
    if let Err(e) = agent.serve() {
        agent.fail(&e);
    }
    agent.end();
    Ok(())
}

struct Agent<'a> {
    context: &'a UserContext,
    net: &'a Net,
    /// What only the head and we know; nothing where nobody else hears the two.
    secret: Option<SharedSecret>,
    channel: Channel,
    signals: Signals,
    wanted: Option<PreparedRole>,
    container: Option<SshContainer>,
    node: Option<RunningNode>,
    /// Where the container's changes go, if not to memory.
    scratch: Option<Scratch>,
    /// Process 1 of the node that we only visit.
    host: Option<OwnedFd>,
    visitors: RemoteExecs,
    script: Option<Script>,
    /// Whether the manager is ending the job: it has told the daemon, too, but the script may take its time.
    told_to_end: bool,
    /// When the ssh daemon ended.
    daemon_ended: Option<Instant>,
    /// The last that the daemon has said.
    said: Vec<u8>,
    /// How often we say that we are here.
    beat: Duration,
    next_beat: Instant,
    missed: u32,
}

/// What is kept from the first order to the second.
struct PreparedRole {
    wanted: ContainerSpec,
    keys: Keys,
    /// For secrets.
    opener: Option<Opener>,
    /// The secret that has come.
    key: Vec<u8>,
    /// Holds the port until the daemon has it: the kernel gives it to nobody else meanwhile.
    _port: Option<OwnedFd>,
}

/// What there may be to do.
enum AgentEvent {
    Signals,
    Channel,
    ToHead,
    Daemon,
    Node,
    Log,
    Script,
    Output(Stream),
    Input,
}

impl<'a> Agent<'a> {
    fn new(context: &'a UserContext, net: &'a Net, secret: Option<SharedSecret>) -> Result<Self> {
        let signals = Signals::block(&[]).context(|| "signals")?;
        // What is started from here on must not find the head at its standard files.
        let about = || "the cluster's head";
        let input = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).context(about)?;
        let output = fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).context(about)?;
        with_stdio(None, None, None, || ())?;
        let channel = Channel::new(input, output).context(about)?;
        Ok(Self {
            context,
            net,
            secret,
            channel,
            signals,
            wanted: None,
            container: None,
            node: None,
            scratch: None,
            host: None,
            visitors: RemoteExecs::default(),
            script: None,
            told_to_end: false,
            daemon_ended: None,
            said: vec![],
            beat: beat(context.config.cluster.silence_seconds),
            next_beat: Instant::now(),
            missed: 0,
        })
    }

    fn fail(&mut self, e: &Error) {
        self.channel.tell(&AgentMessage::Failed(e.message.clone(), e.hint.clone()));
        let until = Instant::now() + PATIENCE;
        // It ends us when it has heard.
        while Instant::now() < until {
            let mut fds = vec![PollFd::from_borrowed_fd(self.channel.input(), PollFlags::IN)];
            fds.extend(self.channel.output().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut fds, Some(&limit)).ignore_error("interrupted, it is asked again");
            let ready = !fds[0].revents().is_empty();
            drop(fds);
            self.channel.flush();
            if ready && !self.channel.receive() {
                return;
            }
            while let Ok(Some(come)) = self.channel.take::<HeadMessage>() {
                if come == Incoming::Message(HeadMessage::End) {
                    return;
                }
            }
        }
    }

    /// Until the head says so, or is gone.
    fn serve(&mut self) -> Result<()> {
        loop {
            for of in self.wait()? {
                match of {
                    AgentEvent::Signals => {
                        self.hear_signals();
                        // A node of a cluster has nobody whom it could tell.
                        if self.told_to_end && self.node.is_some() {
                            return Ok(());
                        }
                    }
                    AgentEvent::Channel => {
                        if !self.hear()? {
                            return Ok(());
                        }
                    }
                    AgentEvent::ToHead => self.channel.flush(),
                    AgentEvent::Log => self.read_log(),
                    AgentEvent::Node => self.hear_node()?,
                    AgentEvent::Daemon => {
                        self.read_log();
                        self.daemon_ended = Some(Instant::now());
                    }
                    AgentEvent::Output(stream) => self.pass_output(stream),
                    AgentEvent::Input => self.feed(&[]),
                    AgentEvent::Script => self.script_ended()?,
                }
            }
            if !self.told_to_end && self.daemon_ended.is_some_and(|ended| ended.elapsed() >= SIGNALS_APART) {
                return Err(daemon_failed(&self.said, "it has ended"));
            }
            if Instant::now() >= self.next_beat {
                self.next_beat = Instant::now() + self.beat;
                self.channel.tell(&AgentMessage::Beat);
                self.visitors.bury();
                self.missed += 1;
                if self.missed > MOST_MISSED {
                    // It is lost, or its host is.
                    return Ok(());
                }
            }
        }
    }

    fn wait(&self) -> Result<Vec<AgentEvent>> {
        let mut waited: Vec<(AgentEvent, BorrowedFd<'_>, PollFlags)> = vec![
            (AgentEvent::Signals, self.signals.as_fd(), PollFlags::IN),
            (AgentEvent::Channel, self.channel.input(), PollFlags::IN),
        ];
        let mut wait = |of, fd, flags| waited.push((of, fd, flags));
        self.channel.output().into_iter().for_each(|fd| wait(AgentEvent::ToHead, fd, PollFlags::OUT));
        if let Some(container) = self.container.as_ref().filter(|_| self.daemon_ended.is_none()) {
            wait(AgentEvent::Log, container.log.as_fd(), PollFlags::IN);
            wait(AgentEvent::Daemon, container.daemon.pidfd.as_fd(), PollFlags::IN);
        }
        self.node.iter().for_each(|node| wait(AgentEvent::Node, node.control(), PollFlags::IN));
        if let Some(script) = &self.script {
            if self.channel.backlog() < MOST_WAITING {
                script.outputs().for_each(|(stream, fd)| wait(AgentEvent::Output(stream), fd, PollFlags::IN));
            }
            script.input().into_iter().for_each(|fd| wait(AgentEvent::Input, fd, PollFlags::OUT));
            // Last: what it said before its end goes before that.
            wait(AgentEvent::Script, script.child.pidfd.as_fd(), PollFlags::IN);
        }
        let mut next = self.next_beat;
        if let Some(ended) = self.daemon_ended.filter(|_| !self.told_to_end) {
            next = next.min(ended + SIGNALS_APART);
        }
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> =
            waited.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context(|| "waiting"),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let ready = waited.into_iter().zip(ready).filter(|(_, ready)| *ready);
        Ok(ready.map(|((of, ..), _)| of).collect())
    }

    /// A manager that ends a job tells all its processes first: the script may want to know, and to end by itself.
    fn hear_signals(&mut self) {
        use rustix::process::Signal;
        while let Ok(Some(signal)) = self.signals.next() {
            self.told_to_end |= signal.number == Signal::TERM.as_raw();
            let passed = [Signal::TERM, Signal::INT, Signal::USR1, Signal::USR2, Signal::CONT];
            if passed.iter().any(|passed| passed.as_raw() == signal.number)
                && let Some(script) = &self.script
            {
                script.signal(signal.number);
            }
        }
    }

    /// Carries out what the head has said; whether it goes on.
    fn hear(&mut self) -> Result<bool> {
        if !self.channel.receive() {
            return Ok(false);
        }
        self.missed = 0;
        while let Some(come) = self.channel.take::<HeadMessage>()? {
            match come {
                Incoming::Data(Stream::Input, bytes) => self.feed(&bytes),
                Incoming::Data(..) | Incoming::Message(HeadMessage::Beat) => {}
                Incoming::Message(HeadMessage::Prepare(wanted)) => self.prepare(wanted)?,
                Incoming::Message(HeadMessage::Start(members)) => self.start(&members)?,
                Incoming::Message(HeadMessage::Serve(node)) => self.be_node(&node)?,
                Incoming::Message(HeadMessage::Leave) => {
                    self.node.take().into_iter().for_each(RunningNode::end)
                }
                Incoming::Message(HeadMessage::Admit(call)) => self.admit(call),
                Incoming::Message(HeadMessage::Run(program)) => self.run(*program)?,
                Incoming::Message(HeadMessage::Signal(number)) => {
                    self.script.iter().for_each(|script| script.signal(number));
                }
                Incoming::Message(HeadMessage::Resize(size)) => {
                    self.script.iter().for_each(|script| script.resize(size));
                }
                Incoming::Message(HeadMessage::Closed(stream)) => {
                    self.script.iter_mut().for_each(|script| script.close(stream));
                }
                Incoming::Message(HeadMessage::InputEnd) => {
                    self.script.iter_mut().for_each(Script::end_input);
                }
                Incoming::Message(HeadMessage::End) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn run(&mut self, program: crate::wire::Program) -> Result<()> {
        let started = match (&self.container, &self.host) {
            (Some(container), _) => {
                Script::start(program, |command, attr| container.enter(self.context, command, attr))
            }
            (None, Some(init)) => Script::start(program, |command, attr| {
                as_root(init.as_fd(), NetSpace::MachineInOurs, command, attr, SignalMask::from_bits(0))
            }),
            (None, None) => Err(Error::new("there is no container to run in")),
        };
        match started? {
            Ok(script) => self.script = Some(script),
            Err(Failed::Command(_, errno)) => {
                self.channel.tell(&AgentMessage::Ended(ProgramEnd::NotExecuted(errno)))
            }
            Err(Failed::Skiff(e)) => return Err(e),
        }
        Ok(())
    }

    fn feed(&mut self, bytes: &[u8]) {
        let Some(script) = &mut self.script else { return };
        let gone = if bytes.is_empty() { script.flush() } else { script.feed(bytes) };
        if gone > 0 {
            self.channel.tell(&AgentMessage::Took(u32::try_from(gone).unwrap_or(u32::MAX)));
        }
    }

    fn pass_output(&mut self, stream: Stream) {
        if let Some(bytes) = self.script.as_mut().and_then(|script| script.read(stream)) {
            self.channel.pass(stream, &bytes);
        }
    }

    fn script_ended(&mut self) -> Result<()> {
        let Some(end) = self.script.as_ref().map(Script::ended).transpose()?.flatten() else { return Ok(()) };
        for stream in [Stream::Output, Stream::Errors] {
            while let Some(bytes) = self.script.as_mut().and_then(|script| script.read(stream)) {
                self.channel.pass(stream, &bytes);
            }
        }
        self.script = None;
        self.channel.tell(&AgentMessage::Ended(end));
        Ok(())
    }

    fn read_log(&mut self) {
        let Some(container) = &self.container else { return };
        let mut buffer = [0; 4096];
        // Of one that has closed it we hear by its end.
        let n = rustix::io::read(&container.log, &mut buffer).unwrap_or(0);
        self.said.extend(&buffer[..n]);
        let old = self.said.len().saturating_sub(KEPT);
        self.said.drain(..old);
    }

    fn end(self) {
        if let (Some(script), Some(_)) = (&self.script, &self.host) {
            // There is no end of a container that would take it along.
            script.signal(rustix::process::Signal::KILL.as_raw());
        }
        let script = self.script.as_ref().map(|script| &script.child);
        self.container.into_iter().for_each(|container| container.end(script));
        self.node.into_iter().for_each(RunningNode::end);
    }
}
