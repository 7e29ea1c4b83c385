//! Who knows what needs a depot's snapshots, beside this crate: the job manager, and whoever keeps checkpoints.

use std::sync::OnceLock;

use skiff_spec::fault::Result;
use skiff_user::context::UserContext;

use super::uses;

/// How far the clocks of Slurm's controller and of the depot's file system may be apart, in seconds.
pub(super) const CLOCKS: u64 = 3600;
/// How long a submission may take, from the use of its snapshot to the time that the controller notes, in seconds.
const SUBMISSION: u64 = 3600;

/// A job that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveJob {
    /// Id of the job, of an array's element its own.
    pub id: u32,
    /// When the job was submitted or last requeued, in seconds since 1970; 0 if that is not known.
    pub submitted: u64,
}

/// A checkpoint that can be restored only with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointUse {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Id of the snapshot.
    pub snapshot: String,
}

/// Who knows what needs snapshots, beside this crate: those that know are above it.
#[derive(Clone, Copy)]
pub struct SnapshotUsers {
    /// The user's jobs; nothing where there is no job manager.
    pub jobs: fn(&UserContext) -> Result<Option<Vec<LiveJob>>>,
    /// The user's checkpoints of what has a snapshot below it.
    pub checkpoints: fn(&UserContext) -> Result<Vec<CheckpointUse>>,
}

pub(super) static USERS: OnceLock<SnapshotUsers> = OnceLock::new();

/// Whom to ask. The program says so at its start.
pub fn ask_by(users: SnapshotUsers) {
    USERS.get_or_init(|| users);
}

/// The jobs that snapshots are kept for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobList {
    /// All that are queued, held or running.
    Known(Vec<LiveJob>),
    /// There is no job manager here; on other hosts of the depot there may be one.
    None,
    /// The user has said that jobs do not matter.
    Ignored,
}

impl JobList {
    /// Asks the job manager.
    pub(super) fn ask(context: &UserContext) -> Result<Self> {
        let jobs = USERS.get().map_or(Ok(None), |users| (users.jobs)(context))?;
        Ok(jobs.map_or(Self::None, Self::Known))
    }

    /// Whether a snapshot that was used then may be one that a queued job needs. The submission used it.
    pub(super) fn may_need(&self, used: u64) -> bool {
        let Self::Known(jobs) = self else { return false };
        let latest = used.saturating_add(CLOCKS + SUBMISSION);
        jobs.iter().map(|job| job.submitted).min().is_some_and(|oldest| latest >= oldest)
    }

    /// Whether the job is one that the snapshot must stay for, which it has begun to use `age` seconds ago.
    pub(super) fn is_live(&self, id: u32, age: u64) -> bool {
        match self {
            Self::Known(jobs) => jobs.iter().any(|job| job.id == id),
            // Where jobs are known, what is noted of those that have ended goes.
            Self::None => age < uses::LONGEST,
            Self::Ignored => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(submitted: &[u64]) -> JobList {
        let job = |(id, submitted): (usize, &u64)| LiveJob { id: id as u32, submitted: *submitted };
        JobList::Known(submitted.iter().enumerate().map(job).collect())
    }

    #[test]
    fn what_was_used_since_the_oldest_job_was_submitted_may_be_needed() {
        for (submitted, used, want) in [
            (&[][..], 5000, false),
            (&[10_000], 10_000, true),
            // The controller's clock is ahead by as much as it may be, and the submission took a minute, or an hour.
            (&[10_000], 6340, true),
            (&[10_000], 2800, true),
            (&[10_000], 2799, false),
            (&[20_000, 8000], 800, true),
            // Nothing is known of that one.
            (&[10_000, 0], 0, true),
        ] {
            assert_eq!(jobs(submitted).may_need(used), want, "{submitted:?} {used}");
        }
        assert!(!JobList::None.may_need(u64::MAX) && !JobList::Ignored.may_need(u64::MAX));
    }

    #[test]
    fn a_use_counts_as_long_as_the_job_is_there_or_nobody_knows() {
        for (list, job, age, want) in [
            (jobs(&[1]), 0, u64::MAX, true),
            (jobs(&[1]), 7, 0, false),
            (JobList::None, 7, 0, true),
            (JobList::None, 7, uses::LONGEST, false),
            (JobList::Ignored, 0, 0, false),
        ] {
            assert_eq!(list.is_live(job, age), want, "{list:?} {job} {age}");
        }
    }
}
