//! Locks on files, which CRIU would wait for when it makes processes again: as long as whoever has them, be it the processes that are moved
//! away. So it hears nothing of those that belong to an open file description (`flock`, `F_OFD_SETLK`), which whoever has a copy of the
//! descriptor can change. They are taken again before the processes go on, or that fails.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_sandbox::join::alive;
use skiff_sandbox::mountinfo;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::lock::{self, Lock};
use skiff_sys::process::positive_pid;

/// A lock that a process has on a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileLock {
    /// A descriptor of the file in the process.
    pub fd: i32,
    /// Name of the file as the process sees it.
    pub file: String,
    /// Kind of the lock.
    pub kind: LockKind,
    /// Whether nobody else may have one.
    pub exclusive: bool,
    /// First byte that is locked.
    pub start: u64,
    /// First byte that is no longer; the greatest number if all that follow are.
    pub end: u64,
}

/// Kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockKind {
    /// Of an open file description, on the whole file (`flock(2)`).
    Flock,
    /// Of an open file description, on a range (`F_OFD_SETLK`).
    Description,
    /// Of a process, on a range (`F_SETLK`). No other process can change it.
    Process,
    /// To be asked before others open the file (`F_SETLEASE`).
    Lease,
}

/// What becomes of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockChange {
    /// Exclusive ones are shared ones: whoever takes over can have it, too, and nobody who wants it alone.
    Share,
    /// Each is what it was: exclusive, or shared.
    Take,
    /// There are none.
    Release,
}

/// How long others may keep a lock that is to be had now.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The locks that the text of `/proc/PID/fdinfo/FD` tells of.
pub(crate) fn parse(fd: i32, file: &str, info: &str) -> Vec<FileLock> {
    // `lock:	1: FLOCK  ADVISORY  WRITE 708 08:01:2621 0 EOF`
    let line = |line: &str| {
        let words: Vec<&str> = line.strip_prefix("lock:")?.split_whitespace().collect();
        let [_, kind, _, mode, _, _, start, end] = words[..] else { return None };
        let kind = match kind {
            "FLOCK" => LockKind::Flock,
            "OFDLCK" => LockKind::Description,
            "POSIX" => LockKind::Process,
            "LEASE" | "DELEG" => LockKind::Lease,
            _ => return None,
        };
        let end = match end {
            "EOF" => u64::MAX,
            last => last.parse::<u64>().ok()?.checked_add(1)?,
        };
        let (file, exclusive) = (file.to_owned(), mode == "WRITE");
        Some(FileLock { fd, file, kind, exclusive, start: start.parse().ok()?, end })
    };
    info.lines().filter_map(line).collect()
}

/// Where the file system is mounted that a descriptor's file is on, by the text of its `fdinfo`.
pub(crate) fn mount_place(outer: i32, info: &str) -> Option<std::path::PathBuf> {
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().as_bytes();
    let mounts = mountinfo::parse(&fs::read(format!("/proc/{outer}/mountinfo")).ok()?);
    mounts.into_iter().find(|mount| mount.id == id).map(|mount| mount.place)
}

/// Changes locks of processes inside that stand still, as [`try_change`] does.
///
/// # Errors
/// Another process has one of the locks, or one cannot be changed.
pub fn change(
    inside: EnterTarget<'_>,
    locks: &[(i32, FileLock)],
    to: LockChange,
    limit: Duration,
) -> Result<()> {
    try_change(inside, locks, to, limit)?.map_or(Ok(()), |file| Err(taken_by_another(&file)))
}

