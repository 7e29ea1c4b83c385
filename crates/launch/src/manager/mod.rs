//! Who manages the hosts: where their list is, and by what means programs get started on them.

mod gridengine;
mod lsf;
mod pbs;
mod slurm;
mod ssh;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_spec::fault::{Context, Fault, Result};

use crate::hosts::{self, Host};

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
    pub way: Way,
    /// For which hosts it is, by their numbers.
    pub hosts: Vec<usize>,
}

/// How agents and head get to talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// By the launcher's standard input and output, which are the agent's.
    Pipes,
    /// The agent calls back; what it needs for that comes by its standard input.
    CallBack,
    /// The agent calls back; what it needs for that is in a file that only its owner can read, as the launcher passes no input on.
    CallBackByFile,
}

/// Finds the manager and its hosts; those of a file, if one is named.
///
/// # Errors
/// When there is none, or what it says of its hosts makes no sense.
pub fn find(around: &Surroundings<'_>, file: Option<&Path>) -> Result<(Manager, Vec<Host>)> {
    let manager = match file {
        Some(_) => Manager::Ssh,
        None => {
            detect(&|name| (around.var)(name).is_some_and(|value| !value.is_empty())).ok_or_else(|| {
                Fault::new("no hosts: not in an allocation of Slurm, PBS, LSF or Grid Engine").hint(
                    "run it in a job (`sbatch -N2 --wrap '...'`), or name a file of hosts: --hostfile FILE",
                )
            })?
        }
    };
    let hosts = match (manager, file) {
        (Manager::Ssh, file) => ssh::hosts(around, file.unwrap_or(Path::new(""))),
        (Manager::Slurm, _) => slurm::hosts(around),
        (Manager::Pbs, _) => pbs::hosts(around),
        (Manager::Lsf, _) => lsf::hosts(around),
        (Manager::GridEngine, _) => gridengine::hosts(around),
    }?;
    match hosts.iter().find(|host| !hosts::is_name(&host.name)) {
        _ if hosts.is_empty() => Err(Fault::new("no hosts: the list of them is empty")),
        Some(odd) => Err(Fault::new(format!("host {:?}: no name of a host", odd.name))),
        None => Ok((manager, hosts)),
    }
}

/// Whether there is one, given which variables say something.
#[must_use]
pub fn is_allocation(is_set: &dyn Fn(&str) -> bool) -> bool {
    detect(is_set).is_some()
}

/// Slurm first: it comes with commands of PBS and LSF, and then sets their variables beside its own.
fn detect(is_set: &dyn Fn(&str) -> bool) -> Option<Manager> {
    [
        (Manager::Slurm, &["SLURM_JOB_ID", "SLURM_JOB_NODELIST"][..]),
        (Manager::Pbs, &["PBS_JOBID", "PBS_NODEFILE"]),
        (Manager::Lsf, &["LSB_JOBID", "LSB_HOSTS|LSB_MCPU_HOSTS|LSB_DJOB_HOSTFILE"]),
        (Manager::GridEngine, &["JOB_ID", "PE_HOSTFILE"]),
    ]
    .into_iter()
    .find(|(_, names)| names.iter().all(|any| any.split('|').any(is_set)))
    .map(|(manager, _)| manager)
}

impl Manager {
    /// What starts `agent` on these hosts: all at once, by as few processes as the manager allows.
    #[must_use]
    pub fn launches(self, around: &Surroundings<'_>, hosts: &[Host], agent: &[OsString]) -> Vec<Launch> {
        match self {
            Self::Slurm => vec![slurm::launch(hosts, agent)],
            Self::Pbs => pbs::launches(around, hosts, agent),
            Self::Lsf => one_each(around, hosts, agent, &lsf::words),
            Self::GridEngine => one_each(around, hosts, agent, &gridengine::words),
            Self::Ssh => one_each(around, hosts, agent, &ssh::words),
        }
    }

    /// As people know it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Lsf => "LSF",
            Self::GridEngine => "Grid Engine",
            Self::Ssh => "ssh",
        }
    }
}

/// One process for each host; for this one, the agent itself.
fn one_each(
    around: &Surroundings<'_>,
    hosts: &[Host],
    agent: &[OsString],
    words: &dyn Fn(&Host, &[OsString]) -> Vec<OsString>,
) -> Vec<Launch> {
    let launch = |(at, host): (usize, &Host)| {
        let argv = if hosts::is_here(&host.name, &around.here) { agent.to_vec() } else { words(host, agent) };
        Launch { argv, without: vec![], way: Way::Pipes, hosts: vec![at] }
    };
    hosts.iter().enumerate().map(launch).collect()
}

/// The value of a variable.
fn var(around: &Surroundings<'_>, name: &str) -> Result<String> {
    (around.var)(name).ok_or_else(|| {
        Fault::new(format!("{name}: not set, though this is a job"))
            .hint("has the job changed its variables?")
    })
}

/// The file that a variable names.
fn file(around: &Surroundings<'_>, name: &str) -> Result<(PathBuf, String)> {
    let path = PathBuf::from(var(around, name)?);
    let text = (around.read)(&path).context(|| format!("{name}: {}", path.display()))?;
    Ok((path, text))
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
