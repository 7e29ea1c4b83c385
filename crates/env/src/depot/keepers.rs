//! What needs the snapshots of a depot: environments, instances, checkpoints, jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::getuid;
use skiff_runtime::environments;
use skiff_runtime::record::InstanceDir;
use skiff_site::TrustedDir;
use skiff_snapshot::{Depot, DepotContents, SnapshotId, last_snapshot};
use skiff_spec::fault::Result;
use skiff_spec::job::JobSpec;
use skiff_spec::name::EnvName;
use skiff_user::context::UserContext;

use super::{DAY, seconds, uses};
use crate::history::{self, KeptSnapshots};
use crate::job_records::{CommitRecord, JobRecords, RecordKind};
use crate::latest;
use crate::snapshot_fault::ours;

/// How far the clocks of Slurm's controller and of the depot's file system may be apart, in seconds.
const CLOCKS: u64 = 3600;
/// How long a submission may take, from the use of its snapshot to the time that the controller notes, in seconds.
const SUBMISSION: u64 = 3600;

/// For how many days one can ask how a job ran.
const RECORD_DAYS: u64 = 14;
/// Of how many jobs on how many nodes one can ask that.
const MOST_RECORDS: usize = 20_000;

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

static USERS: OnceLock<SnapshotUsers> = OnceLock::new();

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
    fn may_need(&self, used: u64) -> bool {
        let Self::Known(jobs) = self else { return false };
        let latest = used.saturating_add(CLOCKS + SUBMISSION);
        jobs.iter().map(|job| job.submitted).min().is_some_and(|oldest| latest >= oldest)
    }

    /// Whether the job is one that the snapshot must stay for, which it has begun to use `age` seconds ago.
    fn is_live(&self, id: u32, age: u64) -> bool {
        match self {
            Self::Known(jobs) => jobs.iter().any(|job| job.id == id),
            // Where jobs are known, what is noted of those that have ended goes.
            Self::None => age < uses::LONGEST,
            Self::Ignored => false,
        }
    }
}

/// Something that needs a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeper {
    /// The last snapshot of this environment: the next one builds on it.
    Environment(EnvName),
    /// A tag in the history of this environment.
    Tag(EnvName),
    /// The history of this environment. It goes where there is a budget.
    History(EnvName),
    /// The last snapshot of an environment of this name, on whatever host: jobs ask for it by that.
    Latest(EnvName),
    /// An instance of an environment.
    Instance(EnvName),
    /// A checkpoint of such an instance.
    Checkpoint(String),
    /// A job that has begun to use it.
    Job(u32),
    /// A job has changed its environment to it, and no history has it yet.
    JobChanges(u32),
    /// A job may need it: it was used since the oldest of them was submitted.
    Jobs,
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::History(name) => write!(f, "history {name}"),
            Self::Latest(name) => write!(f, "latest {name}"),
            Self::Instance(name) => write!(f, "instance {name}"),
            Self::Checkpoint(name) => write!(f, "checkpoint {name}"),
            Self::Job(id) => write!(f, "job {id}"),
            Self::JobChanges(id) => write!(f, "changes of job {id}"),
            Self::Jobs => f.write_str("jobs"),
        }
    }
}

/// Snapshots that are needed, and what needs each.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    by: BTreeMap<SnapshotId, BTreeSet<Keeper>>,
    /// What was noted of jobs that have ended.
    pub(super) ended_uses: Vec<OsString>,
    /// Records of jobs that nobody will ask for any more.
    pub(super) old_records: Vec<OsString>,
}

impl Keepers {
    /// Asks all but the job manager, which has been asked.
    pub(super) fn find(
        context: &UserContext,
        depot: &Depot,
        contents: &DepotContents,
        jobs: &JobList,
    ) -> Result<Self> {
        let mut found = Self { by: kept_by_environments(context)?, ..Self::default() };
        for record in InstanceDir::all(context)? {
            // What cannot be read cannot be started again.
            let snapshot = record.started().ok().and_then(|started| started.snapshot?.parse().ok());
            found.add(snapshot, Keeper::Instance(record.name));
        }
        let checkpoints = USERS.get().map_or(Ok(vec![]), |users| (users.checkpoints)(context))?;
        for CheckpointUse { checkpoint, snapshot } in checkpoints {
            found.add(snapshot.parse().ok(), Keeper::Checkpoint(checkpoint));
        }
        for noted in uses::all(depot.path())? {
            let age = contents.age(noted.since).as_secs();
            match jobs.is_live(noted.job, age) {
                true => found.add(Some(noted.snapshot), Keeper::Job(noted.job)),
                // A job may have begun after the job manager was asked.
                false if age >= CLOCKS && *jobs != JobList::Ignored => found.ended_uses.push(noted.name),
                false => {}
            }
        }
        found.add_records(depot, contents)?;
        for (id, snapshot) in &contents.snapshots {
            if jobs.may_need(seconds(snapshot.file.used)) {
                found.add(Some(*id), Keeper::Jobs);
            }
        }
        Ok(found)
    }

