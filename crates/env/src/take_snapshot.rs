//! Snapshots of an environment, as they are taken.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;
use skiff_output as output;
use skiff_plan::{device_words, refuse_inside};
use skiff_runtime::environments::Environment;
use skiff_sandbox::visit::as_root_of_ids;
use skiff_snapshot::{Depot, How, MergePolicy, Pushed, SnapshotId, SnapshotInput};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::job::Snapshot;
use skiff_spec::name::EnvName;
use skiff_spec::revision::{AT, TagName};
use skiff_store::copies;
use skiff_user::context::UserContext;

use crate::base_view::{open_dir, own_view, view_of_base};
use crate::elapsed::as_root_of_ids_shown;
use crate::history::Occasion;
use crate::snapshot_fault::ours;
use crate::{base_fingerprint, depot, history, latest};

/// A snapshot and what it took.
#[derive(Serialize, serde::Deserialize)]
pub struct SnapshotReport {
    /// What a job carries.
    #[serde(flatten)]
    pub descriptor: Snapshot,
    /// Whether it is new, and whether only changes were written.
    pub how: String,
    /// Files and directories written.
    pub entries: u64,
    /// Bytes written to the depot.
    pub bytes: u64,
    /// Sockets and devices, which no snapshot holds.
    pub skipped: Vec<String>,
}

/// What is said of a snapshot that was there.
const UNCHANGED: &str = "unchanged";

/// How often a snapshot is begun again because the environment was rolled back meanwhile.
const TRIES: u32 = 3;

/// Takes a snapshot of an environment into the depot, and notes it in the environment's history.
pub fn take_snapshot(
    context: &UserContext,
    env: &Environment,
    occasion: &Occasion,
) -> Result<SnapshotReport> {
    occasion.check()?;
    let dir = context.depot()?;
    let report = write_snapshot(context, env, dir.clone(), occasion).map_err(|e| {
        match is_depot_full(&e, &dir, &env.dir) {
            true => depot::fullness(context, &dir, e),
            false => e,
        }
    })?;
    if report.bytes > 0 {
        depot::collect_daily(context, &dir);
    }
    Ok(report)
}

/// Whether there was no room for what was to be written.
pub(crate) fn is_out_of_space(e: &Error) -> bool {
    [Errno::NOSPC, Errno::DQUOT]
        .iter()
        .any(|errno| e.message.contains(&format!("(os error {})", errno.raw_os_error())))
}

/// Whether it was the depot that had no room: in the environment's directory something is written, too.
fn is_depot_full(e: &Error, depot: &Path, state: &Path) -> bool {
    let device = |path: &Path| rustix::fs::stat(path).ok().map(|stat| stat.st_dev);
    let has_room = || rustix::fs::statvfs(state).is_ok_and(|state| state.f_bavail > 0);
    is_out_of_space(e) && (device(depot) == device(state) || has_room())
}

fn write_snapshot(
    context: &UserContext,
    env: &Environment,
    depot_dir: PathBuf,
    occasion: &Occasion,
) -> Result<SnapshotReport> {
    let kept = base_fingerprint::kept_in_home(context);
    let base = env.base()?;
    // Out here: in the user namespace root's directories could not be told from those of others.
    let depot = Depot::open(&depot_dir).map_err(ours)?;
    let fingerprint: BTreeMap<String, String> = match base.image() {
        Some(entry) => {
            copies::put(context, &depot_dir, entry)?;
            base_fingerprint::of_image(entry.id, &entry.reference)
        }
        None => base_fingerprint::here(&kept)?.record(&depot_dir)?,
    };
    let base = base.for_plan();
    let own = own_view(context, base)?;
    let name = env.name.clone();
    let devices = device_words::pick(&env.settings()?.mounts)?;
    let what = format!("taking a snapshot of environment {name}");
    let report: SnapshotReport = as_root_of_ids_shown(context, base, what, |view| {
        let pushed = push(env, &depot, &fingerprint, &view_of_base(view, &own)?)?;
        let how = match pushed.how {
            How::Unchanged => UNCHANGED,
            How::Restated => "restated",
            How::Incremental => "incremental",
            How::Full => "full",
        };
        let descriptor = Snapshot {
            environment: name,
            snapshot: pushed.id.to_string(),
            depot: depot_dir
                .to_str()
                .ok_or_else(|| Error::new(format!("{}: not UTF-8", depot_dir.display())))?
                .into(),
            commit: None,
            devices: devices.clone(),
        };
        let skipped = pushed.skipped.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
        Ok(SnapshotReport {
            descriptor,
            how: how.into(),
            entries: pushed.entries,
            bytes: pushed.bytes,
            skipped,
        })
    })?;
    latest::set(&depot_dir, &report.descriptor)?;
    let id = report.descriptor.snapshot.parse().map_err(|e| Error::new(format!("snapshot: {e}")))?;
    history::note(context, env, &depot, (id, report.entries, report.bytes), occasion)?;
    Ok(report)
}

