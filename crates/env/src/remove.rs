//! Removing an environment: at once from under its name, then file by file.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use skiff_output as output;
use skiff_plan::refuse_inside;
use skiff_runtime::environments::{self, Environment};
use skiff_runtime::{control, lock, naming};
use skiff_spec::fault::{Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_spec::revision::TagName;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, delete};

use crate::calling::{self, Confirmation};
use crate::history::SnapshotHistory;
use crate::{depot, history, latest};

/// So many tags are named; of more, these.
const NAMED_TAGS: usize = 5;

/// Removes one environment.
pub fn remove(context: &UserContext, name: &EnvName, force: bool, dry_run: bool) -> Result<()> {
    // Its name would be gone, and its files could not be deleted.
    refuse_inside(context)?;
    let env = Environment::existing(context, name.clone())?;
    let losers = depot::jobs_to_keep_changes(context, name);
    refuse_to_lose(name, &losers, force)?;
    let force = force || (!dry_run && may_end(name)?);
    if force && dry_run {
        return output::line(&format!("end what runs in it, and remove {}", env.dir.display()));
    }
    end(&env, force, dry_run)?;
    // That it is running is told before the question, and nobody is to wait for the answer.
    drop(locked(&env)?);
    let goes = RemovedHistory::of(&env);
    if !force {
        goes.confirm(name, dry_run)?;
    }
    let lock = locked(&env)?;
    if dry_run {
        return output::line(&format!("remove {}", env.dir.display()));
    }
    // Broken settings must not keep it from being removed.
    let image = env.settings().ok().and_then(|settings| settings.image);
    // It may have had another name when they were taken.
    let snapshots = history::all_snapshots(&env.dir);
    let aside = env.set_aside()?;
    drop(lock);
    goes.tell(name);
    if !losers.is_empty() {
        output::note(&format!("environment {name}: {}: the changes made there are lost", of_jobs(&losers)));
    }
    if let Some(id) = image {
        naming::give_up(context, id)?;
    }
    latest::unset(&context.depot()?, name)?;
    // What its snapshots take up is no reason to leave its files.
    delete(context, aside).and(depot::remove_with_environment(context, name.as_str(), &snapshots))
}

/// Ends what runs in an environment, or, without force, what is idle.
fn end(env: &Environment, force: bool, dry_run: bool) -> Result<()> {
    match (force, dry_run) {
        (_, true) => Ok(()),
        (false, false) => control::end_if_idle(&env.dir),
        (true, false) => {
            calling::outlive()?;
            control::stop_at(&env.dir)?;
            // Where its start has just failed there is nothing to stop, but a supervisor that is about to end.
            lock::wait(&env.dir)
        }
    }
}

fn locked(env: &Environment) -> Result<OwnedFd> {
    lock::try_lock(&env.dir)?.ok_or_else(|| lock::is_held(env.name.as_str(), &env.dir, ", or rm --force"))
}

/// What jobs change is kept in the history of the environment, and that goes with it.
fn refuse_to_lose(name: &EnvName, losers: &[u32], force: bool) -> Result<()> {
    match force || losers.is_empty() {
        true => Ok(()),
        false => Err(Error::new(format!("environment {name}: {}", of_jobs(losers)))
            .hint("wait for the end, or lose the changes with rm --force")),
    }
}

/// Jobs that are to keep what they change in an environment.
fn of_jobs(jobs: &[u32]) -> String {
    let numbers: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let (jobs, keep) = if jobs.len() == 1 { ("job", "is") } else { ("jobs", "are") };
    format!("{jobs} {} {keep} running in it with --environment-commit", numbers.join(", "))
}

/// What of an environment's history goes with it: its name is the only way to that.
struct RemovedHistory {
    snapshots: usize,
    tags: Vec<TagName>,
}

impl RemovedHistory {
    /// Nothing, where the history is damaged: then it is of no use to anybody.
    fn of(env: &Environment) -> Self {
        let history = SnapshotHistory::of(&env.dir).default_on_error("a damaged history keeps nothing");
        let snapshots = history.ids().collect::<BTreeSet<_>>().len();
        Self { snapshots, tags: history.tags.into_keys().collect() }
    }

    /// For people; nothing if there is nothing.
    fn described(&self) -> Option<String> {
        let snapshots = output::count(self.snapshots as u64, "snapshot", "snapshots");
        let mut tags: Vec<&str> = self.tags.iter().map(TagName::as_str).take(NAMED_TAGS).collect();
        let ellipsis = (self.tags.len() > NAMED_TAGS).then_some("...");
        tags.extend(ellipsis);
        match (self.snapshots, self.tags.len()) {
            (0, 0) => None,
            (_, 0) => Some(snapshots),
            (_, 1) => Some(format!("{snapshots} and tag {}", tags.join(", "))),
            (_, _) => Some(format!("{snapshots} and tags {}", tags.join(", "))),
        }
    }

    /// Asks at a terminal whether tags may go: these are what somebody wanted to keep.
    fn confirm(&self, name: &EnvName, dry_run: bool) -> Result<()> {
        let Some(goes) = self.described() else { return Ok(()) };
        if dry_run {
            output::note(&format!("environment {name}: its history goes with it: {goes}"));
            return Ok(());
        }
        let question = format!("Environment {name}: its history goes with it: {goes}. Remove it?");
        match self.tags.is_empty() || calling::ask_at_terminal(&question)?.unwrap_or(true) {
            true => Ok(()),
            false => Err(calling::declined(name)),
        }
    }

    fn tell(&self, name: &EnvName) {
        if let Some(gone) = self.described() {
            output::note(&format!("environment {name}: removed with its history: {gone}"));
        }
    }
}

/// Whether the user wants the environment ended that they are in.
fn may_end(name: &EnvName) -> Result<bool> {
    match calling::confirm_if_inside(name, "End everything in it, and remove it?")? {
        Confirmation::Yes => Ok(true),
        Confirmation::No => Err(calling::declined(name)),
        Confirmation::NotAsked => Ok(false),
    }
}

/// Deletes what interrupted removals and creations have left.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let all = environments::home(context)?;
    let left = dirs::leftovers(&all);
    output::each(&left, |dir| delete(context, dir.clone()))?;
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_whose_changes_would_be_lost_are_named() {
        let name = "dev".parse().expect("a name");
        let goes = |snapshots, tags: &[&str]| {
            let tags = tags.iter().map(|tag| tag.parse().expect("a tag")).collect();
            RemovedHistory { snapshots, tags }.described()
        };
        assert_eq!(goes(0, &[]), None);
        assert_eq!(goes(2, &[]).as_deref(), Some("2 snapshots"));
        assert_eq!(goes(1, &["v1"]).as_deref(), Some("1 snapshot and tag v1"));
        let many = goes(9, &["a", "b", "c", "d", "e", "f"]);
        assert_eq!(many.as_deref(), Some("9 snapshots and tags a, b, c, d, e, ..."));
        refuse_to_lose(&name, &[], false).expect("none");
        refuse_to_lose(&name, &[7], true).expect("forced");
        let refused = refuse_to_lose(&name, &[7], false).expect_err("it would be lost");
        assert!(refused.message.starts_with("environment dev: job 7 is running in it"), "{refused:?}");
        assert_eq!(of_jobs(&[7]), "job 7 is running in it with --environment-commit");
        assert_eq!(of_jobs(&[7, 9]), "jobs 7, 9 are running in it with --environment-commit");
    }
}
