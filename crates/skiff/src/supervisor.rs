//! The process outside that a running environment belongs to: the parent of its process 1, the one whom commands ask for a
//! session, and who runs the host's commands for those inside. It ends when nobody is left inside, and everything
//! inside ends with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, SocketFlags, SocketType, accept_with, send};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitOptions, kill_process, wait};
use skiff_sandbox::start::{Instance, Options, detach_stdio, start};
use skiff_sandbox::{Context as _, Error, IDLE, Result, STILL};
use skiff_spec::plan::{Plan, Upper};
use skiff_sys::fdpass;
use skiff_sys::process::{Fork, CloneFlags, close_all_except, exit_now, fork};
use skiff_sys::signal::Signals;

use crate::context::Context;
use crate::control::{CONTROL, HOST, Live, Want, listen_at};
use crate::environments::Environment;
use crate::planner::{self, Wishes};
use crate::proxy;

/// A session in the environment, which is started if it does not run.
pub fn session(context: &Context, env: &Environment) -> Result<Live> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(live) = Live::connect(&env.dir, Want::Session)? {
            return Ok(live);
        }
        if let Some(lock) = env.try_lock()? {
            // Between our question and the lock another may have come and gone; it does not run now.
            launch(context, env, &lock)?;
        } else if Instant::now() > until {
            return Err(Error::new(format!("environment {}: it neither runs nor lets itself be started", env.name))
                .hint(format!("another command may be busy with it; `skiff env stop {}`", env.name)));
        } else {
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

/// The plan by which an environment runs.
pub fn plan(context: &Context, env: &Environment) -> Result<Plan> {
    let wishes = Wishes { mounts: env.settings()?.mounts, ..Wishes::default() };
    planner::host(context, env.name.as_str(), Upper::Directory(env.dir.clone()), wishes)
}

/// Starts the supervisor; returns when the environment runs, or why it does not.
fn launch(context: &Context, env: &Environment, lock: &OwnedFd) -> Result<()> {
    let plan = plan(context, env)?;
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    match fork(CloneFlags::NONE).context(|| "supervisor")? {
        Fork::Parent(_) => {
            drop(reporter);
            let mut text = vec![];
            std::io::Read::read_to_end(&mut std::fs::File::from(report), &mut text).context(|| "supervisor")?;
            match text.split_first() {
                Some((b'+', _)) => Ok(()),
                Some((_, why)) => Err(Error::from_bytes(why)),
                None => Err(Error::new(format!("environment {}: its supervisor ended without a word", env.name))),
            }
        }
        Fork::Child => {
            let served = Supervisor::begin(context, env, &plan, lock, reporter).map(Supervisor::serve);
            exit_now(i32::from(served.is_err()));
        }
    }
}

struct Supervisor<'a> {
    context: &'a Context,
    env: &'a Environment,
    instance: Instance,
    control: OwnedFd,
    host: OwnedFd,
    signals: Signals,
    sessions: Vec<OwnedFd>,
    idle_since: Option<Instant>,
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
    fn begin(context: &'a Context, env: &'a Environment, plan: &Plan, lock: &OwnedFd, reporter: OwnedFd) -> Result<Self> {
        let begun = (|| {
            rustix::process::setsid().context(|| "session")?;
            close_all_except(&[lock.as_fd(), reporter.as_fd()]);
            detach_stdio();
            let signals = Signals::block(&[]).context(|| "signals")?;
            let host = listen_at(&env.dir, HOST, SocketType::STREAM)?;
            let socket = env.dir.join(HOST);
            let options = Options { helper: context.helper.as_deref(), socket: Some(&socket) };
            let instance = start(plan, options)?;
            // Last: whoever can connect finds it running.
            let control = listen_at(&env.dir, CONTROL, SocketType::SEQPACKET)?;
            // The first session needs a moment to arrive.
            let idle_since = Some(Instant::now() + Duration::from_secs(5));
            Ok(Self { context, env, instance, control, host, signals, sessions: vec![], idle_since })
        })();
        let word = match &begun {
            Ok(_) => b"+".to_vec(),
            Err(e) => [b"-", &Error::to_bytes(e)[..]].concat(),
        };
        rustix::io::write(&reporter, &word).context(|| "report")?;
        begun
    }

    fn serve(mut self) {
        loop {
            let woken = self.wait();
            if woken.signal {
                while let Ok(Some(_)) = self.signals.next() {}
                // Those who ran commands for the inside; process 1 shows its end by its own descriptor.
                while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
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
            if woken.host {
                self.serve_inside();
            }
            let stop = woken.control && self.serve_command();
            let lingered = self.idle_since.is_some_and(|since| since.elapsed() >= self.linger());
            if stop || woken.init_ended || (self.sessions.is_empty() && lingered) {
                return self.end();
            }
        }
    }

    fn linger(&self) -> Duration {
        Duration::from_secs(self.context.config.run.linger)
    }

    fn wait(&self) -> Woken {
        let mut fds = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.instance.init.pidfd, PollFlags::IN),
            PollFd::new(&self.instance.control, PollFlags::IN),
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.host, PollFlags::IN),
        ];
        fds.extend(self.sessions.iter().map(|s| PollFd::new(s, PollFlags::IN)));
        let left = self.idle_since.map(|since| self.linger().saturating_sub(since.elapsed()));
        let limit = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        // Interrupted or not: what is ready shows.
        poll(&mut fds, limit.as_ref()).unwrap_or_default();
        let ready = |n: usize| !fds[n].revents().is_empty();
        Woken {
            signal: ready(0),
            init_ended: ready(1),
            init_spoke: ready(2),
            control: ready(3),
            host: ready(4),
            gone: (0..self.sessions.len()).filter(|n| ready(5 + n)).collect(),
        }
    }

    fn ask_whether_idle(&self) {
        // A full queue holds the question already.
        send(&self.instance.control, &[STILL], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).unwrap_or_default();
    }

    fn hear_init(&mut self) {
        let mut buffer = [0; 64];
        let n = rustix::io::read(&self.instance.control, &mut buffer).unwrap_or(0);
        if buffer[..n].contains(&IDLE) && self.sessions.is_empty() && self.idle_since.is_none() {
            self.idle_since = Some(Instant::now());
        }
    }

    /// Answers one command of the user's; whether the environment is to end.
    fn serve_command(&mut self) -> bool {
        let Ok(connection) = accept_with(&self.control, SocketFlags::CLOEXEC) else { return false };
        let Some(want) = first_byte(connection.as_fd()).and_then(Want::from_byte) else { return false };
        let init = &self.instance.init;
        let mut answer = init.pid.as_raw_nonzero().get().to_le_bytes().to_vec();
        answer.extend(u32::try_from(self.sessions.len()).unwrap_or(u32::MAX).to_le_bytes());
        match want {
            Want::Stop => {
                kill_process(init.pid, Signal::KILL).unwrap_or_default();
                fdpass::send(connection.as_fd(), &answer, &[init.pidfd.as_fd()]).unwrap_or_default();
                true
            }
            Want::Status | Want::Session => {
                let told = fdpass::send(connection.as_fd(), &answer, &[init.pidfd.as_fd()]).is_ok();
                if told && want == Want::Session {
                    self.sessions.push(connection);
                    self.idle_since = None;
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
            exit_now(proxy::serve(self.context, self.env, &self.instance.init, connection));
        }
    }

    fn end(self) {
        // It may be dead already; and if not, its end takes everything inside along before wait returns.
        kill_process(self.instance.init.pid, Signal::KILL).unwrap_or_default();
        while !matches!(rustix::process::waitpid(Some(self.instance.init.pid), WaitOptions::empty()), Ok(_) | Err(rustix::io::Errno::CHILD)) {}
        for name in [CONTROL, HOST] {
            remove(&self.env.dir, name);
        }
    }
}

fn remove(dir: &Path, name: &str) {
    // Left behind it does no harm: nobody listens, and the next start replaces it.
    std::fs::remove_file(dir.join(name)).unwrap_or_default();
}

/// What a client wants; one that says nothing for a second is none.
fn first_byte(connection: BorrowedFd<'_>) -> Option<u8> {
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(connection, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).ok().filter(|n| *n == 1)?;
    fdpass::receive(connection, 16).ok()?.0.first().copied()
}
