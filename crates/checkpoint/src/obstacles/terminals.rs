//! Terminals that somebody else operates: CRIU saves one only with its master.

use std::collections::BTreeSet;
use std::path::Path;

use super::{fd_info, links};

/// Where the instance's own terminals are.
const DIR: &str = "/dev/pts/";

/// What operates the terminals of the processes that are to be saved.
pub(super) struct Masters {
    processes: Vec<i32>,
}

impl Masters {
    /// Of these processes, by their numbers out here.
    pub(super) fn of(processes: Vec<i32>) -> Self {
        Self { processes }
    }

    /// What is in the way of a descriptor with this link, if it is a terminal that none of the processes operates. They are looked at now: a
    /// master is always older than what it operates.
    pub(super) fn lacking(&self, target: &str) -> Option<String> {
        let number = target.strip_prefix(DIR)?.parse::<u32>().ok()?;
        let is_here = self.processes.iter().any(|outer| operated_by(*outer).contains(&number));
        (!is_here).then(|| {
            format!(
                "terminal {target} (open), operated by what is not saved, as that of an `instance exec` is"
            )
        })
    }
}

/// The numbers of the terminals that a process operates.
fn operated_by(outer: i32) -> BTreeSet<u32> {
    let masters = links(outer).into_iter().filter(|(_, link)| is_maker(link));
    masters.filter_map(|(path, _)| number(&fd_info(outer, &path))).collect()
}

/// Whether a descriptor of this link is a master, or might be.
fn is_maker(link: &str) -> bool {
    Path::new(link).file_name().is_some_and(|name| name == "ptmx")
}

/// The number of the terminal that a master operates. Source: `ptm_show_fdinfo` of Linux.
fn number(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("tty-index:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use skiff_sandbox::terminal::new_pair;

    use super::*;

    #[test]
    fn a_terminal_of_ours_is_in_nobodys_way_and_one_of_others_is() {
        let (_master, slave) = new_pair([24, 80]).expect("a terminal");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&slave));
        let target = std::fs::read_link(path).expect("its name").to_string_lossy().into_owned();
        let us = i32::try_from(std::process::id()).expect("a number");
        assert_eq!(Masters::of(vec![us]).lacking(&target), None);
        let why = Masters::of(vec![]).lacking(&target).expect("an obstacle");
        assert!(why.contains(&target), "{why}");
        for other in ["/dev/pts/ptmx", "/dev/pts/", "/dev/null", "/tmp/dev/pts/0"] {
            assert_eq!(Masters::of(vec![]).lacking(other), None, "{other}");
        }
    }
}
