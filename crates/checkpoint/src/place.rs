//! Checkpoints made, published and removed: whole under their names or absent, and as many older ones kept as asked.

mod leftovers;
mod renames;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use skiff_cli::Retention;
use skiff_site::TrustedDir;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::checkpoints::{all, dir_of, home, homes, made_in_memory, refuse_missing};
use skiff_user::context::UserContext;
use skiff_user::dirs::{make_private, new_in, set_aside};
use skiff_user::named;

use crate::names_lock;
use crate::record::{self, Checkpoint, CheckpointDir};
use crate::set::{self, JobCheckpoint};
use crate::stored;

pub use leftovers::{delete_leftovers, leftovers, remove_all_left};
use leftovers::{lock_dir, remove_left};
pub use renames::undo_interrupted_renames;
use renames::{between_names, change_places, refuse_between, undo_if_interrupted, undo_renames};

/// Makes an empty one, into which an instance can be saved; gives where it is.
pub fn create(context: &UserContext, name: &EnvName, memory: bool, dry_run: bool) -> Result<PathBuf> {
    let slot = CheckpointName::newest(name);
    let home = if memory { made_in_memory(context)? } else { home(context)? };
    if all(context)?.contains(&slot) {
        return Err(Error::new(format!("checkpoint {name}: it is there already"))
            .hint(format!("`skiff checkpoint delete {name}` removes it")));
    }
    let dir = home.join(name.as_str());
    if !dry_run {
        let new = NewCheckpoint::make(&home, name)?;
        fs::rename(&new.dir, &dir).context(|| dir.display().to_string())?;
    }
    Ok(dir)
}

/// Directory and record of the checkpoint, which must exist.
pub fn existing(context: &UserContext, name: &CheckpointName) -> Result<(CheckpointDir, Checkpoint)> {
    undo_interrupted_renames(context)?;
    refuse_between(context, name)?;
    refuse_missing(context, name)?;
    let held = CheckpointDir::open(&dir_of(context, name)?)?;
    let dir = held.path();
    if is_empty(&dir) {
        return Err(Error::new(format!("checkpoint {name}: nothing has been saved into it yet"))
            .hint(format!("`skiff checkpoint save --name {name} INSTANCE` does that")));
    }
    if let Some(job) = JobCheckpoint::read(&dir)? {
        let number = job.members.len();
        return Err(Error::new(format!("checkpoint {name}: it is a whole job's, of {number} instances"))
            .hint(format!("`skiff job restore {name}` restores it")));
    }
    let checkpoint = Checkpoint::read(&dir)?;
    Ok((held, checkpoint))
}

/// Directory and record of the checkpoint of a whole job, which must exist.
pub fn existing_job(context: &UserContext, name: &CheckpointName) -> Result<(PathBuf, JobCheckpoint)> {
    undo_interrupted_renames(context)?;
    refuse_between(context, name)?;
    refuse_missing(context, name)?;
    let dir = dir_of(context, name)?;
    let job = JobCheckpoint::read(&dir)?.ok_or_else(|| {
        Error::new(format!("checkpoint {name}: it is not a whole job's"))
            .hint(format!("`skiff checkpoint restore {name}` restores the checkpoint of one instance"))
    })?;
    Ok((dir, job))
}

/// Whether a checkpoint, which must exist, is a whole job's.
pub fn is_of_job(context: &UserContext, name: &CheckpointName) -> Result<bool> {
    undo_interrupted_renames(context)?;
    refuse_missing(context, name)?;
    JobCheckpoint::read(&dir_of(context, name)?).map(|job| job.is_some())
}

/// Whether something has been saved as this checkpoint.
///
/// # Errors
/// Nobody can tell, as somebody on another host has begun to rename it and may still do so.
pub fn is_saved(context: &UserContext, slot: &CheckpointName) -> Result<bool> {
    undo_interrupted_renames(context)?;
    refuse_between(context, slot)?;
    Ok(all(context)?.contains(slot) && !is_empty(&dir_of(context, slot)?))
}

/// Removes all of this name, also those that somebody was renaming: they would come back under it.
pub fn remove_all(context: &UserContext, name: &EnvName) -> Result<()> {
    for home in homes(context)? {
        remove_all_in(&home, name)?;
    }
    Ok(())
}

