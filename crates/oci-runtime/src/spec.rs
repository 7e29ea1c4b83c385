//! `spec` and `features`: a configuration to begin with, and what this runtime can do.

use std::io::Write;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{getegid, geteuid};
use serde_json::{Value, json};
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::capabilities;
use crate::config::FILE;
use crate::mount_options;

/// The version of the specification that configurations are written for.
const VERSION: &str = "1.2.0";
/// What a container's root keeps of its rights, as runc has it.
const KEPT: [&str; 3] = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"];
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Writes a configuration into a bundle that has none.
///
/// # Errors
/// When it has one, or cannot be written to.
pub fn write(bundle: &Path) -> Result<()> {
    let path = bundle.join(FILE);
    let about = || path.display().to_string();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::from_raw_mode(0o644)).context(about)?;
    let text = serde_json::to_string_pretty(&usual()).map_err(|e| Fault::new(format!("{}: {e}", about())))?;
    std::fs::File::from(file).write_all(format!("{text}\n").as_bytes()).context(about)
}

/// For one user without privilege: their own id is root's, and the network is the host's.
fn usual() -> Value {
    let namespaces: Vec<Value> =
        ["pid", "ipc", "uts", "mount", "cgroup", "user"].map(|kind| json!({ "type": kind })).to_vec();
    json!({
        "ociVersion": VERSION,
        "process": {
            "terminal": true,
            "user": { "uid": 0, "gid": 0 },
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": { "bounding": KEPT, "effective": KEPT, "permitted": KEPT },
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "skiff",
        "mounts": mounts(),
        "linux": {
            "uidMappings": [{ "containerID": 0, "hostID": geteuid().as_raw(), "size": 1 }],
            "gidMappings": [{ "containerID": 0, "hostID": getegid().as_raw(), "size": 1 }],
            "namespaces": namespaces,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    })
}

fn mounts() -> Value {
    let mount = |to: &str, kind: &str, from: &str, options: &str| {
        let options: Vec<&str> = options.split(',').collect();
        json!({ "destination": to, "type": kind, "source": from, "options": options })
    };
    json!([
        { "destination": "/proc", "type": "proc", "source": "proc" },
        mount("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
        mount("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620"),
        mount("/dev/shm", "tmpfs", "shm", "nosuid,noexec,nodev,mode=1777,size=65536k"),
        mount("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"),
        mount("/sys", "none", "/sys", "rbind,nosuid,noexec,nodev,ro"),
        mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid,noexec,nodev,relatime,ro"),
    ])
}

/// What the specification's `features` structure has for this runtime.
pub fn features() -> Value {
    let all: Vec<String> = capabilities::NAMES.iter().map(|name| format!("CAP_{name}")).collect();
    let actions = [
        "SCMP_ACT_ALLOW",
        "SCMP_ACT_ERRNO",
        "SCMP_ACT_KILL",
        "SCMP_ACT_KILL_PROCESS",
        "SCMP_ACT_KILL_THREAD",
        "SCMP_ACT_LOG",
        "SCMP_ACT_TRACE",
        "SCMP_ACT_TRAP",
    ];
    let operators = [
        "SCMP_CMP_EQ",
        "SCMP_CMP_GE",
        "SCMP_CMP_GT",
        "SCMP_CMP_LE",
        "SCMP_CMP_LT",
        "SCMP_CMP_MASKED_EQ",
        "SCMP_CMP_NE",
    ];
    let flags = ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC"];
    let own = if cfg!(target_arch = "x86_64") { "SCMP_ARCH_X86_64" } else { "SCMP_ARCH_AARCH64" };
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": VERSION,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": mount_options::words(),
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"],
            "capabilities": all,
            "cgroup": { "v1": false, "v2": true, "systemd": false, "systemdUser": false, "rdma": false },
            "seccomp": {
                "enabled": true, "actions": actions, "operators": operators, "archs": [own],
                "knownFlags": flags, "supportedFlags": flags,
            },
            "apparmor": { "enabled": false },
            "selinux": { "enabled": false },
            "intelRdt": { "enabled": false },
            "mountExtensions": { "idmap": { "enabled": false } },
        },
        "annotations": { "org.opencontainers.runtime-spec.features.name": "skiff" },
    })
}
