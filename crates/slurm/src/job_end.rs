//! The end of a job on this node, for epilogs and for whoever finds what a killed one has left: its processes end, its directories go.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::Stat;
use rustix::io::Errno;
use skiff_env::job_records::JobFigures;
use skiff_output as output;
use skiff_site::TrustedDir;
use skiff_spec::fault::Result;
use skiff_spec::job::names::{JOB_ENDED, JOBS, TEMPORARY};
use skiff_sys::clock::now;
use skiff_user::context::UserContext;

use crate::job::USER;
use crate::stop::{StopTimes, UserIds, stop_job};
use crate::{job_processes, metrics, tmp_quota, trash};

/// How long it may take to note in the depot what became of the job's changes, beside the time that keeping them may take.
const NOTING: Duration = Duration::from_secs(20);

/// How long what was killed may take to be gone, beside all else: what has held up the end of the job's processes has had that time.
const DYING: Duration = Duration::from_secs(3);

/// How long the end of a job may take, for all of its directories together: whoever holds up one of them is not to have that time again for each.
#[derive(Clone, Copy)]
pub struct EndLimits {
    /// Until its processes have ended.
    ended: Duration,
    /// Where something that was changed on this node is to be kept: until that is done.
    kept: Duration,
    /// The same, until it is noted, too.
    noted: Duration,
    /// To remove what the job's user has left on the disk, be it millions of files.
    removing: Duration,
    /// Whether directories stay of what does not end.
    leaves_running: bool,
    /// Whether what keeps changes longer than that goes on.
    leaves_keeping: bool,
}

impl EndLimits {
    /// In the job's own epilog, or where nobody else's job waits.
    pub fn own(context: &UserContext) -> Self {
        Self::with_commit(skiff_env::commit::time_limit(context))
    }

    /// The plug-in ends an epilog after 400 s.
    fn with_commit(limit: Duration) -> Self {
        let ended = Duration::from_secs(60);
        Self {
            ended,
            kept: ended + limit,
            noted: ended + limit + NOTING,
            removing: Duration::from_secs(10),
            leaves_running: false,
            leaves_keeping: false,
        }
    }

    /// In the prolog of the same job, requeued, which the plug-in ends after a minute.
    pub const IN_PROLOG: Self = Self {
        ended: Duration::from_secs(10),
        kept: Duration::from_secs(20),
        noted: Duration::from_secs(25),
        removing: Duration::from_millis(200),
        leaves_running: false,
        leaves_keeping: false,
    };

    /// In the epilog of another job, for which another user waits: no longer than `left`. What does not end is left to be found again, and so is
    /// what keeps changes, unless it was asked to end long ago.
    pub fn in_anothers(left: Duration, asked_long_ago: bool) -> Self {
        Self {
            ended: left,
            kept: left.saturating_sub(Duration::from_secs(1)),
            noted: left,
            leaves_running: true,
            leaves_keeping: !asked_long_ago,
            ..Self::IN_PROLOG
        }
    }

