//! What a depot holds, and the removal of what nothing needs: from the snapshots to keep to their manifests, from those to layers, and from
//! these to packs.
//!
//! Submitters are not locked out, since locks of network file systems are not to be relied on. Instead each side makes its mark before it looks
//! for the other's. A submitter touches what it relies on; it looks for its layers again when the manifest that names them is there. A
//! collector gives what is to go another name. Then it looks again: what has been touched since it was listed, or is named by a manifest, gets
//! its name back. So one of the two notices the other. A submitter that misses a layer writes it again.
//!
//! On NFS a client may see a name for some seconds after another one has changed it. There the grace keeps both apart: what was used lately stays.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use skiff_sys::{SystemContext, SystemError};

pub use plan::{CollectOptions, CollectionPlan};

use crate::depot::{Depot, LAYERS, PACKS, SNAPSHOTS, manifest_id, manifest_name};
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::{Error, Result};
use crate::file::{TEMP_PREFIX, Temp, read_to_end};
use crate::manifest::{self, SnapshotManifest};
use crate::packs::{LayerForm, layer_of, list_name, pack_name, pack_of, whole_name};

/// How the names begin that a collector gives to what it is about to remove.
const ASIDE: &str = ".gone-";
/// A collector that was killed has left what has had such a name for as long.
const INTERRUPTED: Duration = Duration::from_secs(60);
/// Nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// How far clocks may be apart: this host's and the one that sets the times of files, where that one cannot be asked, and those of hosts that have
/// set times themselves.
const CLOCKS: i64 = 3600 * SECOND;
/// A time so far ahead of the depot's clock is corrected: no two clocks that are nearly right are as far apart.
const AHEAD: i64 = 2 * CLOCKS;

/// A file of a depot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DepotFile {
    /// When somebody last relied on the file, in nanoseconds since 1970 by the clock of its file system.
    pub used: i64,
    /// Room that it takes up, in bytes.
    pub bytes: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What the manifest of a snapshot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DepotManifest {
    /// Readable.
    Sound(SnapshotManifest),
    /// Whole, but of a format that this version does not know.
    Unknown(String),
    /// Another text than its name says.
    Damaged(String),
}

/// A snapshot in a depot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepotSnapshot {
    /// File of the manifest.
    pub file: DepotFile,
    /// Content of the manifest.
    pub manifest: DepotManifest,
}

/// A file that has no final name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedFile {
    /// Directory of the file.
    part: DepotPart,
    /// Name of the file.
    name: Vec<u8>,
    /// File itself.
    pub file: DepotFile,
}

/// A directory of a depot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DepotPart {
    Snapshots,
    Layers,
    Packs,
}

impl DepotPart {
    fn name(self) -> &'static str {
        match self {
            DepotPart::Snapshots => SNAPSHOTS,
            DepotPart::Layers => LAYERS,
            DepotPart::Packs => PACKS,
        }
    }
}

/// All files of a depot that are Skiff's. What has other names, and what is no regular file, is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DepotContents {
    /// The moment before which it was listed, by the clock of the depot's file system, as [`DepotFile::used`].
    pub now: i64,
    /// The snapshots.
    pub snapshots: BTreeMap<SnapshotId, DepotSnapshot>,
    /// The layers. The length of one in chunks is that of what these make up.
    pub layers: BTreeMap<LayerId, DepotFile>,
    /// The packs that layers in chunks rely on; of those that have no entry, none.
    pub lists: BTreeMap<LayerId, BTreeSet<PackId>>,
    /// Whether there is a list of chunks that cannot be read: it may name any pack.
    pub has_unreadable_list: bool,
    /// The packs.
    pub packs: BTreeMap<PackId, DepotFile>,
    /// What is being written, and what processes that died have left.
    pub unfinished: Vec<UnnamedFile>,
    /// What collectors are removing, by its final name.
    aside: Vec<UnnamedFile>,
    /// Files whose times were further ahead than clocks are apart: directory and name. They count as used now.
    ahead: Vec<(DepotPart, String)>,
}

/// A file that is to go, and when it was used last.
struct Leaving<T> {
    id: T,
    name: String,
    used: i64,
    bytes: u64,
}

/// What a collection removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Snapshots.
    pub snapshots: Vec<SnapshotId>,
    /// Other files: layers, remains of processes that died.
    pub files: Vec<PathBuf>,
    /// Room regained, in bytes.
    pub bytes: u64,
}

