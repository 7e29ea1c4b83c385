//! Limits of a container's control group: as the kernel's files have them, and changed while the container runs.

use std::path::Path;

use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use super::open_group::OpenGroup;
use crate::config::{Cpu, MemoryLimits, Resources};
use crate::log::Log;

/// A file of the group, and what is written to it.
type GroupLimit = (String, String);

/// Files of the group with their contents, in the order in which they are written.
pub fn limits(resources: &Resources, log: &Log) -> Vec<GroupLimit> {
    let mut all = resources.memory.as_ref().map_or_else(Vec::new, |memory| memory_limits(memory, log));
    all.extend(resources.cpu.iter().flat_map(|cpu| cpu_limits(cpu, log)));
    let pids = resources.pids.as_ref().filter(|pids| pids.limit != 0);
    all.extend(pids.map(|pids| ("pids.max".to_owned(), bound(pids.limit))));
    for (name, is_there) in [
        ("blockIO", resources.block_io.is_some()),
        ("hugepageLimits", !resources.hugepage_limits.is_empty()),
        ("network", resources.network.is_some()),
        ("rdma", resources.rdma.is_some()),
    ] {
        if is_there {
            log.warn(&format!("linux.resources.{name}: has no effect"));
        }
    }
    for (file, value) in &resources.unified {
        match file.contains('/') || file.starts_with("cgroup.") {
            true => log
                .warn(&format!("linux.resources.unified: {file}: not a controller's file; it has no effect")),
            false => all.push((file.clone(), value.clone())),
        }
    }
    all
}

fn bound(limit: i64) -> String {
    if limit < 0 { "max".into() } else { limit.to_string() }
}

fn memory_limits(memory: &MemoryLimits, log: &Log) -> Vec<GroupLimit> {
    let named = |limit: Option<i64>| limit.filter(|limit| *limit != 0);
    // The older kind of groups counted memory and swap together.
    let swap = |swap: i64| if swap < 0 { swap } else { (swap - memory.limit.unwrap_or(0)).max(0) };
    let all = [
        ("memory.max", named(memory.limit)),
        ("memory.low", named(memory.reservation)),
        ("memory.swap.max", named(memory.swap).map(swap)),
    ];
    let others = [memory.kernel.is_some(), memory.kernel_tcp.is_some(), memory.swappiness.is_some()];
    if others.contains(&true) || memory.disable_oom_killer == Some(true) {
        log.warn("linux.resources.memory: kernel, kernelTCP, swappiness and disableOOMKiller have no effect");
    }
    all.into_iter().filter_map(|(file, limit)| Some((file.to_owned(), bound(limit?)))).collect()
}

fn cpu_limits(cpu: &Cpu, log: &Log) -> Vec<GroupLimit> {
    let weight = |shares: u64| 1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
    let list = |list: &Option<String>| list.clone().filter(|list| !list.is_empty());
    let all = [
        ("cpu.weight", cpu.shares.filter(|shares| *shares != 0).map(|shares| weight(shares).to_string())),
        ("cpu.max", cpu_time(cpu)),
        ("cpu.max.burst", cpu.burst.map(|burst| burst.to_string())),
        ("cpu.idle", cpu.idle.map(|idle| idle.to_string())),
        ("cpuset.cpus", list(&cpu.cpus)),
        ("cpuset.mems", list(&cpu.mems)),
    ];
    if cpu.realtime_runtime.is_some() || cpu.realtime_period.is_some() {
        log.warn("linux.resources.cpu: realtimeRuntime and realtimePeriod have no effect");
    }
    all.into_iter().filter_map(|(file, value)| Some((file.to_owned(), value?))).collect()
}

/// Processor time as `cpu.max` has it: the quota, and of which period.
fn cpu_time(cpu: &Cpu) -> Option<String> {
    if cpu.quota.is_none() && cpu.period.is_none() {
        return None;
    }
    let quota = cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
    Some(format!("{quota} {}", cpu.period.filter(|period| *period != 0).unwrap_or(100_000)))
}

