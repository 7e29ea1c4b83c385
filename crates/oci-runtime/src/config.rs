//! `config.json` of a bundle as plain data: what the OCI's runtime specification 1.2 has for Linux.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::small_file;

use crate::known_keys;
use crate::seccomp::Seccomp;

/// The file of a bundle that says what is to run.
pub const FILE: &str = "config.json";
/// No configuration is longer, in bytes.
const LONGEST: u64 = 16 << 20;

/// A container.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleConfig {
    pub oci_version: String,
    pub root: Option<RootConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domainname: Option<String>,
    pub mounts: Vec<OciMount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    pub linux: Linux,
}

/// The container's root.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RootConfig {
    pub path: PathBuf,
    pub readonly: bool,
}

/// What runs in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessConfig {
    pub terminal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console_size: Option<ConsoleSize>,
    pub user: ProcessUser,
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    pub no_new_privileges: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apparmor_profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selinux_label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Value>,
    #[serde(rename = "ioPriority", skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<Value>,
    #[serde(rename = "execCPUAffinity", skip_serializing_if = "Option::is_none")]
    pub exec_cpu_affinity: Option<Value>,
}

/// Rows and columns.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsoleSize {
    pub height: u16,
    pub width: u16,
}

/// Whom it runs as, by ids of the container.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessUser {
    pub uid: u32,
    pub gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub umask: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// Capabilities by their names, in each of the kernel's sets.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    pub bounding: Vec<String>,
    pub effective: Vec<String>,
    pub inheritable: Vec<String>,
    pub permitted: Vec<String>,
    pub ambient: Vec<String>,
}

/// A resource limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rlimit {
    #[serde(rename = "type")]
    pub kind: String,
    pub soft: u64,
    pub hard: u64,
}

/// Something mounted in the root.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OciMount {
    pub destination: PathBuf,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
    pub options: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
}

/// Programs that are run at points of a container's life.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hooks {
    pub prestart: Vec<OciHook>,
    pub create_runtime: Vec<OciHook>,
    pub create_container: Vec<OciHook>,
    pub start_container: Vec<OciHook>,
    pub poststart: Vec<OciHook>,
    pub poststop: Vec<OciHook>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OciHook {
    pub path: PathBuf,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<String>,
    pub timeout: Option<u64>,
}

/// What is of Linux alone.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Linux {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
    pub namespaces: Vec<Namespace>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<ListedDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroups_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<Seccomp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs_propagation: Option<String>,
    pub masked_paths: Vec<PathBuf>,
    pub readonly_paths: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub personality: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_offsets: Option<Value>,
}

/// Consecutive ids of the container, and those that they are outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    #[serde(rename = "containerID")]
    pub container: u32,
    #[serde(rename = "hostID")]
    pub host: u32,
    pub size: u32,
}

/// A namespace of its own, or that of another, by its path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Namespace {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

/// A device node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedDevice {
    #[serde(rename = "type")]
    pub kind: String,
    pub path: PathBuf,
    pub major: Option<i64>,
    pub minor: Option<i64>,
    pub file_mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// Limits of the container's control group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    pub devices: Vec<Value>,
    pub memory: Option<MemoryLimits>,
    pub cpu: Option<Cpu>,
    pub pids: Option<Pids>,
    #[serde(rename = "blockIO")]
    pub block_io: Option<Value>,
    pub hugepage_limits: Vec<Value>,
    pub network: Option<Value>,
    pub rdma: Option<Value>,
    pub unified: BTreeMap<String, String>,
}

/// Memory in bytes; -1 is no limit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryLimits {
    pub limit: Option<i64>,
    pub reservation: Option<i64>,
    pub swap: Option<i64>,
    pub kernel: Option<i64>,
    #[serde(rename = "kernelTCP")]
    pub kernel_tcp: Option<i64>,
    pub swappiness: Option<u64>,
    #[serde(rename = "disableOOMKiller")]
    pub disable_oom_killer: Option<bool>,
}

/// Processors; times in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cpu {
    pub shares: Option<u64>,
    pub quota: Option<i64>,
    pub burst: Option<u64>,
    pub period: Option<u64>,
    pub realtime_runtime: Option<i64>,
    pub realtime_period: Option<u64>,
    pub cpus: Option<String>,
    pub mems: Option<String>,
    pub idle: Option<i64>,
}

/// How many processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pids {
    #[serde(default)]
    pub limit: i64,
}

impl BundleConfig {
    /// Reads the configuration of a bundle; and the keys in it that mean nothing here.
    ///
    /// # Errors
    /// When it cannot be read, or is not what the specification has.
    pub fn read(bundle: impl AsFd) -> Result<(Self, Vec<String>)> {
        let bytes = small_file::read_below(bundle, FILE, LONGEST).context(|| FILE)?;
        Self::parse(&bytes)
    }

    /// Reads a configuration and such keys from a text.
    ///
    /// # Errors
    /// When it is not what the specification has.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Vec<String>)> {
        let wrong = |e: serde_json::Error| {
            Fault::new(format!("{FILE}: {e}")).hint("`skiff oci spec` writes one that is right")
        };
        // `null` is what Go's programs write for what is empty.
        let value = without_nulls(serde_json::from_slice(bytes).map_err(wrong)?);
        let unknown = known_keys::unknown(&value);
        Ok((serde_json::from_value(value).map_err(wrong)?, unknown))
    }

    /// The process; a container for `exec` alone may have none.
    ///
    /// # Errors
    /// If there is none.
    pub fn process(&self) -> Result<&ProcessConfig> {
        self.process.as_ref().ok_or_else(|| Fault::new(format!("{FILE}: no `process`: nothing to start")))
    }

    /// The container's own namespace of a kind, or the one that it shares.
    pub fn namespace(&self, kind: &str) -> Option<&Namespace> {
        self.linux.namespaces.iter().find(|namespace| namespace.kind == kind)
    }

    /// Whether it gets a new namespace of a kind.
    pub fn has_new(&self, kind: &str) -> bool {
        self.namespace(kind).is_some_and(|namespace| namespace.path.is_none())
    }
}

pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(all) => Value::Array(all.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
