//! Ends a supervisor that cannot be asked: a program inside may hold up its socket, or have removed it, with all that is in the directory.
//! What the program cannot reach is the supervisor itself, a process of the host's, by which it is known: its name, and that it
//! holds the directory open.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, makedev, openat, statx};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::positive_pid;

/// What every supervisor's name begins with.
const NAME: &str = "skiff-";
/// In its title while it finishes work after its container has ended, for example keeping a job's changes.
const ENDING: &str = "end ";
/// Of no more descriptors is asked what they are, of one process and of all.
const MOST_OF_ONE: usize = 1 << 16;
const MOST_OF_ALL: usize = 1 << 20;
/// How long it may take to clean up when its processes are gone.
const GRACE: Duration = Duration::from_secs(2);
/// How long it may take to be gone.
const DYING: Duration = Duration::from_secs(10);

/// The directory, as a supervisor holds it open.
pub fn mark(dir: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, dir, flags, Mode::empty()).context(|| dir.display().to_string())
}

/// Sets this process's title to `skiff-KIND NAME`.
pub fn name(kind: &str, name: &str) {
    skiff_sys::title::set(&format!("{NAME}{kind} {name}"));
}

/// Sets this process's title to that of a supervisor whose container has ended and that is still finishing.
pub fn name_ending(name: &str) {
    skiff_sys::title::set(&format!("{NAME}{ENDING}{name}"));
}

/// Whether a supervisor holds `dir`.
pub fn is_there(dir: &Path) -> bool {
    !find(dir).is_empty()
}

/// Whether the supervisor of what ran at `dir` was told to end that, and is still at work. It closes its socket before. (Nobody inside can name it so,
/// and another process outside does not stand for it.)
pub fn is_ending(dir: &Path) -> bool {
    let is_named = |process: &Supervisor| {
        let comm = PathBuf::from(format!("/proc/{}/comm", process.pid.as_raw_nonzero()));
        fs::read(comm).is_ok_and(|comm| comm.starts_with(format!("{NAME}{ENDING}").as_bytes()))
    };
    let found = find(dir);
    !found.is_empty() && found.iter().all(is_named)
}

/// Ends the supervisor of what runs at `dir`, with everything inside; whether there was one. Of several processes that are like it, all end.
pub fn end(dir: &Path) -> Result<bool> {
    let found = find(dir);
    found.iter().map(|process| end_one(dir, process)).fold(Ok(()), Result::and)?;
    Ok(!found.is_empty())
}

fn end_one(dir: &Path, Supervisor { pid, handle, .. }: &Supervisor) -> Result<()> {
    // Without them it notes how it ended and cleans up, as always.
    for child in children(*pid) {
        kill(child.as_fd());
    }
    if !has_ended(handle.as_fd(), GRACE) {
        kill(handle.as_fd());
    }
    match has_ended(handle.as_fd(), DYING) {
        true => Ok(()),
        false => Err(Fault::new(format!("{}: its supervisor, process {pid}, does not end", dir.display()))
            .hint("one that waits for a dead file server cannot be killed before that answers")),
    }
}

/// A file by its device and its number there.
type FileId = (u64, u64);

/// What this user's supervisors hold at one moment. To know that of many directories is faster than to look for each.
pub struct HeldDirectories(BTreeSet<FileId>);

impl HeldDirectories {
    /// What they hold now.
    ///
    /// # Errors
    /// The machine's processes cannot be listed.
    pub fn now() -> Result<Self> {
        let supervisors = supervisors().context(|| "/proc")?;
        Ok(Self(supervisors.flat_map(|Supervisor { held, .. }| held).take(MOST_OF_ALL).collect()))
    }

    /// Whether this directory was among them.
    #[must_use]
    pub fn has(&self, dir: &Path) -> bool {
        id(dir, AtFlags::SYMLINK_NOFOLLOW).is_some_and(|found| self.0.contains(&found))
    }
}

/// A process that is one.
struct Supervisor {
    pid: Pid,
    handle: OwnedFd,
    /// The files that it has open.
    held: Vec<FileId>,
}

/// What is known of it will do: a file server that a user runs, and that may not answer, is not asked.
fn id(path: &Path, flags: AtFlags) -> Option<FileId> {
    let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::INO).ok()?;
    Some((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// Supervisors that hold a directory. A user's other processes can be like one.
fn find(dir: &Path) -> Vec<Supervisor> {
    let Some(wanted) = id(dir, AtFlags::empty()) else { return vec![] };
    let Ok(all) = supervisors() else { return vec![] };
    all.filter(|process| process.held.contains(&wanted)).collect()
}

/// This user's supervisors.
fn supervisors() -> io::Result<impl Iterator<Item = Supervisor>> {
    let own_space = fs::read_link("/proc/self/ns/pid")?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok().and_then(positive_pid);
    let numbers = fs::read_dir("/proc")?.flatten().filter_map(number);
    Ok(numbers.filter_map(move |pid| supervisor(pid, &own_space)))
}

fn supervisor(pid: Pid, own_space: &Path) -> Option<Supervisor> {
    let about = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    // (In a node's epilog only the effective uid is the user's.)
    if !fs::metadata(&about).is_ok_and(|found| found.uid() == geteuid().as_raw()) {
        return None;
    }
    // Before anything is looked at: what is found is of this process then, not of a later one of its number.
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let is_named = fs::read(about.join("comm")).is_ok_and(|name| name.starts_with(NAME.as_bytes()));
    // A process inside could call itself so, and hold the directory.
    let is_outside = is_named && fs::read_link(about.join("ns/pid")).is_ok_and(|space| space == own_space);
    let files = is_outside.then(|| fs::read_dir(about.join("fd")).ok()).flatten()?;
    let held = files.flatten().take(MOST_OF_ONE).filter_map(|fd| id(&fd.path(), AtFlags::empty())).collect();
    Some(Supervisor { pid, handle, held })
}

fn children(pid: Pid) -> Vec<OwnedFd> {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .default_on_error("a process that is gone has none");
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok().and_then(positive_pid));
    pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

fn kill(process: BorrowedFd<'_>) {
    pidfd_send_signal(process, Signal::KILL).ignore_error("it may have ended by itself");
}

fn has_ended(process: BorrowedFd<'_>, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::from_borrowed_fd(process, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended.is_ok_and(|count| count > 0),
        }
    }
}
