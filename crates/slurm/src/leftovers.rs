//! What jobs have left on a node whose epilog was killed, or never ran: found and removed by the epilogs of later jobs with an environment, and
//! by `skiff sweep`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use skiff_env::time_limit;
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::names::{JOB_ENDED, JOBS};
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::job::dir;
use crate::job_dirs::{JobDirs, numbered};
use crate::job_end::{EndLimits, remove_job};
use crate::job_locks::JobLocks;
use crate::queue::squeue;
use crate::stepd::jobs_with_steps;
use crate::{job_processes, trash};

/// An epilog asks of no more jobs whether they have ended.
const MOST: usize = 4;
/// How long Slurm's controller is waited for.
const ANSWER: Duration = Duration::from_secs(10);
/// An epilog that has taken so long leaves the rest to the next one: the node waits for it.
const ENOUGH: Duration = Duration::from_secs(30);
/// Nor does it take longer than this for all that others have left: its job's user, and whoever is to have the node next, wait.
pub const IN_ALL: Duration = Duration::from_secs(5);
/// What is left of that for one job is of use if it is no less.
const LEAST: Duration = Duration::from_secs(1);
/// In root's directory of a job: that an epilog has tried to remove it, and after how many seconds another is to try again. Each job's user can
/// make that take as long as it may, for each epilog that tries.
const TRIED: &str = "tried";
/// A job that Slurm has not said to be over is asked for again after so many seconds,
const SOON: u64 = 60;
/// and one that was over, and whose processes did not end. By then what has kept changes was killed or is done.
const LATER: u64 = 3600;
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
            let mut remove = |id: &u32| match has_ended(*id, Instant::now() + ANSWER) {
                // It may have begun anew meanwhile.
                Ok(true) => remove_job(context, *id, &mut job_dirs, limits).and(locks.give_back(*id)),
                other => other.map(drop).and(locks.give_back(*id)),
            };
            let removed: Vec<Result<()>> = jobs.keys().map(&mut remove).collect();
            removed.into_iter().collect::<Result<()>>()?;
        }
    }
    let orphans = end_orphans(dry_run)?;
    if !dry_run {
        job_dirs.iter().map(|dir| trash::empty(dir, None).map(drop)).fold(Ok(()), Result::and)?;
    }
    found?;
    Ok(jobs.into_values().chain(orphans).chain(left).collect())
}

/// Ends what is left of jobs that have no directory any more; gives the names that it had.
fn end_orphans(dry_run: bool) -> Result<Vec<PathBuf>> {
    let mut jobs = job_processes::orphans()?;
    if !jobs.is_empty() {
        let alive = living_jobs()?;
        jobs.retain(|id, _| !alive.contains(id));
    }
    if !dry_run {
        let end =
            |(id, users): (&u32, &Vec<_>)| job_processes::end_orphans(*id, users, Instant::now() + ANSWER);
        jobs.iter().map(end).fold(Ok(()), Result::and)?;
    }
    Ok(jobs.into_keys().map(dir).collect())
}

/// The last try to remove what a job has left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tried {
    /// When it was, in seconds since 1970.
    at: u64,
    /// After how many seconds there may be another.
    again_after: u64,
}

impl Tried {
    /// What the note in root's directory of a job says.
    fn of(job: &TrustedDir) -> Result<Option<Self>> {
        let Some(noted) = job.stat(TRIED)? else { return Ok(None) };
        let said = job.read(TRIED)?.unwrap_or_default();
        let at = u64::try_from(noted.st_mtime).unwrap_or(0);
        Ok(Some(Self { at, again_after: again_after(&said) }))
    }
}

fn again_after(said: &[u8]) -> u64 {
    String::from_utf8_lossy(said).trim().parse().unwrap_or(LATER)
}

/// Notes a try, before it is made: who waits for it may be killed.
fn note_try(job: &TrustedDir, again_after: u64) -> Result<()> {
    Ok(job.write(TRIED, again_after.to_string().as_bytes(), 0o644)?)
}

/// Forgets that there was a try.
pub fn forget_try(job: &TrustedDir) -> Result<()> {
    Ok(job.remove_file(TRIED)?)
}

