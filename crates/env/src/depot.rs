//! `skiff depot`: what snapshots there are, what needs them, and the removal of what nothing needs.

mod background;
mod keepers;
mod look;
mod users;
mod uses;
mod young;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use skiff_cli::DepotCommand;
use skiff_output as output;
use skiff_snapshot::{CollectOptions, CollectedFiles, CollectionPlan, Depot, DepotContents, SnapshotId};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::size;
use skiff_sys::clock::DAY;
use skiff_user::context::UserContext;

use crate::base_fingerprint;
use crate::job_records::JobRecords;
use crate::snapshot_fault::ours;
use keepers::Keepers;
use users::JobList;
use young::YoungFiles;

pub use background::{collect_daily, delete_leftovers, leftovers, trim_records_daily};
pub use keepers::{Keeper, kept_by_environments};
pub use look::fullness;
pub use users::{CheckpointUse, LiveJob, SnapshotUsers, ask_by};
pub use uses::note_use;

/// What was used within this time stays in any case: somebody may be about to rely on it.
const GRACE: Duration = Duration::from_secs(600);
/// What to say where it is not known which jobs there are.
const JOBS_HINT: &str =
    "check that squeue works here; with --ignore-jobs, snapshots go also that queued jobs need";

/// Does what was asked; the exit code.
pub fn run(command: &DepotCommand) -> Result<i32> {
    if let DepotCommand::Gc { background: true, .. } = command {
        background::collect(&UserContext::load_silently()?);
        return Ok(0);
    }
    let context = UserContext::load()?;
    match command {
        DepotCommand::Ls(list) => look::list(&context, &list.format())?,
        DepotCommand::Du(output) => look::usage(&context, output.json)?,
        DepotCommand::Gc { budget, days, ignore_jobs, dry_run, background: _, output } => {
            let limits = Limits::of(&context, budget.as_deref(), *days)?;
            collect(&context, &limits, *ignore_jobs, *dry_run, output.json)?;
        }
        DepotCommand::Verify { snapshot, remove, output } => {
            return look::verify(&context, snapshot.as_deref(), *remove, output.json);
        }
    }
    Ok(0)
}

/// Whether a job of the user's has not ended; nothing where nobody knows.
pub fn is_live_job(context: &UserContext, id: u32) -> Option<bool> {
    match JobList::ask(context) {
        Ok(JobList::Known(jobs)) => Some(jobs.iter().any(|job| job.id == id)),
        _ => None,
    }
}

/// Running jobs that will keep their changes to an environment. Queued jobs are not known.
pub fn jobs_to_keep_changes(context: &UserContext, name: &EnvName) -> Vec<u32> {
    let running = || -> Result<BTreeSet<u32>> {
        let Some(records) = JobRecords::find(&context.depot()?)? else { return Ok(BTreeSet::new()) };
        let mut begun = records.starts_without_end()?;
        // Where nobody knows which jobs run, none keeps an environment. The queue is not to be asked for nothing.
        if begun.is_empty() {
            return Ok(BTreeSet::new());
        }
        let JobList::Known(live) = JobList::ask(context)? else { return Ok(BTreeSet::new()) };
        let live: BTreeSet<u32> = live.iter().map(|job| job.id).collect();
        begun.retain(|start| live.contains(&start.place.job) && records.is_to_keep_changes(start, name));
        Ok(begun.into_iter().map(|start| start.place.job).collect())
    };
    running().map_or_else(|_| vec![], |jobs| jobs.into_iter().collect())
}

/// The user's depot, if there is one.
fn existing(context: &UserContext) -> Result<Option<Depot>> {
    Depot::find_existing(&context.depot()?).map_err(ours)
}

/// A budget below this is more likely a unit that was forgotten.
const MEBIBYTE: u64 = 1 << 20;

/// How long what nothing needs stays, and how much of it.
struct Limits {
    older_than: Duration,
    budget: Option<u64>,
}

impl Limits {
    /// As the configuration says, where the command line says nothing.
    fn of(context: &UserContext, budget: Option<&str>, days: Option<u64>) -> Result<Self> {
        let not_understood = |text: &str| {
            Error::new(format!("size {text:?}: not understood"))
                .hint("it is a number, with K, M, G or T behind it")
        };
        let budget = budget.map(|text| size::parse(text).ok_or_else(|| not_understood(text))).transpose()?;
        if let Some(bytes @ 1..MEBIBYTE) = budget {
            output::note(&format!("--budget: {bytes} bytes; 20G is 20 GiB"));
        }
        let config = &context.config;
        let days = days.unwrap_or(config.depot_keep_days);
        Ok(Self {
            older_than: Duration::from_secs(days.saturating_mul(DAY)),
            budget: budget.or((config.depot_bytes > 0).then_some(config.depot_bytes)),
        })
    }

    fn plan(&self, contents: &DepotContents, keepers: &Keepers) -> CollectionPlan {
        self.plan_after(GRACE, contents, keepers)
    }

    /// The same if nothing stayed but what was used within `grace`.
    fn plan_after(&self, grace: Duration, contents: &DepotContents, keepers: &Keepers) -> CollectionPlan {
        let Self { older_than, budget } = *self;
        let (keep, keep_within_budget) = (&keepers.needed(), &keepers.within_budget());
        contents.collectable(&CollectOptions { keep, keep_within_budget, older_than, budget, grace })
    }
}

/// What a collection did, for programs.
#[derive(Serialize)]
struct CollectionReport {
    snapshots: Vec<String>,
    files: Vec<String>,
    bytes: u64,
}

