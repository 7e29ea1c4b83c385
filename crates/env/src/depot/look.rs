//! The depot as it is: snapshots, disk usage, damage.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rustix::process::getuid;
use serde::Serialize;
use skiff_output::{self as output, ListFormat};
use skiff_runtime::environments::Environment;
use skiff_site::TrustedDir;
use skiff_snapshot::{DepotCheck, DepotContents, DepotManifest, DepotSnapshot, DepotVerdict, SnapshotId};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::revision::{AT, EnvRevision, RevisionError};
use skiff_store::copies;
use skiff_sys::error::SPACE;
use skiff_user::context::UserContext;

use super::keepers::Keepers;
use super::users::JobList;
use super::young::YoungFiles;
use super::{Limits, existing, seconds, shown, uses};
use crate::calling::named_or_own;
use crate::history::short;
use crate::snapshot_fault::ours;
use crate::{base_fingerprint, history, job_records, latest};

/// A snapshot in a list.
#[derive(Serialize)]
struct ListedSnapshot {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "output::as_time_if_any")]
    created: Option<u64>,
    /// Of all its layers, also those that others have in common with it.
    bytes: u64,
    #[serde(serialize_with = "output::as_time")]
    used: u64,
    kept_by: Vec<String>,
    /// Whether it can be used; layers are not read for that.
    whole: bool,
}

impl ListedSnapshot {
    fn of(
        context: &UserContext,
        contents: &DepotContents,
        keepers: &Keepers,
        (id, snapshot): (&SnapshotId, &DepotSnapshot),
    ) -> Self {
        let manifest = snapshot.sound();
        let mut kept_by: Vec<String> = keepers.of(id).iter().map(ToString::to_string).collect();
        let week = Duration::from_secs(context.config.depot_keep_days.saturating_mul(skiff_sys::clock::DAY));
        if kept_by.is_empty() && contents.age(snapshot.file.used) < week.max(super::GRACE) {
            kept_by.push("recent".into());
        }
        Self {
            id: id.to_string(),
            environment: manifest.map(|manifest| manifest.environment.clone()),
            created: manifest.map(|manifest| manifest.created),
            bytes: contents.bytes_of(snapshot),
            used: seconds(snapshot.file.used),
            kept_by,
            whole: contents.is_whole(snapshot),
        }
    }

    fn row(&self) -> Vec<String> {
        let or_not = |text: Option<String>| text.unwrap_or_else(|| "?".into());
        let kept_by = match self.kept_by.join(", ") {
            nothing if nothing.is_empty() => "-".into(),
            kept_by => kept_by,
        };
        vec![
            self.id.chars().take(12).collect(),
            or_not(self.environment.clone()),
            or_not(self.created.map(output::time)),
            if self.whole { output::size(self.bytes) } else { "damaged".into() },
            output::time(self.used),
            kept_by,
        ]
    }
}

/// Lists snapshots: those of an environment together, the newest first.
pub(super) fn list(context: &UserContext, format: &ListFormat<'_>) -> Result<()> {
    let Some(depot) = existing(context)? else {
        return output::list(format, &[] as &[ListedSnapshot], |_| String::new(), || table(&[]));
    };
    let jobs = jobs_or_note(context);
    let contents = depot.contents().map_err(ours)?;
    let keepers = Keepers::find(context, &depot, &contents, &jobs)?;
    let mut all: Vec<ListedSnapshot> =
        contents.snapshots.iter().map(|one| ListedSnapshot::of(context, &contents, &keepers, one)).collect();
    all.sort_by(|a, b| (&a.environment, b.created, &a.id).cmp(&(&b.environment, a.created, &b.id)));
    output::list(format, &all, |one| one.id.clone(), || table(&all))
}

fn table(all: &[ListedSnapshot]) -> Result<()> {
    let rows: Vec<Vec<String>> = all.iter().map(ListedSnapshot::row).collect();
    output::table(&["SNAPSHOT", "ENVIRONMENT", "CREATED", "SIZE", "USED", "KEPT BY"], &rows)
}

/// Where nobody knows of jobs, that is said. Nothing is removed here.
fn jobs_or_note(context: &UserContext) -> JobList {
    JobList::ask(context).unwrap_or_else(|why| {
        output::note(&format!("what jobs need is not known: {}", why.message));
        JobList::None
    })
}

/// How much room a depot takes up, in bytes.
#[derive(Serialize)]
struct DepotUsage {
    snapshots: u64,
    layers: u64,
    unfinished: u64,
    /// Copies of images that no registry has, for nodes. They go when no name means their image any more.
    images: u64,
    /// Lists of packages, with which nodes are compared.
    bases: u64,
    /// What is noted of jobs, and which snapshot of each environment is the latest.
    records: u64,
    /// Of all that: what `skiff depot gc` removes now.
    reclaimable: u64,
    /// Of all that: what nothing needs, however young.
    unneeded: u64,
}