/// The jobs that may be tried now; those last that were tried last, so that none keeps others from their turn.
fn in_turn(mut jobs: Vec<(u32, Option<Tried>)>, now: u64) -> Vec<(u32, Option<Tried>)> {
    // (A try that is yet to come is one before the clock was set back.)
    jobs.retain(|(_, tried)| {
        tried.is_none_or(|tried| tried.at > now || tried.at.saturating_add(tried.again_after) <= now)
    });
    jobs.sort_by_key(|(id, tried)| (tried.map(|tried| tried.at), *id));
    jobs
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
        if let Some(here) = TrustedDir::find(&dir(id), 0)?
            && here.stat(JOB_ENDED).is_ok_and(|noted| noted.is_some())
        {
            suspects.push((id, Tried::of(&here)?));
        }
    }
    let mut suspects = in_turn(suspects, now());
    if suspects.is_empty() {
        return Ok(());
    }
    let at_work = jobs_with_steps();
    suspects.retain(|(id, _)| !at_work.contains(id));
    let until = Instant::now() + IN_ALL;
    let mut asked = 0;
    for (id, tried) in suspects {
        if asked == MOST || begun.elapsed() >= ENOUGH || Instant::now() >= until {
            break;
        }
        // Before it is asked for: what begins it anew waits.
        if !locks.try_take(id)? {
            continue;
        }
        asked += 1;
        let swept = sweep_other(context, (id, tried), until, job_dirs);
        // What one job has left keeps nobody's from being removed.
        if let Err(e) = locks.give_back(id).and(swept) {
            output::complain(&e);
        }
    }
    Ok(())
}

/// Removes what one job has left, if it has ended.
fn sweep_other(
    context: &UserContext,
    (id, tried): (u32, Option<Tried>),
    until: Instant,
    job_dirs: &mut Vec<TrustedDir>,
) -> Result<()> {
    // Whoever had the lock before may have removed it.
    let Some(here) = TrustedDir::find(&dir(id), 0)? else { return Ok(()) };
    note_try(&here, SOON)?;
    if !has_ended(id, until.min(Instant::now() + ANSWER))? {
        return Ok(());
    }
    let left = until.saturating_duration_since(Instant::now());
    if left < LEAST {
        return Ok(());
    }
    note_try(&here, LATER)?;
    let asked_long_ago = tried.is_some_and(|tried| tried.again_after == LATER);
    remove_job(context, id, job_dirs, EndLimits::in_anothers(left, asked_long_ago))
}

/// Whether a job has ended. One that waits to begin anew has not: it may begin at any moment, and what it finds is its own then. Nobody knows
/// where there is no squeue.
fn has_ended(id: u32, until: Instant) -> Result<bool> {
    // (An array's number stands for all its jobs.)
    let lives = |said: String| {
        let mut jobs = said.lines().filter_map(|line| line.trim().split_once(' '));
        jobs.any(|(job, state)| {
            job == id.to_string() && (state.trim() == "PD" || living(&format!("{job} {state}")).is_some())
        })
    };
    let ask = || Ok(squeue(&[&format!("--jobs={id}"), "--format=%A %t"])?.map(lives));
    let begun = Instant::now();
    let unanswered = || {
        Error::new(format!("squeue: no answer about job {id} within {:.0} s", begun.elapsed().as_secs_f64()))
    };
    match time_limit::until("squeue client", until, ask) {
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
    use super::*;

    #[test]
    fn jobs_that_have_something_on_a_node() {
        let cases =
            [("7 R", Some(7)), ("8 CG", Some(8)), ("9 PD", None), ("10 CD", None), ("", None), ("x R", None)];
        for (line, job) in cases {
            assert_eq!(living(line), job, "{line:?}");
        }
    }

    #[test]
    fn who_was_tried_waits_and_who_was_tried_long_ago_comes_last() {
        let tried = |at, again_after| Some(Tried { at, again_after });
        let suspects = [
            (1, tried(10_000, LATER)),
            (2, tried(10_000, SOON)),
            (3, tried(9_950, SOON)),
            (4, None),
            (5, tried(10_000 - LATER, LATER)),
            (6, tried(20_000, LATER)), // the clock was set back
            (7, tried(9_990, SOON)),
            (8, None),
        ];
        let ids = |now| in_turn(suspects.to_vec(), now).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(10_000 + SOON - 1), [4, 8, 5, 3, 7, 6]);
        assert_eq!(ids(10_000 + SOON), [4, 8, 5, 3, 7, 2, 6]);
        assert_eq!(ids(10_000 + LATER), [4, 8, 5, 3, 7, 1, 2, 6]);
    }

    #[test]
    fn a_note_says_when_to_try_again() {
        for (text, after) in [("60", SOON), ("3600\n", LATER), ("", LATER), ("-1", LATER), ("x", LATER)] {
            assert_eq!(again_after(text.as_bytes()), after, "{text:?}");
        }
    }
}
