//! Making a cluster and ending it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use skiff_cli::{HostArgs, UpArgs};
use skiff_launch::hosts as lists;
use skiff_launch::launching::Launching;
use skiff_output as output;
use skiff_plan::{self as plan, PlanOptions, base, show};
use skiff_runtime::lock::{self, try_lock};
use skiff_sandbox::command::DEFAULT_PATH;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::members::{MOST, Member, hosts as names};
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Base, HOSTS, Identity, Plan, Source, Upper};
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_sys::kernel::host_name;
use skiff_user::context::UserContext;

use crate::fleet::Limits;
use crate::launching;
use crate::local::errand::wait_until_ready;
use crate::local::hosts::HostsSpec;
use crate::local::known::not_up;
use crate::local::nodes::READY;
use crate::local::record::{ClusterDir, ClusterSettings};
use crate::local::supervisor::{self, NodeBackend as Held};
use crate::local::wire::{SupervisorRequest, ask};
use crate::root::ResolvedBase;
use crate::slurm;
use crate::slurm_node;
use crate::wire::{ContainerSpec, Role, VERSION};

/// How long one may take to end.
const ENDING: Duration = Duration::from_secs(60);

/// Makes one; returns when its nodes take jobs.
pub fn up(context: &UserContext, wanted: &UpArgs) -> Result<()> {
    let record = ClusterDir::named(context, &wanted.name)?;
    let launching = find_hosts(context, wanted)?;
    let found = ResolvedBase::named(context, &wanted.base, wanted.dry_run)?;
    let nodes = count(wanted.nodes, launching.as_ref().map(|launching| launching.hosts.len()))?;
    let net = launching.as_ref().map(|_| wanted.host.net.clone().unwrap_or_default());
    let upper = Upper::Memory { size: context.config.run.memory.clone() };
    // The root of every node on this host, but for what differs between them.
    let options = options(wanted, upper, net.clone(), &record);
    let facts = found.facts(context)?.with_devices(&options.asked.mounts, options.asked.contain)?;
    let plan = plan::build(options, facts)?;
    if wanted.dry_run {
        return show(&plan, launching.as_ref(), wanted.json);
    }
    let elsewhere = launching.as_ref().filter(|launching| launching.is_elsewhere);
    let needless = elsewhere.map(|_| slurm::ONLY_WORKERS);
    if plan.base == Base::Host
        && let Some((message, hint)) = slurm::missing(DEFAULT_PATH, needless)
    {
        return Err(Error::new(message).hint(hint));
    }
    base::make_ready(context, &plan)?;
    let cpus =
        wanted.cpus.map(usize::from).or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    let settings = ClusterSettings {
        base: found.text(),
        nodes,
        most: launching.as_ref().map_or(MOST, |it| u16::try_from(it.hosts.len()).unwrap_or(MOST)),
        cpus: cpus.unwrap_or(1),
        over_hosts: launching.is_some(),
        net: net.unwrap_or_default(),
        host: host_name(),
        made: now(),
    };
    let held = match launching {
        Some(launching) => Held::Hosts(Box::new(spec(context, wanted, &found, (launching, &record), nodes))),
        None => Held::Here(Box::new(plan), wanted.scratch.clone().unwrap_or_default()),
    };
    let unnamed = record.prepare(context, &settings, found.image())?;
    let (maker, ours) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
    supervisor::launch(context, &record, held, (unnamed, &maker))?;
    begin(&record, nodes, &ours).inspect_err(|_| {
        end(&record).ignore_error("the first error is the one to tell; what stays, `skiff sweep` removes");
    })
}

/// The hosts that it is to be on, which are this one so many times if there are no others but a network is asked for; nothing if
/// it is to be in a network of its own on this host, as it is if the allocation is just this.
fn find_hosts(context: &UserContext, wanted: &UpArgs) -> Result<Option<Launching>> {
    let here = || match &wanted.host.net {
        None => Ok(None),
        Some(net) => launching::here(context, wanted.nodes.ok_or_else(how_many)?, net).map(Some),
    };
    if wanted.here || (wanted.hostfile.is_none() && !launching::is_allocation()) {
        return here();
    }
    let net = wanted.host.net.clone().unwrap_or_default();
    let found = launching::find(context, wanted.hostfile.as_deref(), None, &net)?;
    let only_here = found.hosts.iter().all(|host| lists::is_here(&host.name, &found.here));
    if wanted.hostfile.is_none() && only_here { here() } else { Ok(Some(found)) }
}

fn how_many() -> Error {
    Error::new("--nodes: how many on this host?")
        .hint("in an allocation, or with --hostfile, it is one on each host")
}

/// How many workers, given how many are asked for and how many hosts there are, if it is to be on hosts.
fn count(asked: Option<u16>, there: Option<usize>) -> Result<u16> {
    match (asked, there) {
        (Some(nodes), Some(there)) if usize::from(nodes) > there => {
            Err(Error::new(format!("--nodes {nodes}: there are {there} hosts, and each takes one node"))
                .hint("--here makes a cluster of this host alone"))
        }
        (Some(nodes), _) => Ok(nodes),
        (None, Some(there)) => {
            u16::try_from(there).map_err(|_| Error::new(format!("{there} hosts are too many")))
        }
        (None, None) => Err(how_many()),
    }
}

