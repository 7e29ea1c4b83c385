//! On a node: what a job has changed in its environment there becomes a snapshot, and the depot says so.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use skiff_plan::get;
use skiff_runtime::environments::EnvironmentBase;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{ChangesInput, Depot, LayerId, SnapshotId, push_changes};
use skiff_spec::array_task::ArrayTask;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::{JobCommit, Snapshot};
use skiff_spec::plan::{Plan, Upper};
use skiff_sys::clock::now;
use skiff_sys::error::SPACE;
use skiff_sys::small_file;
use skiff_user::context::UserContext;

use crate::base_fingerprint;
use crate::base_view::{open_dir, own_view, view_of_base};
use crate::changes::{leave_out_places, places_of};
use crate::job_records::{CommitRecord, JobPlace, JobRecords, RecordKind};
use crate::near_layers;
use crate::snapshot_fault::ours;
use crate::time_limit::until;

/// In the directory of a job's root: where its changes go, and what is there only for something to be mounted.
const UPPER: &str = "changes.json";
/// Longest such file, in bytes.
const LONGEST: u64 = 4 << 20;
/// A site cannot have an epilog wait longer, in seconds.
pub const LONGEST_COMMIT: u64 = 240;
/// How long it may take to note in the depot what became of the changes.
const TO_NOTE: Duration = Duration::from_secs(10);

/// The changes in a job's root.
#[derive(Serialize, Deserialize)]
struct KeptUpper {
    upper: PathBuf,
    places: Vec<PathBuf>,
}

/// A job's root on this node.
#[derive(Clone)]
pub struct JobRoot<'a> {
    /// Where.
    pub place: JobPlace,
    /// Directory of the root.
    pub dir: &'a Path,
    /// The task of an array that the job is, if it is one.
    pub array_task: Option<ArrayTask>,
    /// What the job runs in.
    pub snapshot: &'a Snapshot,
    /// How many nodes the job has; 0 if that is not known.
    pub of: u32,
}

/// Writes down where the changes of a root go that is about to be made by this plan.
pub fn note_upper(dir: &Path, plan: &Plan) -> Result<()> {
    let Upper::Scratch(upper) = &plan.upper else {
        return Err(Error::new(format!("{}: its changes go nowhere where they can be kept", dir.display())));
    };
    let places = places_of(plan).into_iter().filter(|place| place.to_str().is_some()).map(Path::to_owned);
    let kept = KeptUpper { upper: upper.join("upper"), places: places.collect() };
    let file = dir.join(UPPER);
    let shown = || file.display().to_string();
    let bytes = serde_json::to_vec(&kept).map_err(|e| Error::new(format!("{}: {e}", shown())))?;
    small_file::write(&file, &bytes).context(shown)
}

/// Whether it is written down where the changes of a root go.
pub fn has_upper(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir.join(UPPER)).is_ok()
}

/// Forgets where the changes of a root went.
pub fn forget_upper(dir: &Path) -> Result<()> {
    let file = dir.join(UPPER);
    std::fs::remove_file(&file).context(|| file.display().to_string())
}

/// What came of it.
#[derive(Serialize, Deserialize)]
struct Taken {
    snapshot: Option<SnapshotId>,
    changes: u64,
    entries: u64,
    bytes: u64,
    skipped: u64,
}

/// How long it may take.
pub fn time_limit(context: &UserContext) -> Duration {
    Duration::from_secs(context.config.slurm.commit_seconds.min(LONGEST_COMMIT))
}

/// Makes a snapshot of what was changed in a job's root and notes it in the depot, or why there is none. Takes a bounded time.
///
/// # Errors
/// When there is none, or it is not noted: then it is as if there were none.
pub fn commit(context: &UserContext, root: &JobRoot<'_>, commit: &JobCommit) -> Result<CommitRecord> {
    let limit = time_limit(context);
    let taken = until("commit", Instant::now() + limit, || take(context, root));
    let too_long = || {
        Error::new(format!("not done within {} s", limit.as_secs())).hint(format!(
            "`slurm.commit_seconds` in the configuration allows more time, up to {LONGEST_COMMIT}; of a snapshot of 64 layers, `skiff env rollback` and `skiff env snapshot` make one that takes less"
        ))
    };
    let taken = taken.and_then(|taken| taken.ok_or_else(too_long)).map_err(|e| about(root, e));
    let empty = empty_record(root, commit)?;
    match taken {
        Ok(Taken { snapshot, changes, entries, bytes, skipped }) => {
            let record = CommitRecord { snapshot, changes, entries, bytes, skipped, ..empty };
            note(root, &record).map_err(|e| about(root, e)).map(|()| record)
        }
        Err(e) => {
            // The first error is the one to tell.
            match note(root, &empty.failed(&e)) {
                Ok(()) | Err(_) => Err(e),
            }
        }
    }
}