fn remove_all_in(home: &Path, name: &EnvName) -> Result<()> {
    undo_if_interrupted(home).ignore_error("what keeps its name of between is removed under that");
    let all: Vec<CheckpointName> = named::all(home, record::IMAGES)?;
    let ours = all.into_iter().filter(|slot| slot.name == *name).map(|slot| home.join(slot.to_string()));
    let between = between_names(home).into_iter().filter(|(_, of)| of.name == *name).map(|(left, _)| left);
    // Those of between first: as long as their places are taken they do not come back.
    let all: Vec<PathBuf> = between.chain(ours).collect();
    all.iter().try_for_each(|dir| remove(dir, name))
}

/// Whether nothing has been saved into this one yet.
pub fn is_empty(dir: &Path) -> bool {
    ![record::FILE, set::FILE].into_iter().any(|file| dir.join(file).exists())
        && fs::read_dir(dir.join(record::IMAGES)).is_ok_and(|mut images| images.next().is_none())
}

/// A new directory with what belongs into one, where nobody looks for checkpoints. When this is dropped, whatever is there then is removed:
/// what was not published, or what made way for it.
pub struct NewCheckpoint {
    /// Directory of the new checkpoint.
    pub dir: PathBuf,
    home: TrustedDir,
    name: EnvName,
    /// Locked as long as somebody makes it: a number of a process says nothing in another PID namespace.
    held: Option<OwnedFd>,
}

impl NewCheckpoint {
    /// Makes it beside those that lie in `home`.
    pub fn make(home: &Path, name: &EnvName) -> Result<Self> {
        remove_left(home).ignore_error("`skiff sweep` removes what stays, and says why it cannot");
        let (dir, home) = (new_in(home, name), make_private(home)?);
        make_private(&dir)?;
        let held = lock_dir(&dir).default_on_error("a file system without locks keeps nobody out");
        let new = Self { dir, home, name: name.clone(), held };
        for part in [record::IMAGES, record::TREES] {
            make_private(&new.dir.join(part))?;
        }
        Ok(new)
    }

    /// Makes the directory of a part of a whole job's checkpoint; gives where it is.
    pub fn make_part(&self, number: usize) -> Result<PathBuf> {
        let dir = set::part(&self.dir, number);
        make_private(dir.parent().unwrap_or(&self.dir))?;
        for part in [None, Some(record::IMAGES), Some(record::TREES)] {
            make_private(&part.map_or_else(|| dir.clone(), |part| dir.join(part)))?;
        }
        Ok(dir)
    }

    /// Removes the directory of a part that nothing is saved into.
    pub fn remove_part(&self, number: usize) -> Result<()> {
        let dir = set::part(&self.dir, number);
        fs::remove_dir_all(&dir).context(|| dir.display().to_string())
    }

    /// Gives it its name. The one that had it is the next older then, and so on. The processes stand still meanwhile, so those that are not
    /// to be kept are only removed by [`NewCheckpoint::prune`].
    pub fn publish(&self, keep: Retention) -> Result<()> {
        let _lock = self.lock()?;
        undo_renames(self.home.path());
        let last = self.ours()?.iter().map(|slot| slot.newer + 1).max().unwrap_or(0).min(keep.number() - 1);
        // An empty one makes room for this one, and is no older one.
        let has_older = !is_empty(&self.slot(0));
        if !change_places(&self.dir, &self.slot(0))? {
            let dir = self.dir.display();
            return Err(Error::new(format!(
                "{dir}: it was removed while instances were being saved into it"
            )));
        }
        // The newest comes first: whoever is killed in between has that. Then each makes way for the next newer.
        for newer in (1..=last).filter(|_| has_older) {
            change_places(&self.dir, &self.slot(newer)).inspect_err(|_| self.change_back(newer))?;
        }
        record::flush(self.home.path())
    }

    /// Gives the first `places` checkpoints their places again, and the new one that of the new: what it holds in the end is removed.
    fn change_back(&self, places: u32) {
        for newer in (0..places).rev() {
            change_places(&self.dir, &self.slot(newer))
                .ignore_error("the error that led here is the one to be told");
        }
    }

    /// Removes those of its name that are not to be kept, once it is published.
    pub fn prune(&self, keep: Retention) -> Result<()> {
        while let Some(aside) = self.set_one_aside(keep)? {
            fs::remove_dir_all(&aside).context(|| aside.display().to_string())?;
        }
        Ok(())
    }

    /// Takes one of those away from under its name: removing its files takes long, and whoever waits for the lock has stopped processes.
    fn set_one_aside(&self, keep: Retention) -> Result<Option<PathBuf>> {
        let _lock = self.lock()?;
        let created = |dir: &Path| match JobCheckpoint::read(dir) {
            Ok(Some(job)) => Some(job.created),
            _ => Checkpoint::read(dir).ok().map(|read| read.created),
        };
        let too_old = |slot: &CheckpointName| {
            created(&self.slot(slot.newer)).is_some_and(|created| keep.too_old(created, now()))
        };
        let goes = |slot: &CheckpointName| slot.newer > 0 && (slot.newer >= keep.number() || too_old(slot));
        let old = self.ours()?.into_iter().find(goes);
        old.map(|old| set_aside(&self.slot(old.newer), &old.name)).transpose()
    }

