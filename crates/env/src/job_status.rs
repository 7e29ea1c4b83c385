//! `skiff env status JOBID`: how a job got its environment on each node, and what became of what it changed there.

use std::collections::BTreeMap;

use serde::Serialize;
use skiff_output as output;
use skiff_runtime::environments::{self, Environment};
use skiff_snapshot::{Depot, SnapshotId, conflicts};
use skiff_spec::array_task::{ArrayTask, JobName};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::CommitNodes;
use skiff_spec::name::EnvName;
use skiff_spec::revision::AT;
use skiff_sys::IgnoreError;
use skiff_sys::error::show;
use skiff_user::context::UserContext;

use crate::depot::is_live_job;
use crate::history::{SnapshotHistory, catch_up, short};
use crate::job_records::{CommitRecord, JobRecords, RecordFile, RecordKind, StartPart, StartRecord};
use crate::snapshot_fault::ours;

/// A job, for programs.
#[derive(Serialize)]
struct JobStatus {
    job: u32,
    /// As its user names it, if it is a task of an array.
    #[serde(skip_serializing_if = "Option::is_none")]
    array_task: Option<ArrayTask>,
    roots: Vec<RootStatus>,
    conflicts: Vec<ListedConflict>,
}

/// A root of a job on a node.
#[derive(Serialize)]
struct RootStatus {
    node: String,
    root: String,
    environment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "output::as_time_if_any")]
    started: Option<u64>,
    parts: Vec<StartPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<KeptChanges>,
    /// Whether the node has not noted what became of changes that are to be kept.
    awaited: bool,
}

