//! The end of a job on this node, for epilogs and for whoever finds what a killed one has left: its processes end, its directories go.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use skiff_env::job_records::JobFigures;
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::Result;
use skiff_spec::job::names::{JOBS, TEMPORARY};
use skiff_user::context::UserContext;

use crate::job::USER;
use crate::stop::stop_job;
use crate::{metrics, tmp_quota, trash};

/// How long it may take to note in the depot what became of the job's changes, beside the time that keeping them may take.
const NOTING: Duration = Duration::from_secs(20);

/// How long the end of a job may take.
#[derive(Clone, Copy)]
pub struct EndLimits {
    /// To end its processes.
    ending: Duration,
    /// To keep what was changed on this node, and to note that.
    keeping: Duration,
    /// To remove what the job's user has left on the disk, be it millions of files.
    removing: Duration,
    /// Whether directories stay of what does not end.
    leaves_running: bool,
}

impl EndLimits {
    /// In the job's own epilog, or where nobody else's job waits.
    pub fn own(context: &UserContext) -> Self {
        Self {
            ending: Duration::from_secs(60),
            keeping: skiff_env::commit::time_limit(context) + NOTING,
            removing: Duration::from_secs(10),
            leaves_running: false,
        }
    }

    /// In the prolog of the same job, requeued, which the plug-in ends after a minute.
    pub const IN_PROLOG: Self = Self {
        ending: Duration::from_secs(10),
        keeping: Duration::from_secs(15),
        removing: Duration::from_millis(200),
        leaves_running: false,
    };

    /// In the epilog of another job, for which another user waits. What does not end is left to be found again.
    pub fn in_anothers(context: &UserContext) -> Self {
        Self {
            ending: Duration::from_secs(10),
            removing: Duration::from_millis(200),
            leaves_running: true,
            ..Self::own(context)
        }
    }
}

/// Removes a job's directories; adds to `job_dirs` where they were, if that is elsewhere.
pub fn remove_job(
    context: &UserContext,
    id: u32,
    job_dirs: &mut Vec<TrustedDir>,
    limits: EndLimits,
) -> Result<()> {
    let jobs = TrustedDir::find(Path::new(JOBS), 0)?;
    let name = id.to_string();
    let links = match &jobs {
        Some(jobs) => add_linked(jobs, &name, job_dirs),
        None => Ok(()),
    };
    let removed =
        job_dirs.iter().map(|dir| remove_user_dir(context, dir, id, limits)).fold(links, Result::and);
    if limits.leaves_running && removed.is_err() {
        return removed;
    }
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

fn remove_user_dir(
    context: &UserContext,
    job_dirs: &TrustedDir,
    id: u32,
    EndLimits { ending, keeping, removing, leaves_running }: EndLimits,
) -> Result<()> {
    let name = id.to_string();
    let Some((user_dir, owner)) = trash::opened(job_dirs, name.as_ref())? else { return Ok(()) };
    // Its user decides what is in there, and whether that can be asked to end; not, whether it stays.
    let (figures, stopped) = stop_job(id, &user_dir, &owner, (ending, keeping));
    if leaves_running && stopped.is_err() {
        return stopped;
    }
    count(context, &figures);
    trash::discard(job_dirs, name.as_ref(), owner.st_uid)?;
    tmp_quota::forget(user_dir.as_fd());
    if !trash::empty_of(job_dirs, owner.st_uid, removing)? {
        let (seconds, uid) = (removing.as_secs_f64(), owner.st_uid);
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
