//! The order of the inodes, and where each comes to lie: known before the first byte is written, since directories need it.

use std::collections::BTreeMap;

use super::format::{BLOCK_SIZE, SLOT};
use super::pack::{Packer, fits_behind_border};
use super::shape::{Data, Shape, shape};
use super::tree::{FileKind, InodeId, Tree, XattrsId};
use super::xattr::XattrPlan;
use super::{Error, Result};

/// An inode's turn, and the directory that it is in: of several, the first one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit {
    pub id: InodeId,
    pub parent: InodeId,
}

/// As deep directories may lie in each other: whoever walks through an image holds one block of each.
pub(super) const DEPTH_MAX: usize = 4096;

/// Marks a place that is counted from the start of the tails, while it is not yet known where they start.
const IN_TAILS: u32 = 1 << 31;

/// Where everything comes to lie. Blocks are counted from the file's start.
pub(super) struct Layout {
    pub order: Vec<Visit>,
    /// Of each inode of the tree, the number it has in the file.
    slots: Vec<u32>,
    pub copies: u64,
    pub table: u64,
    pub tails: u64,
    pub own_blocks: u64,
    pub shared: u64,
    pub end: u32,
    pub chunked: bool,
}

impl Layout {
    /// The layout of a tree whose full blocks end before `data_blocks`.
    pub fn new(tree: &Tree, order: Vec<Visit>, xattrs: &XattrPlan<'_>, data_blocks: u32) -> Result<Layout> {
        let mut slots = vec![0; tree.len()];
        let (mut table, mut tails) = (Packer::default(), Packer::default());
        // The first inode is not number 0: to readers of directories, that means no file.
        table.within_block(SLOT as usize);
        let (mut copied, mut own_blocks, mut chunked) = (0, 0, false);
        for visit in &order {
            let refuse = |why| unstorable(tree, visit.id, why);
            let shape = shape(tree, xattrs, visit.id, data_blocks).map_err(refuse)?;
            let (packer, mark) = if shape.with_tail() { (&mut tails, IN_TAILS) } else { (&mut table, 0) };
            let slot = place(packer, &shape) / SLOT;
            if slot >= u64::from(IN_TAILS) {
                return Err(refuse("an image has at most 64 GiB of metadata".to_owned()));
            }
            slots[visit.id.0 as usize] = slot as u32 | mark;
            copied += shape.copied();
            chunked |= matches!(shape.data, Data::Chunks(_) | Data::LoneTail { .. });
            if let Data::OwnBlocks(blocks) | Data::OwnBlocksAndTail(blocks, _) = shape.data {
                own_blocks += u64::from(blocks);
            }
        }
        let copies = u64::from(data_blocks);
        let table_start = copies + copied;
        let tails_start = table_start + table.blocks();
        let own_start = tails_start + tails.blocks();
        let shared = own_start + own_blocks;
        let end = shared + xattrs.shared_size().div_ceil(BLOCK_SIZE as u64);
        let too_large = |why| unstorable(tree, Tree::ROOT, why);
        // The last number is that of a hole.
        let end = u32::try_from(end).ok().filter(|end| *end < u32::MAX);
        let end = end.ok_or_else(|| too_large("the image would have more than 2^32 blocks".to_owned()))?;
        if xattrs.shared_size() > 4 * u64::from(u32::MAX) {
            return Err(too_large("its extended attributes take more than 16 GiB".to_owned()));
        }
        settle(&mut slots, (table.blocks() * BLOCK_SIZE as u64) / SLOT)
            .ok_or_else(|| too_large("an image has at most 128 GiB of metadata".to_owned()))?;
        let (table, tails, own_blocks) = (table_start, tails_start, own_start);
        Ok(Layout { order, slots, copies, table, tails, own_blocks, shared, end, chunked })
    }

    /// The number of an inode in the file.
    pub fn number(&self, id: InodeId) -> u64 {
        u64::from(self.slots[id.0 as usize])
    }
}

fn place(packer: &mut Packer, shape: &Shape) -> u64 {
    let size = shape.head as u64 + shape.behind();
    match shape.data {
        _ if size <= BLOCK_SIZE as u64 => packer.within_block(size as usize),
        Data::Tail { tail, .. } => {
            debug_assert!(fits_behind_border(shape.head, tail));
            packer.around_border(shape.head, tail)
        }
        _ => packer.across_blocks(size),
    }
}

/// Makes all places count from the start of the table.
fn settle(slots: &mut [u32], tails: u64) -> Option<()> {
    let tails = u32::try_from(tails).ok()?;
    for slot in slots.iter_mut().filter(|slot| **slot & IN_TAILS != 0) {
        *slot = (*slot & !IN_TAILS).checked_add(tails)?;
    }
    Some(())
}

/// Each inode once: a directory, then what is in it, then its directories in turn, as `find` and `tar` go.
pub(super) fn order(tree: &Tree) -> Result<Vec<Visit>> {
    let mut order = Vec::with_capacity(tree.len());
    let mut seen = vec![false; tree.len()];
    let mut stack = vec![(Visit { id: Tree::ROOT, parent: Tree::ROOT }, 1)];
    while let Some((visit, depth)) = stack.pop() {
        if depth > DEPTH_MAX {
            return Err(unstorable(tree, visit.id, format!("directories can lie {DEPTH_MAX} deep")));
        }
        if std::mem::replace(&mut seen[visit.id.0 as usize], true) {
            return Err(unstorable(tree, visit.id, "a directory has one name only".to_owned()));
        }
        order.push(visit);
        let FileKind::Directory(children) = &tree.inode(visit.id).kind else { continue };
        let first = stack.len();
        for &id in children.values() {
            let child = Visit { id, parent: visit.id };
            if matches!(tree.inode(id).kind, FileKind::Directory(_)) {
                stack.push((child, depth + 1));
            } else if !std::mem::replace(&mut seen[id.0 as usize], true) {
                order.push(child);
            }
        }
        stack[first..].reverse();
    }
    Ok(order)
}

/// The sets of extended attributes that inodes have, and how many have each.
pub(super) fn xattr_uses(tree: &Tree, order: &[Visit]) -> BTreeMap<XattrsId, u32> {
    let mut uses = BTreeMap::new();
    for visit in order {
        let id = tree.inode(visit.id).attributes.xattrs;
        if !tree.xattrs(id).is_empty() {
            *uses.entry(id).or_insert(0) += 1;
        }
    }
    uses
}

fn unstorable(tree: &Tree, id: InodeId, why: String) -> Error {
    Error::Unstorable { file: path(tree, id), why }
}

/// A path of an inode, for a message: it is searched for.
fn path(tree: &Tree, wanted: InodeId) -> String {
    let mut stack = vec![(Tree::ROOT, String::new())];
    let mut steps = 0;
    while let Some((id, path)) = stack.pop() {
        steps += 1;
        if id == wanted || steps > tree.len() {
            return if path.is_empty() { "/".to_owned() } else { path };
        }
        if let FileKind::Directory(children) = &tree.inode(id).kind {
            for (name, &child) in children {
                stack.push((child, format!("{path}/{}", name.escape_ascii())));
            }
        }
    }
    "a file without a name".to_owned()
}
