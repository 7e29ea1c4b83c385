//! What jobs have left on a node whose epilog was killed, or never ran: found and removed by the epilogs of later jobs with an environment, and
//! by `skiff sweep`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skiff_env::deploy::until;
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{JOB_ENDED, JOBS};
use skiff_user::context::UserContext;

use crate::job::dir;
use crate::job_dirs::{JobDirs, numbered};
use crate::job_end::{EndLimits, remove_job};
use crate::job_locks::JobLocks;
use crate::queue::squeue;
use crate::stepd::jobs_with_steps;
use crate::trash;

/// An epilog asks of no more jobs whether they have ended.
const MOST: usize = 4;
/// How long Slurm's controller is waited for.
const ANSWER: Duration = Duration::from_secs(10);
/// An epilog that has taken so long leaves the rest to the next one: the node waits for it.
const ENOUGH: Duration = Duration::from_secs(30);
/// What squeue says of a job that the controller no longer knows.
const FORGOTTEN: &str = "Invalid job id";

/// The jobs that have directories on this node, with one of these. `job_dirs`: those of [`JobDirs::find`].
fn jobs_here(job_dirs: &[TrustedDir]) -> Result<BTreeMap<u32, PathBuf>> {
    let mut jobs = BTreeMap::new();
    // Where a job has both, the directory in /run is the one to be shown.
    for parent in job_dirs.iter().chain(&TrustedDir::find(Path::new(JOBS), 0)?) {
        jobs.extend(numbered(parent)?.into_iter().map(|id| (id, parent.path_of(id.to_string()))));
    }
    Ok(jobs)
}

/// Removes what jobs that are no longer here have left; gives their directories.
pub fn sweep_jobs(context: &UserContext, dry_run: bool) -> Result<Vec<PathBuf>> {
    // What one directory that is not to be trusted holds is left; the others are swept all the same.
    let (mut job_dirs, found) = JobDirs::find(context);
    let mut jobs = jobs_here(&job_dirs)?;
    let left = job_dirs.iter().map(trash::left).collect::<Result<Vec<_>>>()?.concat();
    if !jobs.is_empty() {
        let locks = JobLocks::open()?;
        let mut free = BTreeSet::new();
        for id in jobs.keys() {
            // What another process has is not left.
            if locks.try_take(*id)? {
                free.insert(*id);
            }
        }
        let alive = living_jobs()?;
        jobs.retain(|id, _| free.contains(id) && !alive.contains(id));
        // A step may bring an environment into a job that lives, and waits for its lock then.
        free.iter().filter(|id| !jobs.contains_key(id)).try_for_each(|id| locks.give_back(*id))?;
        if !dry_run {
            // What one user's job has left keeps nobody's from being removed.
            let limits = EndLimits::own(context);
            let mut remove = |id: &u32| match has_ended(*id) {
                // It may have begun anew meanwhile.
                Ok(true) => remove_job(context, *id, &mut job_dirs, limits).and(locks.give_back(*id)),
                other => other.map(drop).and(locks.give_back(*id)),
            };
            let removed: Vec<Result<()>> = jobs.keys().map(&mut remove).collect();
            removed.into_iter().collect::<Result<()>>()?;
        }
    }
    if !dry_run {
        job_dirs.iter().map(|dir| trash::empty(dir, None).map(drop)).fold(Ok(()), Result::and)?;
    }
    found?;
    Ok(jobs.into_values().chain(left).collect())
}

/// In the epilog of job `own`, which began at `begun`: removes what others have left whose epilog had begun and was killed. Of one that never ran
/// nothing says that its job is over, but Slurm's controller, which `skiff sweep` asks.
pub fn sweep_others(
    context: &UserContext,
    (own, begun): (u32, Instant),
    locks: &JobLocks,
    job_dirs: &mut Vec<TrustedDir>,
) -> Result<()> {
    let mut suspects = vec![];
    for id in jobs_here(job_dirs)?.into_keys().filter(|id| *id != own) {
        if TrustedDir::find(&dir(id), 0)?
            .is_some_and(|here| here.stat(JOB_ENDED).is_ok_and(|noted| noted.is_some()))
        {
            suspects.push(id);
        }
    }
    if suspects.is_empty() {
        return Ok(());
    }
    let at_work = jobs_with_steps();
    suspects.retain(|id| !at_work.contains(id));
    for id in suspects.into_iter().take(MOST) {
        if begun.elapsed() >= ENOUGH {
            break;
        }
        // Before it is asked for: what begins it anew waits.
        if !locks.try_take(id)? {
            continue;
        }
        let swept = match has_ended(id) {
            Ok(true) => remove_job(context, id, job_dirs, EndLimits::in_anothers(context)),
            other => other.map(drop),
        };
        // What one job has left keeps nobody's from being removed.
        if let Err(e) = locks.give_back(id).and(swept) {
            output::complain(&e);
        }
    }
    Ok(())
}

/// Whether a job has ended. One that waits to begin anew has not: it may begin at any moment, and what it finds is its own then. Nobody knows
/// where there is no squeue.
fn has_ended(id: u32) -> Result<bool> {
    // (An array's number stands for all its jobs.)
    let lives = |said: String| {
        let mut jobs = said.lines().filter_map(|line| line.trim().split_once(' '));
        jobs.any(|(job, state)| {
            job == id.to_string() && (state.trim() == "PD" || living(&format!("{job} {state}")).is_some())
        })
    };
    let ask = || Ok(squeue(&[&format!("--jobs={id}"), "--format=%A %t"])?.map(lives));
    let unanswered = || Error::new(format!("squeue: no answer within {} s", ANSWER.as_secs()));
    match until(Instant::now() + ANSWER, ask) {
        Ok(Some(Some(lives))) => Ok(!lives),
        Ok(Some(None)) => Ok(false),
        Ok(None) => Err(unanswered()),
        Err(e) if e.message.contains(FORGOTTEN) => Ok(true),
        Err(e) => Err(e),
    }
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
