//! What is known of a process that is to be saved.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skiff_spec::fault::Result;
use skiff_sys::{IgnoreError, ns};

use super::{Obstacle, links, number_inside, text};
use crate::attributes::ThreadAttributes;
use crate::locks::{self, FileLock, LockKind};
use crate::socket_options::{self, NewSockets, SocketOption};
use crate::timers::{self, ExpiredTimer};

/// One process of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedProcess {
    /// PID inside.
    pub pid: i32,
    /// PID of the parent.
    pub parent: i32,
    /// Short name of the process (`comm`).
    pub name: String,
    /// The numbers of its threads, its own first.
    pub threads: Vec<i32>,
    /// Memory of its own, in bytes.
    pub memory: u64,
    /// How many files and devices it has open.
    #[serde(default)]
    pub files: usize,
    /// How many sockets.
    #[serde(default)]
    pub sockets: usize,
    /// What its threads have of the scheduler's and the kernel's that CRIU does not save, where it is not the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<ThreadAttributes>,
    /// Milliseconds of processor time that it and the children that it has waited for have used. It counts from zero again.
    #[serde(default)]
    pub processor_ms: u64,
    /// What it has locked of files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<FileLock>,
    /// Timers of its descriptors that have expired and not been read since, and are to expire again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<ExpiredTimer>,
    /// Options of its sockets that CRIU does not save, where they are not as a new socket has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub socket_options: Vec<SocketOption>,
}

