//! `skiff env diff` of snapshots: what changed between two, or from one to the environment as it is.

use std::os::fd::{AsFd, OwnedFd};

use skiff_runtime::environments::Environment;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Change, Depot, Side, SnapshotId, compare};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, EnvRevision, Revision, SnapshotRef};
use skiff_user::context::UserContext;

use crate::base_view::{open_dir, own_view, view_of_base};
use crate::calling;
use crate::changes::{self, leave_out_mount_points};
use crate::history::{SnapshotHistory, find, open_depot_of};
use crate::snapshot_fault::ours;

/// Prints what was added, changed and deleted: since the base, or since or between the snapshots that are named.
pub fn diff(context: &UserContext, of: &EnvRevision, more: &[SnapshotRef], json: bool) -> Result<()> {
    let name = calling::named_or_own(of.name.as_ref())?;
    let env = Environment::existing(context, name.clone())?;
    let more = match more {
        [before @ .., last] if of.revision.is_some() || !before.is_empty() => {
            if is_name_of(&env, last)? {
                before
            } else {
                more
            }
        }
        more => more,
    };
    let first = of.revision.iter().map(|revision| (&name, revision));
    let others = more.iter().map(|one| (one.name.as_ref().unwrap_or(&name), &one.revision));
    let named: Vec<(&EnvName, &Revision)> = first.chain(others).collect();
    let (before, after) = match named[..] {
        [] => return changes::diff(context, &name, json),
        [before] => (before, None),
        [before, after] => (before, Some(after)),
        _ => {
            return Err(Error::new("more than two snapshots are named")
                .hint(format!("`skiff env diff {name} A B` compares two")));
        }
    };
    let before = find_named(context, before)?;
    let after = after.map(|after| find_named(context, after)).transpose()?;
    changes::print(&changes(context, &env, before, after)?, json)
}

/// A snapshot that a user names, which is whole and stays for some time.
fn find_named(context: &UserContext, (name, revision): (&EnvName, &Revision)) -> Result<SnapshotId> {
    let id = find(context, (name, revision)).map_err(|e| match what_was_meant(context, name, revision) {
        Some(hint) => e.hint(hint),
        None => e,
    })?;
    open_depot_of(context, (name, revision), id).map(|_| id)
}

/// What a word that is no tag of the environment may stand for.
fn what_was_meant(context: &UserContext, name: &EnvName, revision: &Revision) -> Option<String> {
    let Revision::Tag(tag) = revision else { return None };
    if let Some((before, after)) = tag.as_str().split_once("..") {
        return Some(format!("two snapshots are two words: `skiff env diff {name} {before} {after}`"));
    }
    let other = tag.as_str().parse().ok()?;
    Environment::existing(context, other).ok()?;
    Some(format!(
        "{tag} is an environment; {tag}{AT}REF is one of its snapshots: `skiff env history {tag}` lists them"
    ))
}

/// Whether a word is the environment's name, for the environment as it is, and none of its tags.
fn is_name_of(env: &Environment, word: &SnapshotRef) -> Result<bool> {
    match (&word.name, &word.revision) {
        (None, Revision::Tag(tag)) if tag.as_str() == env.name.as_str() => {
            Ok(!SnapshotHistory::of(&env.dir)?.tags.contains_key(tag))
        }
        _ => Ok(false),
    }
}

/// What changed from one snapshot to another, or to the environment as it is.
pub fn changes(
    context: &UserContext,
    env: &Environment,
    before: SnapshotId,
    after: Option<SnapshotId>,
) -> Result<Vec<Change>> {
    let sides = |now: Side<'_>, base: &OwnedFd, depot: &Depot| {
        compare(depot, Side::Snapshot(&before), after.as_ref().map_or(now, Side::Snapshot), base.as_fd())
    };
    with_upper_and_base(context, env, sides)
}

/// What would change if the environment became as a snapshot.
pub fn changes_back(context: &UserContext, env: &Environment, to: SnapshotId) -> Result<Vec<Change>> {
    with_upper_and_base(context, env, |now, base, depot| {
        compare(depot, now, Side::Snapshot(&to), base.as_fd())
    })
}

fn with_upper_and_base(
    context: &UserContext,
    env: &Environment,
    compare: impl FnOnce(Side<'_>, &OwnedFd, &Depot) -> skiff_snapshot::Result<Vec<Change>>,
) -> Result<Vec<Change>> {
    let depot = Depot::open(&context.depot()?).map_err(ours)?;
    let base = env.base()?.for_plan();
    let own = own_view(context, base)?;
    let mut changes: Vec<Change> = as_root_of_ids(context.helper.as_deref(), base, |view| {
        let (upper, state) = (open_dir(&env.dir.join("upper"))?, open_dir(&env.dir)?);
        let base = view_of_base(view, &own)?;
        compare(Side::Upper(upper.as_fd(), state.as_fd()), &base, &depot).map_err(ours)
    })?;
    leave_out_mount_points(context, env, &mut changes);
    Ok(changes)
}
