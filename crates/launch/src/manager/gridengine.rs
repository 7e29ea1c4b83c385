//! Grid Engine: hosts from the parallel environment's file; `qrsh -inherit` starts tasks of the job on them.

use std::ffi::OsString;

use super::{ConnectMethod, ManagerEntry, Surroundings, file, invalid, one_each, words_of};
use crate::error::Result;
use crate::hosts::Host;

pub const ENTRY: ManagerEntry = ManagerEntry {
    name: "Grid Engine",
    variables: &["JOB_ID", "PE_HOSTFILE"],
    hosts,
    launches: |around, hosts, program| one_each(around, hosts, program, words),
    way: ConnectMethod::Pipes,
    leads_session: true,
    tells_programs: None,
};

/// A line for each host and queue: `HOST SLOTS QUEUE PROCESSORS`.
fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    let (path, text) = file(around, "PE_HOSTFILE")?;
    let mut hosts: Vec<Host> = vec![];
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (name, slots) = (words.next().unwrap_or_default(), words.next().and_then(|n| n.parse().ok()));
        let slots: u32 = slots
            .ok_or_else(|| invalid(path.display(), format!("{line:?}: no host with its number of slots")))?;
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots = Some(host.slots.unwrap_or(0).saturating_add(slots)),
            None => hosts.push(Host { name: name.into(), slots: Some(slots) }),
        }
    }
    Ok(hosts)
}

fn words(host: &Host, agent: &[OsString]) -> Vec<OsString> {
    words_of(["qrsh", "-inherit", "-V", &host.name], agent.iter().cloned())
}
