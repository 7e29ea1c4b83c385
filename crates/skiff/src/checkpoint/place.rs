//! Where checkpoints are: a directory each, in the user's data, which is the same on every node as his home is.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use skiff_migrate::record::{self, Checkpoint};
use skiff_sandbox::{Context as _, Error, Result};
use skiff_spec::name::EnvName;

use crate::context::Context;
use crate::environments::{self, make_private, new_in, own_dir_in, set_aside};
use crate::named;

/// The name of a checkpoint: `NAME` for the newest, `NAME@1` for the one before, and so on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The name.
    pub name: EnvName,
    /// How many there are that are newer.
    pub newer: u32,
}

impl FromStr for Slot {
    type Err = String;
    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let (name, newer) = word.split_once('@').map_or((word, None), |(name, n)| (name, Some(n)));
        let name = name.parse().map_err(|e| format!("{e}"))?;
        let newer = match newer.map(str::parse::<u32>) {
            None => 0,
            Some(Ok(n)) if n > 0 && Some(n.to_string().as_str()) == newer => n,
            Some(_) => return Err(format!("{word:?}: behind the @ must be a number from 1 on")),
        };
        Ok(Self { name, newer })
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.newer {
            0 => write!(f, "{}", self.name),
            n => write!(f, "{}@{n}", self.name),
        }
    }
}

/// Where all of them are.
pub fn home(context: &Context) -> Result<PathBuf> {
    own_dir_in(context, context.data().join("checkpoint"))
}

impl Slot {
    /// The newest of a name.
    pub fn newest(name: &EnvName) -> Self {
        Self { name: name.clone(), newer: 0 }
    }

    /// Its directory, whether there is one or not.
    pub fn dir(&self, context: &Context) -> Result<PathBuf> {
        Ok(home(context)?.join(self.to_string()))
    }

    /// Its directory and record; it must be there.
    pub fn existing(&self, context: &Context) -> Result<(PathBuf, Checkpoint)> {
        let dir = self.dir(context)?;
        if !dir.join(record::FILE).exists() {
            return Err(self.missing(context)?);
        }
        let checkpoint = Checkpoint::read(&dir)?;
        Ok((dir, checkpoint))
    }

    /// Removes all of its name.
    pub fn remove_all(&self, context: &Context) -> Result<()> {
        let mut ours = all(context)?.into_iter().filter(|slot| slot.name == self.name);
        ours.try_for_each(|slot| remove(&slot.dir(context)?, &slot.name))
    }

    /// That there is no such checkpoint.
    pub fn missing(&self, context: &Context) -> Result<Error> {
        let there = named::there_are(all(context)?);
        Ok(Error::new(format!("checkpoint {self}: there is no such checkpoint")).hint(there))
    }
}

/// All, by name, the newest of each first.
pub fn all(context: &Context) -> Result<Vec<Slot>> {
    named::all(&home(context)?, record::FILE)
}

/// A new directory with what belongs into one, where nobody looks for checkpoints. Dropped before it is published, it is removed.
pub struct New {
    /// It.
    pub dir: PathBuf,
    name: EnvName,
    published: bool,
}

impl New {
    /// Makes it.
    pub fn make(context: &Context, name: &EnvName) -> Result<Self> {
        let all = home(context)?;
        make_private(&all)?;
        let dir = new_in(&all, name);
        make_private(&dir)?;
        let new = Self { dir, name: name.clone(), published: false };
        for part in [record::IMAGES, record::TREES] {
            make_private(&new.dir.join(part))?;
        }
        Ok(new)
    }

    /// Gives it its name. The one that had it is the next older then, and so on; from `keep` on they go.
    pub fn publish(mut self, context: &Context, keep: u32) -> Result<()> {
        let dir = |newer| Slot { name: self.name.clone(), newer }.dir(context);
        // From the oldest on, each changes places with the next newer, until the oldest is where this one is to be.
        for newer in (1..keep).rev() {
            change_places(&dir(newer - 1)?, &dir(newer)?)?;
        }
        change_places(&self.dir, &dir(0)?)?;
        flush(&home(context)?)?;
        self.published = !self.dir.exists();
        for old in all(context)?.into_iter().filter(|old| old.name == self.name && old.newer >= keep) {
            remove(&old.dir(context)?, &old.name)?;
        }
        Ok(())
    }

    fn remove(&self) {
        // What stays of it `skiff sweep` removes.
        fs::remove_dir_all(&self.dir).unwrap_or_default();
    }
}

impl Drop for New {
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
    let aside = set_aside(dir, name).context(|| dir.display().to_string())?;
    fs::remove_dir_all(&aside).context(|| aside.display().to_string())
}

/// What was killed while it was made or removed.
pub fn leftovers(context: &Context) -> Result<Vec<PathBuf>> {
    Ok(environments::leftovers(&home(context)?))
}

/// Removes that.
pub fn delete_leftovers(context: &Context) -> Result<Vec<PathBuf>> {
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
        let look = || ["a", "b"].map(|name| fs::read(at(name).join("f")).unwrap_or_default());
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

    #[test]
    fn names_come_back_as_they_went_and_no_others_do() {
        for (word, newer) in [("a", 0), ("a@1", 1), ("a.b@12", 12)] {
            let slot: Slot = word.parse().expect(word);
            assert_eq!((slot.newer, slot.to_string().as_str()), (newer, word));
        }
        for bad in ["", "@1", "a@", "a@0", "a@01", "a@+1", "a@-1", "a@x", "../a", "a@1@2", "a@99999999999"] {
            assert!(bad.parse::<Slot>().is_err(), "{bad}");
        }
    }
}
