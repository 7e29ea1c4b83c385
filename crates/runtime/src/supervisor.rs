//! The process outside that a running environment belongs to: the parent of its process 1, the one whom commands ask for a
//! session, and who runs the host's commands for those inside. It ends when nobody is left inside, and everything
//! inside ends with it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, SocketFlags, SocketType, accept_with, send};
use rustix::process::{Resource, Signal, WaitOptions, getrlimit, kill_process, wait};
use skiff_output as output;
use skiff_sandbox::join::Failed;
use skiff_sandbox::start::{RunningContainer, StartOptions, detach_stdio, reap_all_until, start};
use skiff_sandbox::{IDLE, STILL};
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::{Base, Plan};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{CloneFlags, Fork, close_all_except, exit_now, fork};
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;

use crate::control::{CONTROL, ControlRequest, HOST, Live, Process1, answer, listen_at};
use crate::control_listener::{ControlListener, HeardRequest};
use crate::host_changes::BackgroundLook;
use crate::lock::{self, try_lock};
use crate::service::{Running, Service};
use crate::{network, proxy, supervisor_process};

mod launch;

pub use launch::{apart, launch};

/// Where a supervisor has its sockets and its lock, and how its environment is called.
pub struct RuntimeDir {
    /// The directory.
    pub dir: PathBuf,
    /// The name, for messages.
    pub name: String,
    /// The environment that jobs run in which are submitted from inside; without one, none can be.
    pub environment: Option<String>,
}

impl RuntimeDir {
    /// Whether what is changed on the host is to show while this runs: a job keeps the root that it began with, and an image does not change.
    fn sees_host_changes(&self, context: &UserContext, lifetime: Lifetime<'_>, plan: &Plan) -> bool {
        matches!(lifetime, Lifetime::WhileUsed) && plan.base == Base::Host && context.helper.is_some()
    }
}

/// Descriptors of a supervisor that are not sessions.
const DESCRIPTORS_OF_OTHERS: usize = 128;

/// How long a wait for another command's start is nobody's concern.
const SILENCE: Duration = Duration::from_secs(3);

/// When an environment ends.
#[derive(Clone, Copy)]
pub enum Lifetime<'a> {
    /// A while after its last session and process.
    WhileUsed,
    /// With its last session.
    WhileEntered,
    /// When it is told to. Then this is done, if anything, when nothing runs in it any more.
    UntilStopped(Option<&'a dyn Fn()>),
    /// With the command that it is there for, or when it is told to.
    Instance(&'a Service<'a>),
}

/// A session in the environment of this runtime directory; if none does, one is started by the plan that `make` gives (and what that
/// holds stays held as long as it runs).
pub fn session_at(
    context: &UserContext,
    runtime: &RuntimeDir,
    lifetime: Lifetime<'_>,
    make: impl Fn() -> Result<(Plan, Vec<OwnedFd>)>,
) -> Result<Live> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        if let Some(live) = Live::connect(&runtime.dir, ControlRequest::Session)? {
            return Ok(live);
        }
        if let Some(lock) = try_lock(&runtime.dir)? {
            // Whoever started it between our question and our lock would hold the lock now.
            let (plan, held) = make()?;
            launch(context, runtime, lifetime, &plan, &held, &lock).map_err(Failed::into_error)?;
        } else if begun.elapsed() > lifetime.patience() {
            return Err(lock::is_busy(&runtime.name, &runtime.dir));
        } else {
            if !is_told && begun.elapsed() > SILENCE {
                output::note(&lock::is_busy(&runtime.name, &runtime.dir).message);
                is_told = true;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

impl Lifetime<'_> {
    /// How long another command's start is waited for. In a job it may have to fetch gigabytes first.
    fn patience(self) -> Duration {
        match self {
            Self::WhileUsed => Duration::from_secs(60),
            Self::WhileEntered | Self::UntilStopped(_) | Self::Instance(_) => Duration::from_secs(300),
        }
    }
}

struct Supervisor<'a> {
    context: &'a UserContext,
    runtime: &'a RuntimeDir,
    lifetime: Lifetime<'a>,
    base: Base,
    instance: RunningContainer,
    /// What it is kept for, if that is one thing.
    running: Option<Running>,
    control: ControlListener,
    host: OwnedFd,
    signals: Signals,
    sessions: Vec<OwnedFd>,
    /// How many there can be.
    most_sessions: usize,
    /// By this it is found when it cannot be asked.
    _mark: OwnedFd,
    idle_since: Option<Instant>,
    look: Option<BackgroundLook>,
    /// What it keeps for a command.
    held: Vec<OwnedFd>,
}

