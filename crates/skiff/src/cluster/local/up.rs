//! Making a cluster and ending it.

use skiff_cluster::local::hub::Pattern;
use skiff_cluster::local::members::{Member, hosts};
use skiff_cluster::local::slurm;
use skiff_sandbox::command::{Command, DEFAULT_PATH};
use skiff_sandbox::{Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::network::Net;
use skiff_spec::plan::{Base, Mount, Plan, Source, Upper, inside::PROGRAM};

use super::inside::{environment, not_up, wait_until_ready};
use super::nodes::READY;
use super::record::{Record, Settings};
use super::supervisor;
use super::wire::{Want, ask};
use crate::cli::{PullWhen, Up};
use crate::context::Context;
use crate::images::index::Entry;
use crate::instance::record::now;
use crate::instance::service::OUTPUT_INSIDE;
use crate::planner::{self, Wishes};
use crate::supervisor::{try_lock, wait_for_lock};
use crate::{images, run};

/// What the host has of its own Slurm; a cluster's is another.
const HOSTS: [&str; 5] = ["/etc/slurm", "/run/munge", "/run/slurm", "/run/slurmctld", "/etc/hosts"];

/// Makes one; returns when its nodes take jobs.
pub fn up(context: &Context, wanted: &Up) -> Result<()> {
    let record = Record::named(context, &wanted.name)?;
    let entry = match run::image_of(&wanted.base)? {
        None => None,
        Some(image) if wanted.dry_run => Some(images::find(context, image)?),
        Some(image) => Some(images::get::to_run(context, image, PullWhen::Missing)?),
    };
    let mut plan = plan(context, wanted, &record, entry.as_ref())?;
    if wanted.dry_run {
        return run::show(&plan, wanted.json);
    }
    if plan.base == Base::Host
        && let Some((message, hint)) = slurm::missing(DEFAULT_PATH)
    {
        return Err(Error::new(message).hint(hint));
    }
    images::plan::make_ready(context, &mut plan)?;
    let cpus =
        wanted.cpus.map(usize::from).or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    let base = entry.as_ref().map_or_else(|| "host".into(), |e| format!("{}{}", images::PREFIX, e.reference));
    let settings = Settings { base, nodes: wanted.nodes, cpus: cpus.unwrap_or(1), made: now() };
    let lock = record.make(context, &settings, entry.as_ref())?;
    let begun = begin(context, &record, &plan, wanted.nodes, &lock);
    drop(lock);
    begun.inspect_err(|_| {
        // The first error is the one to tell; what stays, `skiff sweep` removes.
        end(&record).unwrap_or_default();
    })
}

fn begin(
    context: &Context,
    record: &Record,
    plan: &Plan,
    nodes: u16,
    lock: &std::os::fd::OwnedFd,
) -> Result<()> {
    let pattern = Pattern {
        plan: &|member| of_member(plan, record, member),
        command: &command,
        output: OUTPUT_INSIDE.as_ref(),
    };
    supervisor::launch(context, record, plan, &pattern, lock)?;
    let workers: Vec<Member> = (1..=nodes).map(Member::Worker).collect();
    let all = std::iter::once(Member::Controller).chain(workers.iter().copied()).collect();
    ask(&record.dir, &Want::Make(all))?.ok_or_else(|| not_up(record))?;
    wait_until_ready(record, &workers, READY)
}

/// The root of every node, but for what differs between them.
fn plan(context: &Context, wanted: &Up, record: &Record, entry: Option<&Entry>) -> Result<Plan> {
    let upper = Upper::Memory { size: context.config.run.memory.clone() };
    let wishes = Wishes { mounts: wanted.mounts.clone(), ..Wishes::default() };
    let mut plan = match entry {
        None => planner::host(context, wanted.name.as_str(), upper, wishes)?,
        Some(entry) => {
            let exec = entry.config()?.exec;
            images::plan::image(context, wanted.name.as_str(), (entry.id, &exec), upper, true, wishes)?
        }
    };
    plan.mounts.retain(|mount| !HOSTS.iter().any(|hosts| mount.target == std::path::Path::new(hosts)));
    for (part, target) in [("slurm", "/etc/slurm"), ("munge", "/run/munge")] {
        let source = Source::Bind(record.dir.join(part));
        plan.mounts.push(Mount { source, target: target.into(), read_only: false, optional: false });
    }
    let source = Source::Text(hosts());
    plan.mounts.push(Mount { source, target: "/etc/hosts".into(), read_only: true, optional: false });
    // It has a loopback device, and what the hub gives it.
    plan.net = Net::None;
    plan.shims = vec![];
    Ok(plan)
}

fn of_member(plan: &Plan, record: &Record, member: Member) -> Plan {
    let log = record.log(member);
    // What cannot be made shows when it is mounted.
    std::fs::File::options().append(true).create(true).open(&log).map(drop).unwrap_or_default();
    let mut plan = Plan { name: member.to_string(), ..plan.clone() };
    let source = Source::Bind(log);
    plan.mounts.push(Mount { source, target: OUTPUT_INSIDE.into(), read_only: false, optional: false });
    plan
}

/// What a node is there for: this program, which knows what it needs.
fn command(member: Member) -> Command {
    let name = member.to_string();
    let role: &[&str] = match member {
        Member::Controller => &["controller"],
        Member::Worker(_) => &["worker", &name],
    };
    Command {
        argv: [PROGRAM, "cluster", "daemon"].iter().chain(role).map(Into::into).collect(),
        env: environment(),
        cwd: "/".into(),
        ..Command::default()
    }
}

/// Ends one, or removes what is left of it.
pub fn down(context: &Context, name: &EnvName) -> Result<()> {
    end(&Record::existing(context, name)?)
}

fn end(record: &Record) -> Result<()> {
    ask(&record.dir, &Want::Down)?;
    wait_for_lock(&record.dir)?;
    let lock = try_lock(&record.dir)?.ok_or_else(|| {
        Error::new(format!("cluster {}: a process in it does not end", record.name))
            .hint("one that waits for a dead file server cannot be killed before that answers")
    })?;
    record.remove(lock)
}
