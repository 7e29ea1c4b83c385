//! The processes of a job that are left on this node, by what the kernel says of them. A job's user can rename, move and remove all that is in
//! the job's directory, and can exchange what is found by a name there; so no name leads to a process here.
//!
//! The supervisors of a job, and the processes that watch over its steps, have root's directory of the job (`/run/skiff/jobs/ID`) as their
//! working directory, or hold it open. Where Slurm tracks processes by cgroups, these say the same of every process of the job. A user's
//! process that poses as one of a job ends with that job. It is ended as its user, so nobody deceives anybody else.
//!
//! No file system of a user's is asked for anything: see [`file_of`].

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, fstat, makedev, statx};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use skiff_site::TrustedDir;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::names::JOBS;
use skiff_sys::IgnoreError;
use skiff_sys::process::positive_pid;

use crate::job::dir;
use crate::stop::{UserIds, kill_as};

/// What the name of each of Skiff's processes begins with.
const NAME: &str = "skiff";
/// Skiff's processes open that directory early: it has one of the first numbers.
const MOST_DESCRIPTORS: u32 = 64;
/// At most so many processes are ended at a time; then there is another look.
const MOST_AT_ONCE: usize = 128;
/// How long they are waited for before there is another look.
const DYING: Duration = Duration::from_millis(200);

/// A directory by its device and its number there.
type FileId = (u64, u64);

/// What tells that a process is of a job.
struct JobMark {
    id: u32,
    /// Root's directory of the job, if there is one.
    dir: Option<FileId>,
}

/// A process of a user's, and those that it has made.
struct UserProcess {
    pid: Pid,
    user: UserIds,
    handles: Vec<OwnedFd>,
}

/// Ends all processes of a job that are its user's, and what they hold.
///
/// # Errors
/// Some are left then.
pub fn end_all(id: u32, user: UserIds, until: Instant) -> Result<()> {
    let found = TrustedDir::find(&dir(id), 0)?;
    let stat = found.map(fstat).transpose().context(|| dir(id).display().to_string())?;
    let mark = JobMark { id, dir: stat.map(|stat| (stat.st_dev, stat.st_ino)) };
    end_found(id, user, until, |about| mark.is_on(about))
}

fn end_found(id: u32, user: UserIds, until: Instant, is_wanted: impl Fn(&About) -> bool) -> Result<()> {
    loop {
        let found = processes(|about| about.is_of(user.uid) && is_wanted(about))?;
        let Some(first) = found.first() else { return Ok(()) };
        if Instant::now() >= until {
            let (pid, count) = (first.pid, found.len());
            return Err(Error::new(format!(
                "job {id}: {count} of its processes do not end, the first is {pid}"
            ))
            .hint("one that waits for a dead file server cannot be killed before that answers"));
        }
        let handles: Vec<_> = found.iter().flat_map(|process| &process.handles).collect();
        kill_as(user, &handles, until)?;
        let dying = until.min(Instant::now() + DYING);
        found.iter().filter_map(|process| process.handles.first()).for_each(|handle| wait(handle, dying));
    }
}

/// The jobs of which a supervisor is left, but no directory of root's, and by which users.
///
/// # Errors
/// Processes or that directory cannot be listed.
pub fn orphans() -> Result<BTreeMap<u32, Vec<UserIds>>> {
    let mut jobs: BTreeMap<u32, Vec<UserIds>> = BTreeMap::new();
    let Some(device) = device()? else { return Ok(jobs) };
    let found = processes(|about| about.removed_job(device).is_some())?;
    for process in found {
        let Some(id) = About::read(process.pid).and_then(|about| about.removed_job(device)) else { continue };
        let users = jobs.entry(id).or_default();
        if users.iter().all(|user| user.uid != process.user.uid) {
            users.push(process.user);
        }
    }
    Ok(jobs)
}

/// Ends what is left of a job that has no directory of root's.
///
/// # Errors
/// Some are left then.
pub fn end_orphans(id: u32, users: &[UserIds], until: Instant) -> Result<()> {
    let Some(device) = device()? else { return Ok(()) };
    let end = |user: &UserIds| end_found(id, *user, until, |about| about.removed_job(device) == Some(id));
    users.iter().map(end).fold(Ok(()), Result::and)
}

/// The device of root's directories of jobs.
fn device() -> Result<Option<u64>> {
    let jobs = TrustedDir::find(Path::new(JOBS), 0)?;
    let stat = jobs.map(fstat).transpose().context(|| JOBS)?;
    Ok(stat.map(|stat| stat.st_dev))
}

impl JobMark {
    fn is_on(&self, about: &About) -> bool {
        about.is_in_cgroup_of(self.id)
            || self.dir.is_some_and(|dir| {
                about.name.starts_with(NAME)
                    && about.places().any(|place| file_of(&place).is_some_and(|(found, _)| found == dir))
            })
    }
}

/// What the kernel says of a process.
struct About {
    dir: PathBuf,
    name: String,
    /// The real, the effective and the saved one.
    uids: [u32; 3],
    gid: u32,
}

impl About {
    /// Nothing if it has ended.
    fn read(pid: Pid) -> Option<Self> {
        let dir = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let status = fs::read(dir.join("status")).ok()?;
        Self::parse(dir, &String::from_utf8_lossy(&status))
    }

    /// (The kernel escapes what could be a new line in a name.)
    fn parse(dir: PathBuf, status: &str) -> Option<Self> {
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let numbers = |key: &str| line(key)?.split_whitespace().map(|id| id.parse().ok()).collect();
        let (uids, gids): (Option<Vec<u32>>, Option<Vec<u32>>) = (numbers("Uid:"), numbers("Gid:"));
        let (uids, gid) = (uids?.first_chunk().copied()?, *gids?.first()?);
        let is_alive = !line("State:")?.starts_with(['Z', 'X']);
        is_alive.then_some(Self { dir, name: line("Name:")?.to_owned(), uids, gid })
    }

