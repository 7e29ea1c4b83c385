//! Takes a snapshot of an environment's upper into the depot.
//!
//! The first one is a full layer; later ones add a layer of what changed since, found by the [`index`](crate::index), or are the
//! snapshot before if nothing did. A new layer takes the place of those before that are not much larger than it ([`chain`](crate::chain)):
//! so each is larger than all above it together, and there are few. One that would replace all is a full layer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::base::BaseRoot;
use crate::chain::{MergePolicy, is_worn, merged};
use crate::clock::Clock;
use crate::depot::Depot;
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::{Error, Result};
use crate::index::{SnapshotIndex, StoredIndex};
use crate::layer::Item;
use crate::manifest::{LayerRef, SnapshotManifest};
use crate::new_layer::{PushedLayer, write_layer, write_manifest};
use crate::plan::{SnapshotPlan, full, incremental, take_out_unshippable};
use crate::tree::TreeNode;
use crate::unchanged::is_unchanged;
use crate::walk::walk;
use skiff_sys::{SystemContext, SystemError, lock};

/// How often a snapshot is begun again because entries changed their kind under it.
pub(crate) const TRIES: u32 = 8;
/// Orders the submitters of one environment on this machine.
const LOCK: &str = "snapshot.lock";
/// For how long another snapshot of the environment is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a snapshot is taken of.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotInput<'a> {
    /// The environment's name, for the manifest.
    pub environment: &'a str,
    /// The upper directory.
    pub upper: BorrowedFd<'a>,
    /// The root of the base, in the mount that lies below the upper.
    pub base: BorrowedFd<'a>,
    /// The environment's own directory, where the index and a lock file are kept.
    pub state: BorrowedFd<'a>,
    /// What the base is, for the comparison on the nodes.
    pub base_fingerprint: &'a BTreeMap<String, String>,
    /// Which layers are replaced.
    pub merge: MergePolicy,
}

/// How a snapshot came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Nothing changed: it is the one before, and nothing was written.
    Unchanged,
    /// The layers are those of the one before; only the manifest is new (the base was updated).
    Restated,
    /// One layer was added to those of the one before.
    Incremental,
    /// One layer holds everything.
    Full,
}

/// A snapshot in the depot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Id of the snapshot.
    pub id: SnapshotId,
    /// How it came about.
    pub how: How,
    /// Entries in the layer that was written.
    pub entries: u64,
    /// Bytes written for that layer: of its new chunks, compressed, and of its list.
    pub bytes: u64,
    /// Paths that no layer can hold: sockets and devices.
    pub skipped: Vec<Vec<u8>>,
}

/// The snapshot that the environment's index is based on: the next one builds on it, so a collection should keep it.
pub fn last_snapshot(state: BorrowedFd<'_>) -> Result<Option<SnapshotId>> {
    Ok(StoredIndex::load(state)?.map(|index| index.snapshot))
}

/// Takes a snapshot. The environment may be in use meanwhile: each file is taken in one of its states, but files are taken
/// one after the other. Runs inside the environment's user namespace, so that all of the upper can be read and ids are
/// those seen inside.
pub fn push(depot: &Depot, input: &SnapshotInput<'_>) -> Result<Pushed> {
    let _ordered = wait_for_turn(input.state)?;
    let mut last = None;
    for attempt in 0..TRIES {
        // What moved once, most likely a build in progress, may do so again: a full layer tolerates most of it.
        match attempt_push(depot, input, attempt >= TRIES / 2) {
            Err(Error::Moved { object }) => last = Some(object),
            other => return other,
        }
    }
    Err(Error::Busy { object: last.unwrap_or_default(), tries: TRIES })
}

fn wait_for_turn(state: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(state, LOCK, flags, Mode::RUSR | Mode::WUSR).on("open", LOCK)?;
    let attempt = || match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN) => Ok(None),
        taken => taken.map(Some),
    };
    // Whatever can open the file can hold it, a program inside as well.
    match lock::within(PATIENCE, attempt).on("lock", LOCK)? {
        Some(()) => Ok(file),
        None => {
            let holder = lock::file_holder(file.as_fd());
            let holder =
                holder.map_or_else(|| "a process".into(), |(pid, name)| format!("process {pid} ({name})"));
            let reason = format!("{holder} has held it for {} s", PATIENCE.as_secs());
            Err(SystemError { reason, ..SystemError::new("lock", LOCK, Errno::AGAIN) }.into())
        }
    }
}

/// The last snapshot, if it is whole in the depot.
struct LastSnapshot {
    id: SnapshotId,
    manifest: SnapshotManifest,
}

fn attempt_push(depot: &Depot, input: &SnapshotInput<'_>, only_full: bool) -> Result<Pushed> {
    let base = BaseRoot(input.base);
    let stored = if only_full { None } else { StoredIndex::load(input.state)? };
    if let Some(stored) = &stored
        && let Some(pushed) = last_if_unchanged(depot, input, stored)?
    {
        return Ok(pushed);
    }
    let is_old = stored.as_ref().is_some_and(|stored| stored.is_old);
    // Before the walk: the file's bytes are in memory only until this is done.
    let found = stored.map(|stored| find_last(depot, &stored)).transpose()?.flatten();
    let clock = Clock::of(input.state);
    let mut nodes = walk(input.upper)?;
    let skipped = take_out_unshippable(&mut nodes, base)?;
    // What there was before is needed for the plan only: of millions of entries it takes as much memory as what there is now.
    let (plan, last) = match found {
        Some((last, nodes_before)) => {
            let merged = |added| merged(depot, input.merge, &last.manifest.layers, added);
            (incremental(&nodes_before, &mut nodes, input.upper, base, merged)?, Some(last))
        }
        None => (SnapshotPlan::Full(Vec::new()), None),
    };
    let chain = last.as_ref().map_or_else(Vec::new, |last| last.manifest.layers.clone());
    let mut new = NewSnapshot { depot, input, clock, nodes, skipped, chain, packs: vec![] };
    match (plan, last) {
        (SnapshotPlan::Unchanged { stale }, Some(last)) => new.keep_last(last, stale || is_old),
        (SnapshotPlan::Incremental { items, replaced }, Some(last))
            if !is_worn(&last.manifest, replaced, &items, &new.nodes) =>
        {
            new.write_incremental(&items, replaced, last)
        }
        _ => new.write_full(),
    }
}

