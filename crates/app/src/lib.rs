//! `skiff app`: Jupyter or a desktop for the user's browser. It listens on a socket that only its user can reach; the way there is ssh's,
//! and the token keeps out whoever else is where the browser is.

mod cluster;
mod listener;
mod ports;
mod record;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};
use skiff_cli::{AppCommand, AppRunArgs};
use skiff_output as output;
use skiff_sandbox::command::{CommandSpec, own_env};
use skiff_sandbox::join::{SpawnAttr, as_we_are};
use skiff_sandbox::session::CommandExit;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::plan::Route;
use skiff_sys::IgnoreError;
use skiff_sys::process::Child;
use skiff_sys::signal::Signals;
use skiff_user::context::UserContext;

pub use cluster::in_allocation;
use listener::Listener;
use record::{PublishedApp, RunningApp};
pub use record::{REACHED_AS, reached_as};

/// What is run, wherever that is.
const SCRIPT: &str = include_str!("app.sh");
/// Has websockify listen on a Unix socket.
const LAUNCHER: &str = include_str!("websockify.py");
/// How the token gets there: the variable that Jupyter itself looks at.
const TOKEN: &str = "JUPYTER_TOKEN";
/// The first start of a big image, or of Python from a cold network file system, takes its time.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppType {
    /// Jupyter.
    Notebook,
    /// Xvnc and noVNC.
    Desktop,
}

impl AppType {
    /// As a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Notebook => "notebook",
            Self::Desktop => "desktop",
        }
    }

    /// Where the browser finds it. What follows the `#` stays in the browser, out of logs.
    fn url(self, port: u16, token: &str) -> String {
        match self {
            Self::Notebook => format!("http://127.0.0.1:{port}/?token={token}"),
            Self::Desktop => {
                format!(
                    "http://127.0.0.1:{port}/vnc.html#autoconnect=1&resize=remote&path=websockify%3Ftoken%3D{token}"
                )
            }
        }
    }
}

/// Does what was asked; the exit code.
pub fn run(app: &AppCommand) -> Result<i32> {
    match app {
        AppCommand::Notebook(wanted) => serve(AppType::Notebook, wanted),
        AppCommand::Desktop(wanted) => serve(AppType::Desktop, wanted),
        AppCommand::List(output) => record::list(&UserContext::load()?, output.json).map(|()| 0),
    }
}

fn serve(kind: AppType, wanted: &AppRunArgs) -> Result<i32> {
    let context = UserContext::load()?;
    let reached = record::reached(&context)?;
    let port = wanted.port.map_or_else(listener::free_port, Ok)?;
    let listener = match wanted.tcp {
        true => Listener::Port(port),
        false => Listener::socket(&record::dir(&context), &random::<4>()?)?,
    };
    let mut command = command(&context, kind, wanted, &listener)?;
    if wanted.dry_run {
        let shown = command.argv.iter().map(|word| match word {
            word if word == SCRIPT => "SCRIPT".into(),
            word if word == LAUNCHER => "LAUNCHER".into(),
            word => word.to_string_lossy(),
        });
        return output::line(&shown.collect::<Vec<_>>().join(" ")).map(|()| 0);
    }
    record::make_dir(&context)?;
    listener.check()?;
    // 128 bits that nobody guesses.
    let token = random::<16>()?;
    command.set(TOKEN, token.clone());
    let signals = Signals::block(&[]).context(|| "signals")?;
    // Standard input is the lifeline: what we have started ends when its other end is closed, by us or by our death.
    let (end, lifeline) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    rustix::stdio::dup2_stdin(&end).context(|| "standard input")?;
    drop(end);
    let child = match as_we_are(&command, SpawnAttr::default(), signals.before()) {
        Ok(child) => child,
        Err(why) => return Ok(output::failed(why)),
    };
    let mut running = Running { child, signals, lifeline: Some(lifeline) };
    if let Some(ended) = running.wait_until_ready(&listener, context.uid, kind)? {
        return Ok(output::exit_as(ended));
    }
    let record = RunningApp::new(kind.name(), (port, &listener), kind.url(port, &token), &reached);
    let kept = PublishedApp::write(&context, &record)?;
    if wanted.json {
        output::json(&record)?
    } else {
        record.tell()?
    }
    let ended = running.wait()?;
    drop(kept);
    Ok(output::exit_as(ended))
}

