//! Takes a snapshot of an environment's upper into the depot.
//!
//! The first one is a full layer; later ones add a layer of what changed since, found by the [`index`](crate::index), or are the
//! snapshot before if nothing did. A new layer takes the place of those before that are not much larger: so each is a few times as large
//! as the next, there are few, and what a node unpacks is a few times what has changed. One that would replace all is a full layer.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::base::BaseRoot;
use crate::chunk::ChunkList;
use crate::clock::Clock;
use crate::depot::Depot;
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::{Error, Result};
use crate::index::{SnapshotIndex, StoredIndex};
use crate::layer::{self, FinishedLayer, Item, LayerWriter, pack};
use crate::manifest::{LayerRef, SnapshotManifest};
use crate::plan::{MergedLayers, SnapshotPlan, full, incremental, take_out_unshippable};
use crate::tree::{ENTRY, NodeType, TreeNode};
use crate::unchanged::is_unchanged;
use crate::walk::walk;
use skiff_sys::{SystemContext, SystemError, lock};

/// The longest chain of layers. Each is one more mount on the nodes.
const MAX_CHAIN: usize = 16;
/// Chains below this size are not worth making anew for their dead weight.
const SLACK: u64 = 1 << 20;
/// From so much on that is new, chunks of all layers in the depot are looked at, not only those of the snapshot before: it takes longer to
/// read and write them.
const LARGE: u64 = 8 << 20;
/// How often a snapshot is begun again because entries changed their kind under it.
pub(crate) const TRIES: u32 = 8;
/// Orders the submitters of one environment on this machine.
const LOCK: &str = "snapshot.lock";
/// For how long another snapshot of the environment is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

/// When a new layer replaces layers of the snapshot before. It replaces a layer that has less than so many percent of
/// the bytes of all layers above that one. Less than `small` bytes count as that many.
///
/// What a new layer has of those that it replaces, nodes get once more. So a large one is replaced only when about as much has come since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergePolicy {
    /// Percent.
    pub percent: u64,
    /// Bytes.
    pub small: u64,
}

impl Default for MergePolicy {
    fn default() -> Self {
        Self { percent: 125, small: 64 << 10 }
    }
}

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
    /// Bytes of the layer that was written.
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
struct Last {
    id: SnapshotId,
    manifest: SnapshotManifest,
}

fn attempt_push(depot: &Depot, input: &SnapshotInput<'_>, only_full: bool) -> Result<Pushed> {
    let base = BaseRoot(input.base);
    let stored = if only_full { None } else { StoredIndex::load(input.state)? };
    if let Some(stored) = &stored
        && let Some(pushed) = unchanged(depot, input, stored)?
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
    let mut work = Work { depot, input, clock, nodes, skipped, chain, packs: vec![] };
    match (plan, last) {
        (SnapshotPlan::Unchanged { stale }, Some(last)) => work.unchanged(last, stale || is_old),
        (SnapshotPlan::Incremental { items, replaced }, Some(last))
            if !is_worn(&last.manifest, replaced, &items, &work.nodes) =>
        {
            work.add(&items, replaced, last)
        }
        _ => work.all(),
    }
}

