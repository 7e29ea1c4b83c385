//! A snapshot of an environment's history as a job carries it: what `srun --environment=NAME@REF` asks for.

use skiff_plan::device_words;
use skiff_runtime::environments::Environment;
use skiff_snapshot::SnapshotId;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::job::Snapshot;
use skiff_spec::name::EnvName;
use skiff_spec::revision::Revision;
use skiff_user::context::UserContext;

use crate::history::{SnapshotHistory, find_whole};
use crate::latest;

/// The snapshot that is meant as a job carries it. It has to be in the depot, and stays there for the job.
pub fn for_job(context: &UserContext, environment: EnvName, revision: &Revision) -> Result<Snapshot> {
    let (_, id) = find_whole(context, (&environment, revision))?;
    let path = context.depot()?;
    let depot = path.to_str().ok_or_else(|| Error::new(format!("{}: not UTF-8", path.display())))?;
    let devices =
        device_words::pick(&Environment::existing(context, environment.clone())?.settings()?.mounts)?;
    let of = |id: SnapshotId| Snapshot {
        environment: environment.clone(),
        snapshot: id.to_string(),
        depot: depot.into(),
        commit: None,
        devices: devices.clone(),
    };
    // Of a copy, or under a new name, none was taken yet. By that record the job's nodes know that the environment is there.
    if latest::get(&path, &environment)?.is_none() {
        let env = Environment::existing(context, environment.clone())?;
        let newest = SnapshotHistory::of(&env.dir)?.newest_own().map(|entry| entry.snapshot);
        latest::set(&path, &of(newest.unwrap_or(id)))?;
    }
    Ok(of(id))
}
