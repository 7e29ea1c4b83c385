//! Slurm's configuration, as one reads that it works where nodes are containers on one host.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use skiff_spec::members::{CONTROLLER, Member};
use skiff_sys::IgnoreError;

/// Where it lies, inside.
pub const CONFIG: &str = "/etc/slurm/slurm.conf";
/// Where the controller listens on a network of its own.
pub const PORT: u16 = 6817;
/// Where workers listen there.
pub const WORKER_PORT: u16 = 6818;

/// What every such Slurm is told, in the project's own test bed, too.
const COMMON: &str = include_str!("slurm.conf");

/// A worker as the controller is to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Name of the node.
    pub name: Member,
    /// Where its slurmd listens.
    pub address: SocketAddr,
    /// How many processors it has.
    pub cpus: usize,
    /// How much memory, in MiB.
    pub megabytes: u64,
    /// Whether it is there from the beginning; else it is known, so that it can come without a new start of the controller.
    pub is_there: bool,
}

/// The workers of a cluster on one host: all that there can be, of which the first are there from the beginning.
pub fn on_one_host(first: u16, cpus: usize, megabytes: u64) -> impl Iterator<Item = Worker> {
    (1..).zip(Member::workers()).map(move |(n, name)| Worker {
        name,
        address: (name.address(), WORKER_PORT).into(),
        cpus,
        megabytes,
        is_there: n <= first,
    })
}

/// The text of `slurm.conf`.
#[must_use]
pub fn conf(controller: SocketAddr, workers: impl IntoIterator<Item = Worker>) -> String {
    let (address, port) = (shown(controller.ip()), controller.port());
    let mut text = format!(
        "{COMMON}ClusterName=skiff\nSlurmctldHost={CONTROLLER}({address})\nSlurmctldPort={port}\n\
         ProctrackType=proctrack/linuxproc\nSlurmdPidFile=/run/slurmd.pid\n"
    );
    // A worker that is gone is known at once to the cluster's supervisor; this is for its Slurm.
    text.push_str("SlurmdTimeout=30\n");
    for Worker { name, address, cpus, megabytes, is_there } in workers {
        let state = if is_there { "UNKNOWN" } else { "FUTURE" };
        let (address, port) = (shown(address.ip()), address.port());
        writeln!(
            text,
            "NodeName={name} NodeAddr={address} Port={port} CPUs={cpus} RealMemory={megabytes} State={state}"
        )
        .ignore_error("writing to a string does not fail");
    }
    text.push_str("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP\n");
    text
}

/// As Slurm takes it.
fn shown(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// The text of `cgroup.conf` for a release, given as a line like `slurm-wlm 22.05.8`. Where the host has version 2 only, they look for systemd's
/// control groups even where no plug-in needs any. Those before 23.11 cannot be told to use none; for version 1 they look for nothing before it is needed.
#[must_use]
pub fn cgroup_conf(release: &str) -> &'static str {
    let mut numbers = release.split_whitespace().nth(1).unwrap_or_default().split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(year)), Some(Ok(month))) if (year, month) >= (23, 11) => "CgroupPlugin=disabled\n",
        _ => "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
    }
}

/// The text of `plugstack.conf`, by which jobs get containers, if the base has Skiff in one of these directories with its plug-in beside it.
#[must_use]
pub fn plugstack(path: &str, exists: impl Fn(&Path) -> bool) -> String {
    let line = |dir: &str| {
        let plugin = Path::new(dir).parent()?.join("lib/skiff/skiff_spank.so");
        let has_both = exists(&plugin) && exists(&Path::new(dir).join("skiff"));
        has_both.then(|| format!("optional {} skiff={dir}/skiff\n", plugin.display()))
    };
    path.split(':').find_map(line).unwrap_or_default()
}

/// A program, and the Debian package that it comes in.
pub const PROGRAMS: [(&str, &str); 4] =
    [("munged", "munge"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("srun", "slurm-client")];

/// What a worker on a host of its own has no need of.
pub const ONLY_CONTROLLERS: &str = "slurmctld";
/// What a controller whose workers are on other hosts has no need of.
pub const ONLY_WORKERS: &str = "slurmd";

/// Which of these programs cannot be found in directories of one's own choice, as an error and its hint; one may be `needless`.
#[must_use]
pub fn missing(path: &str, needless: Option<&str>) -> Option<(String, String)> {
    let found = |program: &str| path.split(':').any(|dir| Path::new(dir).join(program).exists());
    let needed = PROGRAMS.iter().filter(|(program, _)| Some(*program) != needless);
    let missing: Vec<_> = needed.filter(|(program, _)| !found(program)).collect();
    let list = |pick: fn(&(&str, &str)) -> String| missing.iter().map(|m| pick(m)).collect::<Vec<_>>();
    (!missing.is_empty()).then(|| {
        (
            format!("the base has no {}", list(|m| m.0.into()).join(", ")),
            format!("on Debian: apt-get install {}", list(|m| m.1.into()).join(" ")),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_all() {
        let text = conf((Member::Controller.address(), PORT).into(), on_one_host(2, 4, 1000));
        assert!(text.contains("\nSlurmctldHost=ctl(10.77.0.1)\nSlurmctldPort=6817\n"), "{text}");
        let nodes: Vec<&str> = text.lines().filter(|line| line.starts_with("NodeName=")).collect();
        assert_eq!(nodes[1], "NodeName=n2 NodeAddr=10.77.1.2 Port=6818 CPUs=4 RealMemory=1000 State=UNKNOWN");
        assert!(nodes[2].ends_with("State=FUTURE"));
        let keys: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, _)| key)
            .filter(|key| !["NodeName", "PartitionName"].contains(key))
            .collect();
        let mut once = keys.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), keys.len(), "each setting once: {keys:?}");
    }

    #[test]
    fn the_plugin_is_named_where_it_is_beside_skiff() {
        let there =
            ["/a/bin/skiff", "/b/lib/skiff/skiff_spank.so", "/c/bin/skiff", "/c/lib/skiff/skiff_spank.so"];
        let text = |path| plugstack(path, |file| there.iter().any(|known| Path::new(known) == file));
        assert_eq!(text("/a/bin:/b/bin:/c/bin"), "optional /c/lib/skiff/skiff_spank.so skiff=/c/bin/skiff\n");
        assert_eq!(text("/a/bin:/b/bin:/"), "");
    }

    #[test]
    fn control_groups_are_switched_off_as_the_release_wants() {
        for (release, want) in [
            ("slurm-wlm 22.05.8", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"),
            ("slurm 23.11.1", "CgroupPlugin=disabled\n"),
            ("slurm 26.05.5", "CgroupPlugin=disabled\n"),
            ("", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"),
        ] {
            assert_eq!(cgroup_conf(release), want, "{release}");
        }
    }
}
