//! Capabilities by the names that configurations have for them.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities,
};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::caps::drop_from_bounding;

use crate::config::Capabilities;
use crate::log::Log;

/// By number from 0 on.
pub const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCapabilities {
    bounding: CapabilitySet,
    effective: CapabilitySet,
    permitted: CapabilitySet,
    inheritable: CapabilitySet,
    ambient: CapabilitySet,
}

impl KeptCapabilities {
    /// Of a configuration, as far as this process has them itself. Without any there, none.
    pub fn of(wanted: Option<&Capabilities>, log: &Log) -> Self {
        let none = Capabilities::default();
        let wanted = wanted.unwrap_or(&none);
        let set = |names: &[String]| names.iter().filter_map(|name| known(name, log)).collect();
        Self {
            bounding: set(&wanted.bounding),
            effective: set(&wanted.effective),
            permitted: set(&wanted.permitted),
            inheritable: set(&wanted.inheritable),
            ambient: set(&wanted.ambient),
        }
    }

    /// Takes all others out of what an exec could bring. As long as this process has all of its own.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bound(&self) -> Result<()> {
        drop_from_bounding(self.bounding).context(|| "process.capabilities.bounding")
    }

    /// Makes these all that this process has.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&self, log: &Log) -> Result<()> {
        let about = || "process.capabilities";
        let own = capabilities(None).context(about)?;
        let permitted = self.permitted & own.permitted;
        let missing = self.permitted - own.permitted;
        if !missing.is_empty() {
            log.warn(&format!("process.capabilities: without {}", names(missing).join(" ")));
        }
        clear_ambient_capability_set().context(about)?;
        let inheritable = self.inheritable & (own.inheritable | own.permitted);
        let sets = CapabilitySets { effective: self.effective & permitted, permitted, inheritable };
        set_capabilities(None, sets).context(about)?;
        for one in (self.ambient & permitted & inheritable).iter() {
            configure_capability_in_ambient_set(one, true).context(|| "process.capabilities.ambient")?;
        }
        Ok(())
    }
}

fn known(name: &str, log: &Log) -> Option<CapabilitySet> {
    let short = name.strip_prefix("CAP_").unwrap_or(name);
    let at = NAMES.iter().position(|known| known.eq_ignore_ascii_case(short));
    if at.is_none() {
        log.warn(&format!("process.capabilities: {name}: no such capability"));
    }
    at.map(|at| CapabilitySet::from_bits_retain(1 << at))
}

fn names(set: CapabilitySet) -> Vec<&'static str> {
    let has = |at: usize| set.bits() & (1 << at) != 0;
    NAMES.iter().enumerate().filter(|(at, _)| has(*at)).map(|(_, name)| *name).collect()
}
