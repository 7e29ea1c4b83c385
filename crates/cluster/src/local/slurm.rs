//! Slurm's configuration, as one reads that it works where nodes are containers on one machine.

use std::path::Path;

use super::members::{CONTROLLER, Member};

/// Where it lies, inside.
pub const CONFIG: &str = "/etc/slurm/slurm.conf";
/// The port where the controller listens.
pub const PORT: u16 = 6817;

/// What every such Slurm is told, in the project's own test bed, too.
const COMMON: &str = include_str!("slurm.conf");

/// The text of `slurm.conf`: workers with numbers up to `workers` are there from the beginning; the others are known, so that they can
/// come without a new start of the controller.
#[must_use]
pub fn conf(workers: u16, cpus: usize, megabytes: u64) -> String {
    let mut lines = vec![
        "ClusterName=skiff".to_owned(),
        format!("SlurmctldHost={CONTROLLER}({})", Member::Controller.address()),
        format!("SlurmctldPort={PORT}"),
        "ProctrackType=proctrack/linuxproc".into(),
        "SlurmdPidFile=/run/slurmd.pid".into(),
        // A worker that is gone is known at once to the cluster's supervisor; this is for its Slurm.
        "SlurmdTimeout=30".into(),
    ];
    for worker in Member::workers() {
        let Member::Worker(n) = worker else { continue };
        let state = if n <= workers { "UNKNOWN" } else { "FUTURE" };
        let address = worker.address();
        lines.push(format!(
            "NodeName={worker} NodeAddr={address} CPUs={cpus} RealMemory={megabytes} State={state}"
        ));
    }
    lines.push("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP".into());
    format!("{COMMON}{}\n", lines.join("\n"))
}

/// The text of `cgroup.conf` for a release, given as a line like `slurm-wlm 22.05.8`: from 23.11 on they look for systemd's control
/// groups even where no plug-in needs any.
#[must_use]
pub fn cgroup_conf(release: &str) -> &'static str {
    let mut numbers = release.split_whitespace().nth(1).unwrap_or_default().split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(year)), Some(Ok(month))) if (year, month) >= (23, 11) => "CgroupPlugin=disabled\n",
        _ => "CgroupAutomount=no\n",
    }
}

/// A program, and the Debian package that it comes in.
pub const PROGRAMS: [(&str, &str); 4] =
    [("munged", "munge"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("srun", "slurm-client")];

/// Which of these programs cannot be found in directories of one's own choice, as an error and its hint.
#[must_use]
pub fn missing(path: &str) -> Option<(String, String)> {
    let found = |program: &str| path.split(':').any(|dir| Path::new(dir).join(program).exists());
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !found(program)).collect();
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
        let text = conf(2, 4, 1000);
        let nodes: Vec<&str> = text.lines().filter(|line| line.starts_with("NodeName=")).collect();
        assert_eq!(nodes[1], "NodeName=n2 NodeAddr=10.77.1.2 CPUs=4 RealMemory=1000 State=UNKNOWN");
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
    fn control_groups_are_switched_off_as_the_release_wants() {
        for (release, want) in [
            ("slurm-wlm 22.05.8", "CgroupAutomount=no\n"),
            ("slurm 23.11.1", "CgroupPlugin=disabled\n"),
            ("slurm 26.05.5", "CgroupPlugin=disabled\n"),
            ("", "CgroupAutomount=no\n"),
        ] {
            assert_eq!(cgroup_conf(release), want, "{release}");
        }
    }
}
