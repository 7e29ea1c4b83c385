//! What was changed in an environment since its base.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use skiff_output as output;
use skiff_plan::data::UnreadData;
use skiff_runtime::environments::Environment;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Change, ChangeKind, DiffOptions};
use skiff_spec::fault::Result;
use skiff_spec::name::EnvName;
use skiff_spec::plan::{Base, Plan, inside};
use skiff_sys::error::show;
use skiff_user::context::UserContext;

use crate::base_view::{open_dir, own_view, view_of_base};
use crate::snapshot_fault::ours;
use crate::{own_files, root};

/// Prints what is added, changed and deleted.
pub fn diff(context: &UserContext, name: &EnvName, json: bool) -> Result<()> {
    print(&changes(context, &Environment::existing(context, name.clone())?)?, json)
}

/// Prints changes, a line for each.
pub(crate) fn print(changes: &[Change], json: bool) -> Result<()> {
    if json {
        return output::json(&changes);
    }
    let mut text = String::new();
    for change in changes {
        text.push_str(match change.kind {
            ChangeKind::Added => "A ",
            ChangeKind::Changed => "C ",
            ChangeKind::Deleted => "D ",
        });
        text.push_str(&show_unmistakably(&[b"/", &change.path[..]].concat()));
        if change.base_changed {
            text.push_str("  (the host has changed it since)");
        }
        text.push('\n');
    }
    output::bytes(text.as_bytes())
}

/// As [`show`], for lists of what somebody else may have named: no two names look the same, as one with a line feed and one with `\n` would.
fn show_unmistakably(path: &[u8]) -> String {
    match show(path) {
        // In what is escaped, backslashes are as well.
        as_it_is if as_it_is.as_bytes() == path => as_it_is.replace('\\', r"\\"),
        escaped => escaped,
    }
}

/// What is added, changed and deleted in an environment.
pub fn changes(context: &UserContext, env: &Environment) -> Result<Vec<Change>> {
    let upper = env.dir.join("upper");
    let base = env.base()?;
    let own = own_view(context, base.for_plan())?;
    let accounts = base.image().map(|_| skiff_plan::accounts(context));
    let mut changes: Vec<Change> = as_root_of_ids(context.helper.as_deref(), base.for_plan(), |view| {
        let (upper, base) = (open_dir(&upper)?, view_of_base(view, &own)?);
        let as_seen = |uid, gid| (uid, gid);
        let options = DiffOptions { map_owner: &as_seen };
        let mut changes = skiff_snapshot::diff(upper.as_fd(), base.as_fd(), &options).map_err(ours)?;
        if let Some(accounts) = &accounts {
            own_files::leave_out_lists(&mut changes, upper.as_fd(), base.as_fd(), accounts)?;
        }
        Ok(changes)
    })?;
    if base.image().is_some() {
        // An image does not change; what times its files have was its maker's choice.
        changes.iter_mut().for_each(|change| change.base_changed = false);
    }
    leave_out_mount_points(context, env, &mut changes);
    Ok(changes)
}

/// Leaves out what was added only for something of the environment's to be mounted there: nobody has seen it.
pub(crate) fn leave_out_mount_points(context: &UserContext, env: &Environment, changes: &mut Vec<Change>) {
    // One that cannot run now has its places shown.
    if let Ok(plan) = root::plan_with(context, env, UnreadData::Place) {
        leave_out_places(changes, &places_of(&plan));
    }
}

/// Where something is mounted by a plan.
pub(crate) fn places_of(plan: &Plan) -> Vec<&Path> {
    let mut targets: Vec<&Path> =
        plan.mounts.iter().map(|mount| mount.target.as_path()).chain([Path::new(inside::DIR)]).collect();
    if plan.base != Base::Host {
        targets.push(Path::new(inside::MTAB));
    }
    targets
}

/// Whether something is mounted at a path, or below it, or it is Skiff's own.
pub(crate) fn is_place(targets: &[&Path], path: &Path) -> bool {
    targets.iter().any(|target| target.starts_with(path)) || path.starts_with(inside::DIR)
}

/// Leaves out what was added only as one of these places, or on the way to one. (Files come in order, a directory before what is in it.)
pub(crate) fn leave_out_places(changes: &mut Vec<Change>, targets: &[&Path]) {
    let mut kept: Vec<Change> = vec![];
    for change in std::mem::take(changes).into_iter().rev() {
        let path = Path::new("/").join(OsStr::from_bytes(&change.path));
        let holds_more = kept.last().is_some_and(|last| {
            last.path.strip_prefix(&change.path[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
        });
        if !(is_place(targets, &path) && change.kind == ChangeKind::Added && !holds_more) {
            kept.push(change);
        }
    }
    kept.reverse();
    *changes = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_look_the_same() {
        let names: [(&[u8], &str); 6] = [
            (b"/opt/a\nb", r"/opt/a\nb"),
            (br"/opt/a\nb", r"/opt/a\\nb"),
            (br"/opt/a\\nb", r"/opt/a\\\\nb"),
            (b"/opt/a\x1b[31mb", r"/opt/a\x1b[31mb"),
            (b"/opt/\xff", r"/opt/\xff"),
            ("/opt/\u{e9}".as_bytes(), "/opt/\u{e9}"),
        ];
        for (name, shown) in names {
            assert_eq!(show_unmistakably(name), shown);
        }
    }
}
