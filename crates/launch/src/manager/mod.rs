//! Who manages the hosts: where their list is, and by what means programs get started on them.

mod gridengine;
mod lsf;
mod pbs;
mod slurm;
mod ssh;

use skiff_sys::kernel::host_name;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, OfSystem as _, Result};
use crate::hosts::{self, Host};

pub use slurm::expand as slurm_hosts;

/// A manager of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// Slurm, and what stands before it with the commands of others.
    Slurm,
    /// PBS Pro, OpenPBS or TORQUE.
    Pbs,
    /// LSF.
    Lsf,
    /// Grid Engine of any descent.
    GridEngine,
    /// Nobody: a file lists hosts that one can log in to.
    Ssh,
}

/// What a command of ours sees of where it runs: tests show it something else.
pub struct Surroundings<'a> {
    /// The variables.
    pub var: &'a dyn Fn(&str) -> Option<String>,
    /// The files.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
    /// The name of this host.
    pub here: String,
}

/// One process of ours that starts one or several agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    /// Arguments of the launcher, the program first.
    pub argv: Vec<OsString>,
    /// Variables of ours that would mislead it.
    pub without: Vec<&'static str>,
    /// How the agents get to talk to us.
    pub way: ConnectMethod,
    /// For which hosts it is, by their numbers.
    pub hosts: Vec<usize>,
}

/// How agents and head get to talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectMethod {
    /// By the launcher's standard input and output, which are the agent's.
    Pipes,
    /// The agent calls back; what it needs for that comes by its standard input.
    CallBack,
    /// The agent calls back; what it needs for that is in a file that only its owner can read, as the launcher passes no input on.
    CallBackByFile,
}

/// What the file of a manager says of it. Another manager is one more of these, and one more [`Manager`].
struct ManagerEntry {
    /// As people know it.
    name: &'static str,
    /// The variables that a job has there; any of those with `|` between them will do. None where there are no jobs.
    variables: &'static [&'static str],
    /// Reads the list of the job's hosts.
    hosts: fn(&Surroundings<'_>) -> Result<Vec<Host>>,
    /// What starts a program on hosts: all at once, by as few processes as the manager allows.
    launches: fn(&Surroundings<'_>, &[Host], &[OsString]) -> Vec<Launch>,
    /// How the programs get to talk to us.
    way: ConnectMethod,
    /// Whether the job's first process leads a session.
    leads_session: bool,
    /// What it tells programs that it starts.
    tells_programs: Option<Told>,
}

/// Names of variables by which a manager tells programs that it starts where they are.
struct Told {
    /// The address of the host that they were started from.
    started_from: &'static str,
    /// The name by which the manager knows their host, whatever that calls itself.
    own_name: &'static str,
}

/// The address of the host that this program was started from, if a manager says so.
#[must_use]
pub fn started_from(var: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    told().find_map(|told| var(told.started_from))
}

/// The name by which a manager knows this host, if one says so.
#[must_use]
pub fn own_name(var: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    told().find_map(|told| var(told.own_name))
}

fn told() -> impl Iterator<Item = &'static Told> {
    Manager::WITH_JOBS.into_iter().filter_map(|manager| manager.entry().tells_programs.as_ref())
}

impl Manager {
    /// Managers that have jobs. Slurm is first: it comes with commands of PBS and LSF, and then sets their variables beside its own.
    const WITH_JOBS: [Self; 4] = [Self::Slurm, Self::Pbs, Self::Lsf, Self::GridEngine];

    fn entry(self) -> &'static ManagerEntry {
        match self {
            Self::Slurm => &slurm::ENTRY,
            Self::Pbs => &pbs::ENTRY,
            Self::Lsf => &lsf::ENTRY,
            Self::GridEngine => &gridengine::ENTRY,
            Self::Ssh => &ssh::ENTRY,
        }
    }

    /// What starts `program` on these hosts: all at once, by as few processes as the manager allows.
    #[must_use]
    pub fn launches(self, around: &Surroundings<'_>, hosts: &[Host], program: &[OsString]) -> Vec<Launch> {
        (self.entry().launches)(around, hosts, program)
    }

    /// How programs that it starts get to talk to us.
    #[must_use]
    pub fn way(self) -> ConnectMethod {
        self.entry().way
    }

    /// Whether the first process of a job leads a session, so that the job has ended when that has.
    #[must_use]
    pub fn leads_session(self) -> bool {
        self.entry().leads_session
    }

    /// As people know it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().name
    }
}

