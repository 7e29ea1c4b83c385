//! `skiff env rollback`: an environment is again as one of its snapshots.
//!
//! The upper is made anew from the snapshot's layers beside the old one, and the two are exchanged by one rename. An interrupted
//! rollback leaves either the old or the new upper, and a directory that `skiff sweep` removes. The old upper is deleted last: by then
//! the history says what was done, and the environment can be used.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::Serialize;
use skiff_output as output;
use skiff_plan::refuse_inside;
use skiff_runtime::environments::Environment;
use skiff_runtime::package_database;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Change, Depot, SnapshotId};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, EnvRevision, Revision, SnapshotRef};
use skiff_sys::IgnoreError;
use skiff_sys::error::show;
use skiff_user::context::UserContext;
use skiff_user::dirs;

use crate::base_view::{open_dir, own_view, view_of_base};
use crate::elapsed::as_root_of_ids_shown;
use crate::history::{self, SnapshotOrigin, short};
use crate::settings::lock_ended;
use crate::snapshot_fault::{of_history, ours};
use crate::take_snapshot::{is_out_of_space, take_snapshot};
use crate::{calling, changes, snapshot_diff};

/// What a rollback would do.
#[derive(Serialize)]
struct DryRun<'a> {
    environment: &'a EnvName,
    snapshot: SnapshotId,
    changes: Vec<Change>,
    /// Sockets and devices, which no snapshot holds: they go.
    lost: Vec<String>,
}

/// Makes an environment as one of its snapshots, or says what that would change.
pub fn rollback(
    context: &UserContext,
    of: &EnvRevision,
    to: Option<&SnapshotRef>,
    (dry_run, json): (bool, bool),
) -> Result<()> {
    let name = calling::named_or_own(of.name.as_ref())?;
    let env = Environment::existing(context, name.clone())?;
    let (whose, revision) = resolve_revision(&name, of, to)?;
    // Before anything else: a snapshot that is gone is told at once.
    let (depot, snapshot) = history::find_whole(context, (whose, revision))?;
    if dry_run {
        return show_changes(context, &env, snapshot, json);
    }
    // Nobody can work in it meanwhile.
    refuse_inside(context)?;
    let held = lock_ended(&env)?;
    let before = take_snapshot(context, &env, &SnapshotOrigin::BeforeRollback.into())
        .map_err(|e| if is_out_of_space(&e) { without_room(e, whose, revision) } else { e })?;
    if before.descriptor.snapshot == snapshot.to_string() && before.skipped.is_empty() {
        output::note(&format!("environment {name} is already as in {}", described(revision, snapshot)));
        return Ok(());
    }
    before.skipped.iter().for_each(|path| output::note(&format!("lost: /{path} (a socket or device)")));
    let replaced = replace(context, &env, &depot, (whose, revision, snapshot))?;
    let message = Some(format!("to {}", history::lasting(revision, snapshot)));
    let occasion = history::Occasion { message, ..SnapshotOrigin::Rollback.into() };
    history::note(context, &env, &depot, (snapshot, 0, 0), &occasion)?;
    output::note(&rolled_back(&name, revision, snapshot, &before.descriptor.snapshot));
    drop(held);
    // Many files take long on some disks.
    dirs::delete(context, replaced)
}

/// The way out where the present state cannot be kept: a copy of the snapshot beside it takes no room in the depot.
fn without_room(e: Error, name: &EnvName, revision: &Revision) -> Error {
    let room = e.hint.clone();
    e.hint(format!(
        "the present state would become a snapshot first; `skiff env clone {name}{AT}{revision} NEW` needs no room in the depot, and leaves {name} as it is; or {room}"
    ))
}

/// The snapshot, for people.
fn described(revision: &Revision, snapshot: SnapshotId) -> String {
    match revision {
        Revision::Tag(tag) => format!("{tag} ({})", short(snapshot)),
        Revision::Back(_) | Revision::Digits(_) => format!("snapshot {}", short(snapshot)),
    }
}

/// What was done, and the way back. A place in the list would not do: the next snapshot moves it.
fn rolled_back(name: &EnvName, revision: &Revision, snapshot: SnapshotId, before: &str) -> String {
    let done = format!("environment {name} is as in {}", described(revision, snapshot));
    match before.parse::<SnapshotId>() {
        // Only sockets and devices were lost, which no snapshot holds.
        Ok(before) if before == snapshot => done,
        parsed => {
            let way_back = parsed.map_or_else(|_| before.to_owned(), short);
            format!("{done}; `skiff env rollback {name} {way_back}` takes that back")
        }
    }
}

