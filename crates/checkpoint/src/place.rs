//! Checkpoints made, published and removed: whole under their names or absent, and as many older ones kept as asked.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use skiff_cli::Retention;
use skiff_spec::checkpoint::CheckpointName;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::name::EnvName;
use skiff_sys::IgnoreError;
use skiff_sys::clock::now;
use skiff_user::checkpoints::{all, dir_of, home, homes, made_in_memory, refuse_missing};
use skiff_user::context::UserContext;
use skiff_user::dirs::{self, make_private, new_in, set_aside};
use skiff_user::named;

use crate::record::{self, Checkpoint};

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
        let mut new = NewCheckpoint::make(home, name)?;
        fs::rename(&new.dir, &dir).context(|| dir.display().to_string())?;
        new.published = true;
    }
    Ok(dir)
}

/// Directory and record of the checkpoint, which must exist.
pub fn existing(context: &UserContext, name: &CheckpointName) -> Result<(PathBuf, Checkpoint)> {
    refuse_missing(context, name)?;
    let dir = dir_of(context, name)?;
    if is_empty(&dir) {
        return Err(Error::new(format!("checkpoint {name}: nothing has been saved into it yet"))
            .hint(format!("`skiff checkpoint save --name {name} INSTANCE` does that")));
    }
    let checkpoint = Checkpoint::read(&dir)?;
    Ok((dir, checkpoint))
}

/// Removes all of this name.
pub fn remove_all(context: &UserContext, name: &EnvName) -> Result<()> {
    let mut ours = all(context)?.into_iter().filter(|one| one.name == *name);
    ours.try_for_each(|one| remove(&dir_of(context, &one)?, &one.name))
}

/// Whether nothing has been saved into this one yet.
pub fn is_empty(dir: &Path) -> bool {
    !dir.join(record::FILE).exists()
        && fs::read_dir(dir.join(record::IMAGES)).is_ok_and(|mut images| images.next().is_none())
}

/// A new directory with what belongs into one, where nobody looks for checkpoints. Dropped before it is published, it is removed.
pub struct NewCheckpoint {
    /// Directory of the new checkpoint.
    pub dir: PathBuf,
    home: PathBuf,
    name: EnvName,
    published: bool,
}

impl NewCheckpoint {
    /// Makes it beside those that lie in `home`.
    pub fn make(home: PathBuf, name: &EnvName) -> Result<Self> {
        make_private(&home)?;
        let dir = new_in(&home, name);
        make_private(&dir)?;
        let new = Self { dir, home, name: name.clone(), published: false };
        for part in [record::IMAGES, record::TREES] {
            make_private(&new.dir.join(part))?;
        }
        Ok(new)
    }

    /// Gives it its name. The one that had it is the next older then, and so on; those that are not to be kept go.
    pub fn publish(mut self, keep: Retention) -> Result<()> {
        let dir = |newer| self.home.join(CheckpointName { name: self.name.clone(), newer }.to_string());
        let ours = || -> Result<Vec<CheckpointName>> {
            let all: Vec<CheckpointName> = named::all(&self.home, record::IMAGES)?;
            Ok(all.into_iter().filter(|slot| slot.name == self.name).collect())
        };
        let last = ours()?.iter().map(|slot| slot.newer + 1).max().unwrap_or(0).min(keep.number() - 1);
        // An empty one makes room for this one, and is no older one.
        if !is_empty(&dir(0)) {
            // From the oldest on, each changes places with the next newer, until the oldest is where this one is to be.
            for newer in (1..=last).rev() {
                change_places(&dir(newer - 1), &dir(newer))?;
            }
        }
        change_places(&self.dir, &dir(0))?;
        flush(&self.home)?;
        self.published = !self.dir.exists();
        let too_old = |slot: &CheckpointName| {
            Checkpoint::read(&dir(slot.newer)).is_ok_and(|read| keep.too_old(read.created, now()))
        };
        for old in ours()?.into_iter().filter(|slot| slot.newer > 0) {
            if old.newer >= keep.number() || too_old(&old) {
                remove(&dir(old.newer), &old.name)?;
            }
        }
        Ok(())
    }

    fn remove(&self) {
        fs::remove_dir_all(&self.dir).ignore_error("what stays of it `skiff sweep` removes");
    }
}

impl Drop for NewCheckpoint {
    fn drop(&mut self) {
        if !self.published {
            self.remove();
        }
    }
}

fn flush(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).context(|| dir.display().to_string())
}

/// Lets what is at `from`, if anything is, and what is at `to`, if anything is, change places.
fn change_places(from: &Path, to: &Path) -> Result<()> {
    let about = || to.display().to_string();
    match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) if from.exists() => fs::rename(from, to).context(about),
        Err(Errno::NOENT) => Ok(()),
        // NFS, for one, cannot do it at once.
        Err(Errno::INVAL) if to.exists() && from.exists() => {
            let between = to.with_file_name(format!(".new.{}.between", std::process::id()));
            fs::rename(to, &between)
                .and_then(|()| fs::rename(from, to))
                .and_then(|()| fs::rename(&between, from))
                .context(about)
        }
        Err(Errno::INVAL) if from.exists() => fs::rename(from, to).context(about),
        Err(Errno::INVAL) => Ok(()),
        Err(e) => Err(e).context(about),
    }
}

/// Removes one: at once from under its name, then file by file.
pub fn remove(dir: &Path, name: &EnvName) -> Result<()> {
    let aside = set_aside(dir, name)?;
    fs::remove_dir_all(&aside).context(|| aside.display().to_string())
}

/// What was killed while it was made or removed.
pub fn leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    Ok(homes(context)?.iter().flat_map(|home| dirs::leftovers(home)).collect())
}

/// Removes that.
pub fn delete_leftovers(context: &UserContext) -> Result<Vec<PathBuf>> {
    let left = leftovers(context)?;
    for dir in &left {
        fs::remove_dir_all(dir).context(|| dir.display().to_string())?;
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_directories_change_places_also_when_one_is_not_there() {
        let temp = std::env::temp_dir().join(format!("skiff-places.{}", std::process::id()));
        let at = |name: &str| temp.join(name);
        let look = || {
            ["a", "b"].map(|name| {
                fs::read(at(name).join("f"))
                    .default_on_error("a directory that is not there has no such file")
            })
        };
        for (name, text) in [("a", "A"), ("b", "B")] {
            fs::create_dir_all(at(name)).expect("made");
            fs::write(at(name).join("f"), text).expect("written");
        }
        change_places(&at("a"), &at("b")).expect("changed");
        assert_eq!(look(), [b"B".to_vec(), b"A".to_vec()]);
        fs::remove_dir_all(at("b")).expect("gone");
        change_places(&at("a"), &at("b")).expect("moved");
        assert_eq!(look(), [vec![], b"B".to_vec()]);
        change_places(&at("a"), &at("b")).expect("nothing to move");
        assert_eq!(look(), [vec![], b"B".to_vec()]);
        fs::remove_dir_all(&temp).expect("gone");
    }
}
