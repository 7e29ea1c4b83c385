//! What a depot holds, and the removal of what nothing needs: from the snapshots to keep to their manifests, from those to layers, and from
//! these to packs.
//!
//! Submitters are not locked out, since locks of network file systems are not to be relied on. Instead each side makes its mark before it looks
//! for the other's. A submitter touches what it relies on; it looks for its layers again when the manifest that names them is there. A
//! collector gives what is to go another name. Then it looks again: what has been touched since it was listed, or is named by a manifest, gets
//! its name back. So one of the two notices the other. A submitter that misses a layer writes it again.
//!
//! On NFS a client may see a name for some seconds after another one has changed it. There the grace keeps both apart: what was used lately stays.

mod contents;
mod plan;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use skiff_sys::{SystemContext, SystemError};

pub use contents::{DepotContents, DepotFile, DepotManifest, DepotSnapshot, UnnamedFile};
pub use plan::{CollectOptions, CollectionPlan};

use self::contents::{ASIDE, DepotPart, stored};
use crate::depot::{Depot, manifest_id, manifest_name};
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::Result;
use crate::packs::{LayerForm, pack_name};

/// A collector that was killed has left what has had such a name for as long.
const INTERRUPTED: Duration = Duration::from_secs(60);

/// A file that is to go, and when it was used last.
struct Leaving<T> {
    id: T,
    name: String,
    used: i64,
    bytes: u64,
}

/// What a collection removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectedFiles {
    /// Snapshots.
    pub snapshots: Vec<SnapshotId>,
    /// Other files: layers, remains of processes that died.
    pub files: Vec<PathBuf>,
    /// Room regained, in bytes.
    pub bytes: u64,
}

impl Depot {
    /// Removes what a plan names, unless somebody has begun to rely on it since `contents` was listed.
    pub fn carry_out(&self, contents: &DepotContents, plan: &CollectionPlan) -> Result<CollectedFiles> {
        self.restore_interrupted(contents)?;
        for (part, name) in &contents.ahead {
            let Some(dir) = self.dir_of(*part) else { continue };
            self.touch(dir, part.name(), name)?;
        }
        let mut done = CollectedFiles::default();
        for (id, used) in &plan.snapshots {
            let name = manifest_name(id);
            if self.set_aside(&self.snapshots, &name)? && self.settle(&self.snapshots, &name, *used, false)? {
                done.snapshots.push(*id);
                done.bytes += contents.snapshots.get(id).map_or(0, |snapshot| snapshot.file.bytes);
            }
        }
        let layer = |(id, used): &(LayerId, i64)| {
            let bytes = contents.layers.get(id).map_or(0, |file| file.bytes);
            Leaving { id: *id, name: contents.layer_name(id), used: *used, bytes }
        };
        let layers = plan.layers.iter().map(layer).collect();
        self.remove_unused(DepotPart::Layers, layers, || self.layers_in_use(contents), &mut done)?;
        let pack = |(id, used): &(PackId, i64)| {
            let bytes = contents.packs.get(id).map_or(0, |file| file.bytes);
            Leaving { id: *id, name: pack_name(id), used: *used, bytes }
        };
        let packs = plan.packs.iter().map(pack).collect();
        self.remove_unused(DepotPart::Packs, packs, || self.packs_in_use(contents), &mut done)?;
        for left in &plan.unfinished {
            let Some(dir) = self.dir_of(left.part) else { continue };
            match rustix::fs::unlinkat(dir, &left.name[..], AtFlags::empty()) {
                // Another one has removed it.
                Err(Errno::NOENT) => continue,
                removed => removed.on("remove", &left.name)?,
            }
            done.files.push(self.path_of(left));
            done.bytes += left.file.bytes;
        }
        Ok(done)
    }

    /// Removes files, but for those that are in use by the time when they are set aside.
    fn remove_unused<T: Ord>(
        &self,
        part: DepotPart,
        files: Vec<Leaving<T>>,
        in_use: impl FnOnce() -> Result<Option<BTreeSet<T>>>,
        done: &mut CollectedFiles,
    ) -> Result<()> {
        let Some(dir) = self.dir_of(part) else { return Ok(()) };
        let mut aside = vec![];
        let mut failed = Ok(());
        for file in files {
            match self.set_aside(dir, &file.name) {
                Ok(true) => aside.push(file),
                Ok(false) => {}
                Err(error) => failed = Err(error),
            }
        }
        // Not before: what names one of them and is not there by now is its submitter's, who will miss it.
        let in_use = if aside.is_empty() { Ok(None) } else { in_use() };
        for Leaving { id, name, used, bytes } in aside {
            let is_needed = !matches!(&in_use, Ok(Some(in_use)) if !in_use.contains(&id));
            match self.settle(dir, &name, used, is_needed) {
                Ok(true) => {
                    done.files.push(self.path_in(part, &name));
                    done.bytes += bytes;
                }
                Ok(false) => {}
                Err(error) => failed = Err(error),
            }
        }
        in_use?;
        failed
    }