/// The one snapshot that is named.
fn resolve_revision<'a>(
    name: &'a EnvName,
    of: &'a EnvRevision,
    to: Option<&'a SnapshotRef>,
) -> Result<(&'a EnvName, &'a Revision)> {
    match (&of.revision, to) {
        (Some(revision), None) => Ok((name, revision)),
        (None, Some(to)) => Ok((to.name.as_ref().unwrap_or(name), &to.revision)),
        (None, None) => Err(Error::new("no snapshot is named").hint(format!(
            "`skiff env history {name}` lists them; `skiff env rollback {name} {AT}~1` goes back to the last but one"
        ))),
        (Some(_), Some(_)) => Err(Error::new("two snapshots are named").hint("name the one to go back to")),
    }
}

fn show_changes(context: &UserContext, env: &Environment, snapshot: SnapshotId, json: bool) -> Result<()> {
    let changes = snapshot_diff::changes_back(context, env, snapshot)?;
    let base = env.base()?.for_plan();
    let lost: Vec<String> = as_root_of_ids(context.helper.as_deref(), base, |_| {
        let upper = open_dir(&env.dir.join("upper"))?;
        let lost = skiff_snapshot::unshippable(upper.as_fd()).map_err(ours)?;
        Ok(lost.iter().map(|path| show(path)).collect())
    })?;
    if json {
        return output::json(&DryRun { environment: &env.name, snapshot, changes, lost });
    }
    changes::print(&changes, false)?;
    lost.iter().for_each(|path| output::note(&format!("would be lost: /{path} (a socket or device)")));
    Ok(())
}

/// Makes the new upper in a directory beside the environment's, and exchanges the two. Gives that directory, which has the old one then.
fn replace(
    context: &UserContext,
    env: &Environment,
    depot: &Depot,
    (whose, revision, snapshot): (&EnvName, &Revision, SnapshotId),
) -> Result<PathBuf> {
    let all = dirs::open(env.dir.parent().unwrap_or(Path::new("/")))?;
    let work = dirs::new_name(&env.name);
    dirs::with_umask(|| all.new_dir(&work, 0o700))?;
    let work = all.path_of(work);
    let base = env.base()?.for_plan();
    let own = own_view(context, base)?;
    let image = env.base()?.image().is_some();
    let what = format!("unpacking a snapshot of environment {}", env.name);
    let replaced: Result<()> = as_root_of_ids_shown(context, base, what, |view| {
        let base = view_of_base(view, &own)?;
        let (dir, environment) = (open_dir(&work)?, open_dir(&env.dir)?);
        dirs::with_umask(|| skiff_snapshot::apply(depot, &snapshot, dir.as_fd(), base.as_fd()))
            .map_err(|e| of_history(e, whose, revision))?;
        // Before the exchange: what was merged into the one is not what was merged into the other.
        if !image {
            package_database::forget_ancestor(&env.dir)?;
        }
        skiff_snapshot::put_in_place(dir.as_fd(), environment.as_fd()).map_err(ours)
    });
    match replaced {
        Ok(()) => Ok(work),
        Err(e) => {
            dirs::delete(context, work)
                .ignore_error("the first error is the one to tell; what stays, `skiff sweep` removes");
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_names_the_snapshot_itself() {
        let (name, revision) = ("dev".parse().expect("a name"), "job-7-n1".parse().expect("a revision"));
        let said = rolled_back(&name, &revision, SnapshotId([0x1a; 32]), &SnapshotId([0x2b; 32]).to_string());
        let want = "environment dev is as in job-7-n1 (1a1a1a1a1a1a); `skiff env rollback dev 2b2b2b2b2b2b` takes that back";
        assert_eq!(said, want);
        let said = rolled_back(&name, &revision, SnapshotId([0x1a; 32]), &SnapshotId([0x1a; 32]).to_string());
        assert_eq!(said, "environment dev is as in job-7-n1 (1a1a1a1a1a1a)", "there is no way back");
        for (text, noted, said) in [
            ("v1", "v1", "v1 (1a1a1a1a1a1a)"),
            ("~2", "1a1a1a1a1a1a", "snapshot 1a1a1a1a1a1a"),
            ("1a1a1a", "1a1a1a1a1a1a", "snapshot 1a1a1a1a1a1a"),
        ] {
            let (revision, snapshot) = (text.parse().expect("a revision"), SnapshotId([0x1a; 32]));
            assert_eq!(
                (history::lasting(&revision, snapshot).as_str(), described(&revision, snapshot).as_str()),
                (noted, said)
            );
        }
    }
}