/// The process of this number out here, if it has not ended.
pub(super) fn read(outer: i32) -> Option<SavedProcess> {
    let status = text(format!("/proc/{outer}/status")).ok()?;
    let parent = last_number(&status, "PPid:").and_then(number_inside).unwrap_or(0);
    let mut threads: Vec<i32> = fs::read_dir(format!("/proc/{outer}/task"))
        .ok()?
        .flatten()
        .filter_map(|task| ns::number_inside(&text(task.path().join("status")).ok()?))
        .collect();
    threads.sort_unstable();
    let (mut files, mut sockets) = (0, 0);
    for fd in fs::read_dir(format!("/proc/{outer}/fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(fd.path()).default_on_error("one that is just being closed is none");
        files += usize::from(target.is_absolute());
        sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
    }
    Some(SavedProcess {
        files,
        sockets,
        attributes: vec![],
        pid: ns::number_inside(&status)?,
        parent,
        name: field(&status, "Name:")?.to_owned(),
        threads,
        processor_ms: processor_ms(&text(format!("/proc/{outer}/stat")).ok()?).unwrap_or_default(),
        locks: vec![],
        timers: vec![],
        socket_options: vec![],
        memory: (number(&status, "RssAnon:") + number(&status, "RssShmem:") + number(&status, "VmSwap:"))
            << 10,
    })
}

/// In which the kernel tells processor time, whatever it counts itself. Source: `USER_HZ` of x86-64 and of 64-bit ARM.
const TICKS_A_SECOND: u64 = 100;

/// Milliseconds of processor time by the text of `/proc/PID/stat`, whose second field may hold anything: its own and its children's, as a program
/// and for it as the system.
fn processor_ms(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().filter_map(|ticks| ticks.parse::<u64>().ok());
    Some(ticks.sum::<u64>().saturating_mul(1000 / TICKS_A_SECOND))
}

/// What is said of the processor time that these processes have used; nothing where it is too little to be seen.
#[must_use]
pub fn lost_processor_time(processes: &[SavedProcess]) -> Option<String> {
    let all = processes.iter().map(|process| process.processor_ms).fold(0, u64::saturating_add);
    let (seconds, tenths) = (all / 1000, all % 1000 / 100);
    (all >= 100).then(|| {
        format!("processor time used so far, {seconds}.{tenths} s, is not kept: times(2) and RLIMIT_CPU count from zero again")
    })
}

/// Timers of a process that stands still which CRIU would take for such as are not to expire any more.
pub(super) fn unread_timers(outer: i32) -> Vec<ExpiredTimer> {
    let is_timer = |(_, link): &(PathBuf, String)| link == "anon_inode:[timerfd]";
    let number = |(path, _): (PathBuf, String)| path.file_name()?.to_str()?.parse().ok();
    let all = links(outer).into_iter().filter(is_timer).filter_map(number);
    all.filter_map(|fd| timers::expired(outer, fd)).collect()
}

/// The options of a process's sockets that CRIU does not save.
pub(super) fn changed_options(outer: i32, new: &mut NewSockets<'_>) -> Result<Vec<SocketOption>> {
    let sockets = links(outer).into_iter().filter(|(_, link)| link.starts_with("socket:"));
    let number = |(path, _): (PathBuf, String)| path.file_name()?.to_str()?.parse().ok();
    let sockets: Vec<i32> = sockets.filter_map(number).collect();
    if sockets.is_empty() {
        return Ok(vec![]);
    }
    let groups = socket_options::groups(|name| {
        text(format!("/proc/{outer}/net/{name}"))
            .default_on_error("a kernel without IPv6 has half of the tables")
    });
    let changed = sockets.into_iter().map(|fd| new.differ(outer, fd, &groups));
    changed.collect::<Result<Vec<_>>>().map(|changed| changed.concat())
}

/// The options of the sockets of these processes that are to be set again, each with its process.
#[must_use]
pub fn socket_options(processes: &[SavedProcess]) -> Vec<(i32, SocketOption)> {
    let of = |process: &SavedProcess| {
        let pid = process.pid;
        process.socket_options.clone().into_iter().map(move |option| (pid, option))
    };
    processes.iter().flat_map(of).collect()
}

/// The locks of these processes that belong to open file descriptions, each with its process.
#[must_use]
pub fn description_locks(processes: &[SavedProcess]) -> Vec<(i32, FileLock)> {
    let of = |process: &SavedProcess| {
        let pid = process.pid;
        process.locks.clone().into_iter().map(move |lock| (pid, lock))
    };
    let is_one = |(_, lock): &(i32, FileLock)| matches!(lock.kind, LockKind::Flock | LockKind::Description);
    processes.iter().flat_map(of).filter(is_one).collect()
}

/// The timers of these processes that are to be wound again, each with its process.
#[must_use]
pub fn expired_timers(processes: &[SavedProcess]) -> Vec<(i32, ExpiredTimer)> {
    let of = |process: &SavedProcess| {
        let pid = process.pid;
        process.timers.clone().into_iter().map(move |timer| (pid, timer))
    };
    processes.iter().flat_map(of).collect()
}

/// What a process has locked of files; what nobody can hand over goes to `bound`.
pub(super) fn held_locks(
    outer: i32,
    process: &SavedProcess,
    bound: &mut Vec<(Obstacle, Option<PathBuf>)>,
) -> Vec<FileLock> {
    let mut held = vec![];
    for (path, link) in links(outer).into_iter().filter(|(_, link)| link.starts_with('/')) {
        let Some(fd) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        let info = text(format!("/proc/{outer}/fdinfo/{fd}")).default_on_error("it has just been closed");
        for lock in locks::parse(fd, &link, &info) {
            let kind = match lock.kind {
                LockKind::Process => "a lock of its own (fcntl)",
                LockKind::Lease => "a lease",
                LockKind::Flock | LockKind::Description => "",
            };
            if !kind.is_empty() {
                let why =
                    format!("{kind} on {link}, which cannot be handed over; try again once it has none");
                let obstacle = Obstacle { pid: process.pid, name: process.name.clone(), why };
                bound.push((obstacle, locks::mount_place(outer, &info)));
            }
            held.push(lock);
        }
    }
    held
}

pub(super) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn last_number(status: &str, name: &str) -> Option<i32> {
    field(status, name)?.split_whitespace().last()?.parse().ok()
}

pub(super) fn number(status: &str, name: &str) -> u64 {
    field(status, name).and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_process_and_its_children() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 100 50 0 10 15 16";
        assert_eq!(processor_ms(stat), Some(1600));
        assert_eq!(processor_ms("7 (a) S 1 2"), None);
        let own = i32::try_from(std::process::id()).expect("a number");
        let process = read(own).expect("there");
        let with = |processor_ms| lost_processor_time(&[SavedProcess { processor_ms, ..process.clone() }]);
        assert_eq!(with(99), None);
        assert!(with(1600).is_some_and(|text| text.contains("1.6 s")));
    }

    #[test]
    fn locks_that_nobody_can_hand_over_are_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let held = file.as_file();
        rustix::fs::flock(held, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        let own = i32::try_from(std::process::id()).expect("a number");
        let process = read(own).expect("there");
        let locks = |bound: &mut Vec<_>| {
            let name = file.path().to_string_lossy().into_owned();
            held_locks(own, &process, bound).into_iter().filter(|lock| lock.file == name).collect::<Vec<_>>()
        };
        let mut bound = vec![];
        assert!(matches!(&locks(&mut bound)[..], [FileLock { kind: LockKind::Flock, exclusive: true, .. }]));
        let before = bound.len();
        let second = file.reopen().expect("opened");
        let _kept = rustix::fs::fcntl_lock(&second, rustix::fs::FlockOperation::LockExclusive);
        assert!(locks(&mut bound).iter().any(|lock| lock.kind == LockKind::Process));
        assert!(bound.len() > before);
    }
}