/// Prints how much room the depot takes up, and how much of it can go.
pub(super) fn usage(context: &UserContext, json: bool) -> Result<()> {
    let Some(depot) = existing(context)? else { return say_usage(&DepotUsage::nothing(), json) };
    let jobs = jobs_or_note(context);
    let contents = depot.contents().map_err(ours)?;
    let keepers = Keepers::find(context, &depot, &contents, &jobs)?;
    let limits = zero_budget();
    let unneeded = limits.plan(&contents, &keepers);
    let young = YoungFiles::left_by(&limits, &contents, &keepers, &unneeded);
    let usage = DepotUsage {
        snapshots: contents.snapshots.values().map(|one| one.file.bytes).sum(),
        layers: contents.layers.values().chain(contents.packs.values()).map(|file| file.bytes).sum(),
        unfinished: contents.unfinished.iter().map(|left| left.file.bytes).sum(),
        images: copies::usage(depot.path())?,
        bases: room_of(depot.path(), &[base_fingerprint::LISTS])?,
        records: room_of(depot.path(), &[job_records::DIR, uses::DIR, latest::DIR])?,
        reclaimable: Limits::of(context, None, None)?.plan(&contents, &keepers).bytes,
        unneeded: unneeded.bytes + young.as_ref().map_or(0, YoungFiles::bytes),
    };
    say_usage(&usage, json)?;
    if let Some(young) = young {
        young.say();
    }
    Ok(())
}

/// How much room the files of these directories take up, in bytes.
fn room_of(depot: &Path, dirs: &[&str]) -> Result<u64> {
    let mut bytes = 0;
    for dir in dirs {
        let Some(dir) = TrustedDir::find(&depot.join(dir), getuid().as_raw())? else { continue };
        for name in dir.names()? {
            bytes += dir.stat(&name)?.map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
        }
    }
    Ok(bytes)
}

/// A budget that leaves no room for anything.
fn zero_budget() -> Limits {
    Limits { older_than: Duration::ZERO, budget: Some(0) }
}

impl DepotUsage {
    fn nothing() -> Self {
        let (snapshots, layers, unfinished, images, bases, records) = (0, 0, 0, 0, 0, 0);
        Self { snapshots, layers, unfinished, images, bases, records, reclaimable: 0, unneeded: 0 }
    }
}

fn say_usage(usage: &DepotUsage, json: bool) -> Result<()> {
    if json {
        return output::json(usage);
    }
    let DepotUsage { snapshots, layers, unfinished, images, bases, records, reclaimable, unneeded } = *usage;
    let rows = [
        ("snapshots", snapshots),
        ("layers", layers),
        ("unfinished", unfinished),
        ("images", images),
        ("bases", bases),
        ("records", records),
        ("all", snapshots + layers + unfinished + images + bases + records),
        ("reclaimable", reclaimable),
        ("unneeded", unneeded),
    ];
    let rows: Vec<Vec<String>> =
        rows.iter().map(|(what, bytes)| vec![(*what).into(), output::size(*bytes)]).collect();
    output::table(&["WHAT", "ON DISK"], &rows)
}

/// A file that was checked, for programs.
#[derive(Serialize)]
struct CheckedDepotFile<'a> {
    file: &'a str,
    fault: Option<String>,
    snapshots: Vec<String>,
}

/// Checks all snapshots, or one; the exit code.
pub(super) fn verify(context: &UserContext, snapshot: Option<&str>, remove: bool, json: bool) -> Result<i32> {
    let Some(depot) = existing(context)? else {
        return match snapshot {
            Some(text) => Err(no_such(text)),
            None if json => output::json(&Vec::<CheckedDepotFile<'_>>::new()).map(|()| 0),
            None => Ok(0),
        };
    };
    let contents = depot.contents().map_err(ours)?;
    let only =
        snapshot.map(|text| find(context, &contents, text).map(|id| BTreeSet::from([id]))).transpose()?;
    let checked = depot.verify(&contents, only.as_ref()).map_err(ours)?;
    let code = i32::from(!checked.iter().all(DepotCheck::is_sound));
    if remove {
        depot.remove_damaged(&checked).map_err(ours)?;
    }
    if json {
        let all: Vec<_> = checked.iter().map(of_check).collect();
        return output::json(&all).map(|()| code);
    }
    for check in &checked {
        say_check(&contents, check, remove)?;
    }
    output::note(&checked_in_all(&checked));
    if remove {
        output::note(&removal(&checked));
    } else if checked.iter().any(is_damaged) {
        output::note(
            "`skiff depot verify --remove` removes damaged files; the next submission writes them again",
        );
    }
    Ok(code)
}

/// How many files were checked, and how many of them are not as they should be.
fn checked_in_all(checked: &[DepotCheck]) -> String {
    let bad = checked.iter().filter(|check| !check.is_sound()).count() as u64;
    let affected: BTreeSet<&SnapshotId> =
        checked.iter().filter(|check| !check.is_sound()).flat_map(|check| &check.snapshots).collect();
    let files = output::count(checked.len() as u64, "file", "files");
    match bad {
        0 => format!("{files} checked, all sound"),
        bad => {
            let snapshots = output::count(affected.len() as u64, "snapshot is", "snapshots are");
            format!("{files} checked, {bad} not sound: {snapshots} affected")
        }
    }
}

/// What `--remove` has done.
fn removal(checked: &[DepotCheck]) -> String {
    let damaged: Vec<&DepotCheck> = checked.iter().filter(|check| is_damaged(check)).collect();
    if damaged.is_empty() {
        return "nothing is damaged, so nothing was removed".into();
    }
    let affected: BTreeSet<SnapshotId> = damaged.iter().flat_map(|check| check.snapshots.clone()).collect();
    let files = output::count(damaged.len() as u64, "damaged file", "damaged files");
    let snapshots = match affected.len() as u64 {
        0 => "no snapshot needs it".into(),
        count => {
            let snapshots = output::count(count, "snapshot is", "snapshots are");
            format!("{snapshots} incomplete; the next submission writes again what it needs")
        }
    };
    format!("removed {files}: {snapshots}")
}

fn is_damaged(check: &DepotCheck) -> bool {
    matches!(check.verdict, DepotVerdict::Damaged(_))
}

fn fault(check: &DepotCheck) -> Option<String> {
    match &check.verdict {
        DepotVerdict::Sound => None,
        DepotVerdict::Missing => Some("missing".into()),
        DepotVerdict::Damaged(why) => Some(format!("damaged: {why}")),
        DepotVerdict::Unknown(why) => Some(format!("cannot be checked: {why}")),
    }
}

fn of_check(check: &DepotCheck) -> CheckedDepotFile<'_> {
    let snapshots = check.snapshots.iter().map(ToString::to_string).collect();
    CheckedDepotFile { file: &check.name, fault: fault(check), snapshots }
}

