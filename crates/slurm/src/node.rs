//! Prolog and epilog, as root on a node: a directory for the job that its user may write in, and nothing afterwards. Whatever
//! touches what a user supplied is done by a process of that user.

use std::time::{Duration, Instant};

use rustix::fs::Mode;
use skiff_output as output;
use skiff_site::{TrustedDir, account};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{self, JOB_ENDED, JOB_SPEC_FILE};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::job::{FAILED, SlurmJob, dir, number};
use crate::job_dirs::JobDirs;
use crate::job_end::{EndLimits, remove_job};
use crate::job_locks::{IN_EPILOG, IN_PROLOG, JobLocks};
use crate::leftovers::{forget_try, sweep_others};
use crate::stepd::jobs_with_steps;
use crate::trash;

/// How long an epilog may, in the end, remove what is still on the disk of the jobs of all users.
const OTHERS: Duration = Duration::from_millis(200);

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
    let locks = JobLocks::open()?;
    locks.take(job.id, IN_PROLOG)?;
    let is_jobs = std::env::var_os(names::STEP).is_none();
    if is_jobs {
        remove_earlier_run(&context, job.id)?;
    }
    let dir = JobDirs::make(&context)?.give(job.id, user)?;
    // A step may bring an environment into a job that has none; the others must not find it.
    if is_jobs {
        let line = job.spec.to_line().map_err(|e| Error::new(format!("job {}: {e}", job.id)))?;
        // What a job's user runs in, and what they mount, is nobody else's concern.
        dir.write_for(JOB_SPEC_FILE, line.as_bytes(), user)?;
    }
    Ok(())
}

/// A job that is requeued comes back with its number. The new run must not see the changes of the one before, even where the epilog of that was
/// killed. (slurmd runs a prolog once more for a job that goes on, when it was killed itself: what a job has then stays.)
fn remove_earlier_run(context: &UserContext, id: u32) -> Result<()> {
    let Some(here) = TrustedDir::find(&dir(id), 0)? else { return Ok(()) };
    if here.stat(JOB_ENDED)?.is_some() && !jobs_with_steps().contains(&id) {
        let (mut job_dirs, found) = JobDirs::find(context);
        complain_of(remove_job(context, id, &mut job_dirs, EndLimits::IN_PROLOG).and(found));
    }
    // One that could not be removed belongs to this run from here on.
    match TrustedDir::find(&dir(id), 0)? {
        Some(here) if here.stat(JOB_ENDED)?.is_some() => {
            forget_try(&here)?;
            Ok(here.remove_file(JOB_ENDED)?)
        }
        _ => Ok(()),
    }
}

/// After a job's last step on this node: ends what is left of it and removes its directory.
pub fn epilog() -> Result<()> {
    let (id, begun) = (number(names::JOB_ID)?, Instant::now());
    // Where one is not to be trusted, the prolog has left the job why.
    let context = UserContext::load()?;
    let locks = JobLocks::open();
    // Where there are no locks, nothing is to be waited for. That is told at the end: the job ends all the same.
    if let Ok(locks) = &locks
        && !begin_end(locks, id)?
    {
        return Ok(());
    }
    let (mut job_dirs, found) = JobDirs::find(&context);
    let removed = remove_job(&context, id, &mut job_dirs, EndLimits::own(&context));
    // What other users have left is not this job's failure.
    match &locks {
        Ok(locks) => complain_of(sweep_others(&context, (id, begun), locks, &mut job_dirs)),
        Err(e) => output::complain(e),
    }
    for dir in &job_dirs {
        complain_of(trash::empty(dir, Some(OTHERS)));
    }
    removed.and(found)
}

/// Takes a job's lock to end the job; false if another process has ended it meanwhile. Slurm may run two epilogs of a job at once. With the end of
/// the first one a job that was requeued may begin anew here, and what there is under its number then is not the second one's to remove.
fn begin_end(locks: &JobLocks, id: u32) -> Result<bool> {
    match locks.try_take(id) {
        Ok(false) => {}
        Ok(true) => return Ok(true),
        Err(e) => {
            output::complain(&e);
            return Ok(true);
        }
    }
    let before = TrustedDir::find(&dir(id), 0)?;
    locks.take(id, IN_EPILOG)?;
    // Of a directory that was removed meanwhile nothing is found, and the next run's prolog takes the note away.
    Ok(before.map_or(Ok(None), |before| before.stat(JOB_ENDED))?.is_some())
}

fn complain_of<T>(done: Result<T>) {
    if let Err(e) = done {
        output::complain(&e);
    }
}

/// The job's user and their group, as the job manager says.
fn owner() -> Result<(u32, u32)> {
    let uid = [names::JOB_UID, "SLURM_UID"].iter().find_map(|name| number(name).ok());
    let uid = uid.ok_or_else(|| Error::new(format!("{} is not set", names::JOB_UID)))?;
    let gid = number(names::JOB_GID).ok().or_else(|| account::user(uid).map(|user| user.gid));
    Ok((uid, gid.ok_or_else(|| Error::new(format!("user {uid}: unknown primary group")))?))
}
