//! The control group of a container (cgroup v2), where the user has been given one to make groups in; else the container stays in that of whoever
//! created it.

use std::path::{Path, PathBuf};

use rustix::process::Pid;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

use crate::config::{BundleConfig, Resources};
use crate::log::Log;

const ROOT: &str = "/sys/fs/cgroup";

/// Makes the group that a configuration asks for, with its limits, and puts the process into it; nothing where that is not possible, which
/// the log says.
pub fn enter(config: &BundleConfig, id: &str, pid: Pid, log: &Log) -> Option<PathBuf> {
    let limits = config.linux.resources.as_ref().map_or_else(Vec::new, |resources| limits(resources, log));
    let path = match (config.linux.cgroups_path.as_deref().unwrap_or(""), limits.is_empty()) {
        ("", true) => return None,
        (wanted, _) => place(wanted, id)?,
    };
    let entered = make(&path).and_then(|()| {
        std::fs::write(path.join("cgroup.procs"), pid.as_raw_nonzero().to_string())
            .context(|| path.display().to_string())
    });
    if let Err(e) = entered {
        std::fs::remove_dir(&path).ignore_error("it is not there, or not ours");
        log.warn(&format!("linux.cgroupsPath: {e}: the container stays in the caller's control group"));
        for (file, _) in limits {
            log.warn(&format!("linux.resources: {file} is not set: no control group of its own"));
        }
        return None;
    }
    for (file, value) in limits {
        if let Err(e) = std::fs::write(path.join(&file), &value) {
            log.warn(&format!("linux.resources: {file} {value}: {e}"));
        }
    }
    Some(path)
}

/// Where it is: as runc has it, `/PATH` from the top, `PATH` below the caller's, `SLICE:PREFIX:NAME` for systemd, of which nobody is asked here.
fn place(wanted: &str, id: &str) -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = Path::new(ROOT).join(own.trim_start_matches('/'));
    let is_sound = !Path::new(wanted).components().any(|part| part == std::path::Component::ParentDir);
    Some(match wanted.split(':').collect::<Vec<_>>()[..] {
        _ if !is_sound => return None,
        [""] => own.join(format!("skiff-oci-{id}")),
        [path] => match path.strip_prefix('/') {
            Some(below) => Path::new(ROOT).join(below),
            None => own.join(path),
        },
        [_, prefix, name] => own.join(format!("{prefix}-{name}.scope")),
        _ => return None,
    })
}

fn make(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).context(|| path.display().to_string())?;
    if let Some(parent) = path.parent() {
        for controller in ["cpu", "cpuset", "io", "memory", "pids"] {
            std::fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"))
                .ignore_error("a limit that cannot be set is told when it is");
        }
    }
    Ok(())
}

/// Files of the group with their contents.
fn limits(resources: &Resources, log: &Log) -> Vec<(String, String)> {
    let mut all: Vec<(&str, String)> = vec![];
    let bound = |limit: i64| if limit < 0 { "max".to_owned() } else { limit.to_string() };
    if let Some(memory) = &resources.memory {
        all.extend(memory.limit.filter(|limit| *limit != 0).map(|limit| ("memory.max", bound(limit))));
        all.extend(memory.reservation.filter(|limit| *limit != 0).map(|limit| ("memory.low", bound(limit))));
        // The older kind of groups counted memory and swap together.
        let swap = |swap: i64| if swap < 0 { swap } else { (swap - memory.limit.unwrap_or(0)).max(0) };
        all.extend(
            memory.swap.filter(|limit| *limit != 0).map(|limit| ("memory.swap.max", bound(swap(limit)))),
        );
        let others = [memory.kernel.is_some(), memory.kernel_tcp.is_some(), memory.swappiness.is_some()];
        if others.contains(&true) || memory.disable_oom_killer == Some(true) {
            log.warn(
                "linux.resources.memory: kernel, kernelTCP, swappiness and disableOOMKiller have no effect",
            );
        }
    }
    if let Some(cpu) = &resources.cpu {
        let weight = |shares: u64| 1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
        all.extend(
            cpu.shares.filter(|shares| *shares != 0).map(|shares| ("cpu.weight", weight(shares).to_string())),
        );
        if cpu.quota.is_some() || cpu.period.is_some() {
            let quota =
                cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
            all.push((
                "cpu.max",
                format!("{quota} {}", cpu.period.filter(|period| *period != 0).unwrap_or(100_000)),
            ));
        }
        all.extend(cpu.burst.map(|burst| ("cpu.max.burst", burst.to_string())));
        all.extend(cpu.idle.map(|idle| ("cpu.idle", idle.to_string())));
        let list = |list: &Option<String>| list.clone().filter(|list| !list.is_empty());
        all.extend(list(&cpu.cpus).map(|cpus| ("cpuset.cpus", cpus)));
        all.extend(list(&cpu.mems).map(|mems| ("cpuset.mems", mems)));
        if cpu.realtime_runtime.is_some() || cpu.realtime_period.is_some() {
            log.warn("linux.resources.cpu: realtimeRuntime and realtimePeriod have no effect");
        }
    }
    all.extend(
        resources.pids.as_ref().filter(|pids| pids.limit != 0).map(|pids| ("pids.max", bound(pids.limit))),
    );
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
    let mut all: Vec<(String, String)> =
        all.into_iter().map(|(file, value)| (file.to_owned(), value)).collect();
    let is_file = |name: &String| !name.contains('/') && !name.starts_with("cgroup.");
    all.extend(
        resources
            .unified
            .iter()
            .filter(|(file, _)| is_file(file))
            .map(|(file, value)| (file.clone(), value.clone())),
    );
    all
}

/// The processes of a group.
pub fn processes(path: &Path) -> Vec<Pid> {
    let text =
        std::fs::read_to_string(path.join("cgroup.procs")).default_on_error("a group that is gone has none");
    text.lines().filter_map(|line| skiff_sys::process::positive_pid(line.parse().ok()?)).collect()
}

/// Puts a further process into it.
///
/// # Errors
/// The kernel's.
pub fn add(path: &Path, pid: Pid) -> Result<()> {
    let number = pid.as_raw_nonzero().to_string();
    std::fs::write(path.join("cgroup.procs"), number).context(|| path.display().to_string())
}

/// Whether all of its processes are frozen.
pub fn is_frozen(path: &Path) -> bool {
    std::fs::read_to_string(path.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
}

/// Freezes its processes, or lets them go on.
///
/// # Errors
/// When the container has no group, or the kernel's.
pub fn freeze(path: Option<&Path>, frozen: bool) -> Result<()> {
    let path = path.ok_or_else(|| {
        Fault::new("it has no control group of its own: its processes cannot be frozen")
            .hint("set linux.cgroupsPath, in a session that systemd has delegated a control group to")
    })?;
    std::fs::write(path.join("cgroup.freeze"), if frozen { "1" } else { "0" })
        .context(|| path.display().to_string())
}

/// Removes it; those that are in it must have ended.
pub fn remove(path: &Path) {
    let removed = skiff_sys::lock::within(std::time::Duration::from_secs(1), || {
        Ok::<_, ()>(
            std::fs::remove_dir(path).is_ok().then_some(()).or_else(|| (!path.exists()).then_some(())),
        )
    });
    removed.map(drop).ignore_error("it cannot fail");
}
