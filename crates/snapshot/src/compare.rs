//! What changed between two snapshots, or between one and an upper as it is now, without unpacking anything: from the records of their
//! layers, and from the base where one of the two sides leaves it as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::base::{BaseEntry, BaseRoot};
use crate::content_hash::{ContentHash, content_on_disk};
use crate::depot::Depot;
use crate::diff::{Change, ChangeKind};
use crate::digest::SnapshotId;
use crate::error::{Error, Result};
use crate::layer::{Attr, LayerReader, LayerRecord};
use crate::tree::{NodeType, Stamp, join, names, open_beneath, order, split, walk};
use crate::xattr::{self, XattrList};
use skiff_sys::SystemContext;

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    /// A snapshot in the depot.
    Snapshot(&'a SnapshotId),
    /// An upper, which may be in use.
    Upper(BorrowedFd<'a>),
}

/// Compares two states of environments over `base`, in the order of a walk. Of a directory that is gone only the directory itself is told.
pub fn compare(
    depot: &Depot,
    before: Side<'_>,
    after: Side<'_>,
    base: BorrowedFd<'_>,
) -> Result<Vec<Change>> {
    let (before, after) = (State::of(depot, before)?, State::of(depot, after)?);
    let mut differ = Differ { before: &before, after: &after, base: BaseRoot(base), changes: vec![] };
    differ.entry(b"", (false, false))?;
    differ.changes.sort_by(|a, b| order(&a.path, &b.path));
    Ok(differ.changes)
}

/// An entry of a state.
#[derive(Clone)]
struct Entry {
    kind: NodeType,
    stamp: Stamp,
    /// Nothing if it lies in the state's directory, or the base's.
    details: Option<Details>,
}

/// What is looked at only if all else is the same.
#[derive(Clone, PartialEq)]
struct Details {
    xattrs: XattrList,
    /// A symbolic link's.
    target: Vec<u8>,
    /// The digest of a file's content.
    content: [u8; 32],
}

/// What a state's layers or its upper have over the base, by path. In these keys slashes are zeros, so that they sort as a walk goes.
struct State<'a> {
    entries: BTreeMap<Vec<u8>, Entry>,
    upper: Option<BorrowedFd<'a>>,
}

