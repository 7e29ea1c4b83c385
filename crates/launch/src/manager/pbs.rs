//! PBS Pro, OpenPBS and TORQUE: hosts from the job's node file; `pbsdsh` starts programs by the job's own daemons, but passes
//! neither input nor output on.

use std::ffi::OsString;

use super::{ConnectMethod, Launch, ManagerEntry, Surroundings, file, invalid, words_of};
use crate::error::Result;
use crate::hosts::{self, Host};

pub const ENTRY: ManagerEntry = ManagerEntry {
    name: "PBS",
    variables: &["PBS_JOBID", "PBS_NODEFILE"],
    hosts,
    launches,
    way: ConnectMethod::CallBackByFile,
    leads_session: true,
    tells_programs: None,
};

fn hosts(around: &Surroundings<'_>) -> Result<Vec<Host>> {
    let (path, text) = file(around, "PBS_NODEFILE")?;
    let hosts = hosts::parse(&text).map_err(|line| invalid(path.display(), line))?;
    // One line for each slot.
    Ok(hosts.into_iter().map(|host| Host { slots: host.slots.or(Some(1)), ..host }).collect())
}

/// One for each host, by the number of its first line in the node file: without a number each slot would get one.
fn launches(around: &Surroundings<'_>, hosts: &[Host], agent: &[OsString]) -> Vec<Launch> {
    // It has been read before.
    let text = file(around, "PBS_NODEFILE").map_or_else(|_| String::new(), |(_, text)| text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let launch = |(at, host): (usize, &Host)| {
        let line = lines.iter().position(|line| *line == host.name).unwrap_or(at).to_string();
        let argv = words_of(["pbsdsh", "-n", &line, "--"], agent.iter().cloned());
        Launch { argv, without: vec![], way: ENTRY.way, hosts: vec![at] }
    };
    hosts.iter().enumerate().map(launch).collect()
}
