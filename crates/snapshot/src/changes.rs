//! What a job has changed in its root becomes a snapshot: its upper is one more layer over those of the snapshot that the job ran in.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use crate::base::BaseRoot;
use crate::compare::changes_over;
use crate::depot::Depot;
use crate::diff::Change;
use crate::digest::SnapshotId;
use crate::error::{Error, Result};
use crate::layer::paths;
use crate::manifest::{LayerRef, MAX_LAYERS, SnapshotManifest};
use crate::plan::{full, take_out_unshippable};
use crate::snapshot::{How, Pushed, PushedLayer, TRIES, write_layer, write_manifest};
use crate::tree::{NodeType, TreeNode, is_within, order};
use crate::walk::walk;

/// An upper over the layers of a snapshot.
#[derive(Clone, Copy)]
pub struct ChangesInput<'a> {
    /// The snapshot.
    pub parent: &'a SnapshotId,
    /// The upper directory.
    pub upper: BorrowedFd<'a>,
    /// The root of the base, in the mount that lies below the layers.
    pub base: BorrowedFd<'a>,
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
    let all = changes_over(depot, &manifest.layers, input.upper, input.base)?;
    let changes = counts(all.clone());
    if changes.is_empty() {
        return Ok((None, changes));
    }
    let counted: BTreeSet<&[u8]> = changes.iter().map(|change| &change.path[..]).collect();
    let mut left_out: BTreeSet<&[u8]> = all.iter().map(|change| &change.path[..]).collect();
    left_out.retain(|path| !counted.contains(path));
    let mut last = None;
    for _ in 0..TRIES {
        match attempt(depot, input, &manifest, &left_out) {
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
    parent: &SnapshotManifest,
    left_out: &BTreeSet<&[u8]>,
) -> Result<Pushed> {
    let mut nodes = walk(input.upper)?;
    nodes.retain(|node| !left_out.iter().any(|path| !path.is_empty() && is_within(&node.path, path)));
    let skipped = take_out(depot, &mut nodes, &parent.layers, BaseRoot(input.base))?;
    let mut layers = parent.layers.clone();
    let items = full(&nodes);
    let written = write_layer(depot, input.upper, &mut nodes, &items, &layers, None)?;
    let PushedLayer { layer, entries, bytes, packs } =
        written.ok_or_else(|| Error::Moved { object: "the upper".into() })?;
    let refuse = |why: &str| Error::Unsupported { object: "the job's changes".into(), why: why.into() };
    if layers.len() >= MAX_LAYERS {
        return Err(refuse("its snapshot has too many layers already"));
    }
    // No overlay takes one directory twice.
    if layers.iter().any(|below| below.digest == layer.digest) {
        return Err(refuse("they are exactly those of an earlier snapshot"));
    }
    layers.push(layer);
    let id = write_manifest(depot, &parent.environment, &parent.base, layers, &packs)?;
    Ok(Pushed { id, how: How::Incremental, entries, bytes, skipped })
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
