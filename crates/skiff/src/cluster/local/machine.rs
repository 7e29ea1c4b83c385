//! What machines of a cluster with a Slurm of its own have in common, wherever they are.

use std::os::fd::{AsRawFd, BorrowedFd};

use skiff_cluster::local::hub::{self, Pattern};
use skiff_cluster::local::members::Member;
use skiff_sandbox::command::Command;
use skiff_sandbox::group::{self, Group, Network};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::network::Net;
use skiff_spec::plan::{Mount, Plan, Source, inside::PROGRAM};

use super::inside::environment;
use crate::context::Context;

/// What the host has of its own Slurm; a cluster's is another.
const HOSTS: [&str; 5] = ["/etc/slurm", "/run/munge", "/run/slurm", "/run/slurmctld", "/etc/hosts"];

/// What a plan is to be for a machine, with these files and directories in the place of the host's.
pub fn plan<'a>(plan: Plan, network: Network, places: impl IntoIterator<Item = (&'a str, Source)>) -> Plan {
    let mut plan = plan;
    plan.mounts.retain(|mount| !HOSTS.iter().any(|hosts| mount.target == std::path::Path::new(hosts)));
    for (target, source) in places {
        let read_only = matches!(source, Source::Text(_));
        plan.mounts.push(Mount { source, target: target.into(), read_only, optional: false });
    }
    plan.net = match network {
        Network::Makers => Net::Host,
        // It has a loopback device, and what the hub gives it.
        Network::Own => Net::None,
    };
    plan.shims = vec![];
    plan
}

/// What a node is there for: this program, which knows what it needs. Outside of a network of the cluster's own it is on a host of its own.
pub fn command(member: Member, network: Network) -> Command {
    let name = member.to_string();
    let role: &[&str] = match (member, network) {
        (Member::Controller, Network::Own) => &["controller"],
        (Member::Controller, Network::Makers) => &["controller", "--alone"],
        (Member::Worker(_), Network::Own) => &["worker", &name],
        (Member::Worker(_), Network::Makers) => &["worker", "--alone", &name],
    };
    Command {
        argv: [PROGRAM, "cluster", "daemon"].iter().chain(role).map(Into::into).collect(),
        env: environment(),
        cwd: "/".into(),
        ..Command::default()
    }
}

/// Makes the group that machines are made in.
pub fn group(context: &Context, plan: &Plan, network: Network, pattern: &Pattern<'_>) -> Result<Group> {
    let helper = context.helper.as_deref();
    let group = group::start(plan.base, plan.unpacked.as_deref(), helper, network, |ground, control| {
        // Its end is the group's, which its maker sees.
        hub::serve(ground, control, pattern).unwrap_or_default();
    })?;
    if group.ids < 2 {
        group.end();
        return Err(Error::new("a cluster needs more ids than your own: its daemons become other users").hint(
            "administrator: install uidmap, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER",
        ));
    }
    Ok(group)
}

/// The process's number, as we know it.
pub fn number(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).filter(|pid| *pid > 0)
}