impl Surroundings<'static> {
    /// This process's variables and this host's files.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            var: &|name| std::env::var(name).ok(),
            read: &|path| std::fs::read_to_string(path),
            here: host_name(),
        }
    }
}

/// Finds the manager and its hosts; those of a file, if one is named.
///
/// # Errors
/// When there is none, or what it says of its hosts makes no sense.
pub fn find(around: &Surroundings<'_>, file: Option<&Path>) -> Result<(Manager, Vec<Host>)> {
    let (manager, hosts) = match file {
        Some(file) => (Manager::Ssh, ssh::hosts_of(around, file)?),
        None => {
            let is_set = |name: &str| (around.var)(name).is_some_and(|value| !value.is_empty());
            let manager = detect(&is_set).ok_or(Error::NoAllocation)?;
            (manager, (manager.entry().hosts)(around)?)
        }
    };
    match hosts.iter().find(|host| !hosts::is_name(&host.name)) {
        _ if hosts.is_empty() => Err(Error::NoHosts),
        Some(odd) => Err(Error::InvalidName(odd.name.clone())),
        None => Ok((manager, hosts)),
    }
}

/// Whether there is one, given which variables say something.
#[must_use]
pub fn is_allocation(is_set: &dyn Fn(&str) -> bool) -> bool {
    detect(is_set).is_some()
}

fn detect(is_set: &dyn Fn(&str) -> bool) -> Option<Manager> {
    let has_job = |manager: &Manager| manager.entry().variables.iter().all(|any| any.split('|').any(is_set));
    Manager::WITH_JOBS.into_iter().find(has_job)
}

/// What starts a program on one other host: the manager of the job that we are in, if the host is one of the job's; else `otherwise`, or ssh.
///
/// # Errors
/// [`Error::InvalidName`]; [`Error::OwnHost`] for this host.
pub fn launch_on(
    around: &Surroundings<'_>,
    host: &str,
    program: &[OsString],
    otherwise: Option<Launch>,
) -> Result<Launch> {
    if !hosts::is_name(host) {
        return Err(Error::InvalidName(host.into()));
    }
    if hosts::is_here(host, &around.here) {
        return Err(Error::OwnHost(host.into()));
    }
    let hosts = [Host { name: host.into(), slots: None }];
    let by = |manager: Manager| manager.launches(around, &hosts, program).into_iter().next();
    // Of a job's hosts its manager has the say. One that hands no input on cannot tell the program whom to call.
    let is_of_job =
        |(_, list): &(Manager, Vec<Host>)| list.iter().any(|of_job| hosts::same(&of_job.name, host));
    let managed = find(around, None).ok().filter(is_of_job).and_then(|(manager, _)| by(manager));
    let managed = managed.filter(|launch| launch.way != ConnectMethod::CallBackByFile);
    managed.or(otherwise).or_else(|| by(Manager::Ssh)).ok_or(Error::NothingToStart)
}

/// One process for each host; for this one, the agent itself.
fn one_each(
    around: &Surroundings<'_>,
    hosts: &[Host],
    agent: &[OsString],
    words: fn(&Host, &[OsString]) -> Vec<OsString>,
) -> Vec<Launch> {
    let launch = |(at, host): (usize, &Host)| {
        let argv = if hosts::is_here(&host.name, &around.here) { agent.to_vec() } else { words(host, agent) };
        Launch { argv, without: vec![], way: ConnectMethod::Pipes, hosts: vec![at] }
    };
    hosts.iter().enumerate().map(launch).collect()
}

/// The value of a variable.
fn var(around: &Surroundings<'_>, name: &str) -> Result<String> {
    (around.var)(name).ok_or_else(|| Error::Unset(name.into()))
}

/// The file that a variable names.
fn file(around: &Surroundings<'_>, name: &str) -> Result<(PathBuf, String)> {
    let path = PathBuf::from(var(around, name)?);
    let text = (around.read)(&path).of(|| format!("{name}: {}", path.display()))?;
    Ok((path, text))
}

/// A list that makes no sense.
fn invalid(source_of_hosts: impl std::fmt::Display, why: impl std::fmt::Display) -> Error {
    Error::InvalidHosts { source_of_hosts: source_of_hosts.to_string(), why: why.to_string() }
}

/// Words as they are to be.
fn words_of<'a>(
    words: impl IntoIterator<Item = &'a str>,
    rest: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    words.into_iter().map(OsString::from).chain(rest).collect()
}

#[cfg(test)]
mod tests;