    /// Whether a process of this user's may end it.
    fn is_of(&self, uid: u32) -> bool {
        let [real, _, saved] = self.uids;
        [real, saved].contains(&uid)
    }

    /// Where a mark would be: its working directory, and its first descriptors.
    fn places(&self) -> impl Iterator<Item = PathBuf> {
        let descriptors = (0..MOST_DESCRIPTORS).map(|number| self.dir.join(format!("fd/{number}")));
        std::iter::once(self.dir.join("cwd")).chain(descriptors)
    }

    fn is_in_cgroup_of(&self, id: u32) -> bool {
        fs::read(self.dir.join("cgroup")).is_ok_and(|text| is_of_job(&String::from_utf8_lossy(&text), id))
    }

    /// The job whose directory of root's it has, where that was removed.
    fn removed_job(&self, device: u64) -> Option<u32> {
        let is_removed =
            |place: &PathBuf| file_of(place).is_some_and(|((found, _), links)| found == device && links == 0);
        let place = self.name.starts_with(NAME).then(|| self.places().find(is_removed)).flatten()?;
        job_of_removed(&fs::read_link(place).ok()?)
    }
}

/// The job of a directory that was removed, by what the kernel calls it: `/run/skiff/jobs/7 (deleted)`.
fn job_of_removed(path: &Path) -> Option<u32> {
    let name = path.strip_prefix(JOBS).ok()?.to_str()?;
    name.strip_suffix(" (deleted)")?.parse().ok()
}

/// Whether `/proc/PID/cgroup` names the cgroup that Slurm makes of a job, as in `0::/system.slice/slurmstepd.scope/job_7/step_0/slurm`, or
/// `4:freezer:/slurm/uid_1000/job_7/step_0`.
fn is_of_job(cgroups: &str, id: u32) -> bool {
    let job = format!("job_{id}");
    cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
        let mut parts = path.split('/').skip_while(|part| !part.contains("slurm"));
        parts.any(|part| part == job)
    })
}

/// The file at a place in `/proc`, and how many names it has. What is known of it will do: a file server that its user runs is not asked.
fn file_of(place: &Path) -> Option<(FileId, u32)> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, place, flags, StatxFlags::INO | StatxFlags::NLINK).ok()?;
    Some(((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino), found.stx_nlink))
}

/// At most [`MOST_AT_ONCE`] processes of users'.
fn processes(is_wanted: impl Fn(&About) -> bool) -> Result<Vec<UserProcess>> {
    let all = fs::read_dir("/proc").context(|| "/proc")?.flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(positive_pid));
    Ok(pids.filter_map(|pid| process(pid, &is_wanted)).take(MOST_AT_ONCE).collect())
}

fn process(pid: Pid, is_wanted: impl Fn(&About) -> bool) -> Option<UserProcess> {
    // Before anything is looked at: what is found is of this process then, not of a later one of its number.
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let about = About::read(pid).filter(|about| about.uids[0] != 0 && is_wanted(about))?;
    let children = fs::read_to_string(about.dir.join(format!("task/{}/children", pid.as_raw_nonzero())));
    let children = children.default_on_error("a process that is gone has none");
    let children =
        children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok().and_then(positive_pid));
    // Without process 1 a supervisor cleans up by itself.
    let handles =
        children.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).take(MOST_DESCRIPTORS as usize);
    let handles = std::iter::once(handle).chain(handles).collect();
    Some(UserProcess { pid, user: UserIds { uid: about.uids[0], gid: about.gid }, handles })
}

fn wait(process: &OwnedFd, until: Instant) {
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
    // Whether it has ended shows at the next look.
    let _ended = poll(&mut [PollFd::new(process, PollFlags::IN)], left.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_says_by_a_cgroup_of_which_job_a_process_is() {
        for (text, is) in [
            ("0::/system.slice/slurmstepd.scope/job_7/step_0/slurm\n", true),
            ("0::/system.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0\n", true),
            ("5:memory:/\n4:freezer:/slurm/uid_1000/job_7/step_batch\n", true),
            ("0::/system.slice/slurmstepd.scope/job_77/step_7/slurm\n", false),
            ("0::/user.slice/user-1000.slice/job_7\n", false),
            ("0::/job_7/slurm\n", false),
            ("", false),
        ] {
            assert_eq!(is_of_job(text, 7), is, "{text:?}");
        }
    }

    #[test]
    fn a_removed_directory_says_of_which_job_it_was() {
        for (path, job) in [
            ("/run/skiff/jobs/7 (deleted)", Some(7)),
            ("/run/skiff/jobs/7", None),
            ("/run/skiff/jobs/x (deleted)", None),
            ("/run/skiff/jobs/7/user (deleted)", None),
            ("/home/bob/7 (deleted)", None),
        ] {
            assert_eq!(job_of_removed(Path::new(path)), job, "{path}");
        }
    }

    #[test]
    fn what_the_kernel_says_of_a_process() {
        let status = "Name:\tskiff-env dev\nState:\tS (sleeping)\nUid:\t7\t8\t9\t8\nGid:\t70\t80\t90\t80\n";
        let about = About::parse(PathBuf::new(), status).expect("understood");
        assert_eq!((about.name.as_str(), about.uids, about.gid), ("skiff-env dev", [7, 8, 9], 70));
        assert_eq!([7, 8, 9].map(|uid| about.is_of(uid)), [true, false, true]);
        assert!(About::parse(PathBuf::new(), &status.replace("S (sleeping)", "Z (zombie)")).is_none());
        assert!(About::parse(PathBuf::new(), "").is_none());
    }
}
