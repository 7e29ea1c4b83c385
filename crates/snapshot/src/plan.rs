//! Decides what a layer has to hold, so that it, on the layers before it, shows what the upper shows.
//!
//! A layer can add, replace and hide, but it cannot make the base show again where an earlier layer hides it; then, and only
//! then, a full layer is needed.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use crate::base::{BaseRoot, find};
use crate::error::Result;
use crate::layer::{Item, LayerPath, fingerprint};
use crate::tree::{ENTRY, NodeType, Stamp, TreeNode, is_within, link_groups, order, split};

/// What to ship.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPlan {
    /// The last snapshot still tells all; `stale`: but its index should be written again.
    Unchanged { stale: bool },
    /// A layer on top of the last snapshot's, in the place of so many of them.
    Incremental { items: Vec<Item>, replaced: usize },
    /// The base shows again at this path: only a full layer can say so.
    Full(Vec<u8>),
}

/// Layers at the end of a chain.
pub(crate) struct MergedLayers {
    pub(crate) count: usize,
    /// All that they have.
    pub(crate) paths: Vec<LayerPath>,
}

/// Everything, for a layer without any below it.
pub(crate) fn full(nodes: &[TreeNode]) -> Vec<Item> {
    let ship = |(node, at): (usize, &TreeNode)| Item::Ship {
        node,
        opaque: at.kind == NodeType::Dir { opaque: true },
        fresh: true,
    };
    nodes.iter().enumerate().map(ship).collect()
}

/// Takes out what cannot be shipped (sockets, devices) and gives the paths of it. Where one hides something of the base, a
/// whiteout takes its place.
pub(crate) fn take_out_unshippable(nodes: &mut Vec<TreeNode>, base: BaseRoot<'_>) -> Result<Vec<Vec<u8>>> {
    let mut skipped = Vec::new();
    let mut hiding = Vec::new();
    for node in nodes.iter().filter(|node| node.kind == NodeType::Other) {
        skipped.push(node.path.clone());
        hiding.push(base.shows(nodes, &node.path)?);
    }
    for path in &skipped {
        if let Ok(at) = nodes.binary_search_by(|node| order(&node.path, split(path).0)) {
            nodes[at].partial = true;
        }
    }
    let mut hiding = hiding.into_iter();
    nodes.retain_mut(|node| {
        if node.kind != NodeType::Other {
            return true;
        }
        node.kind = NodeType::Whiteout;
        hiding.next().unwrap_or(false)
    });
    Ok(skipped)
}

/// What changed from `old`, the last snapshot's nodes, to `new`. `merged` is told how much that is, and gives what is in the layers
/// that the new one is to replace.
pub(crate) fn incremental(
    old: &[TreeNode],
    new: &mut [TreeNode],
    upper: BorrowedFd<'_>,
    base: BaseRoot<'_>,
    merged: impl FnOnce(u64) -> Result<MergedLayers>,
) -> Result<SnapshotPlan> {
    let stale = fingerprint_doubtful(old, new, upper)?;
    let mut plan = Planner {
        new,
        base,
        ship: vec![None; new.len()],
        whiteouts: Vec::new(),
        forced: None,
        covered: None,
        full: None,
    };
    plan.compare(old)?;
    if let Some(path) = plan.full {
        return Ok(SnapshotPlan::Full(path));
    }
    if plan.whiteouts.is_empty() && plan.ship.iter().all(Option::is_none) {
        return Ok(SnapshotPlan::Unchanged { stale });
    }
    let MergedLayers { count: replaced, paths } = merged(plan.weight())?;
    plan.add_merged(&paths);
    plan.complete_link_groups();
    plan.add_parents();
    Ok(SnapshotPlan::Incremental { items: plan.items(), replaced })
}

/// Gives nodes of `new` that are as the last snapshot holds them its fingerprint, after comparing where the stamps cannot tell.
/// True if something was compared so: the index should then be written again, so that it need not be the next time.
fn fingerprint_doubtful(old: &[TreeNode], new: &mut [TreeNode], upper: BorrowedFd<'_>) -> Result<bool> {
    let mut compared = false;
    let mut new = new.iter_mut().peekable();
    for before in old {
        while new.next_if(|now| order(&now.path, &before.path).is_lt()).is_some() {}
        let Some(now) = new.next_if(|now| now.path == before.path) else { continue };
        if now.kind != before.kind {
            continue;
        }
        if now.stamp == before.stamp && !before.racy {
            now.fingerprint = before.fingerprint;
        } else if before.fingerprint.is_some() && travels_alike(before, now) {
            now.fingerprint = fingerprint(upper, now)?;
            compared = true;
        }
    }
    Ok(compared)
}

