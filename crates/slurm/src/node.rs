//! Prolog and epilog, as root on a node: a directory for the job that its user may write in, and nothing afterwards. Whatever
//! touches what a user supplied is done by a process of that user.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use skiff_env::job_records::JobFigures;
use skiff_output as output;
use skiff_site::{TrustedDir, account};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{self, JOB_SPEC_FILE, JOBS, TEMPORARY};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::job::{FAILED, SlurmJob, USER, dir, number};
use crate::job_dirs::{JobDirs, numbered};
use crate::queue::squeue;
use crate::stop::stop_job;
use crate::{metrics, tmp_quota, trash};

/// How long an epilog may remove what the job's user has left on the disk, be it millions of files.
const OWN: Duration = Duration::from_secs(10);
/// How long an epilog may then remove what is still on the disk of the jobs of all users.
const OTHERS: Duration = Duration::from_millis(200);
/// How long it may take to note in the depot what became of the job's changes, beside the time that keeping them may take.
const NOTING: Duration = Duration::from_secs(20);

/// Before a job's first step on this node: makes the directories that its user needs. The rest is their steps' work, who have their
/// rights, are accounted to their job and can tell them what fails.
pub fn prolog() -> Result<()> {
    let Some(job) = SlurmJob::from_variables()? else { return Ok(()) };
    // Others' rights to pass through are not slurmd's umask's to decide.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let prepared = prepare(&job);
    if let Err(e) = &prepared {
        // Slurm's log has it in any case.
        let noted = TrustedDir::make(&dir(job.id), 0, 0o755).and_then(|dir| match owner() {
            Ok(user) => dir.write_for(FAILED, &e.to_bytes(), user),
            // It is of nobody's job then.
            Err(_) => dir.write(FAILED, &e.to_bytes(), 0o644),
        });
        noted.ignore_error("Slurm's log has it in any case");
    }
    prepared
}

fn prepare(job: &SlurmJob) -> Result<()> {
    let user = owner()?;
    let context = UserContext::load()?;
    let dir = JobDirs::make(&context)?.give(job.id, user)?;
    // A step may bring an environment into a job that has none; the others must not find it.
    if std::env::var_os(names::STEP).is_none() {
        let line = job.spec.to_line().map_err(|e| Error::new(format!("job {}: {e}", job.id)))?;
        // What a job's user runs in, and what they mount, is nobody else's concern.
        dir.write_for(JOB_SPEC_FILE, line.as_bytes(), user)?;
    }
    Ok(())
}

/// After a job's last step on this node: ends what is left of it and removes its directory.
pub fn epilog() -> Result<()> {
    let id = number(names::JOB_ID)?;
    // Where one is not to be trusted, the prolog has left the job why.
    let context = UserContext::load()?;
    let (mut job_dirs, found) = JobDirs::find(&context);
    let removed = remove_job(&context, id, &mut job_dirs);
    for dir in &job_dirs {
        if let Err(e) = trash::empty(dir, Some(OTHERS)) {
            // Another user's files are not this job's failure.
            output::complain(&e);
        }
    }
    removed.and(found)
}

/// Removes what jobs that are no longer here have left (an epilog that failed, or never ran); gives their directories.
pub fn sweep_jobs(context: &UserContext, dry_run: bool) -> Result<Vec<PathBuf>> {
    // What one directory that is not to be trusted holds is left; the others are swept all the same.
    let (mut job_dirs, found) = JobDirs::find(context);
    let mut jobs: BTreeMap<u32, PathBuf> = BTreeMap::new();
    // Where a job has both, the directory in /run is the one to be shown.
    for parent in job_dirs.iter().chain(&TrustedDir::find(Path::new(JOBS), 0)?) {
        jobs.extend(numbered(parent)?.into_iter().map(|id| (id, parent.path_of(id.to_string()))));
    }
    let left = job_dirs.iter().map(trash::left).collect::<Result<Vec<_>>>()?.concat();
    if !jobs.is_empty() {
        let alive = living_jobs()?;
        jobs.retain(|id, _| !alive.contains(id));
    }
    if !dry_run {
        // What one user's job has left keeps nobody's from being removed.
        let removed = jobs.keys().map(|id| remove_job(context, *id, &mut job_dirs)).fold(Ok(()), Result::and);
        let emptied = job_dirs.iter().map(|dir| trash::empty(dir, None).map(drop));
        emptied.fold(removed, Result::and)?;
    }
    found?;
    Ok(jobs.into_values().chain(left).collect())
}

/// The jobs that may have something on a node, as Slurm says.
fn living_jobs() -> Result<Vec<u32>> {
    let hint =
        "which jobs still run must be known before anything of one is removed: check that squeue works here";
    let missing = || Error::new("squeue: it is not installed, or not in the PATH");
    let said =
        squeue(&["--format=%A %t"]).and_then(|said| said.ok_or_else(missing)).map_err(|e| e.hint(hint))?;
    Ok(said.lines().filter_map(living).collect())
}

