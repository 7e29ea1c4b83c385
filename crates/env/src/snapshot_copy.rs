//! An environment as it was in a snapshot, for who reads its files: a copy, which has no name and is gone afterwards.

use std::os::fd::AsFd as _;
use std::path::Path;

use skiff_runtime::control;
use skiff_runtime::environments::Environment;
use skiff_snapshot::{Depot, SnapshotId};
use skiff_spec::fault::Result;
use skiff_spec::revision::{EnvRevision, Revision};
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;
use skiff_user::dirs;

use crate::base_view::{open_dir, own_view, view_of_base};
use crate::calling;
use crate::elapsed::as_root_of_ids_shown;
use crate::history::find_whole;
use crate::snapshot_fault::of_history;

/// Does something with an environment; where a snapshot is named, with a copy that is as that shows. Its own `/tmp` and `/var/tmp` are in no
/// snapshot, and empty in the copy.
///
/// # Errors
/// There is none, the snapshot is incomplete, or those of `act`.
pub fn with_state_of<T>(
    context: &UserContext,
    of: &EnvRevision,
    act: impl FnOnce(&Environment) -> Result<T>,
) -> Result<T> {
    let env = Environment::existing(context, calling::named_or_own(of.name.as_ref())?)?;
    let Some(revision) = &of.revision else { return act(&env) };
    let (depot, id) = find_whole(context, (&env.name, revision))?;
    let copy = Environment::unnamed_like(&env, |dir| fill(context, (&env, &depot), (revision, id), dir))?;
    let done = act(&copy);
    control::stop_at(&copy.dir).ignore_error("what runs in it ends with its files");
    let done = delete_if_failed(context, done, &copy.dir)?;
    dirs::delete(context, copy.dir).map(|()| done)
}

/// Makes the upper of a new environment as a snapshot shows it.
pub(crate) fn fill(
    context: &UserContext,
    (env, depot): (&Environment, &Depot),
    snapshot: (&Revision, SnapshotId),
    dir: &Path,
) -> Result<()> {
    let made = make_upper(context, env, depot, snapshot, dir);
    delete_if_failed(context, made, dir)
}

/// Makes in `dir`, a directory for an environment that is being made, the upper that a snapshot of `env` shows.
fn make_upper(
    context: &UserContext,
    env: &Environment,
    depot: &Depot,
    (revision, snapshot): (&Revision, SnapshotId),
    dir: &Path,
) -> Result<()> {
    let base = env.base()?.for_plan();
    let own = own_view(context, base)?;
    dirs::open(dir)?.remove_tree("upper")?;
    let what = format!("unpacking a snapshot of environment {}", env.name);
    as_root_of_ids_shown(context, base, what, |view| {
        let (dir, base) = (open_dir(dir)?, view_of_base(view, &own)?);
        dirs::with_umask(|| skiff_snapshot::apply(depot, &snapshot, dir.as_fd(), base.as_fd()))
            .map_err(|e| of_history(e, &env.name, revision))
    })
}

/// Deletes an environment's directory after an error. Of root's files inside none are the user's to remove outside, and there may be no more room
/// because of them.
pub(crate) fn delete_if_failed<T>(context: &UserContext, made: Result<T>, dir: &Path) -> Result<T> {
    if made.is_err() {
        dirs::delete(context, dir.to_owned())
            .ignore_error("the first error is the one to tell; what stays, `skiff sweep` removes");
    }
    made
}
