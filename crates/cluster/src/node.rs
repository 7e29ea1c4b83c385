//! A node of a cluster's own Slurm on one host, as the agent there holds it: a group with one node, in the network that the agent is in.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use skiff_cli::HostArgs;
use skiff_launch::handshake::SharedSecret;
use skiff_plan::{self as plan, PlanOptions, base};
use skiff_runtime::network;
use skiff_sandbox::group::{GroupNetwork, UsernsGroup};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::instance::End;
use skiff_spec::members::Member;
use skiff_spec::network::Net;
use skiff_spec::plan::{File as PlanFile, HOSTS, Plan, Source, Upper, inside};
use skiff_user::context::UserContext;
use skiff_user::scratch::{self, Scratch};

use crate::files;
use crate::hub::{self, HubReply, HubRequest, NodeTemplate};
use crate::root::ResolvedBase;
use crate::wire;
use crate::{container, slurm_node};

/// So much of what its daemon has said last is told.
const TOLD: u64 = 2048;

/// A node that runs, or has ended by itself and is not reaped yet.
pub struct RunningNode {
    group: UsernsGroup,
    name: Member,
    /// Process 1 of the node.
    init: OwnedFd,
    /// What its daemon says, if nobody else keeps it.
    log: Option<File>,
    /// Where its changes go, if not to memory.
    _scratch: Option<Scratch>,
}

impl RunningNode {
    /// Makes it.
    pub fn start(
        context: &UserContext,
        wanted: &wire::ContainerSpec,
        node: &wire::NodeSpec,
        key: String,
    ) -> Result<Self> {
        let (path, log) = open_log(node.log.clone())?;
        let scratch = scratch::make(context, &wanted.scratch).map(|(scratch, _)| scratch);
        let made = scratch.and_then(|scratch| {
            let upper = scratch.as_ref().map(|scratch| scratch.upper(scratch::ONLY)).transpose()?;
            let upper = upper.unwrap_or_else(|| container::memory(context));
            let plan = plan(context, wanted, node, (upper, path.clone()), key)?;
            make(context, &plan, node.name).map(|made| (made, scratch))
        });
        if node.log.is_none() {
            // What is mounted inside needs no name outside, and so nothing is left, however this ends.
            fs::remove_file(&path).context(|| path.display().to_string())?;
        }
        let log = Some(log).filter(|_| node.log.is_none());
        made.map(|((group, init), scratch)| Self { group, name: node.name, init, log, _scratch: scratch })
    }

    /// What it is called.
    pub fn name(&self) -> Member {
        self.name
    }

    /// Process 1 of the node.
    pub fn init(&self) -> BorrowedFd<'_> {
        self.init.as_fd()
    }

    /// To wait for its end.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.group.control.as_fd()
    }

    /// How it has ended, when there is something to hear.
    pub fn ended(&self) -> Result<Option<End>> {
        match hub::receive(self.control())? {
            (HubReply::Ended(_, end), _) => Ok(Some(end)),
            _ => Ok(None),
        }
    }

    /// The last that its daemon has said, if nobody else keeps it.
    pub fn words(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let length = log.metadata().map_or(0, |meta| meta.len());
        let mut text = vec![0; usize::try_from(length.min(TOLD)).unwrap_or(0)];
        match log.read_exact_at(&mut text, length.saturating_sub(TOLD)) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(e) => format!("(its words cannot be read: {e})"),
        }
    }

    /// Ends it; when this returns, no process of it is left.
    pub fn end(self) {
        self.group.end();
    }
}

fn plan(
    context: &UserContext,
    wanted: &wire::ContainerSpec,
    node: &wire::NodeSpec,
    (upper, log): (Upper, PathBuf),
    key: String,
) -> Result<Plan> {
    let facts = ResolvedBase::on_node(context, &wanted.root)?.facts(context)?;
    let options = options(wanted, (upper, log), node, key, &network::own_hosts());
    let facts = facts.with_devices(&options.asked.mounts, options.asked.contain)?;
    let plan = plan::build(options, facts)?;
    base::make_ready(context, &plan)?;
    Ok(plan)
}

/// What a node asks for, whose daemon writes to `log`: the configuration of the cluster's Slurm is in the place of the host's.
pub fn options(
    wanted: &wire::ContainerSpec,
    (upper, log): (Upper, PathBuf),
    node: &wire::NodeSpec,
    key: String,
    own_hosts: &str,
) -> PlanOptions {
    let file = |name: &str, mode, text| PlanFile { name: name.into(), mode, text };
    let places = [
        ("/etc/slurm", Source::Files(vec![file("slurm.conf", 0o644, node.conf.clone())])),
        ("/run/munge", Source::Files(vec![file("key", 0o400, key)])),
        (HOSTS, Source::Text(files::etc_hosts(&node.members, own_hosts))),
    ];
    let asked = HostArgs { mounts: wanted.mounts.clone(), ..HostArgs::default() };
    let options = PlanOptions {
        own: vec![plan::output(log)],
        ..PlanOptions::new(wanted.name.clone(), upper, asked.into())
    };
    slurm_node::options(options, Net::Host, places)
}

fn make(context: &UserContext, plan: &Plan, member: Member) -> Result<(UsernsGroup, OwnedFd)> {
    let pattern = NodeTemplate {
        plan: &|_| Ok(plan.clone()),
        command: &|member| slurm_node::command(member, GroupNetwork::Makers),
        output: inside::OUTPUT.as_ref(),
        gone: &|_| (),
    };
    let group = slurm_node::group(context, plan, GroupNetwork::Makers, &pattern, &[])?;
    let asked = hub::send(group.control.as_fd(), &HubRequest::Make(member), &[]);
    match asked.and_then(|()| hub::receive(group.control.as_fd())) {
        Ok((HubReply::Made, mut fds)) if fds.len() == 1 => Ok((group, fds.remove(0))),
        other => {
            group.end();
            match other? {
                (HubReply::Failed(why), _) => Err(why),
                _ => Err(Error::new(format!("node {member}: made without a handle"))),
            }
        }
    }
}

/// The file for what the daemon says: this one, or a new one on this host, which nobody else can read.
fn open_log(kept: Option<PathBuf>) -> Result<(PathBuf, File)> {
    let is_new = kept.is_none();
    let path = match kept {
        Some(path) => path,
        None => std::env::temp_dir().join(format!("skiff-node.{}", SharedSecret::generate()?.to_hex())),
    };
    let mut options = File::options();
    let file = options.read(true).append(true).create(true).create_new(is_new).mode(0o600).open(&path);
    file.context(|| path.display().to_string()).map(|file| (path, file))
}
