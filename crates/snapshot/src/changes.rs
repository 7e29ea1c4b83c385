//! What a job has changed in its root becomes a snapshot: its upper is one more layer over those of the snapshot that the job ran in. Of a chain
//! that is as long as it may be, one layer is made.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Mode;
use skiff_sys::SystemContext;

use crate::apply::merge_layers;
use crate::base::BaseRoot;
use crate::chunk::OpenHere;
use crate::compare::changes_over;
use crate::depot::{Depot, make_dir};
use crate::diff::Change;
use crate::digest::SnapshotId;
use crate::error::{Error, Result};
use crate::layer::paths;
use crate::manifest::{LayerRef, MAX_LAYERS, SnapshotManifest};
use crate::new_layer::{PushedLayer, write_layer, write_manifest};
use crate::plan::{full, take_out_unshippable};
use crate::remove::remove_all;
use crate::room::{free_bytes, is_full};
use crate::snapshot::{How, Pushed, TRIES};
use crate::tree::{NodeType, TreeNode, dir_flags, is_within, order};
use crate::walk::walk;

/// In the scratch directory, while many layers are made one.
const MERGED: &str = "merged";

/// An upper over the layers of a snapshot.
#[derive(Clone, Copy)]
pub struct ChangesInput<'a> {
    /// The snapshot.
    pub parent: &'a SnapshotId,
    /// The upper directory.
    pub upper: BorrowedFd<'a>,
    /// The root of the base, in the mount that lies below the layers.
    pub base: BorrowedFd<'a>,
    /// A directory on a disk with room for all that the layers have, in case that they are to be made one.
    pub scratch: BorrowedFd<'a>,
    /// Opens the stream of a layer that this node has; nothing where it has not. It is checked as those of the depot are.
    pub here: &'a OpenHere<'a>,
}

/// Takes a snapshot of what of the upper's changes `counts` leaves, if that is anything; and gives these changes. In the depot nothing is named
/// before it is whole. Runs inside the environment's user namespace.
pub fn push_changes(
    depot: &Depot,
    input: &ChangesInput<'_>,
    counts: impl Fn(Vec<Change>) -> Vec<Change>,
) -> Result<(Option<Pushed>, Vec<Change>)> {
    let manifest = depot.manifest(input.parent)?;
    // As somebody who relies on them: from here on no collection takes them.
    depot.rely_on(input.parent)?;
    let (all, bytes) = changes_over((depot, input.here), &manifest.layers, input.upper, input.base)?;
    let changes = counts(all.clone());
    if changes.is_empty() {
        return Ok((None, changes));
    }
    let counted: BTreeSet<&[u8]> = changes.iter().map(|change| &change.path[..]).collect();
    let mut left_out: BTreeSet<&[u8]> = all.iter().map(|change| &change.path[..]).collect();
    left_out.retain(|path| !counted.contains(path));
    let mut last = None;
    for _ in 0..TRIES {
        match attempt(depot, input, (&manifest, bytes), &left_out) {
            // A process of the job that has not ended yet writes.
            Err(Error::Moved { object }) => last = Some(object),
            pushed => return Ok((Some(pushed?), changes)),
        }
    }
    Err(Error::Busy { object: last.unwrap_or_default(), tries: TRIES })
}

fn attempt(
    depot: &Depot,
    input: &ChangesInput<'_>,
    (parent, all): (&SnapshotManifest, u64),
    left_out: &BTreeSet<&[u8]>,
) -> Result<Pushed> {
    let mut nodes = walk(input.upper)?;
    nodes.retain(|node| !left_out.iter().any(|path| !path.is_empty() && is_within(&node.path, path)));
    let skipped = take_out(depot, &mut nodes, &parent.layers, BaseRoot(input.base))?;
    let mut layers = parent.layers.clone();
    let items = full(&nodes);
    let written = write_layer(depot, input.upper, &mut nodes, &items, &layers, None)?;
    let PushedLayer { layer, entries, mut bytes, mut packs } =
        written.ok_or_else(|| Error::Moved { object: "the upper".into() })?;
    // No overlay takes one directory twice.
    if layers.iter().any(|below| below.digest == layer.digest) {
        let why = "they are exactly those of an earlier snapshot".into();
        return Err(Error::Unsupported { object: "the job's changes".into(), why });
    }
    layers.push(layer);
    if layers.len() > MAX_LAYERS {
        let merged = one_of(depot, (&layers, all), input)?;
        layers = vec![merged.layer];
        (bytes, packs) = (bytes + merged.bytes, merged.packs);
    }
    let id = write_manifest(depot, &parent.environment, &parent.base, layers, &packs)?;
    Ok(Pushed { id, how: How::Incremental, entries, bytes, skipped })
}

