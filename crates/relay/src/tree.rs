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

/// The nodes that a node asks, nearest first: those above it among the ones that begin at the same time, then those above it among all. In one
/// tree a node asks only nodes before it, in the other only nodes behind it, so none ever waits for itself.
pub(crate) fn asked(tree: RelayTree, node: usize, begin_now: &[bool]) -> Vec<usize> {
    let now: Vec<usize> = (0..begin_now.len()).filter(|node| begin_now[*node]).collect();
    let position = now.iter().position(|other| *other == node);
    let near = position.map_or_else(Vec::new, |position| tree.above(position, now.len()));
    let near: Vec<usize> = near.into_iter().map(|position| now[position]).collect();
    let far = tree.above(node, begin_now.len()).into_iter().filter(|node| !begin_now[*node]);
    near.into_iter().chain(far).collect()
}

/// Whether others may ask a node.
pub(crate) fn may_be_asked(tree: RelayTree, node: usize, begin_now: &[bool]) -> bool {
    let now: Vec<usize> = (0..begin_now.len()).filter(|node| begin_now[*node]).collect();
    let position = now.iter().position(|other| *other == node);
    position.is_some_and(|position| tree.has_below(position, now.len()))
        || tree.has_below(node, begin_now.len())
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

    #[test]
    fn nodes_of_a_step_ask_each_other_first_and_never_in_a_circle() {
        let mut begin_now = vec![false; 1000];
        begin_now[500..600].fill(true);
        for tree in RelayTree::BOTH {
            let mut by_top = 0;
            for node in 0..1000 {
                let asked = asked(tree, node, &begin_now);
                let is_before = |other: &usize| match tree {
                    RelayTree::FromFirst => *other < node,
                    RelayTree::FromLast => *other > node,
                };
                assert!(asked.iter().all(is_before), "{node}: {asked:?}");
                if begin_now[node] && !asked.first().is_some_and(|first| begin_now[*first]) {
                    by_top += 1;
                }
            }
            assert_eq!(by_top, 1);
        }
        // Alone, as a batch script's node, it asks whoever is above it in the job.
        assert_eq!(asked(RelayTree::FromFirst, 5, &[false; 8]), [2, 0]);
    }
}