/// Changes locks of processes inside that stand still; the file whose lock another has, if one is in the way. `limit` is how long others may
/// keep those that are wanted, all together. A process that has been killed in the meantime needs none.
///
/// # Errors
/// Why a lock cannot be changed.
pub fn try_change(
    inside: EnterTarget<'_>,
    locks: &[(i32, FileLock)],
    to: LockChange,
    limit: Duration,
) -> Result<Option<String>> {
    if locks.is_empty() {
        return Ok(None);
    }
    let until = Instant::now() + limit;
    enter::run(EnterTarget { number: None, ..inside }, &[], || {
        for (pid, wanted) in locks {
            let about = || format!("file {}: lock", wanted.file);
            let Some(file) = copied_of_living(*pid, wanted.fd, to).context(about)? else { continue };
            let attempt = || -> io::Result<_> { Ok(wanted.change(file.as_fd(), to)?.then_some(())) };
            let left = until.saturating_duration_since(Instant::now());
            if lock::within(left, attempt).context(about)?.is_none() {
                return Ok(Some(wanted.file.clone()));
            }
        }
        Ok(None)
    })
}

/// A copy of a process's descriptor; nothing if the process has ended, or if the descriptor is closed and its lock is only to become less.
fn copied_of_living(pid: i32, fd: i32, to: LockChange) -> io::Result<Option<OwnedFd>> {
    let process = match pidfd_open(positive_pid(pid).ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())
    {
        Err(Errno::SRCH) => return Ok(None),
        process => process?,
    };
    match pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()) {
        Ok(copy) => Ok(Some(copy)),
        Err(Errno::SRCH) => Ok(None),
        Err(Errno::BADF) if to != LockChange::Take => Ok(None),
        // Killed, and its parent has not been told: it has no descriptors any more, or may no longer be looked into.
        Err(_) if !alive(process.as_fd()) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// A copy of a process's descriptor.
pub(crate) fn copied(pid: i32, fd: i32) -> io::Result<OwnedFd> {
    let process = positive_pid(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?)
}

/// Checks that nobody has a lock that a process is to have, for which CRIU would wait.
///
/// # Errors
/// Another process has such a lock.
pub fn refuse_taken<'a>(inside: EnterTarget<'_>, held: impl Iterator<Item = &'a FileLock>) -> Result<()> {
    let of_processes: Vec<&FileLock> = held.filter(|lock| lock.kind == LockKind::Process).collect();
    if of_processes.is_empty() {
        return Ok(());
    }
    enter::run(EnterTarget { number: None, ..inside }, &[], || {
        for lock in of_processes {
            // CRIU says it better if the file is not there, or is one without a name.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            // A FIFO that has taken its place would be waited for.
            let opened = File::options().read(true).custom_flags(flags).open(&lock.file);
            let Ok(file) = opened else { continue };
            let conflicts = lock::conflicts(file.as_fd(), lock.start..lock.end, lock.mode());
            if conflicts.context(|| format!("file {}: lock", lock.file))? {
                return Err(taken_by_another(&lock.file));
            }
        }
        Ok(())
    })
}

/// Error: another process has the lock.
#[must_use]
pub fn taken_by_another(file: &str) -> Fault {
    Fault::new(format!("file {file}: another process has the lock that the instance had"))
        .hint("try again once that process has released it")
}

impl FileLock {
    fn mode(&self) -> Lock {
        if self.exclusive { Lock::Exclusive } else { Lock::Shared }
    }