/// Makes one layer of all these, as a rollback to them would have it: of files with so many bytes. Nearly all of its chunks are in the depot.
fn one_of(
    depot: &Depot,
    (layers, bytes): (&[LayerRef], u64),
    input: &ChangesInput<'_>,
) -> Result<PushedLayer> {
    remove_all(input.scratch, MERGED.as_bytes())?;
    let needed = room_for(layers, bytes);
    let no_room = |free| Error::NoRoom { layers: layers.len(), needed, free };
    if free(input.scratch)? < needed {
        return Err(no_room(free(input.scratch)?));
    }
    make_dir(input.scratch, MERGED.as_bytes())?;
    let work: OwnedFd =
        rustix::fs::openat(input.scratch, MERGED, dir_flags(), Mode::empty()).on("open", MERGED)?;
    let upper = match merge_layers((depot, input.here), layers, work.as_fd(), input.base) {
        // This disk is the node's, and other jobs use it.
        Err(error) if error.errno().is_some_and(is_full) => {
            let told = no_room(free(input.scratch)?);
            remove_all(input.scratch, MERGED.as_bytes())?;
            return Err(told);
        }
        upper => upper?,
    };
    let mut nodes = walk(upper.as_fd())?;
    let items = full(&nodes);
    let written = write_layer(depot, upper.as_fd(), &mut nodes, &items, layers, None)?;
    remove_all(input.scratch, MERGED.as_bytes())?;
    written.ok_or_else(|| Error::Moved { object: MERGED.into() })
}

/// How many bytes it takes to put these layers together, whose files have so many in the end. One layer at a time lies beside what has been put
/// together; and holes take no room in layers.
fn room_for(layers: &[LayerRef], bytes: u64) -> u64 {
    let sizes = layers.iter().map(|layer| layer.size);
    let largest = sizes.clone().max().unwrap_or_default();
    bytes.saturating_add(largest).min(sizes.fold(0, u64::saturating_add))
}

/// The bytes that are free on a disk; all where it does not know.
fn free(dir: BorrowedFd<'_>) -> Result<u64> {
    Ok(free_bytes(dir).on("look at the room beside", MERGED)?.unwrap_or(u64::MAX))
}

/// Takes out sockets and devices. Where one hides something of the base or of a layer, a whiteout takes its place.
fn take_out(
    depot: &Depot,
    nodes: &mut Vec<TreeNode>,
    layers: &[LayerRef],
    base: BaseRoot<'_>,
) -> Result<Vec<Vec<u8>>> {
    let is_other = |node: &TreeNode| node.kind == NodeType::Other;
    let mut skipped = vec![];
    if nodes.iter().any(is_other) {
        for layer in layers {
            for there in paths(depot.read_layer(layer)?, &layer.digest)? {
                let at = nodes.binary_search_by(|node| order(&node.path, &there.path));
                if let Some(node) = at.ok().map(|at| &mut nodes[at]).filter(|node| is_other(node)) {
                    node.kind = NodeType::Whiteout;
                    skipped.push(there.path);
                }
            }
        }
    }
    skipped.extend(take_out_unshippable(nodes, base)?);
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::LayerId;

    #[test]
    fn layers_need_room_for_what_they_are_together_and_the_largest() {
        let layers = |sizes: &[u64]| -> Vec<LayerRef> {
            sizes.iter().map(|size| LayerRef { digest: LayerId([0; 32]), size: *size }).collect()
        };
        // The same file in each; files with holes; a large one that a later layer removes.
        for (sizes, bytes, needed) in
            [(&[100, 100, 100][..], 100, 200), (&[10, 20], 1 << 40, 30), (&[900, 10], 10, 910), (&[], 0, 0)]
        {
            assert_eq!(room_for(&layers(sizes), bytes), needed, "{sizes:?}");
        }
    }
}