/// The last snapshot, if the upper still is what it was then, and nothing else needs to be said of it.
fn unchanged(depot: &Depot, input: &SnapshotInput<'_>, stored: &StoredIndex) -> Result<Option<Pushed>> {
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
fn find_last(depot: &Depot, stored: &StoredIndex) -> Result<Option<(Last, Vec<TreeNode>)>> {
    let Some(manifest) = find_manifest(depot, &stored.snapshot)? else { return Ok(None) };
    let Some(SnapshotIndex { snapshot: id, nodes }) = stored.parse() else { return Ok(None) };
    Ok(depot.mark_used(&id, &manifest)?.then_some((Last { id, manifest }, nodes)))
}

fn find_manifest(depot: &Depot, id: &SnapshotId) -> Result<Option<SnapshotManifest>> {
    match depot.manifest_now(id) {
        Ok(manifest) => Ok(Some(manifest)),
        // Removed, damaged, or in another depot.
        Err(Error::Missing { .. } | Error::BadManifest { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The layers at the end of a chain that the next one replaces if it has so much more, and their paths.
fn merged(depot: &Depot, policy: MergePolicy, layers: &[LayerRef], added: u64) -> Result<MergedLayers> {
    let replaced = replaced(policy, layers, added);
    let mut paths = vec![];
    // Where all of them would be read, what is there now is all that counts.
    if replaced < layers.len() {
        for layer in &layers[layers.len() - replaced..] {
            paths.extend(layer::paths(depot.read_layer(layer)?, &layer.digest)?);
        }
    }
    Ok(MergedLayers { count: replaced, paths })
}

fn replaced(policy: MergePolicy, layers: &[LayerRef], added: u64) -> usize {
    let MergePolicy { percent, small } = policy;
    let mut above = added;
    let is_small = |layer: &&LayerRef| {
        let is_small = u128::from(layer.size) * 100 < u128::from(percent) * u128::from(above.max(small));
        above = above.saturating_add(layer.size);
        is_small
    };
    let small = layers.iter().rev().take_while(is_small).count();
    small.max((layers.len() + 1).saturating_sub(MAX_CHAIN))
}

/// Whether a chain should be made anew: nothing of it stays, or most of what stays is replaced by layers above it.
fn is_worn(manifest: &SnapshotManifest, replaced: usize, items: &[Item], nodes: &[TreeNode]) -> bool {
    let kept = &manifest.layers[..manifest.layers.len() - replaced];
    if kept.is_empty() {
        return true;
    }
    let chain = kept.iter().map(|layer| layer.size).sum::<u64>() + weight_of(items, nodes);
    let mut seen = BTreeSet::new();
    let once =
        |node: &&TreeNode| node.stamp.nlink < 2 || node.kind != NodeType::File || seen.insert(node.stamp.ino);
    let live: u64 = nodes.iter().filter(once).map(TreeNode::weight).sum();
    chain > 2 * live + SLACK
}

fn weight_of(items: &[Item], nodes: &[TreeNode]) -> u64 {
    let weight = |item: &Item| match item {
        Item::Ship { node, .. } => nodes[*node].weight(),
        Item::Whiteout { .. } => ENTRY,
    };
    items.iter().map(weight).sum()
}

/// A layer that was written to the depot.
pub(crate) struct PushedLayer {
    pub(crate) layer: LayerRef,
    /// Entries in it.
    pub(crate) entries: u64,
    /// Bytes written.
    pub(crate) bytes: u64,
    /// What it relies on.
    pub(crate) packs: Vec<PackId>,
}

/// Writes a layer of `items`, nothing if it is `except`. What layers of `chain` have is not written again. Nodes that vanished meanwhile are forgotten.
pub(crate) fn write_layer(
    depot: &Depot,
    upper: BorrowedFd<'_>,
    nodes: &mut Vec<TreeNode>,
    items: &[Item],
    chain: &[LayerRef],
    except: Option<LayerId>,
) -> Result<Option<PushedLayer>> {
    let (needed, before) = (weight_of(items, nodes), depot.room());
    let all = if needed > LARGE { depot.layer_ids()? } else { vec![] };
    let all = all.into_iter().map(|(id, _)| id);
    let chain = chain.iter().rev().map(|layer| layer.digest);
    let known = depot.known(chain.chain(all).collect::<BTreeSet<_>>())?;
    write_new(depot, (upper, nodes), items, known, except).map_err(|e| before.explain(e, needed))
}

/// Writes of a layer what is not `known`.
fn write_new(
    depot: &Depot,
    (upper, nodes): (BorrowedFd<'_>, &mut Vec<TreeNode>),
    items: &[Item],
    known: Vec<ChunkList>,
    except: Option<LayerId>,
) -> Result<Option<PushedLayer>> {
    let (temp, chunks) = depot.begin_layer(known)?;
    let mut writer = LayerWriter::new(chunks)?;
    let outcome = pack(upper, items, nodes, &mut writer)?;
    let FinishedLayer { sink, id, entries, .. } = writer.finish()?;
    let mut gone = outcome.gone.into_iter().peekable();
    let mut at = 0;
    nodes.retain(|_| {
        let is_gone = gone.next_if_eq(&at).is_some();
        at += 1;
        !is_gone
    });
    let written = sink.finish()?;
    if except == Some(id) {
        return Ok(None);
    }
    let added = depot.add_layer(temp, written, id)?;
    Ok(Some(PushedLayer { layer: added.layer, entries, bytes: added.bytes, packs: added.packs }))
}

/// Writes the manifest of `layers`, when all that they consist of is in the depot: a snapshot.
pub(crate) fn write_manifest(
    depot: &Depot,
    environment: &str,
    base_fingerprint: &BTreeMap<String, String>,
    layers: Vec<LayerRef>,
    packs: &[PackId],
) -> Result<SnapshotId> {
    let created = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec.cast_unsigned();
    let manifest = SnapshotManifest::new(environment, base_fingerprint, created, layers);
    let id = depot.add_manifest(&manifest)?;
    // A collection may have removed a layer just before the manifest named it.
    if !depot.mark_used(&id, &manifest)? || !depot.has_packs(packs)? {
        return Err(Error::Moved { object: format!("the depot {}", depot.path().display()) });
    }
    Ok(id)
}

struct Work<'a> {
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

impl Work<'_> {
    fn unchanged(mut self, last: Last, stale: bool) -> Result<Pushed> {
        let Last { id, manifest } = last;
        if !is_of(&manifest, self.input) {
            return self.state(manifest.layers, How::Restated, (0, 0));
        }
        if stale {
            self.save_index(id)?;
        }
        Ok(Pushed { id, how: How::Unchanged, entries: 0, bytes: 0, skipped: self.skipped })
    }

    /// Writes a full layer.
    fn all(&mut self) -> Result<Pushed> {
        let items = full(&self.nodes);
        let (layer, written) = self.layer(&items, None)?;
        self.state(layer.into_iter().collect(), How::Full, written)
    }

    /// Writes a layer of `items` on top of the last snapshot's, in the place of so many of them.
    fn add(mut self, items: &[Item], replaced: usize, last: Last) -> Result<Pushed> {
        let mut layers = last.manifest.layers.clone();
        let top = layers.last().map(|layer| layer.digest);
        layers.truncate(layers.len() - replaced);
        match self.layer(items, top)? {
            // What is on top already.
            (None, _) => self.unchanged(last, true),
            // No overlay takes one directory twice.
            (Some(layer), _) if layers.iter().any(|there| there.digest == layer.digest) => self.all(),
            (Some(layer), written) => {
                layers.push(layer);
                self.state(layers, How::Incremental, written)
            }
        }
    }

    /// Writes a layer, unless it is the one named; and how many entries and bytes were written. Nodes that vanished meanwhile are forgotten.
    fn layer(&mut self, items: &[Item], except: Option<LayerId>) -> Result<(Option<LayerRef>, (u64, u64))> {
        let written = write_layer(self.depot, self.input.upper, &mut self.nodes, items, &self.chain, except)?;
        let Some(PushedLayer { layer, entries, bytes, packs }) = written else { return Ok((None, (0, 0))) };
        self.packs = packs;
        Ok((Some(layer), (entries, bytes)))
    }

    /// Writes the manifest of `layers`, then the index.
    fn state(&mut self, layers: Vec<LayerRef>, how: How, written: (u64, u64)) -> Result<Pushed> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_replaces_those_that_are_not_much_larger() {
        let layers = |sizes: &[u64]| -> Vec<LayerRef> {
            sizes.iter().map(|size| LayerRef { digest: LayerId([0; 32]), size: *size }).collect()
        };
        let million = 1_000_000;
        for (sizes, added, expected) in [
            (&[][..], 100, 0),
            (&[million], 100, 0),
            (&[million, 100], 100, 1),
            (&[70_000, 100], 100, 2),
            (&[100 * million, 10 * million, million], 100, 0),
            (&[100 * million, 10 * million, million], million, 1),
            (&[100 * million, 2 * million, million], million, 2),
            (&[100 * million, 10 * million, million], 50 * million, 2),
            (&[100 * million, 10 * million, million], 80 * million, 3),
            // A file that is replaced by one of about its size again and again.
            (&[30 * million, 5 * million], 5 * million, 1),
            (&[u64::MAX; 15], 1, 0),
            (&[u64::MAX; 16], 1, 1),
        ] {
            assert_eq!(
                replaced(MergePolicy::default(), &layers(sizes), added),
                expected,
                "{sizes:?} and {added}"
            );
        }
    }
}
