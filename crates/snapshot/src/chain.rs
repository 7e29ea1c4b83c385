//! How long a chain of layers may get: which of them a new layer replaces, and when one layer replaces all.

use std::collections::BTreeSet;

use crate::depot::Depot;
use crate::error::Result;
use crate::layer::{self, Item};
use crate::manifest::{LayerRef, SnapshotManifest};
use crate::new_layer::weight_of;
use crate::plan::MergedLayers;
use crate::tree::{NodeType, TreeNode};

/// The longest chain of layers. Each is one more mount on the nodes.
const MAX_CHAIN: usize = 16;
/// Chains below this size are not worth making anew for their dead weight.
const SLACK: u64 = 1 << 20;

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

/// The layers at the end of a chain that the next one replaces if it has so much more, and their paths.
pub(crate) fn merged(
    depot: &Depot,
    policy: MergePolicy,
    layers: &[LayerRef],
    added: u64,
) -> Result<MergedLayers> {
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
pub(crate) fn is_worn(
    manifest: &SnapshotManifest,
    replaced: usize,
    items: &[Item],
    nodes: &[TreeNode],
) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::LayerId;

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
