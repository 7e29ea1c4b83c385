//! Which node asks which: two binary trees of the same nodes, in opposite order. Who has others below it in one tree has none in the other, so
//! each sends no more than it receives.

/// One of the two trees. Half of the pieces go down each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayTree {
    /// The first node is at the top.
    FromFirst,
    /// The last one is.
    FromLast,
}

impl RelayTree {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::FromFirst, Self::FromLast];

    /// The nodes above this one, nearest first.
    pub(crate) fn above(self, node: usize, nodes: usize) -> Vec<usize> {
        let parent = |place: &usize| (*place > 0).then(|| (place - 1) / 2);
        let places = std::iter::successors(parent(&self.turned(node, nodes)), parent);
        places.map(|place| self.turned(place, nodes)).collect()
    }

    /// Whether there are nodes below this one.
    pub(crate) fn has_below(self, node: usize, nodes: usize) -> bool {
        2 * self.turned(node, nodes) + 1 < nodes
    }

    fn turned(self, node: usize, nodes: usize) -> usize {
        match self {
            Self::FromFirst => node,
            Self::FromLast => nodes - 1 - node,
        }
    }
}

/// Whether there are nodes that ask this one.
#[must_use]
pub fn has_receivers(node: usize, nodes: usize) -> bool {
    RelayTree::BOTH.iter().any(|tree| tree.has_below(node, nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_hangs_below_the_top_and_few_below_one() {
        for nodes in 1..200 {
            for tree in RelayTree::BOTH {
                let top = tree.turned(0, nodes);
                let mut below = vec![0; nodes];
                for node in 0..nodes {
                    let above = tree.above(node, nodes);
                    assert_eq!(above.last().copied().unwrap_or(node), top);
                    assert!(above.len() <= 8, "{nodes}: {above:?}");
                    if let Some(parent) = above.first() {
                        below[*parent] += 1;
                    }
                }
                let has_below: Vec<bool> = (0..nodes).map(|node| tree.has_below(node, nodes)).collect();
                assert_eq!(has_below, below.iter().map(|count| *count > 0).collect::<Vec<_>>());
                assert!(below.iter().all(|count| *count <= 2));
            }
            let sends_twice = |node: &usize| RelayTree::BOTH.iter().all(|tree| tree.has_below(*node, nodes));
            assert_eq!((0..nodes).find(sends_twice).filter(|_| nodes > 2), None, "{nodes}");
        }
    }
}