    /// Where those are that it will lie beside.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// What it will be called.
    pub fn name(&self) -> &EnvName {
        &self.name
    }

    /// Whether it can be published, as far as that shows before anything stands still: a file system may have no locks.
    pub fn check(&self) -> Result<()> {
        self.lock().map(drop)
    }

    /// Two saves into one name, on one host or on several, must not change places in between each other.
    fn lock(&self) -> Result<OwnedFd> {
        names_lock::take(&self.home, self.name.as_str())
    }

    fn slot(&self, newer: u32) -> PathBuf {
        self.home.path_of(CheckpointName { name: self.name.clone(), newer }.to_string())
    }

    fn ours(&self) -> Result<Vec<CheckpointName>> {
        let all: Vec<CheckpointName> = named::all(self.home.path(), record::IMAGES)?;
        Ok(all.into_iter().filter(|slot| slot.name == self.name).collect())
    }
}

impl Drop for NewCheckpoint {
    fn drop(&mut self) {
        drop(self.held.take());
        fs::remove_dir_all(&self.dir)
            .ignore_error("it has its name now, or `skiff sweep` removes what stays of it");
    }
}

/// Whether the checkpoint `appeared` says has its name. If not, the new one in `new`, which is to be called `name`, gets none any more.
///
/// # Errors
/// Nobody can tell: whoever publishes it does not come to an end, or the file system fails.
pub fn appeared_or_prevented(
    (new, name): (&Path, &EnvName),
    appeared: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    // Whoever publishes it has this, too.
    let _lock = names_lock::take(&make_private(new.parent().unwrap_or(new))?, name.as_str())?;
    if appeared()? {
        return Ok(true);
    }
    if new.exists() {
        let aside = set_aside(new, name)?;
        fs::remove_dir_all(aside).ignore_error("another receiver removes it, or `skiff sweep`");
    }
    Ok(false)
}

