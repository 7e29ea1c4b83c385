//! Applies layers to a tree, the lowest first, as the image specification and Docker have it.
//!
//! A whiteout acts on what lower layers have, wherever in its layer it stands: so all of a layer's whiteouts come first.
//! Parents that are symbolic links are followed within the image. What AUFS left behind is left out.

mod path;
mod whiteout;

use std::collections::{BTreeMap, HashMap, HashSet};

use path::{Components, components, display};
use skiff_erofs::tree::{Attributes, FileKind, Inode, InodeId, Tree, XattrsId};

use crate::layer_entries::{LayerEntries, LayerEntry, LayerEntryKind};
use whiteout::Special;
pub(crate) use whiteout::is_mark;

/// A parent's directory may not lie deeper: half of what a path has room for.
const DEEPEST: usize = 2048;
/// Linux follows no more symbolic links in one path.
const MOST_LINKS: usize = 40;

/// A tree that grows layer by layer.
pub(crate) struct Merger {
    tree: Tree,
    layer: u32,
    /// Whether whiteouts are files as any.
    keeps_whiteouts: bool,
    /// So many files the tree may have: an entry may have thousands of directories made.
    most: u64,
    /// The directory in which the last entry was, by its path: most entries lie beside the one before.
    last_parent: Option<(Vec<u8>, InodeId)>,
    /// While whiteouts are applied: what no way to one leads through.
    replaced: HashSet<(InodeId, Box<[u8]>)>,
    /// Files that this layer's whiteouts took away: its hard links may still name them, since a program that unpacks entry by
    /// entry may come to the link first.
    hidden: HashMap<(InodeId, Box<[u8]>), InodeId>,
}

/// Why a path leads nowhere.
#[derive(Debug, thiserror::Error)]
enum Astray {
    #[error("{} on its way is not a directory", display(.0))]
    NotADirectory(Box<[u8]>),
    #[error("more than {MOST_LINKS} symbolic links on its way")]
    TooManyLinks,
    #[error("more than {DEEPEST} directories deep")]
    TooDeep,
    #[error("more than {0} files, with the directories above them, the limit")]
    TooManyFiles(u64),
}

impl From<Astray> for String {
    fn from(why: Astray) -> String {
        why.to_string()
    }
}

/// Attributes of directories that no layer mentions, but in which files lie.
const MISSING: Attributes =
    Attributes { mode: 0o755, uid: 0, gid: 0, mtime: 0, mtime_nsec: 0, xattrs: XattrsId(0) };

impl Merger {
    /// Nothing but a root directory, and at most so many files later. In an image of changes whiteouts are files as any.
    pub fn new(keeps_whiteouts: bool, most: u64) -> Merger {
        Merger {
            tree: Tree::new(MISSING),
            layer: 0,
            keeps_whiteouts,
            most: most.min(u32::MAX.into()),
            last_parent: None,
            replaced: HashSet::new(),
            hidden: HashMap::new(),
        }
    }

    /// What came of all layers.
    pub fn finish(self) -> Tree {
        self.tree
    }

    /// Applies the next layer.
    pub fn apply(&mut self, records: LayerEntries) -> Result<(), String> {
        self.last_parent = None;
        self.apply_whiteouts(&records)?;
        records.into_each(|mut record| {
            let path = std::mem::take(&mut record.path);
            self.add(&path, record).map_err(|why| format!("{}: {why}", display(&path)))
        })?;
        self.hidden.clear();
        if !self.keeps_whiteouts {
            self.drop_link_targets_of_aufs();
        }
        self.layer += 1;
        Ok(())
    }

    fn add(&mut self, path: &[u8], record: LayerEntry) -> Result<(), String> {
        let components = components(path)?;
        if !self.keeps_whiteouts && !matches!(Special::of(&components)?, Special::None) {
            return Ok(());
        }
        let Some((name, parents)) = components.split_last() else {
            return self.set_root(record);
        };
        let parent = self.parent(parents, path)?;
        let existing = self.child(parent, name);
        match (&record.kind, existing) {
            (LayerEntryKind::HardLink(target), _) => self.link(parent, name, existing, target),
            (LayerEntryKind::Directory, Some(directory)) if self.is_directory(directory) => {
                self.set_attributes(directory, &record);
                Ok(())
            }
            _ => {
                if existing.is_some() {
                    self.unlink(parent, name);
                }
                self.create(parent, name, record)
            }
        }
    }