/// What became of the changes in a root.
#[derive(Serialize)]
struct KeptChanges {
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
    tags: Vec<String>,
    #[serde(serialize_with = "output::as_time")]
    ended: u64,
    changes: u64,
    entries: u64,
    bytes: u64,
    skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// A path that nodes have changed differently.
#[derive(Serialize)]
struct ListedConflict {
    path: String,
    nodes: Vec<String>,
}

/// The job that is meant: the one that is named as such, or a number that no environment is called by.
pub fn meant(context: &UserContext, name: &EnvName, job: Option<JobName>) -> Result<Option<JobName>> {
    if job.is_some() {
        return Ok(job);
    }
    match name.as_str().parse() {
        Ok(job) if !Environment::named(context, name.clone())?.exists() => Ok(Some(job)),
        Err(_) if !Environment::named(context, name.clone())?.exists() => match job_of_step(name.as_str()) {
            Some(job) => Err(Error::new(format!("environment {name}: there is no such environment"))
                .hint(format!("if a step is meant: `skiff env status {job}` shows its job"))),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// The job of what may be a step's id, such as `3.0` or `46_1.batch`.
fn job_of_step(text: &str) -> Option<&str> {
    let (job, step) = text.split_once('.')?;
    let is_step = step == "batch" || !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
    (is_step && job.parse::<JobName>().is_ok()).then_some(job)
}

/// Prints what the nodes of a job have noted.
pub fn status(context: &UserContext, named: JobName, json: bool) -> Result<()> {
    let path = context.depot()?;
    let records = JobRecords::find(&path)?;
    let job = records.as_ref().map_or(Ok(None), |records| records.number_of(named))?;
    let files = records.as_ref().map(JobRecords::all).transpose()?.unwrap_or_else(Vec::new);
    let files: Vec<RecordFile> = files.into_iter().filter(|file| Some(file.place.job) == job).collect();
    let (Some(records), Some(job), false) = (records, job, files.is_empty()) else {
        return Err(Error::new(format!("job {named}: no records found"))
            .hint("only jobs in environments and containers are noted, when they begin, and for 14 days"));
    };
    let mut found = FoundRecords::default();
    for file in &files {
        if let Err(e) = found.read(&records, file) {
            // One that is damaged hides no other.
            output::complain(&e);
        }
    }
    let depot = Depot::find_existing(&path).map_err(ours)?;
    let status = JobStatus {
        job,
        array_task: found.array_task(),
        conflicts: depot.map_or(Ok(vec![]), |depot| found.conflicts(&depot))?,
        roots: found.roots(context),
    };
    if json { output::json(&status) } else { status.print(is_live_job(context, job)) }
}

/// The records of a job, by node and root.
#[derive(Default)]
struct FoundRecords(BTreeMap<(String, String), (Option<StartRecord>, Option<CommitRecord>)>);

impl FoundRecords {
    fn read(&mut self, records: &JobRecords, file: &RecordFile) -> Result<()> {
        let of = self.0.entry((file.place.node.clone(), file.place.root.clone())).or_default();
        match file.kind {
            RecordKind::Start => of.0 = Some(records.read(file)?),
            RecordKind::End | RecordKind::Noted => of.1 = Some(records.read(file)?),
        }
        Ok(())
    }

    fn array_task(&self) -> Option<ArrayTask> {
        let of = |(start, end): &(Option<StartRecord>, Option<CommitRecord>)| {
            let of_end = end.as_ref().and_then(|end| end.array_task);
            of_end.or(start.as_ref().and_then(|start| start.array_task))
        };
        self.0.values().find_map(of)
    }

    /// What nodes have changed differently from one snapshot. Of several runs of the job the last one of each node counts.
    fn conflicts(&self, depot: &Depot) -> Result<Vec<ListedConflict>> {
        let mut by_parent: BTreeMap<SnapshotId, BTreeMap<&str, (u64, SnapshotId)>> = BTreeMap::new();
        for ((node, _), (_, commit)) in &self.0 {
            if let Some(CommitRecord { parent, ended, snapshot: Some(snapshot), .. }) = commit {
                let last = by_parent.entry(*parent).or_default().entry(node).or_insert((*ended, *snapshot));
                *last = (*last).max((*ended, *snapshot));
            }
        }
        let mut all = vec![];
        for (parent, nodes) in by_parent.iter().filter(|(_, nodes)| nodes.len() > 1) {
            let ids: Vec<SnapshotId> = nodes.values().map(|(_, id)| *id).collect();
            let names: Vec<&str> = nodes.keys().copied().collect();
            match conflicts(depot, parent, &ids) {
                Ok(found) => all.extend(found.into_iter().map(|conflict| ListedConflict {
                    path: format!("/{}", show(&conflict.path).trim_start_matches('/')),
                    nodes: conflict.changed_by.iter().map(|at| names[*at].to_owned()).collect(),
                })),
                // Removed meanwhile.
                Err(e) => output::complain(&ours(e).about("what nodes have changed cannot be compared")),
            }
        }
        Ok(all)
    }

    fn roots(self, context: &UserContext) -> Vec<RootStatus> {
        let tags = self.tags(context);
        let has_end = self.0.values().any(|(_, commit)| commit.is_some());
        let root = |((node, root), (start, commit)): (_, (Option<StartRecord>, Option<CommitRecord>))| {
            let wanted = start.as_ref().and_then(|start| start.commit.clone());
            let awaited = commit.is_none()
                && match wanted {
                    Some(CommitNodes::All) => true,
                    Some(CommitNodes::Node(name)) => name == node,
                    // Which one is the first the others do not know.
                    Some(CommitNodes::Rank0) => !has_end,
                    None => false,
                };
            let named = commit.as_ref().map(|commit| commit.environment.to_string());
            RootStatus {
                environment: start
                    .as_ref()
                    .map(|start| start.environment.clone())
                    .or(named)
                    .unwrap_or_default(),
                snapshot: start.as_ref().and_then(|start| start.snapshot),
                started: start.as_ref().map(|start| start.started),
                parts: start.map_or_else(Vec::new, |start| start.parts),
                changes: commit.map(|commit| KeptChanges::of(commit, &tags)),
                awaited,
                node,
                root,
            }
        };
        self.0.into_iter().map(root).collect()
    }

    /// The references by which the snapshots are known at home.
    fn tags(&self, context: &UserContext) -> BTreeMap<SnapshotId, Vec<String>> {
        let mut tags = BTreeMap::<SnapshotId, Vec<String>>::new();
        let mut histories = BTreeMap::new();
        for commit in self.0.values().filter_map(|(_, commit)| commit.as_ref()) {
            let name = &commit.environment;
            let history = histories.entry(name.clone()).or_insert_with(|| {
                let env = Environment::existing(context, name.clone()).ok()?;
                catch_up(context, &env);
                SnapshotHistory::of(&env.dir).ok()
            });
            let Some(snapshot) = commit.snapshot else { continue };
            let known = match history {
                Some(history) => tagged(name, history, snapshot),
                None => tagged_anywhere(context, snapshot),
            };
            tags.insert(snapshot, known);
        }
        tags
    }
}

fn tagged(name: &EnvName, history: &SnapshotHistory, snapshot: SnapshotId) -> Vec<String> {
    history.tags_of(snapshot).map(|tag| format!("{name}{AT}{tag}")).collect()
}

/// The references to a snapshot of an environment that has another name by now.
fn tagged_anywhere(context: &UserContext, snapshot: SnapshotId) -> Vec<String> {
    let all = environments::list(context).default_on_error("a snapshot without a name is shown by its id");
    let tagged = |env: &Environment| {
        catch_up(context, env);
        let history = SnapshotHistory::of(&env.dir).ok()?;
        Some(tagged(&env.name, &history, snapshot)).filter(|tags| !tags.is_empty())
    };
    all.iter().find_map(tagged).unwrap_or_default()
}

impl KeptChanges {
    fn of(commit: CommitRecord, tags: &BTreeMap<SnapshotId, Vec<String>>) -> Self {
        let CommitRecord { ended, snapshot, changes, entries, bytes, skipped, error, hint, .. } = commit;
        let tags = snapshot.and_then(|id| tags.get(&id).cloned()).unwrap_or_else(Vec::new);
        Self { snapshot, tags, ended, changes, entries, bytes, skipped, error, hint }
    }

    /// By what name they can be had, or why they cannot.
    fn result(&self) -> String {
        match (self.snapshot, &self.error) {
            (Some(id), _) => self.tags.first().cloned().unwrap_or_else(|| short(id)),
            (None, Some(error)) => match &self.hint {
                Some(hint) => format!("none: {error} (hint: {hint})"),
                None => format!("none: {error}"),
            },
            (None, None) => "none: nothing was changed".into(),
        }
    }
}

impl JobStatus {
    fn print(&self, is_live: Option<bool>) -> Result<()> {
        let rows: Vec<Vec<String>> = self.roots.iter().flat_map(RootStatus::rows).collect();
        if !rows.is_empty() {
            output::table(&["NODE", "ENVIRONMENT", "PART", "FROM", "SIZE", "REUSED", "TIME"], &rows)?;
        }
        let rows: Vec<Vec<String>> = self.roots.iter().filter_map(|root| root.changes_row(is_live)).collect();
        if !rows.is_empty() {
            output::line("")?;
            output::table(&["NODE", "CHANGES", "WRITTEN", "SNAPSHOT"], &rows)?;
        }
        if !self.conflicts.is_empty() {
            output::line("")?;
            let row = |one: &ListedConflict| vec![one.path.clone(), one.nodes.join(", ")];
            let rows: Vec<Vec<String>> = self.conflicts.iter().map(row).collect();
            output::table(&["CHANGED DIFFERENTLY", "ON"], &rows)?;
        }
        Ok(())
    }
}

impl RootStatus {
    fn rows(&self) -> Vec<Vec<String>> {
        let row = |part: &StartPart| {
            let size = |bytes| if bytes == 0 { "-".into() } else { output::size(bytes) };
            let time = format!("{}.{:03} s", part.ms / 1000, part.ms % 1000);
            let (kind, from) = (part.part.as_str().into(), part.from.as_str().into());
            let (all, reused) = (size(part.bytes), size(part.reused));
            vec![self.node.clone(), self.environment.clone(), kind, from, all, reused, time]
        };
        self.parts.iter().map(row).collect()
    }

    fn changes_row(&self, is_live: Option<bool>) -> Option<Vec<String>> {
        let (changes, bytes, result) = match &self.changes {
            Some(kept) => {
                let written = if kept.snapshot.is_some() { output::size(kept.bytes) } else { "-".into() };
                (kept.changes.to_string(), written, kept.result())
            }
            None if !self.awaited => return None,
            None => {
                let result = match is_live {
                    Some(true) => "none yet: the job has not ended",
                    Some(false) => "none: the node has not noted what became of them; it may have crashed",
                    None => "none yet, as far as is known",
                };
                ("-".into(), "-".into(), result.into())
            }
        };
        Some(vec![self.node.clone(), changes, bytes, result])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_names_its_job() {
        for (text, job) in
            [("3.0", Some("3")), ("46_1.batch", Some("46_1")), ("3", None), ("dev.0", None), ("3.x", None)]
        {
            assert_eq!(job_of_step(text), job, "{text}");
        }
    }
}
