//! What it took until a job's root was there: for its user in the depot, and for the node's figures in the job's directory.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use skiff_env::job_records::{JobRecords, RecordKind, StartPart, StartRecord};
use skiff_env::time_limit::in_background;
use skiff_spec::array_task::ArrayTask;
use skiff_spec::job::JobSpec;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;

use crate::commit::place;
use crate::job::SlurmJob;

/// How long it may take to write a record into the depot.
const LIMIT: Duration = Duration::from_secs(10);

/// The parts of a start, once all that it needs is there.
#[derive(Default)]
pub struct StartTimes(RefCell<Option<(Vec<StartPart>, Instant)>>);

impl StartTimes {
    /// All is there; what remains is the root itself.
    pub fn prepared(&self, parts: Vec<StartPart>) {
        self.0.replace(Some((parts, Instant::now())));
    }

    /// The root is there. Notes it, if it was this process that has made it: nobody waits for the depot, and a job runs without a record.
    pub fn note(self, job: &SlurmJob) {
        let Some((mut parts, prepared)) = self.0.into_inner() else { return };
        parts.push(StartPart::root(prepared));
        let (snapshot, commit) = match &job.spec {
            JobSpec::Snapshot(snapshot) => {
                (snapshot.snapshot.parse().ok(), snapshot.commit.as_ref().map(|commit| commit.nodes.clone()))
            }
            JobSpec::Container(_) => (None, None),
        };
        let environment = job.spec.environment().to_owned();
        let array_task = ArrayTask::from_variables(|name| std::env::var(name).ok());
        let record = StartRecord { environment, array_task, snapshot, commit, started: now(), parts };
        record.write_beside(&job.supervisor_dir()).ignore_error("figures are missing this one start");
        write_apart(job, &record);
    }
}

/// In a process of its own, which ends when it is written or has taken too long.
fn write_apart(job: &SlurmJob, record: &StartRecord) {
    let Ok(place) = place(job) else { return };
    let write = || match JobRecords::make(Path::new(job.spec.depot()))? {
        Some(records) => records.write(&place, RecordKind::Start, record),
        None => Ok(()),
    };
    let otherwise = "the depot may be read-only here";
    in_background("writer of the start record", LIMIT, otherwise, write)
        .ignore_error("the job goes on without it");
}
