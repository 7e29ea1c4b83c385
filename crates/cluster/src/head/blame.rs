//! Whose fault it is that there is no cluster, or none any more: the host, and what was said there.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_sandbox::{Error, Result};

use super::Head;
use super::remote::{Remote, Stage};
use crate::launch::Launcher;

/// How to mend it where no agent comes up.
const NOT_THERE: &str =
    "skiff must be installed at the same place on all hosts; `--dry-run` shows what is run";

impl Head<'_> {
    /// A launcher has ended: with its agents, or instead of them.
    pub(super) fn bury(&mut self, at: usize) -> Result<()> {
        let launcher = &mut self.launchers[at];
        let status = launcher.bury();
        while launcher.errors.is_some() && is_readable(launcher.errors.as_ref()) {
            launcher.hear();
        }
        let gone = launcher.hosts.iter().find(|host| self.remotes[**host].channel.is_none());
        match gone {
            None => Ok(()),
            Some(host) => {
                let name = &self.remotes[*host].name;
                let program = self.task.launches[at].argv[0].to_string_lossy().into_owned();
                let said = launcher.last_words();
                let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                let what = format!("host {name}: {program} could not start anything there ({status}){said}");
                Err(Error::new(what).hint(
                    "skiff must be installed at the same place on all hosts; `--dry-run` shows what is run",
                ))
            }
        }
    }

    pub(super) fn lost(&self, at: usize) -> Error {
        let name = &self.remotes[at].name;
        let launcher = self.launchers.iter().find(|launcher| launcher.hosts.contains(&at));
        let said = launcher.map(Launcher::last_words).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        if !self.remotes[at].is_prepared() {
            return Error::new(format!("host {name}: nothing could be started there{said}")).hint(NOT_THERE);
        }
        Error::new(format!("host {name}: lost; the cluster ends with it{said}"))
    }

    pub(super) fn late(&self) -> Error {
        let is_late = |remote: &&Remote| match (
            &remote.stage,
            &self.door,
            self.remotes.iter().all(Remote::is_prepared),
        ) {
            (Stage::Started, ..) => false,
            (Stage::Prepared(_), _, all_prepared) => all_prepared,
            (Stage::Launched, ..) => true,
        };
        let late: Vec<&str> =
            self.remotes.iter().filter(is_late).map(|remote| remote.name.as_str()).collect();
        let at = self.remotes.iter().position(|remote| Some(&remote.name.as_str()) == late.first());
        let launcher = self.launchers.iter().find(|l| at.is_some_and(|at| l.hosts.contains(&at)));
        let said = launcher.map(Launcher::last_words).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        let started = self.remotes.iter().all(Remote::is_prepared);
        let limit = if started { self.task.start_within } else { self.task.answer_within };
        let (what, plural) = (if started { "start" } else { "answer" }, late.len() > 1);
        let hosts = if plural { "hosts" } else { "host" };
        let does = if plural { "do" } else { "does" };
        Error::new(format!(
            "{hosts} {}: {does} not {what} within {} s{said}",
            late.join(", "),
            limit.as_secs()
        ))
        .hint("is it up, and may it connect to this host? --timeout SECONDS gives it more time")
    }
}

fn is_readable(fd: Option<&impl AsFd>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    fd.is_some_and(|fd| poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)) == Ok(1))
}