/// Reads the environment's upper, which a rollback may exchange for another meanwhile, and then removes.
fn push(
    env: &Environment,
    depot: &Depot,
    base_fingerprint: &BTreeMap<String, String>,
    base: &OwnedFd,
) -> Result<Pushed> {
    let mut last = None;
    for _ in 0..TRIES {
        let (upper, state) = (open_dir(&env.dir.join("upper"))?, open_dir(&env.dir)?);
        let input = SnapshotInput {
            environment: env.name.as_str(),
            upper: upper.as_fd(),
            base: base.as_fd(),
            state: state.as_fd(),
            base_fingerprint,
            merge: MergePolicy::default(),
        };
        let pushed = skiff_snapshot::push(depot, &input).map_err(ours);
        let inode = |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| stat.st_ino).context(|| "upper");
        if inode(&upper)? == inode(&open_dir(&env.dir.join("upper"))?)? {
            return pushed;
        }
        last = Some(pushed);
    }
    let busy = Error::new(format!("environment {}: it was rolled back again and again", env.name));
    last.unwrap_or(Err(busy))
}

/// What to do in a job's environment, where the environment itself is out of reach.
const IN_A_JOB: &str = "a job's changes are kept with `srun --environment=NAME --environment-commit`; the environment as it is at home: `skiff env snapshot` on the login node";

/// Takes a snapshot and says which.
pub fn snapshot(context: &UserContext, name: &EnvName, occasion: &Occasion, json: bool) -> Result<()> {
    refuse_inside(context).map_err(|e| e.hint(IN_A_JOB))?;
    let env = Environment::existing(context, name.clone())?;
    let report = take_snapshot(context, &env, occasion)?;
    if json {
        return output::json(&report);
    }
    for path in &report.skipped {
        output::note(&format!("left out: /{path} (a socket or device)"));
    }
    output::note(&report.outcome());
    output::line(&report.descriptor.snapshot)
}

impl SnapshotReport {
    /// What came of it, for people. How many entries a layer has that was merged with others says nothing of what is new.
    fn outcome(&self) -> String {
        let Snapshot { environment, snapshot, .. } = &self.descriptor;
        let id = snapshot.parse().map_or_else(|_| snapshot.clone(), history::short);
        match self.how == UNCHANGED {
            true => format!("environment {environment} has not changed since snapshot {id}"),
            false => format!("snapshot {id} of {environment}: {} written", output::size(self.bytes)),
        }
    }
}

/// Says so where an environment is seen at a glance to be another than in the snapshot that has just got a tag: the user may have meant it as
/// it is.
pub fn note_if_changed(context: &UserContext, env: &Environment, tag: &TagName, id: SnapshotId) {
    let looks_changed = || -> Result<bool> {
        as_root_of_ids(context.helper.as_deref(), env.base()?.for_plan(), |_| {
            let (upper, state) = (open_dir(&env.dir.join("upper"))?, open_dir(&env.dir)?);
            skiff_snapshot::looks_changed(upper.as_fd(), state.as_fd(), &id).map_err(ours)
        })
    };
    // The snapshot has its tag, whatever can be said of this.
    if looks_changed().unwrap_or(false) {
        let name = &env.name;
        output::note(&format!(
            "{tag} names snapshot {}, and environment {name} has changed since: `skiff env tag --remove {name}{AT}{tag} && \
             skiff env snapshot -t {tag} {name}` names it as it is now",
            history::short(id)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_snapshot_is_one_clear_line() {
        let report = |how: &str| SnapshotReport {
            descriptor: Snapshot {
                environment: "dev".parse().expect("a name"),
                snapshot: "21".repeat(32),
                depot: "/d".into(),
                commit: None,
                devices: vec![],
            },
            how: how.into(),
            entries: 1425,
            bytes: 1536,
            skipped: vec![],
        };
        assert_eq!(report("full").outcome(), "snapshot 212121212121 of dev: 1.5 KiB written");
        let unchanged = "environment dev has not changed since snapshot 212121212121";
        assert_eq!(report("unchanged").outcome(), unchanged);
    }
}
