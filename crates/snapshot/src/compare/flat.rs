//! What a snapshot's layers, or an upper, have over the base.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::chunk::{OpenHere, StreamBytes};
use crate::content_hash::ContentHash;
use crate::depot::Depot;
use crate::digest::SnapshotId;
use crate::error::Result;
use crate::index::StoredIndex;
use crate::layer::{Attr, LayerReader, LayerRecord};
use crate::manifest::LayerRef;
use crate::tree::{NodeType, Stamp, TreeNode, join, order, split};
use crate::walk::walk;
use crate::xattr::XattrList;

/// An entry of a state.
#[derive(Clone)]
pub(super) struct FlatEntry {
    pub(super) kind: NodeType,
    pub(super) stamp: Stamp,
    /// Nothing if it lies in the state's directory, or the base's.
    pub(super) details: Option<Rc<Details>>,
    /// Of an upper: it is as the snapshot on the other side has it.
    pub(super) unchanged: bool,
}

/// What is looked at only if all else is the same.
#[derive(Clone, PartialEq)]
pub(super) struct Details {
    pub(super) xattrs: XattrList,
    /// A symbolic link's.
    pub(super) target: Vec<u8>,
    /// The digest of a file's content.
    pub(super) content: [u8; 32],
}

/// What a state's layers or its upper have over the base, by path. In these keys slashes are zeros, so that they sort as a walk goes.
#[derive(Clone)]
pub(super) struct FlatLayers<'a> {
    pub(super) entries: BTreeMap<Vec<u8>, FlatEntry>,
    pub(super) upper: Option<BorrowedFd<'a>>,
}

