//! Commands on a cluster's nodes: the user's own, and those by which we tell its Slurm something.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::process::Signal;
use skiff_app as app;
use skiff_output as output;
use skiff_plan::in_image;
use skiff_plan::inside::ProcessArgs;
use skiff_runtime::network;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::join::{Failed, NetSpace, SpawnAttr, as_root};
use skiff_sandbox::session::{CommandExit, Session};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::members::Member;
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_sys::process::positive_pid;
use skiff_user::context::UserContext;

use crate::local::known::{nodes, not_up};
use crate::local::record::ClusterDir;
use crate::local::wire::{SupervisorRequest, ask};
use crate::slurm;
use crate::slurm_node::environment;
use crate::{apart, visit};

/// Runs the user's command on a node, or their shell; its exit code.
pub fn run(
    context: &UserContext,
    name: &EnvName,
    node: Member,
    inside: &ProcessArgs,
    words: &[OsString],
) -> Result<i32> {
    let record = ClusterDir::existing(context, name)?;
    if inside.me {
        return Err(Error::new("--me: on a cluster's nodes you are root inside, and yourself outside"));
    }
    follow(context, &record)?;
    let mut command = match record.image()? {
        None => inside.command(context, words),
        Some(entry) => {
            let exec = entry.config()?.exec;
            in_image::in_environment(context, (entry.id, &exec), inside, words)?
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
fn reached_as(context: &UserContext, record: &ClusterDir, node: Member) -> Result<String> {
    let settings = record.settings()?;
    if !settings.over_hosts || settings.net != Net::Host {
        return Ok(node.to_string());
    }
    let host = nodes(record)?.into_iter().find(|known| known.name == node).and_then(|node| node.host);
    Ok(format!("{node} {}", app::reached_as(&context.user(), &host.unwrap_or(settings.host))))
}

/// Runs a command of ours on the controller; its exit code.
pub fn tell(context: &UserContext, name: &EnvName, words: &[OsString]) -> Result<i32> {
    let record = ClusterDir::existing(context, name)?;
    follow(context, &record)?;
    let command =
        CommandSpec { argv: words.to_vec(), env: environment(), cwd: "/".into(), ..CommandSpec::default() };
    let init = handle(&record, Member::Controller)?;
    Ok(apart::run(
        init.as_fd(),
        space(&record)?,
        &command,
        SpawnAttr { own_group: true, ..SpawnAttr::default() },
    ))
}

/// Goes on in the controller's network, if that is one of the site's: from there all nodes are reached, and reach us.
fn follow(context: &UserContext, record: &ClusterDir) -> Result<()> {
    let Net::Named(network) = record.settings()?.net else { return Ok(()) };
    let pid = nodes(record)?.iter().find(|node| node.name == Member::Controller).and_then(|node| node.pid);
    let pid = pid.and_then(positive_pid).ok_or_else(|| not_up(record))?;
    network::follow(context, &network, pid)
}

/// Whether a variable is what another Slurm has told the job that this may be part of: it means nothing to the cluster's own.
fn is_of_another_job(name: &OsStr) -> bool {
    ["SLURM_", "SLURMD_", "SRUN_", "PMI"].iter().any(|begin| name.as_bytes().starts_with(begin.as_bytes()))
}

fn asked(inside: &ProcessArgs, name: &OsStr) -> bool {
    inside.env.iter().any(|setting| setting.as_bytes().split(|b| *b == b'=').next() == Some(name.as_bytes()))
}

fn session(
    context: &UserContext,
    record: &ClusterDir,
    node: Member,
    command: &CommandSpec,
) -> std::result::Result<CommandExit, Failed> {
    if record.settings()?.over_hosts && node != Member::Controller {
        return visit(context, record, node, command);
    }
    let (init, space) = (handle(record, node)?, space(record)?);
    let session = Session::begin()?;
    let attr = session.spawn_attr(Signal::KILL.as_raw());
    let child = as_root(init.as_fd(), space, command, attr, session.mask())?;
    Ok(session.wait(&child)?)
}

/// Runs it on a node that is on another host.
fn visit(
    context: &UserContext,
    record: &ClusterDir,
    node: Member,
    command: &CommandSpec,
) -> std::result::Result<CommandExit, Failed> {
    let controller = nodes(record)?.into_iter().find(|node| node.name == Member::Controller);
    let address = controller.ok_or_else(|| not_up(record))?.address;
    let call = |call| {
        ask(&record.dir, &SupervisorRequest::Visit(node, call))?.map(drop).ok_or_else(|| not_up(record))
    };
    visit::run(context, node, command, address, &record.key()?, call)
}

/// Whose network its nodes are in.
fn space(record: &ClusterDir) -> Result<NetSpace> {
    Ok(if record.settings()?.over_hosts { NetSpace::MachineInOurs } else { NetSpace::Machine })
}

fn handle(record: &ClusterDir, node: Member) -> Result<OwnedFd> {
    let (_, fds) = ask(&record.dir, &SupervisorRequest::Enter(node))?.ok_or_else(|| not_up(record))?;
    fds.into_iter().next().ok_or_else(|| Error::new(format!("node {node}: no handle of it came")))
}