fn spec(
    context: &UserContext,
    wanted: &UpArgs,
    found: &ResolvedBase,
    (launching, record): (Launching, &ClusterDir),
    first: u16,
) -> HostsSpec {
    let asked = ContainerSpec {
        version: VERSION.into(),
        name: wanted.name.to_string(),
        hosts: launching.hosts.iter().map(|host| host.name.clone()).collect(),
        index: 0,
        duty: Role::Node { port: None, controller: None },
        root: found.root(),
        identity: Identity::Root,
        scratch: wanted.scratch.clone().unwrap_or_default(),
        mounts: wanted.host.words(),
        variables: vec![],
        silence: context.config.cluster.silence_seconds,
    };
    let answer = Duration::from_secs(wanted.timeout);
    let limits =
        Limits { answer, start: answer.max(Duration::from_secs(context.config.slurm.fetch_seconds)) };
    let log = record.log(Member::Controller);
    let net = wanted.host.net.clone().unwrap_or_default();
    HostsSpec { launching, net, wanted: asked, log, limits, first, cpus: wanted.cpus }
}

/// Has the supervisor make the nodes; `made` tells it then that the cluster stays.
fn begin(record: &ClusterDir, nodes: u16, made: &OwnedFd) -> Result<()> {
    let workers: Vec<Member> = (1..=nodes).map(Member::Worker).collect();
    let all = std::iter::once(Member::Controller).chain(workers.iter().copied()).collect();
    ask(&record.dir, &SupervisorRequest::Make(all))?.ok_or_else(|| not_up(record))?;
    wait_until_ready(record, &workers, READY)?;
    // Until now it would have ended with us.
    rustix::io::write(made, b"+").map(drop).context(|| "the cluster's supervisor")
}

/// What the words ask of the root of every node, on the network of its hosts, or in a new one on this host if there is none. The
/// configuration of the cluster's Slurm, which is in the cluster's directory, is in the place of the host's.
pub fn options(wanted: &UpArgs, upper: Upper, net: Option<Net>, record: &ClusterDir) -> PlanOptions {
    let kept = |part| Source::Bind(record.dir.join(part));
    let mut places = vec![("/etc/slurm", kept("slurm")), ("/run/munge", kept("munge"))];
    if net.is_none() {
        // Otherwise it is known only later where all are.
        places.push((HOSTS, Source::Text(names())));
    }
    // The network is not for the container to make.
    let asked = HostArgs { net: None, ..wanted.host.clone() };
    let options = PlanOptions {
        // The others write each to one of their own.
        own: vec![plan::output(record.log(Member::Controller))],
        ..PlanOptions::new(wanted.name.as_str(), upper, asked.into())
    };
    // A new one has a loopback device, and what the hub gives it.
    slurm_node::options(options, net.unwrap_or(Net::None), places)
}

fn show(plan: &Plan, launching: Option<&Launching>, json: bool) -> Result<()> {
    if let (Some(launching), false) = (launching, json) {
        launching::show_hosts(launching)?;
        launching::show_launches(launching)?;
    }
    show::show(plan, json)
}

/// Ends one, or removes what is left of it.
pub fn down(context: &UserContext, name: &EnvName, dry_run: bool) -> Result<()> {
    let record = ClusterDir::existing(context, name)?;
    match dry_run {
        true => output::line(&format!("end cluster {name}, and remove {}", record.dir.display())),
        false => end(&record),
    }
}

/// Waits for the lock; not for ever, but what its nodes have left on a disk may take a while to remove.
fn wait_until_gone(record: &ClusterDir) -> Result<Option<OwnedFd>> {
    let end = Instant::now() + ENDING;
    loop {
        lock::wait(&record.dir)?;
        let lock = try_lock(&record.dir)?;
        if lock.is_some() || Instant::now() > end {
            return Ok(lock);
        }
    }
}

fn end(record: &ClusterDir) -> Result<()> {
    ask(&record.dir, &SupervisorRequest::Down)?;
    let waited = wait_until_gone(record);
    if !record.dir.exists() {
        // Its supervisor has just ended by itself, as its allocation has.
        return Ok(());
    }
    let _lock = waited?.ok_or_else(|| {
        Error::new(format!("cluster {}: a process in it does not end", record.name))
            .hint("one that waits for a dead file server cannot be killed before that answers")
    })?;
    record.remove()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_takes_one_node() {
        for (asked, there, nodes) in [
            (Some(2), Some(3), Ok(2)),
            (Some(3), Some(3), Ok(3)),
            (Some(4), Some(3), Err("--nodes 4: there are 3 hosts, and each takes one node")),
            (None, Some(3), Ok(3)),
            (None, Some(70_000), Err("70000 hosts are too many")),
            // On this machine alone.
            (Some(4), None, Ok(4)),
            (None, None, Err("--nodes: how many on this host?")),
        ] {
            let counted = count(asked, there).map_err(|e| e.message);
            assert_eq!(counted, nodes.map_err(str::to_owned), "{asked:?} of {there:?}");
        }
    }
}