/// Changes limits of a container's group.
///
/// # Errors
/// When the container has no group, nothing that can be changed is asked for, or the kernel's: then what came before in the order of these files is
/// changed.
pub fn update(path: Option<&Path>, resources: &Resources, log: &Log) -> Result<()> {
    let path = path.ok_or_else(|| {
        Fault::new("it has no control group of its own: its limits are those of whoever created it")
            .hint("set linux.cgroupsPath, in a session that systemd has delegated a control group to; of a job Slurm sets limits: srun --mem=4G --cpus-per-task=2")
    })?;
    let limits = limits(resources, log);
    if limits.is_empty() {
        return Err(Fault::new("no limit that can be changed is named").hint("skiff oci update --help"));
    }
    let name = || format!("control group {}", path.display());
    let group = OpenGroup::open(path).context(name)?;
    limits.iter().try_for_each(|(file, value)| {
        let value = &match &**file {
            "cpu.max" => changed_cpu(&group, value, resources.cpu.as_ref()),
            _ => value.clone(),
        };
        let written = group.write(file, value);
        let is_missing = written.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let hint = if is_missing {
            "the groups above it do not pass on this controller: cgroup.subtree_control"
        } else {
            ""
        };
        written.context(|| format!("{}: {file} {value}", name())).map_err(|e| e.hint(hint))
    })
}

/// The processor time of a group, of which what is not named stays.
fn changed_cpu(group: &OpenGroup, value: &str, asked: Option<&Cpu>) -> String {
    let now = group.read("cpu.max").default_on_error("the kernel says of the change what is wrong");
    let (now, value) =
        (now.split_once(' ').unwrap_or(("max", "100000")), value.split_once(' ').unwrap_or((value, "")));
    let quota = asked.and_then(|cpu| cpu.quota).map_or(now.0, |_| value.0);
    let period = asked.and_then(|cpu| cpu.period).map_or(now.1, |_| value.1);
    format!("{quota} {}", period.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_running_container_are_changed() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::open(None, false, false).expect("no log");
        let change = |text: &str| {
            let resources: Resources = serde_json::from_str(text).expect(text);
            update(Some(dir.path()), &resources, &log)
        };
        for file in ["memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"] {
            std::fs::write(dir.path().join(file), "").expect("written");
        }
        let all = r#"{"memory": {"limit": 1048576, "swap": 3145728}, "pids": {"limit": -1}, "cpu": {"quota": 50000, "shares": 2}, "devices": [{}]}"#;
        assert_eq!(change(all), Ok(()));
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).expect(file);
        let files = ["memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"].map(read);
        assert_eq!(files, ["1048576", "2097152", "max", "50000 100000", "1"]);
        // Nobody truncates a plain file: each is written at the length that it will have.
        for (now, text, want) in [
            ("50000 10000", r#"{"cpu": {"period": 20000}}"#, "50000 20000"),
            ("50000 20000", r#"{"cpu": {"quota": 10000}}"#, "10000 20000"),
            ("100 20000", r#"{"cpu": {"quota": -1}}"#, "max 20000"),
        ] {
            std::fs::write(dir.path().join("cpu.max"), now).expect("written");
            assert_eq!(change(text), Ok(()));
            assert_eq!(read("cpu.max"), want, "{text}");
        }
        let e = change(r#"{"cpu": {"cpus": "0-1"}}"#).expect_err("the controller is missing");
        assert!(
            e.to_string().contains("cpuset.cpus 0-1: ") && e.hint.contains("cgroup.subtree_control"),
            "{e}"
        );
        // Not a controller's, and nothing that has an effect.
        for text in [
            "{}",
            r#"{"unified": {"cgroup.kill": "1"}}"#,
            r#"{"unified": {"../x": "1"}}"#,
            r#"{"blockIO": {}}"#,
        ] {
            let e = change(text).expect_err(text);
            assert!(e.to_string().contains("no limit that can be changed"), "{e}");
        }
        let e = update(None, &Resources::default(), &log).expect_err("no group");
        assert!(e.to_string().contains("no control group of its own") && !e.hint.is_empty(), "{e}");
    }
}