    /// What nodes have noted of jobs: as long as no history has what a job has changed, the note keeps it.
    fn add_records(&mut self, depot: &Depot, contents: &DepotContents) -> Result<()> {
        let Some(records) = JobRecords::find(depot.path())? else { return Ok(()) };
        let mut all = records.all()?;
        // The newest first: of too many the others go.
        all.sort_by_key(|file| std::cmp::Reverse(file.written));
        for (number, file) in all.into_iter().enumerate() {
            let age = contents.age(file.written.saturating_mul(1_000_000_000)).as_secs();
            let snapshot = match file.kind {
                RecordKind::End => {
                    records.read::<CommitRecord>(&file).ok().and_then(|record| record.snapshot)
                }
                RecordKind::Start | RecordKind::Noted => None,
            };
            if snapshot.is_some() && age < uses::LONGEST {
                self.add(snapshot, Keeper::JobChanges(file.place.job));
            } else if age >= RECORD_DAYS * DAY || number >= MOST_RECORDS {
                self.old_records.push(file.name);
            }
        }
        Ok(())
    }

    fn add(&mut self, snapshot: Option<SnapshotId>, keeper: Keeper) {
        if let Some(id) = snapshot {
            self.by.entry(id).or_default().insert(keeper);
        }
    }

    /// The snapshots that something needs, whatever room they take up.
    pub(super) fn needed(&self) -> BTreeSet<SnapshotId> {
        self.by.iter().filter(|(_, by)| is_needed(by)).map(|(id, _)| *id).collect()
    }

    /// Whether anything needs it, or keeps it as long as there is room.
    pub(super) fn is_kept(&self, id: &SnapshotId) -> bool {
        self.by.contains_key(id)
    }

    /// Snapshots that are kept as long as there is room.
    pub(super) fn within_budget(&self) -> BTreeSet<SnapshotId> {
        self.by.iter().filter(|(_, by)| !is_needed(by)).map(|(id, _)| *id).collect()
    }

    /// What needs a snapshot, for people: a job that is known stands for all that may.
    pub(super) fn of(&self, id: &SnapshotId) -> Vec<&Keeper> {
        let Some(all) = self.by.get(id) else { return vec![] };
        let has_job = all.iter().any(|keeper| matches!(keeper, Keeper::Job(_)));
        let is_said = |keeper: &&Keeper| match keeper {
            Keeper::Latest(name) | Keeper::History(name) => !all.contains(&Keeper::Environment(name.clone())),
            Keeper::Jobs => !has_job,
            _ => true,
        };
        all.iter().filter(is_said).collect()
    }

    /// Whether a job needs or may need it.
    pub(super) fn is_for_jobs(&self, id: &SnapshotId) -> bool {
        let is_job = |keeper: &Keeper| matches!(keeper, Keeper::Job(_) | Keeper::Jobs);
        self.by.get(id).is_some_and(|all| all.iter().any(is_job))
    }
}

fn is_needed(by: &BTreeSet<Keeper>) -> bool {
    by.iter().any(|keeper| !matches!(keeper, Keeper::History(_)))
}

/// The snapshots that environments need: of those on this host the last one of each and what its history has, and of others what they have noted in the depot.
pub fn kept_by_environments(context: &UserContext) -> Result<BTreeMap<SnapshotId, BTreeSet<Keeper>>> {
    let mut found = BTreeMap::<SnapshotId, BTreeSet<Keeper>>::new();
    for env in environments::list(context)? {
        // Removed meanwhile.
        let Some(dir) = TrustedDir::find(&env.dir, getuid().as_raw())? else { continue };
        let readable = dir.readable()?;
        if let Some(id) = last_snapshot(readable.as_fd()).map_err(ours)? {
            found.entry(id).or_default().insert(Keeper::Environment(env.name.clone()));
        }
        let KeptSnapshots { tagged, recent } = history::kept(context, &env)?;
        for (ids, keeper) in [(tagged, Keeper::Tag(env.name.clone())), (recent, Keeper::History(env.name))] {
            for id in ids {
                found.entry(id).or_default().insert(keeper.clone());
            }
        }
    }
    for (name, id) in all_latest(&context.depot()?)? {
        found.entry(id).or_default().insert(Keeper::Latest(name));
    }
    Ok(found)
}

/// What cannot be read is written anew by the next submission.
fn all_latest(depot: &Path) -> Result<Vec<(EnvName, SnapshotId)>> {
    let of = |name: EnvName| match latest::get(depot, &name) {
        Ok(Some(JobSpec::Snapshot(snapshot))) => Some((name, snapshot.snapshot.parse().ok()?)),
        _ => None,
    };
    Ok(latest::names(depot)?.into_iter().filter_map(of).collect())
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

    #[test]
    fn people_are_told_each_reason_once() {
        let (id, name) = (SnapshotId([1; 32]), |text: &str| text.parse::<EnvName>().unwrap());
        let mut keepers = Keepers::default();
        for keeper in [
            Keeper::Latest(name("dev")),
            Keeper::Environment(name("dev")),
            Keeper::Latest(name("other")),
            Keeper::Jobs,
            Keeper::Job(12),
            Keeper::Instance(name("web")),
            Keeper::Checkpoint("sim@2".into()),
        ] {
            keepers.add(Some(id), keeper);
        }
        let told: Vec<_> = keepers.of(&id).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["environment dev", "latest other", "instance web", "checkpoint sim@2", "job 12"]);
        assert!(keepers.is_for_jobs(&id) && keepers.of(&SnapshotId([2; 32])).is_empty());
    }
}