/// What one round of waiting brought.
struct Woken {
    signal: bool,
    init_ended: bool,
    init_spoke: bool,
    control: bool,
    host: bool,
    gone: Vec<usize>,
}

impl<'a> Supervisor<'a> {
    fn begin(
        context: &'a UserContext,
        runtime: &'a RuntimeDir,
        lifetime: Lifetime<'a>,
        plan: &Plan,
    ) -> std::result::Result<Self, Failed> {
        rustix::process::setsid().context(|| "session")?;
        detach_stdio();
        let kind = if runtime.environment.as_ref() == Some(&runtime.name) { "env" } else { "instance" };
        supervisor_process::name(kind, &runtime.name);
        let signals = Signals::block(&[]).context(|| "signals")?;
        let look = runtime.sees_host_changes(context, lifetime, plan).then(BackgroundLook::from_now);
        let host = listen_at(&runtime.dir, HOST, SocketType::STREAM)?;
        let socket = runtime.dir.join(HOST);
        // In a job the host's commands run as they are: everybody is themselves there. But an image has nothing of what they need.
        let in_job = matches!(lifetime, Lifetime::UntilStopped(_)) && plan.base == Base::Host;
        let socket = (runtime.environment.is_some() && !in_job && !plan.contain).then_some(socket.as_path());
        let (helper, hosts) = (context.helper.as_deref(), network::hosts(plan)?);
        let options = StartOptions { helper, socket, hosts: hosts.as_deref(), ..StartOptions::default() };
        let (instance, running) = match lifetime {
            Lifetime::Instance(service) => service.start(context, plan, options, signals.before())?,
            Lifetime::WhileUsed | Lifetime::WhileEntered | Lifetime::UntilStopped(_) => {
                (start(plan, options)?, None)
            }
        };
        // Last: whoever can connect finds it running.
        let control = ControlListener::new(&runtime.dir)?;
        let mark = supervisor_process::mark(&runtime.dir)?;
        // The first session needs a moment to arrive.
        let idle_since = Some(Instant::now() + Duration::from_secs(5));
        let (base, sessions) = (plan.base, vec![]);
        Ok(Self {
            context,
            runtime,
            lifetime,
            base,
            instance,
            running,
            control,
            host,
            signals,
            sessions,
            most_sessions: most_sessions(),
            _mark: mark,
            idle_since,
            look,
            held: vec![],
        })
    }