    fn set_root(&mut self, record: LayerEntry) -> Result<(), String> {
        match record.kind {
            LayerEntryKind::Directory => {
                self.set_attributes(Tree::ROOT, &record);
                Ok(())
            }
            _ => Err("the root of an image must be a directory".into()),
        }
    }

    fn set_attributes(&mut self, id: InodeId, record: &LayerEntry) {
        let attributes = self.attributes(record);
        let inode = self.tree.inode_mut(id);
        inode.attributes = attributes;
        inode.layer = self.layer;
    }

    fn attributes(&mut self, record: &LayerEntry) -> Attributes {
        let LayerEntry { mode, uid, gid, mtime, mtime_nsec, .. } = *record;
        Attributes { mode, uid, gid, mtime, mtime_nsec, xattrs: self.tree.intern(record.xattrs.clone()) }
    }

    fn create(&mut self, parent: InodeId, name: &[u8], record: LayerEntry) -> Result<(), String> {
        let mut attributes = self.attributes(&record);
        if matches!(record.kind, LayerEntryKind::Symlink(_)) {
            // Linux has no other, whatever the layer says.
            attributes.mode = 0o777;
        }
        let kind = match record.kind {
            LayerEntryKind::File(content) => FileKind::File(content),
            LayerEntryKind::Symlink(target) => FileKind::Symlink(target),
            LayerEntryKind::Directory => FileKind::Directory(BTreeMap::new()),
            LayerEntryKind::CharDevice(major, minor) => FileKind::CharDevice(major, minor),
            LayerEntryKind::BlockDevice(major, minor) => FileKind::BlockDevice(major, minor),
            LayerEntryKind::Fifo => FileKind::Fifo,
            LayerEntryKind::HardLink(_) => unreachable!("hard links make no inode"),
        };
        if matches!(&kind, FileKind::Symlink(target) if target.is_empty()) {
            return Err("a symbolic link to nothing".into());
        }
        let id = self.new_inode(attributes, kind)?;
        self.children_mut(parent).insert(name.into(), id);
        Ok(())
    }

    fn new_inode(&mut self, attributes: Attributes, kind: FileKind) -> Result<InodeId, Astray> {
        if self.tree.len() as u64 > self.most {
            return Err(Astray::TooManyFiles(self.most));
        }
        Ok(self.tree.add(Inode { attributes, kind, layer: self.layer, names: 1 }))
    }

    /// Another name for a file that this layer or one below has. As with link(2), that may be a symbolic link.
    fn link(
        &mut self,
        parent: InodeId,
        name: &[u8],
        existing: Option<InodeId>,
        target: &[u8],
    ) -> Result<(), String> {
        let lost = |why: &str| format!("a hard link to {}, {why}", display(target));
        let components = components(target)?;
        let found = match components.split_last() {
            Some((last, parents)) => {
                self.lookup(parents)?.and_then(|directory| self.child_or_hidden(directory, last))
            }
            None => Some(Tree::ROOT),
        };
        let id = found.ok_or_else(|| lost("which neither this layer nor one below has"))?;
        if self.is_directory(id) {
            return Err(lost("which is a directory"));
        }
        if existing == Some(id) {
            return Ok(());
        }
        if existing.is_some() {
            self.unlink(parent, name);
        }
        self.tree.inode_mut(id).names += 1;
        self.children_mut(parent).insert(name.into(), id);
        Ok(())
    }

    fn is_directory(&self, id: InodeId) -> bool {
        matches!(self.tree.inode(id).kind, FileKind::Directory(_))
    }

