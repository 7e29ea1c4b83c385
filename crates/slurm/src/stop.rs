//! Ends, as a job's user, what is left of the job on this node. The user decides what is found there, so a process of that user looks at it.
//!
//! That process comes from root and cannot be traced: it is never dumpable as the user's, and starts no program, since `execve` would make it
//! dumpable again. Whoever could trace it would run code outside of every job, in slurmd's cgroup, with descriptors of root's.
//!
//! Nor can the user send it signals: who stops it would hold up the node. The kernel lets a process be signalled by whoever has its real or saved
//! uid, so these are ones that nobody has, and only the effective uid is the user's: by that files are opened, sockets say who their peer is, and
//! the job's processes are killed. From here on it has no capability, and to become that nobody is all that the other two let it do. (A PID
//! namespace would not do: the processes of the outer one, the user's among them, see and signal those in it.)

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Stat, Uid};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, fchdir, getpid, getppid, pidfd_send_signal,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use skiff_env::job_records::JobFigures;
use skiff_ipc::{Descriptors, ReportingChild};
use skiff_sandbox::start::detach_stdio;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::CloneFlags;

use crate::job_supervisor;

/// Most memory of the process, in bytes: names that the user has made count as root's.
const MEMORY: u64 = 256 << 20;
/// No reason for a failure is longer, in characters.
const LONGEST: usize = 4 << 10;

/// A uid that no process and no file of anybody's has: 2^32 - 2, by which the helper calls `getent`, too.
const NOBODY: u32 = u32::MAX - 1;

/// A user that a process becomes.
#[derive(Clone, Copy, Debug)]
pub struct UserIds {
    pub uid: u32,
    pub gid: u32,
}

impl UserIds {
    /// The owner of a file.
    pub fn of(owner: &Stat) -> Self {
        Self { uid: owner.st_uid, gid: owner.st_gid }
    }
}

/// Until when the end of a job may take, in all its directories.
#[derive(Clone, Copy)]
pub struct StopTimes {
    /// Until its processes have ended.
    pub ended: Instant,
    /// Where changes are to be kept: until that is done.
    pub kept: Instant,
    /// The same, until it is noted, too.
    pub noted: Instant,
    /// Whether what keeps changes longer than that goes on.
    pub leaves_keeping: bool,
}

impl StopTimes {
    /// When all is to be done.
    pub fn limit(&self, keeps_changes: bool) -> Instant {
        if keeps_changes { self.noted } else { self.ended }
    }
}

/// Ends all that runs of a job; its sockets are in the user's part of the job's directory, `user_dir`. Gives the job's figures beside what failed.
pub fn stop_job(job: u32, user_dir: &OwnedFd, owner: &Stat, times: StopTimes) -> (JobFigures, Result<()>) {
    let what = || format!("job {job}: ending what is left of it as user {}", owner.st_uid);
    let failed = |why: String| Error::new(format!("{}: {why}", what()));
    let (begun, root) = (Instant::now(), getpid());
    let (name, flags, kept) = ("its process", CloneFlags::NONE, [user_dir.as_fd()]);
    let keeps = ReportingChild::begin(name, flags, Descriptors::Only(&kept), || {
        as_user(root, Some(user_dir.as_fd()), UserIds::of(owner), job_supervisor::keeps_changes)
    });
    // Who only says that changes are to be kept holds up the end of their own job.
    let keeps = keeps.and_then(|child| child.end_by(times.ended));
    let limit = times.limit(matches!(keeps, Ok(Some(true))));
    let stop = || job_supervisor::stop_job(times.kept, times.leaves_keeping);
    let stopped = ReportingChild::begin(name, flags, Descriptors::Only(&kept), || {
        as_user(root, Some(user_dir.as_fd()), UserIds::of(owner), stop)
    });
    let stopped = stopped.and_then(|child| child.end_by(limit));
    let (figures, why) = outcome(stopped, limit.saturating_duration_since(begun));
    (figures, why.map_or(Ok(()), |why| Err(failed(plain(&why)))))
}

/// The figures, if there are any, and what failed.
fn outcome(
    ended: Result<Option<(JobFigures, Option<String>)>>,
    limit: Duration,
) -> (JobFigures, Option<String>) {
    match ended {
        Ok(Some(outcome)) => outcome,
        Ok(None) => (JobFigures::default(), Some(format!("not done after {} s", limit.as_secs()))),
        Err(e) => (JobFigures::default(), Some(e.message)),
    }
}

/// Kills processes, with no more rights than that user has.
///
/// # Errors
/// No process could become that user.
pub fn kill_as(user: UserIds, processes: &[&OwnedFd], until: Instant) -> Result<()> {
    let (root, name) = (getpid(), "process that ends others");
    let kept: Vec<_> = processes.iter().map(AsFd::as_fd).collect();
    let killed = ReportingChild::begin(name, CloneFlags::NONE, Descriptors::Only(&kept), || {
        as_user(root, None, user, || {
            for process in &kept {
                pidfd_send_signal(process, Signal::KILL)
                    .ignore_error("it has ended, or shows at the next look");
            }
            Ok(())
        })
    });
    killed?.end_by(until).map(drop)
}

/// Does something in the new process, which goes with root's; in that directory of the user's, if there is one.
fn as_user<T>(
    root: Pid,
    user_dir: Option<BorrowedFd<'_>>,
    user: UserIds,
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    detach_stdio();
    let what = || format!("becoming user {}", user.uid);
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let memory = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    let without_mounts = user_dir.map(without_mounts).transpose().context(what)?;
    let become_user = || {
        setrlimit(Resource::As, memory)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        set_no_new_privs(true)?;
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_uids(uid)?;
        // The kernel resets both as the uid changes: the one to `fs.suid_dumpable`, which may be 1, and the other to none.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        match getppid() == Some(root) {
            true => without_mounts.as_ref().map_or(Ok(()), fchdir),
            false => Err(Errno::SRCH),
        }
    };
    become_user().context(what)?;
    act()
}

/// The same directory without what its user has mounted below it, and where they can mount nothing: the server of a FUSE file system could let
/// whoever looks at it wait for ever.
fn without_mounts(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    match open_tree(dir, "", flags) {
        // In some containers nobody mounts anything.
        Err(Errno::PERM) => {
            dir.try_clone_to_owned().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE))
        }
        tree => tree,
    }
}

/// Only the effective uid is the user's, and that of file systems, which follows it.
fn set_uids(uid: Uid) -> rustix::io::Result<()> {
    let nobody = Uid::from_raw(NOBODY);
    match set_thread_res_uid(nobody, uid, nobody) {
        // A container's user namespace may have fewer uids.
        Err(Errno::INVAL) => set_thread_res_uid(uid, uid, uid),
        set => set,
    }
}

/// Names that the user has chosen are not to steer the terminal on which somebody reads root's log.
fn plain(text: &str) -> String {
    text.chars().take(LONGEST).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_count_although_something_did_not_end() {
        let limit = Duration::from_secs(5);
        let some = || (JobFigures { unchanged: 1, ..JobFigures::default() }, Some("busy".to_owned()));
        assert_eq!(outcome(Ok(Some(some())), limit), some());
        assert_eq!(outcome(Ok(None), limit).1.as_deref(), Some("not done after 5 s"));
        assert_eq!(outcome(Err(Error::new("lost")), limit).1.as_deref(), Some("lost"));
    }
}