impl CollectionReport {
    fn of(collected: &CollectedFiles) -> Self {
        let CollectedFiles { snapshots, files, bytes } = collected;
        Self {
            snapshots: snapshots.iter().map(ToString::to_string).collect(),
            files: files.iter().map(|file| file.display().to_string()).collect(),
            bytes: *bytes,
        }
    }
}

/// What can go now, and what goes.
struct Collection {
    depot: Depot,
    contents: DepotContents,
    keepers: Keepers,
    plan: CollectionPlan,
}

impl Collection {
    /// Jobs are asked for first: what a job relies on that comes after that is young.
    fn plan(context: &UserContext, limits: &Limits, jobs: &JobList) -> Result<Option<Self>> {
        let Some(depot) = existing(context)? else { return Ok(None) };
        let contents = depot.contents().map_err(ours)?;
        let keepers = Keepers::find(context, &depot, &contents, jobs)?;
        let plan = limits.plan(&contents, &keepers);
        Ok(Some(Self { depot, contents, keepers, plan }))
    }

    fn carry_out(&self) -> Result<CollectedFiles> {
        let collected = self.depot.carry_out(&self.contents, &self.plan).map_err(ours)?;
        uses::forget(self.depot.path(), &self.keepers.ended_uses)?;
        if let Some(records) = JobRecords::find(self.depot.path())? {
            records.forget(&self.keepers.old_records)?;
        }
        base_fingerprint::forget_lists(self.depot.path(), &self.keepers.old_lists)?;
        Ok(collected)
    }
}

fn collect(context: &UserContext, limits: &Limits, ignore: bool, dry_run: bool, json: bool) -> Result<()> {
    let jobs = match ignore {
        true => JobList::Ignored,
        false => JobList::ask(context).map_err(|e| e.hint(JOBS_HINT))?,
    };
    let Some(collection) = Collection::plan(context, limits, &jobs)? else {
        return match json {
            true => output::json(&CollectionReport::of(&CollectedFiles::default())),
            false => output::line("removed 0 B in all"),
        };
    };
    let collected = match dry_run {
        true => collection.depot.would_remove(&collection.contents, &collection.plan),
        false => collection.carry_out()?,
    };
    if json {
        output::json(&CollectionReport::of(&collected))?;
    } else {
        say_removed(&collection.contents, &collected, dry_run)?;
    }
    let Collection { contents, keepers, plan, .. } = &collection;
    if let Some(young) = YoungFiles::left_by(limits, contents, keepers, plan) {
        young.say();
    }
    let left = collection.contents.bytes().saturating_sub(collected.bytes);
    if let Some(budget) = limits.budget.filter(|budget| left > *budget) {
        output::note(&format!(
            "{} are left, {} more than the budget: `skiff depot ls` shows what needs them",
            output::size(left),
            output::size(left - budget)
        ));
    }
    Ok(())
}

fn say_removed(contents: &DepotContents, collected: &CollectedFiles, dry_run: bool) -> Result<()> {
    let verb = if dry_run { "would remove" } else { "removed" };
    for id in &collected.snapshots {
        let environment = contents.snapshots.get(id).and_then(|one| one.sound());
        let of = environment.map_or_else(String::new, |one| format!(" of {}", one.environment));
        output::line(&format!("{verb} snapshot {id}{of}"))?;
    }
    for file in &collected.files {
        output::line(&format!("{verb} {}", file.display()))?;
    }
    output::line(&format!("{verb} {} in all", output::size(collected.bytes)))
}

/// Removes the snapshots that only an environment had which is removed: those taken under its name, and those that it `had`. Those that jobs need
/// stay, until a later collection; that is said.
pub fn remove_with_environment(context: &UserContext, name: &str, had: &BTreeSet<SnapshotId>) -> Result<()> {
    let Some(depot) = existing(context)? else { return Ok(()) };
    let of_environment = |contents: &DepotContents| -> BTreeSet<SnapshotId> {
        let is_its = |one: &&SnapshotId| {
            had.contains(*one)
                || contents.snapshots[*one].sound().is_some_and(|manifest| manifest.environment == name)
        };
        contents.snapshots.keys().filter(is_its).copied().collect()
    };
    // The queue is not to be asked for nothing.
    if of_environment(&depot.contents().map_err(ours)?).is_empty() {
        return Ok(());
    }
    let jobs = match JobList::ask(context) {
        Ok(jobs) => jobs,
        Err(why) => {
            output::note(&format!(
                "the snapshots of {name} stay until `skiff depot gc` removes them: {}",
                why.message
            ));
            return Ok(());
        }
    };
    let contents = depot.contents().map_err(ours)?;
    let keepers = Keepers::find(context, &depot, &contents, &jobs)?;
    let (kept, gone): (BTreeSet<_>, BTreeSet<_>) =
        of_environment(&contents).into_iter().partition(|id| keepers.is_kept(id));
    depot.carry_out(&contents, &contents.without(&gone)).map_err(ours)?;
    let waiting = kept.iter().filter(|id| keepers.is_for_jobs(id)).count();
    if waiting > 0 {
        let snapshots = output::count(waiting as u64, "snapshot", "snapshots");
        let stay = if waiting == 1 { "stays" } else { "stay" };
        output::note(&format!(
            "{snapshots} of {name} {stay} for jobs; `skiff depot gc` makes room when these have ended"
        ));
    }
    Ok(())
}

/// The time of a file's use, in seconds since 1970.
fn seconds(nanoseconds: i64) -> u64 {
    u64::try_from(nanoseconds / 1_000_000_000).unwrap_or(0)
}

/// Path of the depot, for messages.
fn shown(depot: &Path) -> String {
    depot.display().to_string()
}