fn say_check(contents: &DepotContents, check: &DepotCheck, remove: bool) -> Result<()> {
    let Some(fault) = fault(check) else { return output::line(&format!("{}  sound", check.name)) };
    let name = |id: &SnapshotId| match contents.snapshots.get(id).map(|one| &one.manifest) {
        Some(DepotManifest::Sound(manifest)) => format!("{} of {}", short(*id), manifest.environment),
        _ => short(*id),
    };
    let affected: Vec<String> = check.snapshots.iter().map(name).collect();
    let affects = match affected.is_empty() {
        true => "no snapshot needs it".into(),
        false => format!("unusable: {}", affected.join(", ")),
    };
    let removed = if remove && is_damaged(check) { "; removed" } else { "" };
    output::line_and_rest(&check.name, &format!("{fault}; {affects}{removed}"))
}

/// A snapshot by the first digits of its id, or as one of an environment's history.
fn find(context: &UserContext, contents: &DepotContents, text: &str) -> Result<SnapshotId> {
    if text.contains(AT) {
        let of: EnvRevision = text.parse().map_err(|e: RevisionError| Error::new(e.to_string()))?;
        if let Some(revision) = &of.revision {
            return history::find(context, (&named_or_own(of.name.as_ref())?, revision));
        }
    }
    let mut found = contents.snapshots.keys().filter(|id| id.to_string().starts_with(text));
    match (found.next(), found.next()) {
        (Some(id), None) => Ok(*id),
        (None, _) if is_environment(context, text) => Err(no_such(text).hint(format!(
            "{text} is an environment: `skiff depot verify {text}{AT}~0` checks its newest snapshot"
        ))),
        (None, _) => Err(no_such(text)),
        (Some(_), Some(_)) => {
            Err(Error::new(format!("snapshot {text}: ambiguous prefix")).hint("use a longer prefix"))
        }
    }
}

fn is_environment(context: &UserContext, text: &str) -> bool {
    text.parse().is_ok_and(|name| Environment::existing(context, name).is_ok())
}

fn no_such(text: &str) -> Error {
    Error::new(format!("snapshot {text}: not in the depot"))
        .hint("name it by the first digits of its id, as `skiff depot ls` lists them, or as NAME@REF")
}

/// What to say of a depot that is full, as `fault` says: how much of it can go, and how.
pub fn fullness(context: &UserContext, path: &Path, fault: Error) -> Error {
    let known = || -> Result<(u64, u64)> {
        let Some(depot) = existing(context)? else { return Ok((0, 0)) };
        let jobs = JobList::ask(context)?;
        let contents = depot.contents().map_err(ours)?;
        let keepers = Keepers::find(context, &depot, &contents, &jobs)?;
        Ok((contents.bytes(), zero_budget().plan(&contents, &keepers).bytes))
    };
    let about = format!("depot {}", shown(path));
    let (all, can_go) = match known() {
        Ok(known) => known,
        Err(_) => {
            return fault.about(&about).hint(format!("`skiff depot gc --budget 0` makes room; or {SPACE}"));
        }
    };
    let Error { message, .. } = fault;
    let full = Error::new(format!(
        "{about} is full: {message}; it takes up {}, of which {} can go",
        output::size(all),
        output::size(can_go)
    ));
    match can_go {
        0 => {
            full.hint(format!("{SPACE}; what is needed can go with `skiff env rm`, and when jobs have ended"))
        }
        _ => full.hint(format!("`skiff depot gc --budget 0` removes that; or {SPACE}")),
    }
}
