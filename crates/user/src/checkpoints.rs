//! Where the user's checkpoints are: a directory each, in the user's data, which is the same on every node as their home is; or in the memory of
//! this machine, those that were made so.

use std::path::PathBuf;

use rustix::fs::fstat;
use skiff_site::TrustedDir;
use skiff_spec::checkpoint::{CheckpointName, IMAGES};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

use crate::context::UserContext;
use crate::dirs::{make_private, own_dir_in};
use crate::named;

/// Where those are that lie on the disk.
pub fn home(context: &UserContext) -> Result<PathBuf> {
    own_dir_in(context.data().join("checkpoint"))
}

/// Where those are that lie in memory. Everybody may write there, so somebody else may have made it first.
fn in_memory(context: &UserContext) -> PathBuf {
    PathBuf::from(format!("/dev/shm/skiff-{}", context.uid))
}

/// The same, made if it is missing: it must be this user's alone.
pub fn made_in_memory(context: &UserContext) -> Result<PathBuf> {
    let dir = in_memory(context);
    let made = make_private(&dir).and_then(|made| {
        let about = fstat(&made).context(|| dir.display().to_string())?;
        match about.st_mode & 0o077 {
            0 => Ok(()),
            _ => Err(Error::new(format!("{}: mode {:o}", dir.display(), about.st_mode & 0o7777))),
        }
    });
    made.map(|()| dir).map_err(|e| {
        e.hint("administrator: remove it if another user made it; it must be private to its user. Without --mem-dir it is not needed")
    })
}

/// Both, as far as there is anything of this user's.
pub fn homes(context: &UserContext) -> Result<Vec<PathBuf>> {
    // What another user has made there first holds nothing of this one's.
    let memory = TrustedDir::open(&in_memory(context), context.uid).and_then(TrustedDir::private);
    let memory = memory.ok().map(|dir| dir.path().to_owned());
    Ok(memory.into_iter().chain([home(context)?]).collect())
}

/// The directory that one of this name lies in, or would.
pub fn home_of(context: &UserContext, name: &CheckpointName) -> Result<PathBuf> {
    let there = homes(context)?.into_iter().find(|home| home.join(name.to_string()).exists());
    there.map_or_else(|| home(context), Ok)
}

/// Directory of the checkpoint, whether it exists or not.
pub fn dir_of(context: &UserContext, name: &CheckpointName) -> Result<PathBuf> {
    Ok(home_of(context, name)?.join(name.to_string()))
}

/// Refuses if there is no such checkpoint.
pub fn refuse_missing(context: &UserContext, name: &CheckpointName) -> Result<()> {
    let all = all(context)?;
    if all.contains(name) {
        return Ok(());
    }
    Err(named::no_such("checkpoint", name, all, None))
}

/// All, by name, the newest of each first.
pub fn all(context: &UserContext) -> Result<Vec<CheckpointName>> {
    let mut all: Vec<CheckpointName> = vec![];
    for home in homes(context)? {
        // It is there from the first, and also where nothing has been saved yet.
        all.append(&mut named::all(&home, IMAGES)?);
    }
    all.sort();
    all.dedup();
    Ok(all)
}