/// Removes one: at once from under its name, then file by file.
pub fn remove(dir: &Path, name: &EnvName) -> Result<()> {
    let aside = set_aside(dir, name)?;
    fs::remove_dir_all(&aside).context(|| aside.display().to_string())?;
    stored::tell_uncollected(dir.parent().map_or(Ok(()), stored::collect));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `number`th save into `name`, of which others may go on.
    pub(super) fn filled(home: &Path, name: &EnvName, number: u32) -> NewCheckpoint {
        let new = NewCheckpoint {
            dir: home.join(format!(".new.{number}")),
            home: make_private(home).unwrap(),
            name: name.clone(),
            held: None,
        };
        fs::create_dir_all(new.dir.join(record::IMAGES)).unwrap();
        fs::write(new.dir.join(record::FILE), number.to_string()).unwrap();
        new
    }

    /// What is under the names, the newest first.
    pub(super) fn published(home: &Path, name: &EnvName) -> Vec<String> {
        let mut all: Vec<CheckpointName> = named::all(home, record::IMAGES).unwrap();
        all.sort_by_key(|slot| slot.newer);
        assert!(all.iter().all(|slot| slot.name == *name));
        all.iter()
            .map(|slot| fs::read_to_string(home.join(slot.to_string()).join(record::FILE)).unwrap())
            .collect()
    }

    #[test]
    fn only_pruning_and_the_end_of_a_save_remove_what_is_not_to_be_kept() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name) = (temp.path().join("checkpoint"), "work".parse().unwrap());
        let keep = |words: &str| words.parse::<Retention>().unwrap();
        for number in 1..=3 {
            filled(&home, &name, number).publish(keep("3")).unwrap();
        }
        assert_eq!(published(&home, &name), ["3", "2", "1"]);
        let new = filled(&home, &name, 4);
        new.publish(keep("2")).unwrap();
        assert_eq!(published(&home, &name), ["4", "3", "1"]);
        assert_eq!(fs::read_to_string(new.dir.join(record::FILE)).unwrap(), "2", "it has made way");
        new.prune(keep("2")).unwrap();
        assert_eq!(published(&home, &name), ["4", "3"]);
        drop(new);
        let mut left: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [names_lock::LOCK, "work", "work@1"]);
    }

    #[test]
    fn a_save_that_fails_half_way_leaves_all_in_their_places() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name) = (temp.path().join("checkpoint"), "work".parse().unwrap());
        for number in 1..=3 {
            filled(&home, &name, number).publish("9".parse().unwrap()).unwrap();
        }
        let new = filled(&home, &name, 4);
        for done in 0..=3 {
            (0..done).for_each(|newer| assert!(change_places(&new.dir, &new.slot(newer)).unwrap()));
            new.change_back(done);
            assert_eq!(published(&home, &name), ["3", "2", "1"], "{done}");
            assert_eq!(fs::read_to_string(new.dir.join(record::FILE)).unwrap(), "4", "{done}");
        }
    }

    #[test]
    fn who_restores_stays_with_the_checkpoint_whose_record_was_read() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name) = (temp.path().join("checkpoint"), "work".parse().unwrap());
        let keep = "2".parse().unwrap();
        filled(&home, &name, 1).publish(keep).unwrap();
        let place = home.join("work");
        let held = CheckpointDir::open(&place).unwrap();
        assert!(held.is_at(&place));
        assert_eq!(record::place_of(&held.path()), place);
        filled(&home, &name, 2).publish(keep).unwrap();
        assert!(!held.is_at(&place));
        let read = |dir: &Path| fs::read_to_string(dir.join(record::FILE)).unwrap();
        assert_eq!((read(&held.path()), read(&place)), ("1".into(), "2".into()));
        record::open(&held.path(), record::FILE).unwrap();
        // Its name in messages, and its home, are those that it has now.
        assert_eq!(record::place_of(&held.path()), home.join("work@1"));
        let why = record::open(&held.path(), "trees/none").unwrap_err();
        assert!(why.message.contains("/work@1/trees/none"), "{}", why.message);
        let path = held.path();
        let moved = held.into_fd();
        assert_eq!(read(&path), "1", "as long as the descriptor is open");
        drop(moved);
    }

    #[test]
    fn a_new_one_of_a_maker_that_was_killed_goes_and_one_that_is_made_stays() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().join("checkpoint");
        let own = NewCheckpoint::make(&home, &"a".parse().unwrap()).unwrap();
        // Of processes that there are not here; one is of another PID namespace, and has its directory locked.
        let of = |pid: &str| {
            let own = own.dir.to_str().unwrap();
            PathBuf::from(own.replace(&format!(".{}.", std::process::id()), &format!(".{pid}.")))
        };
        let [killed, elsewhere] = ["99999999", "99999998"].map(of);
        for dir in [&killed, &elsewhere] {
            fs::create_dir_all(dir.join(record::IMAGES)).unwrap();
        }
        let _held = lock_dir(&elsewhere).unwrap().unwrap();
        let other = NewCheckpoint::make(&home, &"b".parse().unwrap()).unwrap();
        assert!(own.dir.exists() && other.dir.exists() && elsewhere.exists() && !killed.exists());
    }

    #[test]
    fn who_loses_the_command_finds_the_checkpoint_or_prevents_it() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name): (_, EnvName) = (temp.path().join("checkpoint"), "work".parse().unwrap());
        let is = |number: &'static str| {
            let file = home.join("work").join(record::FILE);
            move || Ok(fs::read_to_string(file).is_ok_and(|text| text == number))
        };
        let keep = || "2".parse().unwrap();
        let first = filled(&home, &name, 1);
        first.publish(keep()).unwrap();
        assert_eq!(appeared_or_prevented((&first.dir, &name), is("1")), Ok(true));
        let second = filled(&home, &name, 2);
        assert_eq!(appeared_or_prevented((&second.dir, &name), is("2")), Ok(false));
        // Another receiver does so, too, and the command comes too late.
        assert_eq!(appeared_or_prevented((&second.dir, &name), is("2")), Ok(false));
        assert!(second.publish(keep()).unwrap_err().message.contains("it was removed"));
        assert_eq!(published(&home, &name), ["1"]);
        drop((first, second));
        let mut left: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [names_lock::LOCK, "work"]);
    }

    #[test]
    fn saves_into_one_name_at_the_same_time_lose_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let (home, name): (_, EnvName) = (temp.path().join("checkpoint"), "work".parse().unwrap());
        const SAVES: u32 = 12;
        std::thread::scope(|scope| {
            for number in 0..SAVES {
                let (home, name) = (&home, &name);
                scope.spawn(move || filled(home, name, number).publish("99".parse().unwrap()).unwrap());
            }
        });
        let mut all = published(&home, &name);
        all.sort_by_key(|number| number.parse::<u32>().unwrap());
        assert_eq!(all, (0..SAVES).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}
