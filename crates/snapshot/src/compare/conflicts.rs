//! What several snapshots that have been made from one changed differently.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::depot::Depot;
use crate::digest::SnapshotId;
use crate::error::Result;
use crate::tree::NodeType;

use super::flat::{FlatEntry, FlatLayers};

/// A path that at least two snapshots have changed, and not in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeConflict {
    /// The path, relative to the root.
    pub path: Vec<u8>,
    /// The places, in the list of snapshots, of those that have changed it.
    pub changed_by: Vec<usize>,
}

/// What the layers above those of `parent` change differently, in the order of a walk. When a file was written does not count.
pub fn conflicts(
    depot: &Depot,
    parent: &SnapshotId,
    snapshots: &[SnapshotId],
) -> Result<Vec<ChangeConflict>> {
    let below = depot.manifest(parent)?.layers;
    let mut by_path: BTreeMap<Vec<u8>, Vec<(usize, FlatEntry)>> = BTreeMap::new();
    for (at, id) in snapshots.iter().enumerate() {
        let layers = depot.manifest(id)?.layers;
        let shared = below.iter().zip(&layers).take_while(|(a, b)| a == b).count();
        for (path, entry) in FlatLayers::empty().over(depot, &layers[shared..])?.entries {
            by_path.entry(path).or_default().push((at, entry));
        }
    }
    let differ = |(path, all): (Vec<u8>, Vec<(usize, FlatEntry)>)| {
        let first = all.first().map(|(_, entry)| entry)?;
        let is_conflict = all.iter().any(|(_, entry)| !is_alike(first, entry));
        is_conflict.then(|| ChangeConflict {
            path: path.into_iter().map(|byte| if byte == 0 { b'/' } else { byte }).collect(),
            changed_by: all.iter().map(|(at, _)| *at).collect(),
        })
    };
    Ok(by_path.into_iter().filter_map(differ).collect())
}

fn is_alike(a: &FlatEntry, b: &FlatEntry) -> bool {
    let owners = |entry: &FlatEntry| (entry.stamp.uid, entry.stamp.gid);
    let mode = |entry: &FlatEntry| match entry.kind {
        NodeType::Symlink | NodeType::Whiteout => 0,
        _ => entry.stamp.mode & 0o7777,
    };
    a.kind == b.kind
        && owners(a) == owners(b)
        && mode(a) == mode(b)
        && a.details.as_ref().map(Rc::as_ref) == b.details.as_ref().map(Rc::as_ref)
}
