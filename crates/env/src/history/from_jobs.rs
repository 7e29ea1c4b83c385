//! What jobs have changed, as the nodes have noted it in the depot, becomes part of the history: the nodes cannot write here.

use std::collections::BTreeSet;

use skiff_runtime::environments::Environment;
use skiff_snapshot::{Depot, SnapshotId};
use skiff_spec::array_task::JobName;
use skiff_spec::fault::Result;
use skiff_spec::revision::TagName;
use skiff_user::context::UserContext;
use skiff_user::dirs;

use super::{HistoryEntry, SnapshotHistory, SnapshotOrigin, past};
use crate::job_records::{CommitRecord, JobPlace, JobRecords, RecordFile};
use crate::snapshot_fault::ours;

/// A job may be requeued so often and keep its name in each tag.
const MOST_OF_ONE: u32 = 1000;

/// Records that a history has in it when it is written.
#[derive(Default)]
pub(super) struct AdoptedRecords(Option<(JobRecords, Vec<RecordFile>)>);

impl AdoptedRecords {
    /// Marks them: from now on the history keeps the snapshots.
    pub(super) fn mark_noted(&self) -> Result<()> {
        let Some((records, files)) = &self.0 else { return Ok(()) };
        files.iter().try_for_each(|file| records.mark_noted(file))
    }
}

/// Takes into a history what jobs have changed in the environment. What cannot be read is left where it is.
pub(super) fn adopt(
    history: &mut SnapshotHistory,
    context: &UserContext,
    env: &Environment,
    depot: &Depot,
) -> Result<AdoptedRecords> {
    let Some(records) = JobRecords::find(depot.path())? else { return Ok(AdoptedRecords::default()) };
    let files = records.ends()?;
    if files.is_empty() {
        return Ok(AdoptedRecords::default());
    }
    let present = depot.snapshot_ids().map_err(ours)?;
    // Some of them may have been forgotten since the jobs were submitted.
    let had = past::all(&dirs::open(&env.dir)?);
    let had: BTreeSet<SnapshotId> = had.into_iter().chain(history.ids()).collect();
    let mut adopted = vec![];
    for file in files {
        let Ok(record) = records.read::<CommitRecord>(&file) else { continue };
        // What was renamed since goes by its snapshots.
        let is_gone =
            || Environment::named(context, record.environment.clone()).is_ok_and(|env| !env.exists());
        let is_its = had.contains(&record.parent) && (record.environment == env.name || is_gone());
        if is_its && history.adopt(&file.place, &record, &present) {
            adopted.push(file);
        }
    }
    Ok(AdoptedRecords(Some((records, adopted))))
}

impl SnapshotHistory {
    /// Takes in what a job has changed in a snapshot of this environment. Whether there is nothing more to do about it.
    fn adopt(&mut self, place: &JobPlace, record: &CommitRecord, present: &BTreeSet<SnapshotId>) -> bool {
        let CommitRecord { of, ended, snapshot, entries, bytes, .. } = record;
        // Of what could not be kept there is nothing to remember.
        let Some(snapshot) = *snapshot else { return true };
        // On a network file system it may not be seen yet.
        if !present.contains(&snapshot) {
            return false;
        }
        let is_there =
            |entry: &HistoryEntry| entry.snapshot == snapshot && entry.origin == SnapshotOrigin::JobChanges;
        let is_there = self.entries.iter().any(is_there);
        // Nodes that have changed the same share one snapshot, and each has its tag.
        let (job, node) = (place.job_name(record.array_task), &place.node);
        if let Some(tag) = self.free_tag((job, node), snapshot) {
            self.tags.insert(tag, snapshot);
        }
        if is_there {
            return true;
        }
        let message = match of {
            0 | 1 => format!("job {job} on {node}"),
            of => format!("job {job} on {node}, of {of} nodes"),
        };
        // A clock that is wrong puts nothing before what was there when the job ended.
        let at = self.entries.iter().position(|entry| entry.created <= *ended).unwrap_or(self.entries.len());
        self.entries.insert(
            at,
            HistoryEntry {
                snapshot,
                created: *ended,
                origin: SnapshotOrigin::JobChanges,
                message: Some(message),
                entries: *entries,
                bytes: *bytes,
            },
        );
        true
    }

