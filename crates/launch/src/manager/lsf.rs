//! LSF: hosts from the job's variables; `blaunch` starts programs on them by LSF's own daemons.

use std::ffi::OsString;

use skiff_spec::fault::{Fault, Result};

use super::{Surroundings, file, var, words_of};
use crate::hosts::{self, Host};

/// `LSB_MCPU_HOSTS` is `HOST SLOTS HOST SLOTS ...`; where the list is long there is only the file, with a line for each slot.
pub fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    if (around.var)("LSB_MCPU_HOSTS").is_none_or(|list| list.is_empty()) {
        let (path, text) = file(around, "LSB_DJOB_HOSTFILE")?;
        let hosts = hosts::parse(&text).map_err(|junk| Fault::new(format!("{}: {junk}", path.display())))?;
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
        .ok_or_else(|| Fault::new(format!("LSB_MCPU_HOSTS: {list:?}: not pairs of host and slots")))
}

pub fn words(host: &Host, agent: &[OsString]) -> Vec<OsString> {
    words_of(["blaunch", &host.name], agent.iter().cloned())
}
