//! Terminals that somebody else operates: CRIU saves one only with its master. And those that it could not restore as they are.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::Path;

use super::{Moment, ONCE_IT_HAS, fd_info, links, text};

/// Where the instance's own terminals are.
const DIR: &str = "/dev/pts/";

/// What operates the terminals of the processes that are to be saved.
pub(super) struct Masters {
    processes: Vec<i32>,
    /// The terminals that they operate, if the processes stand still and have been looked at.
    frozen: Option<OnceCell<BTreeSet<u32>>>,
}

impl Masters {
    /// Of these processes, by their numbers out here.
    pub(super) fn of(processes: Vec<i32>, moment: Moment) -> Self {
        let frozen = (moment == Moment::Frozen).then(OnceCell::new);
        Self { processes, frozen }
    }

    /// What is in the way of a descriptor with this link, if it is a terminal that none of the processes operates. If they run, they are looked at
    /// now: a master is always older than what it operates. If they stand still, once is enough.
    pub(super) fn lacking(&self, target: &str) -> Option<String> {
        let number = target.strip_prefix(DIR)?.parse::<u32>().ok()?;
        let is_here = match &self.frozen {
            Some(all) => all.get_or_init(|| self.operated().collect()).contains(&number),
            None => self.operated().any(|one| one == number),
        };
        (!is_here).then(|| {
            format!(
                "terminal {target} (open), operated by what is not saved, as that of an `instance exec` is"
            )
        })
    }

    fn operated(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().flat_map(|outer| operated_by(*outer))
    }
}

/// What is in the way of these processes, which stand still, where their terminal's foreground is a group of which nobody is left: a job has ended, and
/// its shell has not noticed yet. No such group can be made again.
pub(super) fn without_foreground(processes: &[i32]) -> Vec<(i32, String)> {
    let groups = |outer: &i32| {
        let stat = text(format!("/proc/{outer}/stat")).ok()?;
        Some((*outer, ProcessGroups::of(&stat)?))
    };
    lost_foregrounds(&processes.iter().filter_map(groups).collect::<Vec<_>>())
}

/// The process group of a process, and that in the foreground of its terminal: -1 if it has no terminal.
struct ProcessGroups {
    own: i32,
    foreground: i32,
}

impl ProcessGroups {
    /// From `/proc/PID/stat`, in which a name may have any characters but ends with the last parenthesis.
    fn of(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        // State, parent, group, session, terminal, foreground.
        let own = fields.nth(2)?.parse().ok()?;
        Some(Self { own, foreground: fields.nth(2)?.parse().ok()? })
    }
}

fn lost_foregrounds(all: &[(i32, ProcessGroups)]) -> Vec<(i32, String)> {
    let there: BTreeSet<i32> = all.iter().map(|(_, groups)| groups.own).collect();
    let is_lost =
        |(_, groups): &&(i32, ProcessGroups)| groups.foreground > 0 && !there.contains(&groups.foreground);
    let why = format!(
        "the job in the foreground of its terminal has ended, which its shell has not noticed{ONCE_IT_HAS}"
    );
    all.iter().filter(is_lost).map(|(outer, _)| (*outer, why.clone())).collect()
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
    fn a_foreground_without_processes_is_seen() {
        let stat = |pid: i32, group: i32, foreground: i32| {
            let line = format!("{pid} (a) S 1 b) S 7 {group} 10 34816 {foreground} 4194304 99 0");
            (pid, ProcessGroups::of(&line).expect("a line of the kernel's"))
        };
        let shell_waits = [stat(10, 10, 12), stat(12, 12, 12), stat(20, 20, -1)];
        assert_eq!(lost_foregrounds(&shell_waits), []);
        let of_shell = lost_foregrounds(&[stat(10, 10, 12), stat(20, 20, -1)]);
        assert_eq!(of_shell.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [10]);
        let us = i32::try_from(std::process::id()).expect("a number");
        assert!(without_foreground(&[us]).len() <= 1);
    }

    #[test]
    fn a_terminal_of_ours_is_in_nobodys_way_and_one_of_others_is() {
        let (_master, slave) = new_pair([24, 80]).expect("a terminal");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&slave));
        let target = std::fs::read_link(path).expect("its name").to_string_lossy().into_owned();
        let us = i32::try_from(std::process::id()).expect("a number");
        for moment in [Moment::Running, Moment::Frozen] {
            let masters = Masters::of(vec![us], moment);
            assert_eq!([masters.lacking(&target), masters.lacking(&target)], [None, None]);
        }
        let none = Masters::of(vec![], Moment::Frozen);
        let why = none.lacking(&target).expect("an obstacle");
        assert!(why.contains(&target), "{why}");
        for other in ["/dev/pts/ptmx", "/dev/pts/", "/dev/null", "/tmp/dev/pts/0"] {
            assert_eq!(none.lacking(other), None, "{other}");
        }
    }
}