/// The last snapshot, if the upper still is what it was then, and nothing else needs to be said of it.
fn last_if_unchanged(
    depot: &Depot,
    input: &SnapshotInput<'_>,
    stored: &StoredIndex,
) -> Result<Option<Pushed>> {
    let id = stored.snapshot;
    if !is_unchanged(stored, input.upper) {
        return Ok(None);
    }
    let Some(manifest) = find_manifest(depot, &id)? else { return Ok(None) };
    let same = is_of(&manifest, input) && depot.mark_used(&id, &manifest)?;
    let pushed = Pushed { id, how: How::Unchanged, entries: 0, bytes: 0, skipped: vec![] };
    Ok(same.then_some(pushed))
}

/// Whether a manifest says of environment and base what a new one would.
fn is_of(manifest: &SnapshotManifest, input: &SnapshotInput<'_>) -> bool {
    manifest.base == *input.base_fingerprint && manifest.environment == input.environment
}

/// The last snapshot, and what the upper was then.
fn find_last(depot: &Depot, stored: &StoredIndex) -> Result<Option<(LastSnapshot, Vec<TreeNode>)>> {
    let Some(manifest) = find_manifest(depot, &stored.snapshot)? else { return Ok(None) };
    let Some(SnapshotIndex { snapshot: id, nodes }) = stored.parse() else { return Ok(None) };
    Ok(depot.mark_used(&id, &manifest)?.then_some((LastSnapshot { id, manifest }, nodes)))
}

fn find_manifest(depot: &Depot, id: &SnapshotId) -> Result<Option<SnapshotManifest>> {
    match depot.manifest_now(id) {
        Ok(manifest) => Ok(Some(manifest)),
        // Removed, damaged, or in another depot.
        Err(Error::Missing { .. } | Error::BadManifest { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A snapshot that is being taken of what a walk has found.
struct NewSnapshot<'a> {
    depot: &'a Depot,
    input: &'a SnapshotInput<'a>,
    clock: Clock,
    nodes: Vec<TreeNode>,
    skipped: Vec<Vec<u8>>,
    /// The layers of the last snapshot.
    chain: Vec<LayerRef>,
    /// What the layer that was added relies on.
    packs: Vec<PackId>,
}

impl NewSnapshot<'_> {
    /// Has the last snapshot stand for this one, too, or its layers if the base is another one.
    fn keep_last(mut self, last: LastSnapshot, stale: bool) -> Result<Pushed> {
        let LastSnapshot { id, manifest } = last;
        if !is_of(&manifest, self.input) {
            return self.finish(manifest.layers, How::Restated, (0, 0));
        }
        if stale {
            self.save_index(id)?;
        }
        Ok(Pushed { id, how: How::Unchanged, entries: 0, bytes: 0, skipped: self.skipped })
    }

    /// Writes a full layer.
    fn write_full(&mut self) -> Result<Pushed> {
        let items = full(&self.nodes);
        let (layer, written) = self.write_layer(&items, None)?;
        self.finish(layer.into_iter().collect(), How::Full, written)
    }

    /// Writes a layer of `items` on top of the last snapshot's, in the place of so many of them.
    fn write_incremental(mut self, items: &[Item], replaced: usize, last: LastSnapshot) -> Result<Pushed> {
        let mut layers = last.manifest.layers.clone();
        let top = layers.last().map(|layer| layer.digest);
        layers.truncate(layers.len() - replaced);
        match self.write_layer(items, top)? {
            // What is on top already.
            (None, _) => self.keep_last(last, true),
            // No overlay takes one directory twice.
            (Some(layer), _) if layers.iter().any(|there| there.digest == layer.digest) => self.write_full(),
            (Some(layer), written) => {
                layers.push(layer);
                self.finish(layers, How::Incremental, written)
            }
        }
    }

    /// Writes a layer, unless it is the one named; and how many entries and bytes were written. Nodes that vanished meanwhile are forgotten.
    fn write_layer(
        &mut self,
        items: &[Item],
        except: Option<LayerId>,
    ) -> Result<(Option<LayerRef>, (u64, u64))> {
        let written = write_layer(self.depot, self.input.upper, &mut self.nodes, items, &self.chain, except)?;
        let Some(PushedLayer { layer, entries, bytes, packs }) = written else { return Ok((None, (0, 0))) };
        self.packs = packs;
        Ok((Some(layer), (entries, bytes)))
    }

    /// Writes the manifest of `layers`, then the index.
    fn finish(&mut self, layers: Vec<LayerRef>, how: How, written: (u64, u64)) -> Result<Pushed> {
        let SnapshotInput { environment, base_fingerprint, .. } = *self.input;
        let id = write_manifest(self.depot, environment, base_fingerprint, layers, &self.packs)?;
        self.save_index(id)?;
        let skipped = std::mem::take(&mut self.skipped);
        Ok(Pushed { id, how, entries: written.0, bytes: written.1, skipped })
    }

    fn save_index(&mut self, snapshot: SnapshotId) -> Result<()> {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.iter_mut().for_each(|node| node.racy = self.clock.is_racy(&node.stamp));
        SnapshotIndex { snapshot, nodes }.save(self.input.state)
    }
}