impl<'a> State<'a> {
    fn of(depot: &Depot, side: Side<'a>) -> Result<State<'a>> {
        let mut state = State { entries: BTreeMap::new(), upper: None };
        match side {
            Side::Upper(upper) => {
                state.upper = Some(upper);
                let entry = |kind, stamp| Entry { kind, stamp, details: None };
                state.entries.extend(
                    walk(upper)?.into_iter().map(|node| (key(&node.path), entry(node.kind, node.stamp))),
                );
            }
            Side::Snapshot(id) => {
                for layer in &depot.manifest(id)?.layers {
                    let file = File::from(depot.open_layer(layer)?);
                    let mut reader = LayerReader::new(file, layer.digest.to_string())?;
                    state.add_layer(&mut reader)?;
                    let id = reader.finish()?;
                    if id != layer.digest {
                        let (layer, why) = (layer.digest.to_string(), format!("its digest is {id}"));
                        return Err(Error::BadLayer { layer, why });
                    }
                }
            }
        }
        Ok(state)
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
                    let entry = Entry::known(NodeType::File, attr, size, vec![], content);
                    if linked {
                        links.push(entry.clone());
                    }
                    self.replace(&join(&path, &name), entry);
                }
                LayerRecord::Symlink { name, attr, target } => {
                    let entry = Entry::known(NodeType::Symlink, attr, 0, target, [0; 32]);
                    self.replace(&join(&path, &name), entry);
                }
                LayerRecord::Fifo { name, attr } => {
                    let entry = Entry::known(NodeType::Fifo, attr, 0, vec![], [0; 32]);
                    self.replace(&join(&path, &name), entry);
                }
                LayerRecord::Whiteout { name } => {
                    let entry = Entry::known(NodeType::Whiteout, Attr::default(), 0, vec![], [0; 32]);
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

    /// A directory over what the layers before have there: as an overlay merges them.
    fn add_dir(&mut self, path: &[u8], attr: &Attr, opaque: bool) {
        let (opaque, merges) = match self.entries.get(&key(path)).map(|entry| entry.kind) {
            Some(NodeType::Dir { opaque: was }) if !opaque => (was, true),
            Some(NodeType::Dir { .. }) | None => (opaque, false),
            // What is no directory ends the search for what lies below.
            Some(_) => (true, false),
        };
        let entry = Entry::known(NodeType::Dir { opaque }, attr.clone(), 0, vec![], [0; 32]);
        if merges {
            self.entries.insert(key(path), entry);
        } else {
            self.replace(path, entry);
        }
    }

    fn replace(&mut self, path: &[u8], entry: Entry) {
        let below: Vec<Vec<u8>> = self.below(path).map(|(key, _)| key.clone()).collect();
        below.iter().for_each(|key| {
            self.entries.remove(key);
        });
        self.entries.insert(key(path), entry);
    }

    /// All that lies in a directory.
    fn below(&self, path: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
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
    fn children(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        let own = |(key, _): (&Vec<u8>, &Entry)| {
            key.get(skip..).filter(|name| !name.contains(&0)).map(<[u8]>::to_vec)
        };
        self.below(path).filter_map(own).collect()
    }
}

impl Entry {
    fn known(kind: NodeType, attr: Attr, size: u64, target: Vec<u8>, content: [u8; 32]) -> Entry {
        let Attr { mode, uid, gid, mtime, xattrs } = attr;
        let stamp = Stamp { size, mtime, mode, uid, gid, ..Stamp::default() };
        Entry { kind, stamp, details: Some(Details { xattrs, target, content }) }
    }
}

fn key(path: &[u8]) -> Vec<u8> {
    path.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
}

/// What shows at a path.
enum Seen<'a> {
    Nothing,
    Own(&'a Entry),
    /// The base's; nothing is known of what lies under a mount, or is closed.
    Base(Option<Entry>),
}

impl Seen<'_> {
    fn entry(&self) -> Option<&Entry> {
        match self {
            Seen::Own(entry) => Some(entry),
            Seen::Base(entry) => entry.as_ref(),
            Seen::Nothing => None,
        }
    }

    fn is_dir(&self) -> bool {
        self.entry().is_some_and(|entry| entry.kind.is_dir())
    }

    /// Whether the base is hidden in this directory, which lies in one where it is or is not.
    fn hides(&self, above: bool) -> bool {
        above || matches!(self, Seen::Own(entry) if entry.kind == NodeType::Dir { opaque: true })
    }
}

struct Differ<'a> {
    before: &'a State<'a>,
    after: &'a State<'a>,
    base: BaseRoot<'a>,
    changes: Vec<Change>,
}

impl<'a> Differ<'a> {
    fn look(&self, state: &'a State<'a>, path: &[u8], hides: bool) -> Result<Seen<'a>> {
        match state.entries.get(&key(path)) {
            Some(entry) if entry.kind == NodeType::Whiteout => Ok(Seen::Nothing),
            Some(entry) => Ok(Seen::Own(entry)),
            None if hides => Ok(Seen::Nothing),
            None => Ok(match self.base.look(path)? {
                BaseEntry::Absent => Seen::Nothing,
                BaseEntry::Unknown => Seen::Base(None),
                BaseEntry::Here { kind, stat, .. } => {
                    Seen::Base(Some(Entry { kind, stamp: Stamp::from(&stat), details: None }))
                }
            }),
        }
    }

    fn tell(&mut self, path: &[u8], kind: ChangeKind) {
        self.changes.push(Change { path: path.to_vec(), kind, base_changed: false });
    }

    /// Compares a path, and all below it; `hides`: whether the two states hide the base there.
    fn entry(&mut self, path: &[u8], hides: (bool, bool)) -> Result<()> {
        let seen = (self.look(self.before, path, hides.0)?, self.look(self.after, path, hides.1)?);
        let hides = (seen.0.hides(hides.0), seen.1.hides(hides.1));
        match &seen {
            (Seen::Nothing, Seen::Nothing) | (Seen::Base(_), Seen::Base(_)) => Ok(()),
            (Seen::Nothing, after) => self.added(path, after, hides.1),
            (_, Seen::Nothing) => {
                self.tell(path, ChangeKind::Deleted);
                Ok(())
            }
            (before, after) => {
                if !self.is_same(path, before, after)? {
                    self.tell(path, ChangeKind::Changed);
                }
                match (before.is_dir(), after.is_dir()) {
                    (true, true) => self.dir(path, hides),
                    (false, true) => self.added_below(path, hides.1),
                    _ => Ok(()),
                }
            }
        }
    }

