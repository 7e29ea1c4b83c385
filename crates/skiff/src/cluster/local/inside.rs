//! Commands on a cluster's nodes: the user's own, and those of ours that tell its Slurm.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use skiff_cluster::local::members::Member;
use skiff_cluster::local::slurm;
use skiff_sandbox::command::Command;
use skiff_sandbox::join::{Failed, NetSpace, Place, as_root};
use skiff_sandbox::session::{Ended, Session};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::inside::PROGRAM;

use super::nodes::nodes;
use super::record::Record;
use super::wire::{Want, ask};
use crate::cli::Inside;
use crate::cluster::{apart, visit};
use crate::context::Context;
use crate::{app, images, network, output};

/// Runs the user's command on a node, or his shell; its exit code.
pub fn run(
    context: &Context,
    name: &EnvName,
    node: Member,
    inside: &Inside,
    words: &[OsString],
) -> Result<i32> {
    let record = Record::existing(context, name)?;
    if inside.me {
        return Err(Error::new("--me: on a cluster's nodes you are root inside, and yourself outside"));
    }
    follow(context, &record)?;
    let mut command = match record.image()? {
        None => inside.command(context, words),
        Some(entry) => {
            let exec = entry.config()?.exec;
            images::command::in_environment(context, (entry.id, &exec), inside, words)?
        }
    };
    command.env.retain(|(name, _)| !is_of_another_job(name) || asked(inside, name));
    command.set("SLURM_CONF", slurm::CONFIG);
    command.set(app::REACHED_AS, reached_as(context, &record, node)?);
    if words.is_empty() {
        // What Debian's shells show in front of the prompt.
        command.set("debian_chroot", format!("{name}:{node}"));
    }
    match session(context, &record, node, &command) {
        Ok(ended) => Ok(output::exit_as(ended)),
        Err(why) => Ok(output::failed(why)),
    }
}

/// What a node is told of itself for the user's browser.
fn reached_as(context: &Context, record: &Record, node: Member) -> Result<String> {
    let settings = record.settings()?;
    if !settings.over_hosts || settings.net != Net::Host {
        return Ok(node.to_string());
    }
    let host = nodes(record)?.into_iter().find(|known| known.name == node).and_then(|node| node.host);
    Ok(format!("{node} {}", app::reached_as(&context.user(), &host.unwrap_or(settings.host))))
}

/// Runs a command of ours on the controller; its exit code.
pub fn tell(context: &Context, name: &EnvName, words: &[OsString]) -> Result<i32> {
    let record = Record::existing(context, name)?;
    follow(context, &record)?;
    let command = Command { argv: words.to_vec(), env: environment(), cwd: "/".into(), ..Command::default() };
    let init = handle(&record, Member::Controller)?;
    Ok(apart::run(init.as_fd(), space(&record)?, &command, Place { own_group: true, ..Place::default() }))
}

/// Goes on in the controller's network, if that is one of the site's: from there all nodes are reached, and reach us.
fn follow(context: &Context, record: &Record) -> Result<()> {
    let Net::Named(network) = record.settings()?.net else { return Ok(()) };
    let pid = nodes(record)?.iter().find(|node| node.name == Member::Controller).and_then(|node| node.pid);
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).ok_or_else(|| not_up(record))?;
    network::follow(context, &network, pid)
}

/// Whether a variable is what another Slurm has told the job that this may be part of: it means nothing to the cluster's own.
fn is_of_another_job(name: &OsStr) -> bool {
    ["SLURM_", "SLURMD_", "SRUN_", "PMI"].iter().any(|begin| name.as_bytes().starts_with(begin.as_bytes()))
}

fn asked(inside: &Inside, name: &OsStr) -> bool {
    inside.env.iter().any(|setting| setting.as_bytes().split(|b| *b == b'=').next() == Some(name.as_bytes()))
}

fn session(
    context: &Context,
    record: &Record,
    node: Member,
    command: &Command,
) -> std::result::Result<Ended, Failed> {
    if record.settings()?.over_hosts && node != Member::Controller {
        return visit(context, record, node, command);
    }
    let (init, space) = (handle(record, node)?, space(record)?);
    let session = Session::begin()?;
    let place = session.place(Signal::KILL.as_raw());
    let child = as_root(init.as_fd(), space, command, place, session.mask())?;
    Ok(session.wait(&child)?)
}

/// Runs it on a node that is on another host.
fn visit(
    context: &Context,
    record: &Record,
    node: Member,
    command: &Command,
) -> std::result::Result<Ended, Failed> {
    let controller = nodes(record)?.into_iter().find(|node| node.name == Member::Controller);
    let address = controller.ok_or_else(|| not_up(record))?.address;
    let call = |call| ask(&record.dir, &Want::Visit(node, call))?.map(drop).ok_or_else(|| not_up(record));
    visit::run(context, node, command, address, &record.key()?, call)
}