impl DepotSnapshot {
    /// The manifest, if it can be read.
    pub fn sound(&self) -> Option<&SnapshotManifest> {
        match &self.manifest {
            DepotManifest::Sound(manifest) => Some(manifest),
            DepotManifest::Unknown(_) | DepotManifest::Damaged(_) => None,
        }
    }

    fn layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        self.sound().into_iter().flat_map(|manifest| manifest.layers.iter().map(|layer| layer.digest))
    }
}

impl DepotContents {
    /// Room that all of it takes up, in bytes.
    pub fn bytes(&self) -> u64 {
        let snapshots = self.snapshots.values().map(|snapshot| snapshot.file.bytes);
        let layers = self.layers.values().chain(self.packs.values()).map(|file| file.bytes);
        let unfinished = self.unfinished.iter().chain(&self.aside).map(|left| left.file.bytes);
        snapshots.chain(layers).chain(unfinished).sum()
    }

    /// Room that the layers of a snapshot and their packs take up, in bytes; also those that it has in common with others.
    pub fn bytes_of(&self, snapshot: &DepotSnapshot) -> u64 {
        let layers: BTreeSet<LayerId> = snapshot.layers().collect();
        let packs: BTreeSet<&PackId> = layers.iter().flat_map(|id| self.packs_of(id)).collect();
        let files = layers.iter().filter_map(|id| self.layers.get(id));
        let files = files.chain(packs.into_iter().filter_map(|id| self.packs.get(id)));
        files.map(|file| file.bytes).sum::<u64>() + snapshot.file.bytes
    }

    fn packs_of(&self, layer: &LayerId) -> impl Iterator<Item = &PackId> {
        self.lists.get(layer).into_iter().flatten()
    }

    /// The name of a layer's file.
    pub(crate) fn layer_name(&self, id: &LayerId) -> String {
        if self.lists.contains_key(id) || !self.layers.contains_key(id) {
            list_name(id)
        } else {
            whole_name(id)
        }
    }

    /// Whether a snapshot can be used: its manifest is sound, and its layers are there in their sizes.
    pub fn is_whole(&self, snapshot: &DepotSnapshot) -> bool {
        snapshot.sound().is_some_and(|manifest| {
            let is_there = |file: Option<&DepotFile>, size| file.is_some_and(|file| file.len == size);
            manifest.layers.iter().all(|layer| {
                is_there(self.layers.get(&layer.digest), layer.size)
                    && self.packs_of(&layer.digest).all(|pack| self.packs.contains_key(pack))
            })
        })
    }
}

impl Depot {
    /// Lists what is in it, and reads all manifests.
    pub fn contents(&self) -> Result<DepotContents> {
        let clock = self.clock().ok();
        let mut contents =
            DepotContents { now: clock.unwrap_or_else(behind_ours), ..DepotContents::default() };
        // Packs first, then layers: of those listed, none is unused that a layer or a manifest names by the time those are listed.
        if let Some(packs) = &self.packs {
            for (name, stat) in self.list(packs)? {
                match pack_of(&name) {
                    Some(id) => drop(contents.packs.insert(id, stored(&stat))),
                    None => contents.add_unfinished(DepotPart::Packs, name, &stat),
                }
            }
        }
        for (name, stat) in self.list(&self.layers)? {
            match layer_of(&name) {
                Some((id, LayerForm::Chunks)) => self.add_list(&mut contents, id, stored(&stat))?,
                Some((id, LayerForm::Whole)) => drop(contents.layers.entry(id).or_insert(stored(&stat))),
                None => contents.add_unfinished(DepotPart::Layers, name, &stat),
            }
        }
        for (name, stat) in self.list(&self.snapshots)? {
            let Some(id) = manifest_id(&name) else {
                contents.add_unfinished(DepotPart::Snapshots, name, &stat);
                continue;
            };
            if let Some(manifest) = self.stored_manifest(&id)? {
                contents.snapshots.insert(id, DepotSnapshot { file: stored(&stat), manifest });
            }
        }
        // By no clock but the depot's own: this host's may be behind, and what others use now would count as old.
        if clock.is_some() {
            contents.correct_times();
        }
        Ok(contents)
    }

    fn add_list(&self, contents: &mut DepotContents, id: LayerId, file: DepotFile) -> Result<()> {
        let (len, packs) = match self.chunk_list(&id)? {
            Some(list) => (list.length(), list.packs.into_iter().collect()),
            None => {
                contents.has_unreadable_list = true;
                (0, BTreeSet::new())
            }
        };
        contents.layers.insert(id, DepotFile { len, ..file });
        contents.lists.insert(id, packs);
        Ok(())
    }