/// Notes that nothing was kept, and why.
pub fn note_failure(root: &JobRoot<'_>, commit: &JobCommit, why: Error) -> Result<()> {
    let why = about(root, why);
    note(root, &empty_record(root, commit)?.failed(&why))
}

fn about(root: &JobRoot<'_>, e: Error) -> Error {
    let (job, node) = (root.place.job_name(root.array_task), &root.place.node);
    e.about(&format!("job {job}: changes on node {node} are not kept"))
}

fn empty_record(root: &JobRoot<'_>, commit: &JobCommit) -> Result<CommitRecord> {
    let parent = root.snapshot.snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    Ok(CommitRecord {
        environment: root.snapshot.environment.clone(),
        array_task: root.array_task,
        parent,
        nodes: commit.nodes.clone(),
        of: root.of,
        ended: now(),
        snapshot: None,
        changes: 0,
        entries: 0,
        bytes: 0,
        skipped: 0,
        error: None,
        hint: None,
    })
}

fn note(root: &JobRoot<'_>, record: &CommitRecord) -> Result<()> {
    let depot = &root.snapshot.depot;
    let no_depot = || Error::new(format!("{depot}: no depot is there"));
    let write = || {
        let records = JobRecords::make(Path::new(depot))?.ok_or_else(no_depot)?;
        records.write(&root.place, RecordKind::End, record)
    };
    let slow = || Error::new(format!("{depot}: nothing can be written there within {} s", TO_NOTE.as_secs()));
    until("depot writer", Instant::now() + TO_NOTE, write)?.ok_or_else(slow)
}

fn take(context: &UserContext, root: &JobRoot<'_>) -> Result<Taken> {
    let file = root.dir.join(UPPER);
    let shown = || file.display().to_string();
    let bytes = small_file::read_below(rustix::fs::CWD, &file, LONGEST).context(shown)?;
    let KeptUpper { upper, places } =
        serde_json::from_slice(&bytes).map_err(|e| Error::new(format!("{}: {e}", shown())))?;
    let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
    let id: SnapshotId = root.snapshot.snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    let path = Path::new(&root.snapshot.depot);
    // It has to be there; then what a version before had not is made.
    let manifest = Depot::open_existing(path).and_then(|depot| depot.manifest(&id)).map_err(ours)?;
    let depot = Depot::open(path).map_err(ours)?;
    let image = base_fingerprint::image_of(&manifest.base)?;
    let image = image.map(|(id, name)| get::on_node(context, path, id, name)).transpose()?;
    let base = image.map_or(EnvironmentBase::Host, EnvironmentBase::Image).for_plan();
    let own = own_view(context, base)?;
    let files = near_layers::files(context, &manifest.layers);
    let here = |id: &LayerId| near_layers::stream(&files, id);
    as_root_of_ids(context.helper.as_deref(), base, |view| {
        let scratch = open_dir(upper.parent().unwrap_or(&upper))?;
        let (upper, base) = (open_dir(&upper)?, view_of_base(view, &own)?);
        let (upper, base, scratch) = (upper.as_fd(), base.as_fd(), scratch.as_fd());
        let input = ChangesInput { parent: &id, upper, base, scratch, here: &here };
        let counts = |mut changes| {
            leave_out_places(&mut changes, &places);
            changes
        };
        let (pushed, changes) = push_changes(&depot, &input, counts).map_err(ours).map_err(hint_from_node)?;
        Ok(Taken {
            snapshot: pushed.as_ref().map(|pushed| pushed.id),
            changes: changes.len() as u64,
            entries: pushed.as_ref().map_or(0, |pushed| pushed.entries),
            bytes: pushed.as_ref().map_or(0, |pushed| pushed.bytes),
            skipped: pushed.as_ref().map_or(0, |pushed| pushed.skipped.len() as u64),
        })
    })
}

/// How to make room in a depot that has none; the rest of the hint is not for a node.
fn hint_from_node(e: Error) -> Error {
    match e.hint == SPACE {
        true => Error::new(e.message)
            .hint("on the login node: `skiff depot gc --budget 0` makes room, and the job can be run again"),
        false => e,
    }
}
