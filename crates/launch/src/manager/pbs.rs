//! PBS Pro, OpenPBS and TORQUE: hosts from the job's node file; `pbsdsh` starts programs by the job's own daemons, but passes
//! neither input nor output on.

use std::ffi::OsString;

use skiff_spec::fault::{Fault, Result};

use super::{Launch, Surroundings, Way, file, words_of};
use crate::hosts::{self, Host};

pub fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    let (path, text) = file(around, "PBS_NODEFILE")?;
    let hosts = hosts::parse(&text).map_err(|junk| Fault::new(format!("{}: {junk}", path.display())))?;
    // One line for each slot.
    Ok(hosts.into_iter().map(|host| Host { slots: host.slots.or(Some(1)), ..host }).collect())
}

/// One for each host, by the number of its first line in the node file: without a number each slot would get one.
pub fn launches(around: &Surroundings<'_>, hosts: &[Host], agent: &[OsString]) -> Vec<Launch> {
    // It has been read before.
    let text = file(around, "PBS_NODEFILE").map_or_else(|_| String::new(), |(_, text)| text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let launch = |(at, host): (usize, &Host)| {
        let line = lines.iter().position(|line| *line == host.name).unwrap_or(at).to_string();
        let argv = words_of(["pbsdsh", "-n", &line, "--"], agent.iter().cloned());
        Launch { argv, without: vec![], way: Way::CallBackByFile, hosts: vec![at] }
    };
    hosts.iter().enumerate().map(launch).collect()
}