    /// What the clock says that sets the times of files here: by a file that is made now. It fails where nothing can be written, as the file
    /// system may be full.
    fn clock(&self) -> Result<i64> {
        let (temp, file) = Temp::create(self.layers.as_fd())?;
        let stat = rustix::fs::fstat(&file).on("look at", temp.name())?;
        Ok(time(stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Nothing if it has gone meanwhile.
    fn stored_manifest(&self, id: &SnapshotId) -> Result<Option<DepotManifest>> {
        let name = manifest_name(id);
        let file = match self.find(&self.snapshots, &[&name], 1, || format!("snapshot {id}")) {
            Ok((_, file)) => file,
            Err(Error::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes =
            read_to_end(file.as_fd(), manifest::MAX_SIZE).on("read", self.object(SNAPSHOTS, &name))?;
        let Some(bytes) = bytes else { return Ok(Some(DepotManifest::Damaged("it is too long".into()))) };
        if blake3::hash(&bytes).as_bytes() != &id.0 {
            return Ok(Some(DepotManifest::Damaged("its content has another digest".into())));
        }
        // Nobody but a writer of manifests has made a text of this digest: another version of Skiff, whose layers are not known here.
        Ok(Some(match SnapshotManifest::parse_unnamed(&bytes) {
            Ok(manifest) => DepotManifest::Sound(manifest),
            Err(why) => DepotManifest::Unknown(why),
        }))
    }

    /// Removes what a plan names, unless somebody has begun to rely on it since `contents` was listed.
    pub fn carry_out(&self, contents: &DepotContents, plan: &CollectionPlan) -> Result<Pruned> {
        self.restore_interrupted(contents)?;
        for (part, name) in &contents.ahead {
            let Some(dir) = self.dir_of(*part) else { continue };
            self.touch(dir, part.name(), name)?;
        }
        let mut done = Pruned::default();
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
        done: &mut Pruned,
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

impl DepotContents {
    /// A clock that was wrong by years has set times that nothing would ever be older than: such files count as used now. The next collection
    /// gives them that time.
    fn correct_times(&mut self) {
        let (now, latest) = (self.now, self.now.saturating_add(AHEAD));
        let mut correct = |part, name: String, file: &mut DepotFile| {
            if file.used > latest {
                file.used = now;
                self.ahead.push((part, name));
            }
        };
        for (id, snapshot) in &mut self.snapshots {
            correct(DepotPart::Snapshots, manifest_name(id), &mut snapshot.file);
        }
        for (id, file) in &mut self.layers {
            let name = if self.lists.contains_key(id) { list_name(id) } else { whole_name(id) };
            correct(DepotPart::Layers, name, file);
        }
        for (id, file) in &mut self.packs {
            correct(DepotPart::Packs, pack_name(id), file);
        }
        for left in &mut self.unfinished {
            correct(left.part, String::from_utf8_lossy(&left.name).into_owned(), &mut left.file);
        }
    }

    fn add_unfinished(&mut self, part: DepotPart, name: Vec<u8>, stat: &Stat) {
        let file = stored(stat);
        let final_name = name.strip_prefix(ASIDE.as_bytes());
        if name.starts_with(TEMP_PREFIX.as_bytes()) {
            self.unfinished.push(UnnamedFile { part, name, file });
        } else if final_name.is_some_and(is_final) {
            // When it got this name.
            let file = DepotFile { used: time(stat.st_ctime, stat.st_ctime_nsec), ..file };
            self.aside.push(UnnamedFile { part, name, file });
        }
    }
}

/// The time by a clock that is taken to be behind ours.
fn behind_ours() -> i64 {
    let here = clock_gettime(ClockId::Realtime);
    time(here.tv_sec, 0).saturating_sub(CLOCKS)
}

fn is_final(name: &[u8]) -> bool {
    layer_of(name).is_some() || manifest_id(name).is_some() || pack_of(name).is_some()
}

fn aside(name: &str) -> String {
    format!("{ASIDE}{name}")
}

fn stored(stat: &Stat) -> DepotFile {
    DepotFile {
        used: time(stat.st_mtime, stat.st_mtime_nsec),
        bytes: stat.st_blocks.cast_unsigned() * 512,
        len: stat.st_size.cast_unsigned(),
    }
}

/// Nanoseconds since 1970. Who made up a time beyond that is no reason to fail.
fn time(seconds: i64, nanoseconds: u64) -> i64 {
    seconds.saturating_mul(SECOND).saturating_add(i64::try_from(nanoseconds).unwrap_or(0))
}