    /// A directory's entry of this name.
    fn child(&self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        match &self.tree.inode(directory).kind {
            FileKind::Directory(children) => children.get(name).copied(),
            _ => None,
        }
    }

    fn child_or_hidden(&self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        let hidden = || {
            if self.hidden.is_empty() { None } else { self.hidden.get(&(directory, name.into())).copied() }
        };
        self.child(directory, name).or_else(hidden)
    }

    fn children_mut(&mut self, directory: InodeId) -> &mut BTreeMap<Box<[u8]>, InodeId> {
        match &mut self.tree.inode_mut(directory).kind {
            FileKind::Directory(children) => children,
            kind => unreachable!("{kind:?} was found to be a directory"),
        }
    }

    /// Takes a name away, and all that was below it.
    fn unlink(&mut self, directory: InodeId, name: &[u8]) {
        self.last_parent = None;
        let removed = self.children_mut(directory).remove(name);
        self.release(removed.into_iter().collect());
    }

    /// Takes all names in a directory away.
    fn clear(&mut self, directory: InodeId) {
        self.last_parent = None;
        let removed = std::mem::take(self.children_mut(directory));
        self.release(removed.into_values().collect());
    }

    fn release(&mut self, mut ids: Vec<InodeId>) {
        while let Some(id) = ids.pop() {
            let inode = self.tree.inode_mut(id);
            inode.names -= 1;
            if let FileKind::Directory(children) = &mut inode.kind {
                ids.extend(std::mem::take(children).into_values());
            }
        }
    }

    /// The directory of an entry, made if it is missing.
    fn parent(&mut self, parents: Components<'_>, path: &[u8]) -> Result<InodeId, String> {
        let key = path::parent_bytes(path);
        if let Some((_, id)) = self.last_parent.as_ref().filter(|(last, _)| last == key) {
            return Ok(*id);
        }
        let id = self.walk(parents, |merger, directory, name| {
            let id = merger.new_inode(MISSING, FileKind::Directory(BTreeMap::new()))?;
            merger.children_mut(directory).insert(name.into(), id);
            Ok(Some(id))
        })?;
        let id = id.unwrap_or(Tree::ROOT);
        self.last_parent = Some((key.to_vec(), id));
        Ok(id)
    }

    /// The directory of this path, if there is one.
    fn lookup(&mut self, parents: Components<'_>) -> Result<Option<InodeId>, Astray> {
        self.walk(parents, |_, _, _| Ok(None))
    }

    /// Walks down from the root, through symbolic links, never above it. `missing` may make what is not there.
    fn walk(
        &mut self,
        names: Components<'_>,
        mut missing: impl FnMut(&mut Merger, InodeId, &[u8]) -> Result<Option<InodeId>, Astray>,
    ) -> Result<Option<InodeId>, Astray> {
        let mut trail = vec![Tree::ROOT];
        // The last one comes first.
        let mut ahead: Vec<Box<[u8]>> = names.iter().rev().map(|name| (*name).into()).collect();
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let here = trail[trail.len() - 1];
            if *name == *b".." {
                trail.truncate(trail.len().max(2) - 1);
                continue;
            }
            let next = match self.child(here, &name) {
                Some(next) => next,
                None => match missing(self, here, &name)? {
                    Some(next) => next,
                    None => return Ok(None),
                },
            };
            match &self.tree.inode(next).kind {
                FileKind::Directory(_) if trail.len() == DEEPEST => return Err(Astray::TooDeep),
                FileKind::Directory(_) => trail.push(next),
                _ if !self.replaced.is_empty() && self.replaced.contains(&(here, name.clone())) => {
                    return Ok(None);
                }
                FileKind::Symlink(_) if links == MOST_LINKS => return Err(Astray::TooManyLinks),
                FileKind::Symlink(target) => {
                    links += 1;
                    if target.starts_with(b"/") {
                        trail.truncate(1);
                    }
                    ahead.extend(path::split(target).rev().map(Into::into));
                }
                _ => return Err(Astray::NotADirectory(name)),
            }
        }
        Ok(trail.last().copied())
    }
}