    fn serve(mut self) {
        self.look_at_host();
        loop {
            let woken = self.wait();
            if woken.signal {
                while let Ok(Some(_)) = self.signals.next() {}
                // Those who ran commands for the inside; process 1 shows its end by its own descriptor.
                while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                    self.running.iter_mut().for_each(|running| running.buried(pid, status));
                    self.look.iter_mut().for_each(|look| look.reaped(pid, status));
                }
            }
            for session in woken.gone.iter().rev() {
                self.sessions.swap_remove(*session);
            }
            if !woken.gone.is_empty() && self.sessions.is_empty() {
                self.ask_whether_idle();
            }
            if woken.init_spoke {
                self.hear_init();
            }
            let served = self.running.as_mut().is_some_and(Running::look);
            if woken.host {
                self.serve_inside();
            }
            let stop = woken.control && self.serve_commands();
            if self.look.as_ref().and_then(BackgroundLook::patience) == Some(Duration::ZERO) {
                self.look_at_host();
            }
            let lingered = self.idle_until().is_some_and(|end| Instant::now() >= end);
            if stop || served || woken.init_ended || (self.sessions.is_empty() && lingered) {
                return self.end(stop);
            }
        }
    }

    /// Until when it stays if nobody comes.
    fn idle_until(&self) -> Option<Instant> {
        let linger = match self.lifetime {
            Lifetime::WhileUsed => Duration::from_secs(self.context.config.run.linger),
            Lifetime::WhileEntered => Duration::ZERO,
            Lifetime::UntilStopped(_) | Lifetime::Instance(_) => return None,
        };
        self.idle_since.map(|since| since + linger)
    }

    fn wait(&self) -> Woken {
        let mut fds = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.instance.init.pidfd, PollFlags::IN),
            PollFd::new(&self.instance.control, PollFlags::IN),
            PollFd::new(&self.host, PollFlags::IN),
        ];
        let output = self.running.as_ref().and_then(Running::output);
        fds.extend(output.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let others = fds.len();
        fds.extend(self.sessions.iter().map(|s| PollFd::new(s, PollFlags::IN)));
        let control = fds.len();
        fds.extend(self.control.descriptors().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let left = self.idle_until().map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.or_else(|| self.running.as_ref()?.patience());
        let look = self.look.as_ref().and_then(BackgroundLook::patience);
        let silent = self.control.patience();
        let left = left.into_iter().chain(look).chain(silent).min();
        let limit = left.map(|d| Timespec {
            tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(d.subsec_nanos()),
        });
        poll(&mut fds, limit.as_ref()).ignore_error("interrupted or not: what is ready shows");
        let ready = |n: usize| !fds[n].revents().is_empty();
        Woken {
            signal: ready(0),
            init_ended: ready(1),
            init_spoke: ready(2),
            host: ready(3),
            control: silent.is_some() || (control..fds.len()).any(ready),
            gone: (0..self.sessions.len()).filter(|n| ready(others + n)).collect(),
        }
    }

    fn ask_whether_idle(&self) {
        send(&self.instance.control, &[STILL], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            .ignore_error("a full queue holds the question already");
    }

    fn hear_init(&mut self) {
        if self.running.as_mut().is_some_and(|running| running.hear(&self.instance)) {
            return;
        }
        let mut buffer = [0; 64];
        let n = rustix::io::read(&self.instance.control, &mut buffer).unwrap_or(0);
        if buffer[..n].contains(&IDLE) && self.sessions.is_empty() && self.idle_since.is_none() {
            self.idle_since = Some(Instant::now());
        }
    }

    /// Answers the user's commands; whether the environment is to end.
    fn serve_commands(&mut self) -> bool {
        let requests = self.control.requests();
        // All are answered, whichever of them ends it.
        let ends: Vec<bool> = requests.into_iter().map(|heard| self.serve_command(heard)).collect();
        ends.contains(&true)
    }

    fn serve_command(&mut self, HeardRequest { connection, want, descriptors }: HeardRequest) -> bool {
        if want == ControlRequest::Session && self.sessions.len() >= self.most_sessions {
            return false;
        }
        let init = &self.instance.init;
        let sessions = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
        let sees_host = self.look.as_mut().is_some_and(BackgroundLook::is_unchanged);
        let tell = || answer(&connection, init, Process1 { pid: init.pid, sessions, sees_host });
        match want {
            ControlRequest::Stop => {
                kill_process(init.pid, Signal::KILL).ignore_error("it may have ended already");
                tell().ignore_error("the environment is ended whether they wait for it or not");
                true
            }
            ControlRequest::EndIfIdle => {
                tell().ignore_error("the environment is ended whether they wait for it or not");
                let is_idle =
                    self.sessions.is_empty() && self.idle_since.is_some_and(|since| since <= Instant::now());
                is_idle && matches!(self.lifetime, Lifetime::WhileUsed)
            }
            ControlRequest::End => {
                tell().ignore_error("the environment is ended whether they wait for it or not");
                match (&self.running, self.lifetime) {
                    (Some(running), Lifetime::Instance(service)) => {
                        running.end_kindly(service.stop);
                        false
                    }
                    _ => true,
                }
            }
            ControlRequest::Signal(number) => {
                if let Some(running) = &self.running {
                    running.signal(number.into());
                }
                // Afterwards: whoever hears the answer can look for what the signal does.
                tell().ignore_error("the signal is sent whether they wait for it or not");
                false
            }
            ControlRequest::Hold => {
                self.held = descriptors;
                tell().ignore_error("they are kept whether they wait for it or not");
                false
            }
            ControlRequest::TakeHeld => {
                let held = std::mem::take(&mut self.held);
                let held: Vec<_> = held.iter().map(AsFd::as_fd).collect();
                tell()
                    .and_then(|()| fdpass::send(connection.as_fd(), b"h", &held))
                    .ignore_error("who has gone meanwhile does without it, as does whoever comes next");
                false
            }
            ControlRequest::Status | ControlRequest::Session => {
                let told = tell().is_ok();
                if told && want == ControlRequest::Session {
                    self.sessions.push(connection);
                    self.idle_since = None;
                    self.look_at_host();
                }
                false
            }
        }
    }

    /// Runs a command of the host's for somebody inside, in a process of its own.
    fn serve_inside(&mut self) {
        let Ok(connection) = accept_with(&self.host, SocketFlags::CLOEXEC) else { return };
        if let Ok(Fork::Child) = fork(CloneFlags::NONE) {
            close_all_except(&[connection.as_fd(), self.instance.init.pidfd.as_fd()]);
            let served = proxy::Served {
                environment: self.runtime.environment.as_deref().unwrap_or_default(),
                is_environment: matches!(self.lifetime, Lifetime::WhileUsed),
                base: self.base,
            };
            exit_now(proxy::serve(self.context, served, &self.instance.init, connection));
        }
    }

    /// Has a child look for what the administrator has changed, if that is due.
    fn look_at_host(&mut self) {
        if let (Some(look), Some(helper)) = (&mut self.look, &self.context.helper) {
            look.begin(&self.runtime.dir, helper, &self.instance.init);
        }
    }

    /// Ends what runs; `is_told`: because somebody has asked for it.
    fn end(self, is_told: bool) {
        if let Lifetime::Instance(service) = self.lifetime {
            service.note_end(self.running.as_ref().map(Running::ended));
        }
        let act = match self.lifetime {
            Lifetime::UntilStopped(act) => act.filter(|_| is_told),
            _ => None,
        };
        if act.is_some() {
            // Nobody answers any more. Who asks again sees by the name that it has been asked, also while what runs inside takes its time to die.
            supervisor_process::name_ending(&self.runtime.name);
            remove(&self.runtime.dir, CONTROL);
            drop(self.control);
        }
        kill_process(self.instance.init.pid, Signal::KILL).ignore_error(
            "it may be dead already; and if not, its end takes everything inside along before wait returns",
        );
        // A command that runs as the user is a child of this process, in process 1's PID namespace.
        reap_all_until(self.instance.init.pid);
        // Whoever waits for the end waits for the lock, which goes last.
        if let Some(act) = act {
            act();
        }
        for name in [CONTROL, HOST] {
            remove(&self.runtime.dir, name);
        }
    }
}

/// Some descriptors are left for what ends the environment, whoever has taken all sessions.
fn most_sessions() -> usize {
    let most = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
    most.unwrap_or(1 << 20).saturating_sub(DESCRIPTORS_OF_OTHERS).max(16)
}

fn remove(dir: &Path, name: &str) {
    std::fs::remove_file(dir.join(name))
        .ignore_error("left behind it does no harm: nobody listens, and the next start replaces it");
}
