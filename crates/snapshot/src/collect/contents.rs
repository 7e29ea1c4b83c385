//! The listing of a depot: which snapshots, layers and packs it has, who relied on them when, and what room they take up.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};
use skiff_sys::SystemContext;

use crate::clock::file_system_time;
use crate::depot::{Depot, LAYERS, PACKS, SNAPSHOTS, manifest_id, manifest_name};
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::{Error, Result};
use crate::file::{TEMP_PREFIX, read_to_end};
use crate::manifest::{self, SnapshotManifest};
use crate::packs::{LayerForm, layer_of, list_name, pack_name, pack_of, whole_name};

/// How the names begin that a collector gives to what it is about to remove.
pub(super) const ASIDE: &str = ".gone-";
/// Nanoseconds.
pub(super) const SECOND: i64 = 1_000_000_000;
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
    pub(super) part: DepotPart,
    /// Name of the file.
    pub(super) name: Vec<u8>,
    /// File itself.
    pub file: DepotFile,
}

/// A directory of a depot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DepotPart {
    Snapshots,
    Layers,
    Packs,
}

impl DepotPart {
    pub(super) fn name(self) -> &'static str {
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
    pub(super) aside: Vec<UnnamedFile>,
    /// Files whose times were further ahead than clocks are apart: directory and name. They count as used now.
    pub(super) ahead: Vec<(DepotPart, String)>,
}

impl DepotSnapshot {
    /// The manifest, if it can be read.
    pub fn sound(&self) -> Option<&SnapshotManifest> {
        match &self.manifest {
            DepotManifest::Sound(manifest) => Some(manifest),
            DepotManifest::Unknown(_) | DepotManifest::Damaged(_) => None,
        }
    }

    pub(super) fn layers(&self) -> impl Iterator<Item = LayerId> + '_ {
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

    pub(super) fn packs_of(&self, layer: &LayerId) -> impl Iterator<Item = &PackId> {
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

    /// The time by the clock that sets the times of files here. It fails where nothing can be written, as the file system may be full.
    fn clock(&self) -> Result<i64> {
        let (seconds, nanoseconds) = file_system_time(self.layers.as_fd())?;
        Ok(time(seconds, nanoseconds.into()))
    }

    /// Nothing if it has gone meanwhile.
    pub(super) fn stored_manifest(&self, id: &SnapshotId) -> Result<Option<DepotManifest>> {
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

pub(super) fn stored(stat: &Stat) -> DepotFile {
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