    /// The packs that the layers name that are there now. Nothing if that is not known, as a list cannot be read.
    fn packs_in_use(&self, contents: &DepotContents) -> Result<Option<BTreeSet<PackId>>> {
        let mut in_use = BTreeSet::new();
        let chunked = self.layer_ids()?.into_iter().filter(|(_, form)| *form == LayerForm::Chunks);
        for (id, _) in chunked {
            // A list that was read does not change.
            if let Some(known) = contents.lists.get(&id) {
                in_use.extend(known);
                continue;
            }
            match self.stored_list(&id)? {
                Some(Ok(list)) => in_use.extend(list.packs),
                Some(Err(_)) => return Ok(None),
                // Gone meanwhile.
                None => {}
            }
        }
        Ok(Some(in_use))
    }

    /// The layers that the manifests name that are there now. Nothing if that is not known, as one has a format of another version.
    fn layers_in_use(&self, contents: &DepotContents) -> Result<Option<BTreeSet<LayerId>>> {
        let mut in_use = BTreeSet::new();
        for (name, _) in self.list(&self.snapshots)? {
            let Some(id) = manifest_id(&name) else { continue };
            // A manifest that was read does not change.
            if let Some(known) = contents.snapshots.get(&id) {
                in_use.extend(known.layers());
                continue;
            }
            match self.stored_manifest(&id)? {
                Some(DepotManifest::Sound(manifest)) => {
                    in_use.extend(manifest.layers.iter().map(|layer| layer.digest));
                }
                Some(DepotManifest::Unknown(_)) => return Ok(None),
                // Nobody can use it.
                Some(DepotManifest::Damaged(_)) | None => {}
            }
        }
        Ok(Some(in_use))
    }

    /// Gives a file the name of what is about to go; whether it was there.
    fn set_aside(&self, dir: &OwnedFd, name: &str) -> Result<bool> {
        match rustix::fs::renameat(dir, name, dir, aside(name)) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(SystemError::new("rename", name, errno).into()),
        }
    }

    /// Removes what was set aside, or gives it its name back if it is needed or was touched since `used`; whether it was removed.
    fn settle(&self, dir: &OwnedFd, name: &str, used: i64, is_needed: bool) -> Result<bool> {
        let gone = aside(name);
        let touched = match rustix::fs::statat(dir, &gone, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stored(&stat).used != used,
            // Another collector has taken this one for dead, or has been faster.
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(SystemError::new("look at", gone, errno).into()),
        };
        let done = match is_needed || touched {
            true => rustix::fs::renameat(dir, &gone, dir, name).map(|()| false),
            false => rustix::fs::unlinkat(dir, &gone, AtFlags::empty()).map(|()| true),
        };
        match done {
            Err(Errno::NOENT) => Ok(false),
            done => Ok(done.on("remove", gone)?),
        }
    }

    /// Gives back their names to files that a collector has set aside which was killed then.
    fn restore_interrupted(&self, contents: &DepotContents) -> Result<()> {
        let is_old = |left: &&UnnamedFile| contents.age(left.file.used) >= INTERRUPTED;
        for left in contents.aside.iter().filter(is_old) {
            let Some(name) = left.name.strip_prefix(ASIDE.as_bytes()) else { continue };
            let Some(dir) = self.dir_of(left.part) else { continue };
            // A file of that name has the same content: both are called by their digest.
            match rustix::fs::renameat(dir, &left.name[..], dir, name) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("rename", &left.name, errno).into()),
            }
        }
        Ok(())
    }

    fn dir_of(&self, part: DepotPart) -> Option<&OwnedFd> {
        match part {
            DepotPart::Snapshots => Some(&self.snapshots),
            DepotPart::Layers => Some(&self.layers),
            DepotPart::Packs => self.packs.as_ref(),
        }
    }

    fn path_in(&self, part: DepotPart, name: &str) -> PathBuf {
        self.path().join(part.name()).join(name)
    }

    fn path_of(&self, left: &UnnamedFile) -> PathBuf {
        self.path_in(left.part, &String::from_utf8_lossy(&left.name))
    }

    /// Removes a file at once. For one that is damaged: whoever relies on it fails already.
    pub(crate) fn remove_file(&self, name: &str, is_layer: bool) -> Result<()> {
        let dir = if is_layer { &self.layers } else { &self.snapshots };
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed.on("remove", name)?),
        }
    }
}

fn aside(name: &str) -> String {
    format!("{ASIDE}{name}")
}
