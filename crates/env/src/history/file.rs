//! Writes an environment's history: whole, under its lock.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use skiff_output as output;
use skiff_runtime::environments::Environment;
use skiff_site::TrustedDir;
use skiff_snapshot::Depot;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::Revision;
use skiff_sys::clock::now;
use skiff_sys::{IgnoreError, lock};
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, with_umask};

use super::{FILE, SnapshotHistory, from_jobs, past};
use crate::job_records::JobRecords;
use crate::snapshot_fault::ours;

/// The next one, until it is whole.
const NEW: &str = "history.json.new";
const LOCK: &str = "history.lock";
/// For how long somebody else who writes it is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Changes a history under its lock. Nothing is written where nothing was changed. What `act` has done before it failed stays.
pub fn change<T>(
    context: &UserContext,
    env: &Environment,
    depot: &Depot,
    act: impl FnOnce(&mut SnapshotHistory) -> Result<T>,
) -> Result<T> {
    let dir = dirs::open(&env.dir)?;
    let take = || dir.lock(LOCK, FlockOperation::NonBlockingLockExclusive);
    let locked = with_umask(|| lock::within(PATIENCE, take))?;
    let _held = locked.ok_or_else(|| {
        let reason = format!("another process has held it for {} s", PATIENCE.as_secs());
        Error::new(format!("{}: {reason}", dir.path_of(LOCK).display()))
    })?;
    let before = SnapshotHistory::of(&env.dir)?;
    let mut after = before.clone();
    let from_jobs = from_jobs::adopt(&mut after, context, env, depot)?;
    let done = act(&mut after);
    if after != before {
        past::note(&dir, &before, &after).ignore_error("what jobs have changed in these is not taken in");
        let present = depot.snapshot_ids().map_err(ours)?;
        after.forget(&context.config.history, &present, now());
        let missing = after.tags.values().filter(|id| !present.contains(id)).count();
        if let Some(what) = missing_from(before.is_all_away(&present), missing) {
            output::note(&missing_note(&env.name, &what, depot.path()));
        }
        write(&dir, &after)?;
    }
    from_jobs.mark_noted().ignore_error("what is not marked is found to be there the next time");
    done
}

/// What is missing from a depot that may be another one than the history is of. Snapshots without tags alone may have been collected.
fn missing_from(is_all_away: bool, tags: usize) -> Option<String> {
    match (is_all_away, tags) {
        (true, _) => Some("all earlier snapshots".into()),
        (false, 0) => None,
        (false, tags) => Some(format!("snapshots of {tags} of its tags")),
    }
}

fn missing_note(name: &EnvName, what: &str, depot: &Path) -> String {
    format!(
        "environment {name}: {what} are not in the depot {}; check that the file system is mounted; `skiff env history {name}` lists them",
        depot.display()
    )
}

/// Has the history of an environment contain what jobs have changed until now. Without that, all else of it can be used.
pub fn catch_up(context: &UserContext, env: &Environment) {
    let caught_up = context.depot().and_then(|depot| {
        // Where there is no depot yet, there is nothing in it.
        let Some(depot) = Depot::find_existing(&depot).map_err(ours)? else { return Ok(()) };
        let Some(records) = JobRecords::find(depot.path())? else { return Ok(()) };
        match records.ends()?.is_empty() {
            false => change(context, env, &depot, |_| Ok(())),
            true => Ok(()),
        }
    });
    if let Err(e) = caught_up {
        output::complain(&e);
    }
}

/// Leaves nothing behind that is not overwritten the next time, when it is killed.
fn write(dir: &TrustedDir, history: &SnapshotHistory) -> Result<()> {
    let about = || dir.path_of(FILE).display().to_string();
    let bytes = serde_json::to_vec(history).map_err(|e| Error::new(format!("{}: {e}", about())))?;
    dir.remove_tree(NEW).or_else(|_| dir.remove_file(NEW))?;
    let file = with_umask(|| dir.file(NEW, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600))?;
    let mut file = std::fs::File::from(file);
    file.write_all(&bytes).and_then(|()| file.sync_all()).context(about)?;
    Ok(dir.rename(NEW, dir, FILE)?)
}

/// Has a copy of an environment begin with the history of the one in `from`.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    write_copy(&SnapshotHistory::of(from)?, to)
}

/// The same of a copy that is as the environment was in a snapshot: what came after that is none of its.
pub fn copy_until(from: &Path, to: &Path, (name, revision): (&EnvName, &Revision)) -> Result<()> {
    let mut history = SnapshotHistory::of(from)?;
    history.end_with(name, revision)?;
    write_copy(&history, to)
}

fn write_copy(history: &SnapshotHistory, to: &Path) -> Result<()> {
    if history.entries.is_empty() && history.tags.is_empty() {
        return Ok(());
    }
    let to = dirs::open(to)?;
    past::note(&to, &SnapshotHistory::default(), history)
        .ignore_error("what jobs have changed in these is not taken in");
    write(&to, history)
}