    /// `job-ID-NODE`; with a number behind it where another run of the job has that. Nothing if no tag can be so long.
    fn free_tag(&self, (job, node): (JobName, &str), snapshot: SnapshotId) -> Option<TagName> {
        let tag = |run: u32| match run {
            1 => format!("job-{job}-{node}"),
            run => format!("job-{job}-{node}.{run}"),
        };
        let is_free = |tag: &TagName| self.tags.get(tag).is_none_or(|known| *known == snapshot);
        (1..MOST_OF_ONE).map_while(|run| tag(run).parse().ok()).find(is_free)
    }
}

#[cfg(test)]
mod tests {
    use skiff_spec::job::CommitNodes;

    use super::*;

    fn id(byte: u8) -> SnapshotId {
        SnapshotId([byte; 32])
    }

    fn entry(byte: u8, created: u64) -> HistoryEntry {
        HistoryEntry {
            snapshot: id(byte),
            created,
            origin: SnapshotOrigin::Job,
            message: None,
            entries: 1,
            bytes: 1,
        }
    }

    fn record(parent: u8, snapshot: Option<u8>) -> CommitRecord {
        CommitRecord {
            environment: "dev".parse().expect("a name"),
            array_task: None,
            parent: id(parent),
            nodes: CommitNodes::All,
            of: 2,
            ended: 15,
            snapshot: snapshot.map(id),
            changes: 3,
            entries: 4,
            bytes: 5,
            skipped: 0,
            error: None,
            hint: None,
        }
    }

    #[test]
    fn only_the_changes_of_an_environments_own_jobs_are_taken_in_and_once() {
        let place = |node: &str| JobPlace { job: 7, node: node.into(), root: "r".into() };
        let present: BTreeSet<_> = (1..9).map(id).collect();
        let mut history =
            SnapshotHistory { entries: vec![entry(2, 20), entry(1, 10)], ..SnapshotHistory::default() };
        let before = history.clone();
        for (record, is_ours) in [(record(1, None), true), (record(1, Some(9)), false)] {
            assert_eq!(history.adopt(&place("n1"), &record, &present), is_ours, "{record:?}");
        }
        assert_eq!(history, before);
        for _ in 0..2 {
            assert!(history.adopt(&place("n1"), &record(1, Some(3)), &present));
        }
        // A second run of the job.
        assert!(history.adopt(&place("n1"), &record(1, Some(4)), &present));
        assert!(history.adopt(&place(&"n".repeat(70)), &record(1, Some(5)), &present));
        let ids: Vec<_> = history.entries.iter().map(|entry| entry.snapshot.0[0]).collect();
        assert_eq!(ids, [2, 5, 4, 3, 1], "between what was before the job's end and after");
        assert_eq!(history.entries[3].message.as_deref(), Some("job 7 on n1, of 2 nodes"));
        let tags: Vec<_> = history.tags.iter().map(|(tag, id)| (tag.as_str(), id.0[0])).collect();
        assert_eq!(tags, [("job-7-n1", 3), ("job-7-n1.2", 4)]);
        // A task of an array is called as its user calls it.
        let mut of_array = history.clone();
        let task = CommitRecord { array_task: "46_1".to_owned().try_into().ok(), ..record(1, Some(6)) };
        assert!(of_array.adopt(&place("n1"), &task, &present));
        assert_eq!(of_array.tags.get(&"job-46_1-n1".parse().expect("a tag")), Some(&id(6)));
        let message = Some("job 46_1 on n1, of 2 nodes".to_owned());
        assert!(of_array.entries.iter().any(|entry| entry.message == message));
        // Another node has the same.
        let before = history.entries.len();
        assert!(history.adopt(&place("n2"), &record(1, Some(3)), &present));
        assert_eq!(history.entries.len(), before);
        assert_eq!(history.tags.get(&"job-7-n2".parse().expect("a tag")), Some(&id(3)));
        // The environment itself has not changed: its next snapshot, if it is the last one of before, adds nothing.
        history.entries.rotate_left(1);
        history.add(HistoryEntry { created: 30, ..entry(1, 30) });
        let ids: Vec<_> = history.entries.iter().map(|entry| entry.snapshot.0[0]).collect();
        assert_eq!(ids, [5, 4, 3, 1, 2]);
    }
}