    fn from(&self, begun: Instant) -> StopTimes {
        StopTimes {
            ended: begun + self.ended,
            kept: begun + self.kept,
            noted: begun + self.noted,
            leaves_keeping: self.leaves_keeping,
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
    let stays_if_failed = limits.leaves_running;
    let mut end = JobEnd {
        id,
        stop: limits.from(Instant::now()),
        removing: limits.removing,
        leaves_running: limits.leaves_running,
        is_taken: false,
        is_left: false,
        figures: JobFigures::default(),
    };
    let removed = job_dirs.iter().map(|dir| end.remove_user_dir(dir)).fold(links, Result::and);
    if end.is_taken {
        // What there is by now under this number may be the next run's.
        return removed;
    }
    count(context, &end.figures, || jobs.as_ref().and_then(|jobs| lasted(jobs, &name)));
    if end.is_left || (stays_if_failed && removed.is_err()) {
        // By this the next epilog and `skiff sweep` find it.
        return removed;
    }
    jobs.map_or(Ok(()), |jobs| remove_all(&jobs, &name)).and(removed)
}

/// What the links say was written by root; what the configuration says now may be another place.
fn add_linked(jobs: &TrustedDir, name: &str, job_dirs: &mut Vec<TrustedDir>) -> Result<()> {
    if jobs.stat(name)?.is_none() {
        return Ok(());
    }
    let job = match jobs.dir(name) {
        // Another epilog of the same job is done with it.
        Err(e) if e.errno() == Some(Errno::NOENT) => return Ok(()),
        job => job?,
    };
    let user_dir = job.read_link(USER)?;
    let tmp = job.read_link(TEMPORARY[0].0)?.and_then(|tmp| tmp.parent().map(Path::to_owned));
    for dir in user_dir.iter().chain(&tmp).filter_map(|dir| dir.parent()) {
        if job_dirs.iter().all(|known| known.path() != dir) {
            job_dirs.extend(TrustedDir::find(dir, 0)?);
        }
    }
    Ok(())
}

/// A job that is being ended.
struct JobEnd {
    id: u32,
    stop: StopTimes,
    /// What is left of the time to remove files.
    removing: Duration,
    leaves_running: bool,
    /// Whether another process has taken one of its directories away meanwhile.
    is_taken: bool,
    /// Whether processes of it are left.
    is_left: bool,
    /// What the directories that were removed have told.
    figures: JobFigures,
}

impl JobEnd {
    fn remove_user_dir(&mut self, job_dirs: &TrustedDir) -> Result<()> {
        match trash::opened(job_dirs, self.id.to_string().as_ref()) {
            Ok(Some(opened)) => self.remove_opened(job_dirs, &opened),
            Ok(None) => Ok(()),
            Err(e) => {
                self.is_left = true;
                Err(e)
            }
        }
    }

    fn remove_opened(&mut self, job_dirs: &TrustedDir, (user_dir, owner): &(OwnedFd, Stat)) -> Result<()> {
        let (id, name) = (self.id, self.id.to_string());
        // Its user decides what is in there, and whether that can be asked to end; not, whether it stays.
        let (figures, stopped) = stop_job(id, user_dir, owner, self.stop);
        if !is_there(job_dirs, &name, owner)? {
            self.is_taken = true;
            note_taken(stopped);
            return Ok(());
        }
        let keeps = self.stop.leaves_keeping && stopped.is_err();
        let ended = if keeps { Ok(()) } else { self.end_processes(UserIds::of(owner)) };
        if ended.is_err() || (self.leaves_running && stopped.is_err()) {
            return stopped.and(ended);
        }
        self.figures.add(figures);
        trash::discard(job_dirs, name.as_ref(), owner.st_uid)?;
        tmp_quota::forget(user_dir.as_fd());
        let begun = Instant::now();
        if !trash::empty_of(job_dirs, owner.st_uid, self.removing)? {
            let (seconds, uid) = (begun.elapsed().as_secs_f64(), owner.st_uid);
            output::note(&format!(
                "job {id}: after {seconds:.1} s files of user {uid} are still there; later jobs on this node, or `skiff sweep`, remove them"
            ));
        }
        self.removing = self.removing.saturating_sub(begun.elapsed());
        stopped
    }

    /// Ends what the job's user has kept from being found in the job's directory.
    fn end_processes(&mut self, user: UserIds) -> Result<()> {
        let ended = job_processes::end_all(self.id, user, Instant::now() + DYING);
        self.is_left |= ended.is_err();
        ended
    }
}

/// Whether a job's directory is still the one that was opened. Slurm may run two epilogs of a job at once. Whoever has taken the directory away meanwhile
/// has ended what was in it, or says what did not end; it is root's then, so that the job's user can look at nothing in it. For the other one that is
/// a job without a directory, as if it had come later: one of that name is the next run's, if the job was requeued.
fn is_there(job_dirs: &TrustedDir, name: &str, owner: &Stat) -> Result<bool> {
    let is_same = |(_, stat): (OwnedFd, Stat)| (stat.st_dev, stat.st_ino) == (owner.st_dev, owner.st_ino);
    Ok(trash::opened(job_dirs, name.as_ref())?.is_some_and(is_same))
}

fn note_taken(stopped: Result<()>) {
    if let Err(e) = stopped {
        output::note(&format!("{}; another epilog is already ending it", e.message));
    }
}

/// How long a job was on this node, by what only root can write: the prolog's link, and the plug-in's note that it is over.
fn lasted(jobs: &TrustedDir, name: &str) -> Option<Duration> {
    let job = jobs.dir(name).ok()?;
    let seconds = |name: &str| u64::try_from(job.stat(name).ok()??.st_mtime).ok();
    let begun = seconds(USER)?;
    let ended = seconds(JOB_ENDED).unwrap_or_else(now);
    Some(Duration::from_secs(ended.saturating_sub(begun)))
}

/// Adds what the job has needed to the node's figures, where the site wants them.
fn count(context: &UserContext, figures: &JobFigures, lasted: impl FnOnce() -> Option<Duration>) {
    let dir = Path::new(&context.config.slurm.metrics);
    if dir.as_os_str().is_empty() {
        return;
    }
    if let Err(e) = metrics::add(dir, figures, lasted()) {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A uid that nobody has.
    const NOBODYS: u32 = 4712;

    #[test]
    fn the_end_of_a_job_takes_less_than_the_plug_in_allows() {
        let longest = EndLimits::with_commit(Duration::from_secs(240));
        let rest = longest.removing + crate::leftovers::IN_ALL;
        assert!(longest.noted + rest < Duration::from_secs(360), "of 400 s");
        let begun = Instant::now();
        let own = EndLimits::with_commit(Duration::from_secs(30)).from(begun);
        assert_eq!(own.limit(false), begun + Duration::from_secs(60));
        assert_eq!(own.limit(true), begun + Duration::from_secs(110));
    }

    #[test]
    fn another_user_waits_no_longer_though_something_is_to_be_kept() {
        let (begun, left) = (Instant::now(), Duration::from_secs(3));
        for asked_long_ago in [false, true] {
            let limits = EndLimits::in_anothers(left, asked_long_ago);
            let stop = limits.from(begun);
            assert_eq!([true, false].map(|keeps| stop.limit(keeps)), [begun + left; 2]);
            assert_eq!(stop.leaves_keeping, !asked_long_ago);
        }
    }

    #[test]
    fn of_two_that_end_a_job_at_once_the_second_finds_it_ended() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "only root becomes another user");
            std::io::stderr().write_all(b"SKIPPED: only root becomes another user\n").expect("said");
            return;
        }
        let home = std::env::temp_dir().join(format!("skiff-job-end.{}", std::process::id()));
        let dirs = TrustedDir::make(&home, 0, 0o755).expect("a directory");
        let end = |id: u32| JobEnd {
            id,
            stop: EndLimits::IN_PROLOG.from(Instant::now()),
            removing: Duration::from_secs(10),
            leaves_running: false,
            is_taken: false,
            is_left: false,
            figures: JobFigures::default(),
        };
        let given = |id: u32, uid: u32| {
            dirs.give_dir(id.to_string(), (uid, uid)).expect("a job's directory");
            trash::opened(&dirs, id.to_string().as_ref()).expect("opened").expect("there")
        };
        // Of an empty one nobody needs to become the owner: whoever comes second can look at it still.
        for is_empty in [false, true] {
            let opened = given(7, NOBODYS);
            if !is_empty {
                std::fs::write(home.join("7/file"), "x").expect("a file");
            }
            let (mut first, mut second) = (end(7), end(7));
            first.remove_user_dir(&dirs).expect("ended");
            second.remove_opened(&dirs, &opened).expect("it has been ended");
            assert!(!first.is_taken && second.is_taken);
            // The next run of the job, requeued, is none of its business.
            given(7, NOBODYS);
            std::fs::write(home.join("7/next"), "x").expect("a file");
            let mut second = end(7);
            second.remove_opened(&dirs, &opened).expect("it has been ended");
            assert!(second.is_taken && home.join("7/next").exists());
            end(7).remove_user_dir(&dirs).expect("ended");
        }
        // What is there still, and cannot be looked at, is a failure.
        let (dir, mut owner) = given(8, 0);
        owner.st_uid = NOBODYS;
        rustix::fs::chmod(home.join("8"), rustix::fs::Mode::RWXU).expect("its mode");
        let failed = end(8).remove_opened(&dirs, &(dir, owner));
        let why = failed.expect_err("it cannot be looked at").message;
        assert!(why.contains("ending what is left of it as user 4712") && why.contains("denied"), "{why}");
        trash::empty(&dirs, None).expect("gone");
        std::fs::remove_dir(home).expect("empty");
    }
}
