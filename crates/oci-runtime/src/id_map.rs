//! The ids of a container's user namespace.

use std::process::{Command, Stdio};

use rustix::process::{Pid, getegid, geteuid};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_spec::ids::{IdMap, subordinate};
use skiff_sys::IgnoreError;

use crate::config::{BundleConfig, IdMapping};

/// Ids of users and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    pub users: Vec<IdMapping>,
    pub groups: Vec<IdMapping>,
}

impl IdMaps {
    /// The ids of a configuration; if it has none, the user as root and the subordinate ids behind.
    ///
    /// # Errors
    /// When one of both is missing.
    pub fn of(config: &BundleConfig) -> Result<Self> {
        let (users, groups) = (&config.linux.uid_mappings, &config.linux.gid_mappings);
        match (users.is_empty(), groups.is_empty()) {
            (true, true) => Ok(Self::usual()),
            (false, false) => Ok(Self { users: users.clone(), groups: groups.clone() }),
            _ => Err(Fault::new("linux: uidMappings and gidMappings: one is there without the other")),
        }
    }

    fn usual() -> Self {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let read = |path: &str| {
            std::fs::read_to_string(path).default_on_error("without the file nobody has further ids")
        };
        let name = skiff_site::account::user(uid).map(|user| user.name);
        let uids = subordinate(&read("/etc/subuid"), name.as_deref(), uid);
        let gids = subordinate(&read("/etc/subgid"), name.as_deref(), uid);
        let both = uids.zip(gids);
        let mappings = |map: IdMap| {
            let one = |line: &skiff_spec::ids::Line| IdMapping {
                container: line.inside,
                host: line.outside,
                size: line.count,
            };
            map.lines().iter().map(one).collect()
        };
        Self {
            users: mappings(IdMap::new(uid, both.map(|(uids, _)| uids), &[])),
            groups: mappings(IdMap::new(gid, both.map(|(_, gids)| gids), &[])),
        }
    }

    /// Whether the container has this user and this group.
    pub fn has(&self, uid: u32, gid: u32) -> bool {
        let has = |all: &[IdMapping], id: u32| {
            all.iter().any(|m| (m.container..m.container.saturating_add(m.size)).contains(&id))
        };
        has(&self.users, uid) && has(&self.groups, gid)
    }

    /// Whether there is only the user: then nobody inside can choose groups.
    pub fn is_single(&self) -> bool {
        is_only(&self.groups, getegid().as_raw())
    }

    /// Maps the ids of the user namespace that process `pid` has been made with.
    ///
    /// # Errors
    /// When the ids are not the user's to give.
    pub fn write(&self, pid: Pid) -> Result<()> {
        let pid = pid.as_raw_nonzero();
        // Whoever is root of a user namespace gives its ids by itself, and anybody the own one.
        let by_itself = |file: &str, mappings: &[IdMapping]| {
            let lines = mappings.iter().map(|m| format!("{} {} {}\n", m.container, m.host, m.size));
            std::fs::write(format!("/proc/{pid}/{file}"), lines.collect::<String>())
        };
        let by_another =
            |e: std::io::Error, program: &str, what: &str, mappings: &[IdMapping], own: u32| match is_only(
                mappings, own,
            ) {
                true => Err(e).context(|| what.to_owned()),
                false => by_program(program, pid.get(), what, mappings),
            };
        by_itself("uid_map", &self.users)
            .or_else(|e| by_another(e, "newuidmap", "linux.uidMappings", &self.users, geteuid().as_raw()))?;
        if is_only(&self.groups, getegid().as_raw()) {
            std::fs::write(format!("/proc/{pid}/setgroups"), "deny")
                .ignore_error("it is so already, or need not be, as the next step shows");
        }
        by_itself("gid_map", &self.groups)
            .or_else(|e| by_another(e, "newgidmap", "linux.gidMappings", &self.groups, getegid().as_raw()))
    }
}

fn is_only(mappings: &[IdMapping], own: u32) -> bool {
    matches!(mappings, [IdMapping { host, size: 1, .. }] if *host == own)
}

/// By the system's program, which knows the user's subordinate ids.
fn by_program(program: &str, pid: i32, what: &str, mappings: &[IdMapping]) -> Result<()> {
    let numbers = mappings.iter().flat_map(|m| [m.container, m.host, m.size]).map(|n| n.to_string());
    let output = Command::new(program)
        .arg(pid.to_string())
        .args(numbers)
        .stdin(Stdio::null())
        .output()
        .context(|| format!("{what}: {program}"))
        .map_err(|e| e.hint("the package uidmap has it; without it only your own id can be mapped"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Fault::new(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim()))
            .hint("/etc/subuid and /etc/subgid say which ids are yours")),
    }
}