/// Whether what a layer would hold of the two stamps is the same. A fingerprint tells nothing of a file's other names; where no stamp has
/// changed they are those that the list shows.
fn travels_alike(a: &TreeNode, b: &TreeNode) -> bool {
    let has_other_names = [a, b].iter().any(|node| node.kind == NodeType::File && node.stamp.nlink > 1);
    if has_other_names && a.stamp != b.stamp {
        return false;
    }
    let travels = |node: &TreeNode| {
        let Stamp { size, mtime, mode, uid, gid, .. } = node.stamp;
        (mtime, mode, uid, gid, if node.kind == NodeType::File { size } else { 0 })
    };
    travels(a) == travels(b)
}

/// Whether `now` is what the last snapshot holds as `before`.
fn is_same(before: &TreeNode, now: &TreeNode) -> bool {
    if before.kind == NodeType::Whiteout {
        // The kernel makes all whiteouts of an upper one inode with many names: its stamp says nothing.
        return now.kind == NodeType::Whiteout;
    }
    let trusted = before.stamp == now.stamp && !before.racy;
    before.kind == now.kind
        && (trusted || (before.fingerprint.is_some() && before.fingerprint == now.fingerprint))
}

#[derive(Clone, Copy)]
struct Ship {
    opaque: bool,
    fresh: bool,
}

struct Planner<'a> {
    new: &'a [TreeNode],
    base: BaseRoot<'a>,
    ship: Vec<Option<Ship>>,
    whiteouts: Vec<Vec<u8>>,
    /// A directory that becomes opaque in this layer, so that all in it has to be shipped again.
    forced: Option<&'a [u8]>,
    /// A directory of the last snapshot whose vanishing is taken care of, with all that was in it.
    covered: Option<Vec<u8>>,
    full: Option<Vec<u8>>,
}

impl<'a> Planner<'a> {
    /// Goes through both lists, which are in the same order.
    fn compare(&mut self, old: &[TreeNode]) -> Result<()> {
        let (mut old, mut at) = (old.iter().peekable(), 0);
        while self.full.is_none() {
            let ordering = match (old.peek(), self.new.get(at)) {
                (Some(before), Some(now)) => order(&before.path, &now.path),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => break,
            };
            let before = if ordering.is_le() { old.next() } else { None };
            match (before, ordering.is_ge()) {
                (Some(before), true) => self.both(before, at)?,
                (Some(before), false) => self.vanished(before)?,
                (None, _) => self.added(at),
            }
            at += usize::from(ordering.is_ge());
        }
        Ok(())
    }

    fn is_forced(&self, path: &[u8]) -> bool {
        self.forced.is_some_and(|dir| is_within(path, dir))
    }

    fn added(&mut self, at: usize) {
        let opaque = self.new[at].kind == NodeType::Dir { opaque: true };
        self.ship[at] = Some(Ship { opaque, fresh: true });
    }

    fn both(&mut self, before: &TreeNode, at: usize) -> Result<()> {
        let new = self.new;
        let now = &new[at];
        if self.is_forced(&now.path) {
            self.added(at);
            return Ok(());
        }
        let mut opaque = false;
        match (before.kind, now.kind) {
            (NodeType::Dir { opaque: true }, NodeType::Dir { opaque: true }) => {}
            (NodeType::Dir { opaque: false }, NodeType::Dir { opaque: true }) => {
                opaque = true;
                self.forced = Some(&now.path);
            }
            // The layers before hide the base here: by an opaque directory, or by something else than one.
            (NodeType::Dir { opaque: true }, NodeType::Dir { .. }) if self.base.merges(new, &now.path)? => {
                self.full = Some(now.path.clone());
            }
            (NodeType::Dir { .. }, NodeType::Dir { .. }) => {}
            (_, NodeType::Dir { opaque: true }) => opaque = true,
            (_, NodeType::Dir { opaque: false }) if self.base.merges(new, &now.path)? => {
                self.full = Some(now.path.clone());
            }
            (NodeType::Dir { .. }, _) => self.covered = Some(now.path.clone()),
            _ => {}
        }
        if opaque || !is_same(before, now) {
            self.ship[at] = Some(Ship { opaque, fresh: false });
        }
        Ok(())
    }

