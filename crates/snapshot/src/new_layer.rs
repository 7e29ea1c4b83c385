//! A new layer on its way into the depot, and the manifest that makes a snapshot of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use crate::chunk::ChunkList;
use crate::depot::Depot;
use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::{Error, Result};
use crate::layer::{FinishedLayer, Item, LayerWriter, pack};
use crate::manifest::{LayerRef, SnapshotManifest};
use crate::tree::{ENTRY, TreeNode};

/// From so much on that is new, chunks of all layers in the depot are looked at, not only those of the snapshot before: it takes longer to
/// read and write them.
const LARGE: u64 = 8 << 20;

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

/// What items take in a layer, roughly, in bytes.
pub(crate) fn weight_of(items: &[Item], nodes: &[TreeNode]) -> u64 {
    let weight = |item: &Item| match item {
        Item::Ship { node, .. } => nodes[*node].weight(),
        Item::Whiteout { .. } => ENTRY,
    };
    items.iter().map(weight).sum()
}
