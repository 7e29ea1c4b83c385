//! What nodes of a cluster with a Slurm of its own have in common, wherever they are.

use std::ffi::OsString;
use std::fs;
use std::os::fd::BorrowedFd;

use skiff_plan::PlanOptions;
use skiff_sandbox::command::CommandSpec;
use skiff_sandbox::group::{self, GroupNetwork, UsernsGroup};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::members::Member;
use skiff_spec::network::Net;
use skiff_spec::plan::{Mount, Plan, Source, inside::PROGRAM};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::hub::{self, NodeTemplate};
use crate::slurm;

/// What the host has of its own Slurm; a cluster's is another.
const HOSTS: [&str; 5] = ["/etc/slurm", "/run/munge", "/run/slurm", "/run/slurmctld", "/etc/hosts"];

/// What a node asks for beyond that, with these files and directories in the place of the host's, on a network that its group has made.
pub fn options<'a>(
    options: PlanOptions,
    net: Net,
    places: impl IntoIterator<Item = (&'a str, Source)>,
) -> PlanOptions {
    let mount = |(target, source): (&str, Source)| {
        let read_only = matches!(source, Source::Text(_));
        Mount { source, target: target.into(), read_only, optional: false, propagation: None }
    };
    let own = options.own.into_iter().chain(places.into_iter().map(mount)).collect();
    PlanOptions { own, replaced: &HOSTS, net_of_group: Some(net), shims: false, ..options }
}

/// What a node is there for: this program, which knows what it needs. Outside of a network of the cluster's own it is on a host of its own.
pub fn command(member: Member, network: GroupNetwork) -> CommandSpec {
    let name = member.to_string();
    let role: &[&str] = match (member, network) {
        (Member::Controller, GroupNetwork::Own) => &["controller"],
        (Member::Controller, GroupNetwork::Makers) => &["controller", "--alone"],
        (Member::Worker(_), GroupNetwork::Own) => &["worker", &name],
        (Member::Worker(_), GroupNetwork::Makers) => &["worker", "--alone", &name],
    };
    CommandSpec {
        argv: [PROGRAM, "cluster", "daemon"].iter().chain(role).map(Into::into).collect(),
        env: environment(),
        cwd: "/".into(),
        ..CommandSpec::default()
    }
}

/// Makes the group that nodes are made in, whose process 1 keeps these descriptors of ours.
pub fn group(
    context: &UserContext,
    plan: &Plan,
    network: GroupNetwork,
    pattern: &NodeTemplate<'_>,
    kept: &[BorrowedFd<'_>],
) -> Result<UsernsGroup> {
    let helper = context.helper.as_deref();
    let group =
        group::start(plan.base, plan.unpacked.as_deref(), helper, network, kept, |resources, control| {
            hub::serve(resources, control, pattern)
                .ignore_error("its end is the group's, which its maker sees");
        })?;
    if group.ids < 2 {
        group.end();
        return Err(Error::new("a cluster needs more ids than your own: its daemons become other users").hint(
            "administrator: install uidmap, usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER",
        ));
    }
    Ok(group)
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

/// Memory of the host, in MiB.
pub fn memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib >> 10)
}