    fn vanished(&mut self, before: &TreeNode) -> Result<()> {
        let path = &before.path[..];
        let covered = self.covered.as_ref().is_some_and(|dir| is_within(path, dir));
        let in_directory = find(self.new, split(path).0).is_some_and(|node| node.kind.is_dir());
        if covered || self.is_forced(path) || !in_directory {
            return Ok(());
        }
        if before.kind.is_dir() {
            self.covered = Some(path.to_vec());
        }
        if self.base.shows(self.new, path)? {
            self.full = Some(path.to_vec());
        } else if before.kind != NodeType::Whiteout {
            self.whiteouts.push(path.to_vec());
        }
        Ok(())
    }

    /// How much is shipped so far, in bytes.
    fn weight(&self) -> u64 {
        let shipped = self.new.iter().zip(&self.ship).filter(|(_, ship)| ship.is_some());
        shipped.map(|(node, _)| node.weight()).sum::<u64>() + self.whiteouts.len() as u64 * ENTRY
    }

    /// Ships what the layers have that this one replaces: as it is now.
    fn add_merged(&mut self, merged: &[LayerPath]) {
        let mut gone: BTreeSet<Vec<u8>> = std::mem::take(&mut self.whiteouts).into_iter().collect();
        for LayerPath { path, hides } in merged {
            let parent = split(path).0;
            match self.new.binary_search_by(|node| order(&node.path, path)) {
                Ok(at) => {
                    // What is in the layers below stays hidden, by a directory where it was by something else.
                    let opaque = *hides && self.new[at].kind.is_dir();
                    let ship = self.ship[at].get_or_insert(Ship { opaque, fresh: false });
                    ship.opaque |= opaque;
                }
                Err(_) if find(self.new, parent).is_some_and(|node| node.kind.is_dir()) => {
                    gone.insert(path.clone());
                }
                // Something hides the directory that it was in.
                Err(_) => {}
            }
        }
        self.whiteouts = gone.into_iter().collect();
    }

    /// Names of one file stay names of one file only within one layer.
    fn complete_link_groups(&mut self) {
        for group in link_groups(self.new).into_values() {
            if group.iter().any(|at| self.ship[*at].is_some()) {
                for at in group {
                    self.ship[at].get_or_insert(Ship { opaque: false, fresh: false });
                }
            }
        }
    }

    /// An entry is found only where all directories above it are in its layer too.
    fn add_parents(&mut self) {
        let shipped = (0..self.new.len()).filter(|at| self.ship[*at].is_some());
        let paths: Vec<&[u8]> = shipped.map(|at| &self.new[at].path[..]).collect();
        let whiteouts = std::mem::take(&mut self.whiteouts);
        for path in paths.into_iter().chain(whiteouts.iter().map(Vec::as_slice)) {
            let mut path = path;
            while !path.is_empty() {
                path = split(path).0;
                let Ok(at) = self.new.binary_search_by(|node| order(&node.path, path)) else { break };
                if self.ship[at].is_some() {
                    break;
                }
                self.ship[at] = Some(Ship { opaque: false, fresh: false });
            }
        }
        self.whiteouts = whiteouts;
    }

    fn items(self) -> Vec<Item> {
        let new = self.new;
        let shipped = self.ship.iter().enumerate().filter_map(|(node, ship)| {
            ship.map(|Ship { opaque, fresh }| (&new[node].path[..], Item::Ship { node, opaque, fresh }))
        });
        let whiteouts =
            self.whiteouts.iter().map(|path| (path.as_slice(), Item::Whiteout { path: path.clone() }));
        let mut items: Vec<_> = shipped.chain(whiteouts).collect();
        items.sort_by(|(a, _), (b, _)| order(a, b));
        items.into_iter().map(|(_, item)| item).collect()
    }
}