/// The words of the `skiff` that brings an app into its environment or image; none if it runs where its user is.
pub fn words_before(wanted: &AppRunArgs, route: Route) -> Vec<OsString> {
    // Without the helper there is only root.
    let identity = if wanted.root || route == Route::Rootless { "--root" } else { "--me" };
    match (&wanted.environment, &wanted.image) {
        (Some(name), _) => ["env", "exec", identity, name.as_str(), "--"].map(OsString::from).into(),
        (None, Some(image)) => {
            let base = format!("{}{image}", skiff_store::PREFIX);
            ["run", "--writable", identity, "--entrypoint=", "--base", &base, "--"].map(OsString::from).into()
        }
        (None, None) => vec![],
    }
}

/// The script, in the environment or image that is wanted, by a `skiff` of its own.
fn command(
    context: &UserContext,
    kind: AppType,
    wanted: &AppRunArgs,
    listener: &Listener,
) -> Result<CommandSpec> {
    let mut argv = words_before(wanted, context.route());
    if !argv.is_empty() {
        argv.insert(0, std::env::current_exe().context(|| "own program")?.into());
    }
    argv.extend(["/bin/sh".into(), "-c".into(), SCRIPT.into(), "skiff-app".into(), kind.name().into()]);
    argv.extend([listener.word().into(), LAUNCHER.into()]);
    argv.extend(wanted.words.iter().cloned());
    let cwd = std::env::current_dir().unwrap_or_else(|_| context.home.clone());
    Ok(CommandSpec { argv, env: own_env(), cwd, ..CommandSpec::default() })
}

/// So many random bytes, in hexadecimal digits.
fn random<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    let what = || "/dev/urandom";
    std::fs::File::open("/dev/urandom").context(what)?.read_exact(&mut bytes).context(what)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What has been started.
struct Running {
    child: Child,
    signals: Signals,
    lifeline: Option<OwnedFd>,
}

impl Running {
    /// Waits until the app listens; how it ended, if it did before.
    fn wait_until_ready(
        &mut self,
        listener: &Listener,
        uid: u32,
        kind: AppType,
    ) -> Result<Option<CommandExit>> {
        let end = Instant::now() + PATIENCE;
        while !listener.is_ready(uid)? {
            if let Some(ended) = self.look(Some(&LOOK))? {
                return Ok(Some(ended));
            }
            if Instant::now() > end {
                self.lifeline = None;
                self.wait()?;
                let (kind, seconds) = (kind.name(), PATIENCE.as_secs());
                return Err(Error::new(format!(
                    "{kind} is not listening on {} after {seconds} s",
                    listener.word()
                ))
                .hint("what it says itself is above"));
            }
        }
        Ok(None)
    }

    fn wait(&mut self) -> Result<CommandExit> {
        loop {
            if let Some(ended) = self.look(None)? {
                return Ok(ended);
            }
        }
    }

    /// Waits for a while for its end, and passes on what we are told meanwhile.
    fn look(&mut self, limit: Option<&Timespec>) -> Result<Option<CommandExit>> {
        let mut fds =
            [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.child.pidfd, PollFlags::IN)];
        poll(&mut fds, limit).ignore_error("interrupted or not: what is ready shows");
        while let Ok(Some(signal)) = self.signals.next() {
            if let Some(number) = Signal::from_named_raw(signal.number)
                && [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&number)
            {
                self.lifeline = None;
                kill_process(self.child.pid, Signal::TERM).ignore_error("it may have ended this moment");
            }
        }
        use std::os::fd::AsFd;
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = match waitid(WaitId::PidFd(self.child.pidfd.as_fd()), flags) {
            Err(rustix::io::Errno::INTR) => None,
            other => other.context(|| "waiting for it")?,
        };
        Ok(status.and_then(|status| {
            let code = status.exit_status().map(CommandExit::Code);
            code.or_else(|| status.terminating_signal().map(CommandExit::Signal))
        }))
    }
}

/// A variable that is set and text.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(OsStr::new(name))?.into_string().ok().filter(|value| !value.is_empty())
}