/// A line of squeue's: the job's number, if it is one that has begun and has not wholly ended.
fn living(line: &str) -> Option<u32> {
    let (id, state) = line.trim().split_once(' ')?;
    let over = ["PD", "BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "RV", "TO"].contains(&state.trim());
    if over { None } else { id.parse().ok() }
}

/// How long it may take to keep what was changed on this node, and to note that.
fn keeping(context: &UserContext) -> Duration {
    skiff_env::commit::time_limit(context) + NOTING
}

/// Removes a job's directories; adds to `job_dirs` where they were, if that is elsewhere.
fn remove_job(context: &UserContext, id: u32, job_dirs: &mut Vec<TrustedDir>) -> Result<()> {
    let jobs = TrustedDir::find(Path::new(JOBS), 0)?;
    let name = id.to_string();
    let links = match &jobs {
        Some(jobs) => add_linked(jobs, &name, job_dirs),
        None => Ok(()),
    };
    let removed =
        job_dirs.iter().map(|job_dirs| remove_user_dir(context, job_dirs, id)).fold(links, Result::and);
    jobs.map_or(Ok(()), |jobs| remove_all(&jobs, &name)).and(removed)
}

/// What the links say was written by root; what the configuration says now may be another place.
fn add_linked(jobs: &TrustedDir, name: &str, job_dirs: &mut Vec<TrustedDir>) -> Result<()> {
    if jobs.stat(name)?.is_none() {
        return Ok(());
    }
    let job = jobs.dir(name)?;
    let user_dir = job.read_link(USER)?;
    let tmp = job.read_link(TEMPORARY[0].0)?.and_then(|tmp| tmp.parent().map(Path::to_owned));
    for dir in user_dir.iter().chain(&tmp).filter_map(|dir| dir.parent()) {
        if job_dirs.iter().all(|known| known.path() != dir) {
            job_dirs.extend(TrustedDir::find(dir, 0)?);
        }
    }
    Ok(())
}

fn remove_user_dir(context: &UserContext, job_dirs: &TrustedDir, id: u32) -> Result<()> {
    let name = id.to_string();
    let Some((user_dir, owner)) = trash::opened(job_dirs, name.as_ref())? else { return Ok(()) };
    // Its user decides what is in there, and whether that can be asked to end; not, whether it stays.
    let (figures, stopped) = stop_job(id, &user_dir, &owner, keeping(context));
    count(context, &figures);
    trash::discard(job_dirs, name.as_ref(), owner.st_uid)?;
    tmp_quota::forget(user_dir.as_fd());
    if !trash::empty_of(job_dirs, owner.st_uid, OWN)? {
        let (seconds, uid) = (OWN.as_secs(), owner.st_uid);
        output::note(&format!(
            "job {id}: after {seconds} s files of user {uid} are still there; later jobs on this node, or `skiff sweep`, remove them"
        ));
    }
    stopped
}

/// Adds what the job has needed to the node's figures, where the site wants them.
fn count(context: &UserContext, figures: &JobFigures) {
    let dir = Path::new(&context.config.slurm.metrics);
    if dir.as_os_str().is_empty() {
        return;
    }
    if let Err(e) = metrics::add(dir, figures) {
        // Figures are not what a node is drained for.
        output::complain(&e);
    }
}

fn remove_all(jobs: &TrustedDir, name: &str) -> Result<()> {
    // The watcher of a step that has just ended removes its part by itself.
    let mut removed = jobs.remove_tree(name);
    for _ in 0..3 {
        if removed.is_err() {
            removed = jobs.remove_tree(name);
        }
    }
    Ok(removed?)
}

/// The job's user and their group, as the job manager says.
fn owner() -> Result<(u32, u32)> {
    let uid = [names::JOB_UID, "SLURM_UID"].iter().find_map(|name| number(name).ok());
    let uid = uid.ok_or_else(|| Error::new(format!("{} is not set", names::JOB_UID)))?;
    let gid = number(names::JOB_GID).ok().or_else(|| account::user(uid).map(|user| user.gid));
    Ok((uid, gid.ok_or_else(|| Error::new(format!("user {uid}: unknown primary group")))?))
}

#[cfg(test)]
mod tests {
    use super::living;

    #[test]
    fn jobs_that_have_something_on_a_node() {
        let cases =
            [("7 R", Some(7)), ("8 CG", Some(8)), ("9 PD", None), ("10 CD", None), ("", None), ("x R", None)];
        for (line, job) in cases {
            assert_eq!(living(line), job, "{line:?}");
        }
    }
}
