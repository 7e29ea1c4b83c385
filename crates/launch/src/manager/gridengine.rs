//! Grid Engine: hosts from the parallel environment's file; `qrsh -inherit` starts tasks of the job on them.

use std::ffi::OsString;

use skiff_spec::fault::{Fault, Result};

use super::{Surroundings, file, words_of};
use crate::hosts::Host;

/// A line for each host and queue: `HOST SLOTS QUEUE PROCESSORS`.
pub fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    let (path, text) = file(around, "PE_HOSTFILE")?;
    let mut hosts: Vec<Host> = vec![];
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (name, slots) = (words.next().unwrap_or_default(), words.next().and_then(|n| n.parse().ok()));
        let slots: u32 = slots.ok_or_else(|| {
            Fault::new(format!("{}: {line:?}: no host with its number of slots", path.display()))
        })?;
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots = Some(host.slots.unwrap_or(0).saturating_add(slots)),
            None => hosts.push(Host { name: name.into(), slots: Some(slots) }),
        }
    }
    Ok(hosts)
}

pub fn words(host: &Host, agent: &[OsString]) -> Vec<OsString> {
    words_of(["qrsh", "-inherit", "-V", &host.name], agent.iter().cloned())
}