    /// Changes it by a copy of its descriptor; false if another's lock is in the way.
    fn change(&self, file: BorrowedFd<'_>, to: LockChange) -> io::Result<bool> {
        let mode = match to {
            LockChange::Share => Lock::Shared,
            LockChange::Take => self.mode(),
            LockChange::Release => Lock::None,
        };
        if self.kind == LockKind::Description {
            return match lock::set_of_description(file, self.start..self.end, mode) {
                // A file that is open for writing only: nobody can share its lock.
                Err(e) if to == LockChange::Share && Errno::from_io_error(&e) == Some(Errno::BADF) => {
                    Ok(true)
                }
                changed => changed,
            };
        }
        let operation = match mode {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Lock::None => FlockOperation::NonBlockingUnlock,
        };
        match flock(file, operation) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => {
                // What was shared is gone with that: once more, while whoever is in the way still keeps out those who want it alone.
                flock(file, FlockOperation::NonBlockingLockShared)
                    .ignore_error("then another has it alone, and the next attempt fails, too");
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// Whether a file lies where an instance has what goes along with it: `places` are the mounts of its own.
pub(crate) fn is_own(place: Option<&Path>, places: &[&Path]) -> bool {
    place.is_some_and(|place| place == Path::new("/") || places.contains(&place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_each_kind_are_read() {
        let info = "pos:\t0\nflags:\t0100002\nmnt_id:\t29\nino:\t5\n\
            lock:\t1: FLOCK  ADVISORY  WRITE 708 08:01:2621 0 EOF\n\
            lock:\t2: OFDLCK ADVISORY  READ -1 08:01:2621 10 14\n\
            lock:\t3: POSIX  ADVISORY  WRITE 708 00:2f:7 0 0\n\
            lock:\t4: LEASE  ACTIVE    READ 708 00:2f:7 0 EOF\nlock:\t5: junk\n";
        let read = parse(3, "/a b", info);
        let seen: Vec<_> = read.iter().map(|l| (l.kind, l.exclusive, l.start, l.end)).collect();
        assert_eq!(
            seen,
            [
                (LockKind::Flock, true, 0, u64::MAX),
                (LockKind::Description, false, 10, 15),
                (LockKind::Process, true, 0, 1),
                (LockKind::Lease, false, 0, u64::MAX),
            ]
        );
        assert!(read.iter().all(|lock| (lock.fd, &*lock.file) == (3, "/a b")));
    }

    #[test]
    fn a_lock_is_handed_over_and_nobody_else_gets_it_meanwhile() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || File::open(file.path()).expect("opened");
        let lock = FileLock {
            fd: 0,
            file: "a".into(),
            kind: LockKind::Flock,
            exclusive: true,
            start: 0,
            end: u64::MAX,
        };
        let (source, destination, stranger) = (open(), open(), open());
        let change = |of: &File, to| lock.change(of.as_fd(), to).expect("asked");
        for (of, to) in [
            (&source, LockChange::Take),
            (&source, LockChange::Share),
            (&destination, LockChange::Share),
            (&source, LockChange::Release),
            (&destination, LockChange::Take),
        ] {
            assert!(change(of, to), "{to:?}");
            let stranger = flock(&stranger, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(stranger, Err(Errno::AGAIN), "after {to:?}");
        }
        assert!(!change(&source, LockChange::Share), "only one has it");
    }

    #[test]
    fn a_process_that_has_been_killed_needs_no_lock() {
        let copied = |pid: u32, fd, to| copied_of_living(i32::try_from(pid).expect("a number"), fd, to);
        let file = File::open("/dev/null").expect("opened");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let own = std::process::id();
        assert!(copied(own, fd, LockChange::Take).expect("there").is_some());
        let closed = i32::MAX;
        let e = copied(own, closed, LockChange::Take).expect_err("closed");
        assert_eq!(e.raw_os_error(), Some(Errno::BADF.raw_os_error()));
        assert!(copied(own, closed, LockChange::Release).expect("less").is_none());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        child.kill().expect("killed");
        let process = pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty());
        let process = process.expect("there");
        while alive(process.as_fd()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for moment in ["nobody has waited for it", "its number is free"] {
            for to in [LockChange::Take, LockChange::Share, LockChange::Release] {
                assert!(copied(child.id(), 0, to).expect(moment).is_none(), "{moment}: {to:?}");
            }
            child.wait().expect("ended");
        }
    }

    #[test]
    fn what_goes_along_is_told_from_what_stays() {
        let own = [Path::new("/tmp")];
        for (place, is) in [(Some("/"), true), (Some("/tmp"), true), (Some("/home/a"), false), (None, false)]
        {
            assert_eq!(is_own(place.map(Path::new), &own), is, "{place:?}");
        }
    }
}