/// Whose network its nodes are in.
fn space(record: &Record) -> Result<NetSpace> {
    Ok(if record.settings()?.over_hosts { NetSpace::MachineInOurs } else { NetSpace::Machine })
}

fn handle(record: &Record, node: Member) -> Result<OwnedFd> {
    let (_, fds) = ask(&record.dir, &Want::Enter(node))?.ok_or_else(|| not_up(record))?;
    fds.into_iter().next().ok_or_else(|| Error::new(format!("node {node}: no handle of it came")))
}

/// That it does not run, and why, as far as its controller has said.
pub fn not_up(record: &Record) -> Error {
    let (said, hint) = record.last_words(Member::Controller);
    let said = if said.is_empty() { said } else { format!("; its controller wrote last: {said}") };
    let error = Error::new(format!("cluster {}: it does not run any more{said}", record.name));
    match hint.is_empty() {
        true => error.hint(format!("`skiff cluster down {}` removes what is left of it", record.name)),
        false => error.hint(hint),
    }
}

/// A command of ours that runs on the controller. It is killed when this is dropped before it has ended.
pub struct Errand {
    child: Child,
    end: OwnedFd,
    said: File,
}

impl Errand {
    /// Starts one: what it writes is kept.
    pub fn start(record: &Record, words: &[&str]) -> Result<Self> {
        let about = || "process for the controller";
        let (said, theirs) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        // To join a machine is for good, and so is to get into its network; so another process of this program does it.
        let mut command = std::process::Command::new(std::env::current_exe().context(|| "own program")?);
        command.args(["cluster", "tell", record.name.as_str()]).args(words).stdin(Stdio::null());
        command.stdout(theirs.try_clone().context(about)?).stderr(theirs);
        let child = command.spawn().context(about)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let end = pid.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        Ok(Self { child, end: end.context(about)?, said: said.into() })
    }

    /// To wait for its end.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Waits for its end, at most so long; nothing if it has not ended, else its exit code and what it has written.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<(i32, String)>> {
        let limit = Timespec::try_from(limit).map_err(|e| Error::new(format!("time limit: {e}")))?;
        let ended = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&limit));
        if ended.context(|| "waiting for a command on a node")? == 0 {
            return Ok(None);
        }
        let status = self.child.wait().context(|| "waiting for a command on a node")?;
        let mut text = String::new();
        self.said.read_to_string(&mut text).context(|| "output of a command on a node")?;
        Ok(Some((status.code().unwrap_or(-1), text)))
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        // One that has ended and was waited for is left alone.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// What daemons and errands get: nothing of the user's session.
pub fn environment() -> Vec<(OsString, OsString)> {
    let set = [
        ("PATH", skiff_sandbox::command::DEFAULT_PATH),
        ("HOME", "/root"),
        ("USER", "root"),
        ("LOGNAME", "root"),
        ("LC_ALL", "C"),
        ("SLURM_CONF", slurm::CONFIG),
    ];
    set.map(|(name, value)| (name.into(), value.into())).into()
}

/// Why waiting was no use: because the controller is gone, as a rule.
fn not_ready(record: &Record, said: Error) -> Error {
    // The supervisor may be about to notice.
    for _ in 0..100 {
        if !matches!(ask(&record.dir, &Want::Status), Ok(Some(_))) {
            return not_up(record);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    said.about(&format!("cluster {}", record.name))
}

/// Waits until these workers take jobs. If the controller, or one of them, is gone meanwhile, that is the error.
pub fn wait_until_ready(record: &Record, workers: &[Member], limit: Duration) -> Result<()> {
    let names: Vec<String> = workers.iter().map(Member::to_string).collect();
    let words: Vec<&str> =
        [PROGRAM, "cluster", "daemon", "ready"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut errand = Errand::start(record, &words).map_err(|e| not_ready(record, e))?;
    let end = std::time::Instant::now() + limit;
    loop {
        match errand.wait(Duration::from_millis(200))? {
            Some((0, _)) => return Ok(()),
            Some((_, said)) => {
                let (message, hint) = said.split_once("hint: ").unwrap_or((&said, ""));
                let message = message.trim().trim_start_matches("skiff: ");
                return Err(not_ready(record, Error::new(message).hint(hint.trim())));
            }
            None => super::nodes::refuse_lost(record, workers)?,
        }
        if std::time::Instant::now() > end {
            return Err(Error::new(format!("cluster {}: not all nodes take jobs yet", record.name))
                .hint(format!("what they have written is in {}", record.dir.join("logs").display())));
        }
    }
}