impl<'a> FlatLayers<'a> {
    pub(super) fn empty() -> FlatLayers<'a> {
        FlatLayers { entries: BTreeMap::new(), upper: None }
    }

    /// An upper as it is. What has not changed since the snapshot `other`, if that was the last one, need not be read.
    pub(super) fn of_upper(
        upper: BorrowedFd<'a>,
        state: BorrowedFd<'_>,
        other: Option<&SnapshotId>,
    ) -> Result<FlatLayers<'a>> {
        let index = StoredIndex::load(state)?.filter(|index| Some(&index.snapshot) == other);
        let index = index.and_then(|index| index.parse());
        let known = index.map(|index| index.nodes).unwrap_or_else(Vec::new);
        let mut known = known.iter().peekable();
        let mut entries = BTreeMap::new();
        for TreeNode { path, kind, stamp, .. } in walk(upper)? {
            while known.next_if(|node| order(&node.path, &path).is_lt()).is_some() {}
            let unchanged = known
                .next_if(|node| node.path == path)
                .is_some_and(|node| node.stamp == stamp && node.kind == kind && !node.racy);
            entries.insert(key(&path), FlatEntry { kind, stamp, details: None, unchanged });
        }
        Ok(FlatLayers { entries, upper: Some(upper) })
    }

    /// The bytes of all its files; those of one with several names for each.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.entries.values().filter(|entry| entry.kind == NodeType::File);
        files.fold(0, |sum, file| sum.saturating_add(file.stamp.size))
    }

    /// With an upper on top of it.
    pub(super) fn with_upper(mut self, upper: BorrowedFd<'a>) -> Result<FlatLayers<'a>> {
        for TreeNode { path, kind, stamp, .. } in walk(upper)? {
            let entry = FlatEntry { kind, stamp, details: None, unchanged: false };
            match kind {
                NodeType::Dir { opaque } => self.put_dir(&path, entry, opaque),
                _ => self.replace(&path, entry),
            }
        }
        self.upper = Some(upper);
        Ok(self)
    }

    /// With these layers on top of it.
    pub(super) fn over(mut self, depot: &Depot, layers: &[LayerRef]) -> Result<FlatLayers<'a>> {
        for layer in layers {
            let mut reader = depot.read_layer(layer)?;
            self.add_layer(&mut reader)?;
            reader.finish_as(&layer.digest)?;
        }
        Ok(self)
    }

    /// The same; layers that `here` has are read from there.
    pub(super) fn over_here(
        mut self,
        (depot, here): (&Depot, &OpenHere<'_>),
        layers: &[LayerRef],
    ) -> Result<FlatLayers<'a>> {
        for layer in layers {
            let Some(stream) = here(&layer.digest) else {
                self = self.over(depot, &[*layer])?;
                continue;
            };
            let bytes = StreamBytes::new(stream, layer.size);
            let mut reader = LayerReader::new(bytes, layer.digest.to_string())?;
            self.add_layer(&mut reader)?;
            reader.finish_as(&layer.digest)?;
        }
        Ok(self)
    }

    fn add_layer<R: Read>(&mut self, reader: &mut LayerReader<R>) -> Result<()> {
        let (mut path, mut links) = (vec![], vec![]);
        while let Some(record) = reader.record()? {
            match record {
                LayerRecord::Dir { name, attr, opaque } => {
                    path = join(&path, &name);
                    self.add_dir(&path, &attr, opaque);
                }
                LayerRecord::File { name, attr, linked, size } => {
                    let content = content(reader)?;
                    let entry = FlatEntry::known(NodeType::File, attr, size, vec![], content);
                    if linked {
                        links.push(entry.clone());
                    }
                    self.replace(&join(&path, &name), entry);
                }
                LayerRecord::Symlink { name, attr, target } => {
                    let entry = FlatEntry::known(NodeType::Symlink, attr, 0, target, [0; 32]);
                    self.replace(&join(&path, &name), entry);
                }
                LayerRecord::Fifo { name, attr } => {
                    let entry = FlatEntry::known(NodeType::Fifo, attr, 0, vec![], [0; 32]);
                    self.replace(&join(&path, &name), entry);
                }
                LayerRecord::Whiteout { name } => {
                    let entry = FlatEntry::known(NodeType::Whiteout, Attr::default(), 0, vec![], [0; 32]);
                    self.replace(&join(&path, &name), entry);
                }
                // The reader has seen to it that there is one.
                LayerRecord::Link { name, number } => {
                    if let Some(entry) = links.get(number as usize) {
                        self.replace(&join(&path, &name), entry.clone());
                    }
                }
                LayerRecord::Up => path.truncate(split(&path).0.len()),
                LayerRecord::End { .. } => {}
            }
        }
        Ok(())
    }

    fn add_dir(&mut self, path: &[u8], attr: &Attr, opaque: bool) {
        let entry = FlatEntry::known(NodeType::Dir { opaque }, attr.clone(), 0, vec![], [0; 32]);
        self.put_dir(path, entry, opaque);
    }

    /// A directory over what the layers before have there: as an overlay merges them.
    fn put_dir(&mut self, path: &[u8], entry: FlatEntry, opaque: bool) {
        let (opaque, merges) = match self.entries.get(&key(path)).map(|entry| entry.kind) {
            Some(NodeType::Dir { opaque: was }) if !opaque => (was, true),
            Some(NodeType::Dir { .. }) | None => (opaque, false),
            // What is no directory ends the search for what lies below.
            Some(_) => (true, false),
        };
        let entry = FlatEntry { kind: NodeType::Dir { opaque }, ..entry };
        if merges {
            self.entries.insert(key(path), entry);
        } else {
            self.replace(path, entry);
        }
    }

    fn replace(&mut self, path: &[u8], entry: FlatEntry) {
        let below: Vec<Vec<u8>> = self.below(path).map(|(key, _)| key.clone()).collect();
        below.iter().for_each(|key| {
            self.entries.remove(key);
        });
        self.entries.insert(key(path), entry);
    }

    /// All that lies in a directory.
    fn below(&self, path: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &FlatEntry)> {
        let (mut from, mut to) = (key(path), key(path));
        if !path.is_empty() {
            from.push(0);
            to.push(1);
        }
        let is_root = path.is_empty();
        let end = if is_root { std::ops::Bound::Unbounded } else { std::ops::Bound::Excluded(to) };
        self.entries
            .range((std::ops::Bound::Included(from), end))
            .filter(move |(key, _)| !(is_root && key.is_empty()))
    }

    /// The names right in a directory.
    pub(super) fn children(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        let own = |(key, _): (&Vec<u8>, &FlatEntry)| {
            key.get(skip..).filter(|name| !name.contains(&0)).map(<[u8]>::to_vec)
        };
        self.below(path).filter_map(own).collect()
    }
}

impl FlatEntry {
    fn known(kind: NodeType, attr: Attr, size: u64, target: Vec<u8>, content: [u8; 32]) -> FlatEntry {
        let Attr { mode, uid, gid, mtime, xattrs } = attr;
        let stamp = Stamp { size, mtime, mode, uid, gid, ..Stamp::default() };
        FlatEntry {
            kind,
            stamp,
            details: Some(Rc::new(Details { xattrs, target, content })),
            unchanged: false,
        }
    }
}

pub(super) fn key(path: &[u8]) -> Vec<u8> {
    path.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
}

/// Of the file whose record came last.
fn content<R: Read>(reader: &mut LayerReader<R>) -> Result<[u8; 32]> {
    let mut hash = ContentHash::new();
    while let Some((mut at, _)) = reader.extent()? {
        while let Some(piece) = reader.piece()? {
            hash.add(at, piece);
            at += piece.len() as u64;
        }
    }
    Ok(hash.finish())
}
