//! LSF: hosts from the job's variables; `blaunch` starts programs on them by LSF's own daemons.

use std::ffi::OsString;

use super::{ConnectMethod, ManagerEntry, Surroundings, file, invalid, one_each, var, words_of};
use crate::error::Result;
use crate::hosts::{self, Host};

pub const ENTRY: ManagerEntry = ManagerEntry {
    name: "LSF",
    variables: &["LSB_JOBID", "LSB_HOSTS|LSB_MCPU_HOSTS|LSB_DJOB_HOSTFILE"],
    hosts,
    launches: |around, hosts, program| one_each(around, hosts, program, words),
    way: ConnectMethod::Pipes,
    leads_session: true,
    tells_programs: None,
};

/// `LSB_MCPU_HOSTS` is `HOST SLOTS HOST SLOTS ...`; where the list is long there is only the file, with a line for each slot.
fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    if (around.var)("LSB_MCPU_HOSTS").is_none_or(|list| list.is_empty()) {
        let (path, text) = file(around, "LSB_DJOB_HOSTFILE")?;
        let hosts = hosts::parse(&text).map_err(|line| invalid(path.display(), line))?;
        return Ok(hosts.into_iter().map(|host| Host { slots: host.slots.or(Some(1)), ..host }).collect());
    }
    let list = var(around, "LSB_MCPU_HOSTS")?;
    let words: Vec<&str> = list.split_whitespace().collect();
    let pair = |pair: &[&str]| match pair {
        [name, slots] => Some(Host { name: (*name).into(), slots: Some(slots.parse().ok()?) }),
        _ => None,
    };
    words
        .chunks(2)
        .map(pair)
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| invalid("LSB_MCPU_HOSTS", format!("{list:?}: not pairs of host and slots")))
}

fn words(host: &Host, agent: &[OsString]) -> Vec<OsString> {
    words_of(["blaunch", &host.name], agent.iter().cloned())
}
