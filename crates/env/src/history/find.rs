//! Snapshots by the names that users give them.

use skiff_runtime::environments::Environment;
use skiff_snapshot::{Depot, SnapshotId};
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_spec::revision::Revision;
use skiff_user::context::UserContext;

use super::{SnapshotHistory, catch_up};
use crate::snapshot_fault::{of_history, ours};

/// The snapshot that is meant.
pub fn find(context: &UserContext, (name, revision): (&EnvName, &Revision)) -> Result<SnapshotId> {
    let env = Environment::existing(context, name.clone())?;
    catch_up(context, &env);
    SnapshotHistory::of(&env.dir)?.find(name, revision)
}

/// The same of one that has to be whole, and stays in the depot for some time; and the depot.
pub fn find_whole(
    context: &UserContext,
    (name, revision): (&EnvName, &Revision),
) -> Result<(Depot, SnapshotId)> {
    let id = find(context, (name, revision))?;
    let depot = open_depot_of(context, (name, revision), id)?;
    Ok((depot, id))
}

/// The depot, with a snapshot that was found: that has to be whole, and stays for some time.
pub fn open_depot_of(
    context: &UserContext,
    (name, revision): (&EnvName, &Revision),
    id: SnapshotId,
) -> Result<Depot> {
    let depot = Depot::open(&context.depot()?).map_err(ours)?;
    depot.rely_on(&id).map_err(|e| of_history(e, name, revision))?;
    Ok(depot)
}