    fn dir(&mut self, path: &[u8], hides: (bool, bool)) -> Result<()> {
        let mut all: BTreeSet<Vec<u8>> = self.before.children(path).into_iter().collect();
        all.extend(self.after.children(path));
        if hides.0 != hides.1 {
            all.extend(self.names_in_base(path)?);
        }
        all.iter().try_for_each(|name| self.entry(&join(path, name), hides))
    }

    fn added(&mut self, path: &[u8], seen: &Seen<'_>, hides: bool) -> Result<()> {
        self.tell(path, ChangeKind::Added);
        if seen.is_dir() { self.added_below(path, hides) } else { Ok(()) }
    }

    fn added_below(&mut self, path: &[u8], hides: bool) -> Result<()> {
        let mut all: BTreeSet<Vec<u8>> = self.after.children(path).into_iter().collect();
        if !hides {
            all.extend(self.names_in_base(path)?);
        }
        for name in all {
            let path = join(path, &name);
            let seen = self.look(self.after, &path, hides)?;
            if !matches!(seen, Seen::Nothing) {
                self.added(&path, &seen, seen.hides(hides))?;
            }
        }
        Ok(())
    }

    fn names_in_base(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        match open_beneath(self.base.0, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
            Ok(dir) => Ok(names(dir.as_fd()).on("read the base's directory", path)?),
            // What could not be listed was not there for the user before either.
            Err(_) => Ok(vec![]),
        }
    }

    fn is_same(&self, path: &[u8], before: &Seen<'_>, after: &Seen<'_>) -> Result<bool> {
        let (Some(a), Some(b)) = (before.entry(), after.entry()) else {
            // Of a directory, nothing can be told.
            return Ok([before, after].iter().any(|seen| seen.is_dir()));
        };
        let kinds = a.kind == b.kind || (a.kind.is_dir() && b.kind.is_dir());
        let (x, y) = (&a.stamp, &b.stamp);
        let modes = a.kind == NodeType::Symlink || (x.mode ^ y.mode) & 0o7777 == 0;
        if !kinds || !modes || (x.uid, x.gid) != (y.uid, y.gid) {
            return Ok(false);
        }
        match a.kind {
            NodeType::File if (x.mtime, x.size) != (y.mtime, y.size) => Ok(false),
            NodeType::Other | NodeType::Whiteout => Ok(x.rdev == y.rdev),
            NodeType::Fifo => Ok(true),
            NodeType::Dir { .. } | NodeType::File | NodeType::Symlink => {
                let of = |seen: &Seen<'_>, state: &State<'a>| self.details(path, seen, state);
                let (a_more, b_more) = (of(before, self.before)?, of(after, self.after)?);
                // Of a directory that is closed only what can be seen is compared.
                Ok(a_more.zip(b_more).map_or(a.kind.is_dir(), |(a, b)| a == b))
            }
        }
    }

    /// Extended attributes, target and digest of the content; nothing of what vanished or is closed.
    fn details(&self, path: &[u8], seen: &Seen<'_>, state: &State<'a>) -> Result<Option<Details>> {
        let (Some(entry), root) = (seen.entry(), state.upper.filter(|_| matches!(seen, Seen::Own(_)))) else {
            return Ok(None);
        };
        match &entry.details {
            Some(details) => Ok(Some(details.clone())),
            None => on_disk(root.unwrap_or(self.base.0), path, entry.kind),
        }
    }
}

fn on_disk(root: BorrowedFd<'_>, path: &[u8], kind: NodeType) -> Result<Option<Details>> {
    let flags = match kind {
        NodeType::Symlink => OFlags::PATH | OFlags::NOFOLLOW,
        _ => OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
    };
    let Ok(fd) = open_beneath(root, path, flags) else { return Ok(None) };
    if kind == NodeType::Symlink {
        let target = rustix::fs::readlinkat(&fd, c"", vec![]).on("read the link", path)?;
        let target = target.into_bytes();
        return Ok(Some(Details { xattrs: vec![], target, content: [0; 32] }));
    }
    let xattrs = match xattr::read(fd.as_fd()) {
        Err(Errno::XDEV) => return Ok(None),
        xattrs => xattrs.on("read the attributes of", path)?,
    };
    let content = match kind {
        NodeType::File => content_on_disk(&fd).on("read", path)?,
        _ => [0; 32],
    };
    Ok(Some(Details { xattrs, target: vec![], content }))
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
