//! What an image has, and an image below it has not: the entries of a layer between the two. Files are compared by content.
//!
//! Directories above a changed file are entries, too, as programs that unpack each layer by itself need their owners and modes. What has several names is in the
//! layer with all of them or not at all: a name alone would not say to which file of the image below it belongs.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::iter::Peekable;

use skiff_erofs::{FileEntry, Files, InodeKind, Reader, StoredInode};

use super::layer::LayerChange;
use crate::error::Result;

/// Bytes of two files that are compared at once.
const PIECE: usize = 1 << 20;

/// What is to be in a layer over the files of `below`, so that together they are those of `above`.
pub(super) fn difference(below: &Reader<File>, above: &Reader<File>) -> Result<Vec<LayerChange>> {
    let mut comparison = ImageComparison {
        below,
        above,
        changed_links: HashSet::new(),
        directories: vec![],
        hidden: None,
        changes: vec![],
        buffers: [vec![], vec![]],
    };
    comparison.compare_links()?;
    comparison.walk()?;
    Ok(comparison.changes)
}

struct ImageComparison<'a> {
    below: &'a Reader<File>,
    above: &'a Reader<File>,
    /// Files of the upper image with several names that the layer has.
    changed_links: HashSet<u64>,
    /// The upper image's directories above the current file, and whether the layer has them.
    directories: Vec<(FileEntry, bool)>,
    /// The lower image's directory that is gone, with all that is in it.
    hidden: Option<Vec<u8>>,
    changes: Vec<LayerChange>,
    buffers: [Vec<u8>; 2],
}

impl ImageComparison<'_> {
    /// Finds the files with several names that have others than below, or have changed.
    fn compare_links(&mut self) -> Result<()> {
        let (below, above) = (links(self.below)?, links(self.above)?);
        let by_first: HashMap<&[u8], &LinkedFile> =
            below.values().map(|file| (&*file.paths[0], file)).collect();
        for (number, file) in &above {
            let same = match by_first.get(&*file.paths[0]) {
                Some(old) if old.paths == file.paths => self.is_same(&old.inode, &file.inode)?,
                _ => false,
            };
            if !same {
                self.changed_links.insert(*number);
            }
        }
        Ok(())
    }

    /// Goes through both images at once, whose files have the same order.
    fn walk(&mut self) -> Result<()> {
        let (below, above) = (self.below, self.above);
        let (mut below, mut above) = (below.files().peekable(), above.files().peekable());
        loop {
            let order = match (peeked(&mut below)?, peeked(&mut above)?) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => order(&old.path, &new.path),
            };
            let old = if order.is_le() { below.next().transpose()? } else { None };
            let new = if order.is_ge() { above.next().transpose()? } else { None };
            match (old, new) {
                (old, Some(new)) => self.compare(old, new)?,
                (Some(old), None) => self.gone(old),
                (None, None) => return Ok(()),
            }
        }
    }

    /// A file of the upper image, and what is below it.
    fn compare(&mut self, old: Option<FileEntry>, new: FileEntry) -> Result<()> {
        self.leave(&new.path);
        let old = old.filter(|old| !self.is_hidden(&old.path));
        if new.inode.kind == InodeKind::Socket {
            self.socket(old, new);
            return Ok(());
        }
        let old = old.filter(|old| old.inode.kind != InodeKind::Socket);
        let is_directory = new.inode.kind == InodeKind::Directory;
        if let Some(old) = &old
            && old.inode.kind == InodeKind::Directory
            && !is_directory
        {
            self.hidden = Some(old.path.clone());
        }
        let is_same = match &old {
            None => false,
            Some(_) if !is_directory && new.inode.links > 1 => {
                !self.changed_links.contains(&new.inode.number)
            }
            Some(old) => self.is_same(&old.inode, &new.inode)?,
        };
        if is_directory {
            self.directories.push((new, false));
            if !is_same {
                self.enter();
            }
        } else if !is_same {
            self.change(LayerChange::File(new));
        }
        Ok(())
    }

    /// A socket, which no layer has: what is below gives way. That a new one is left out is counted where layers are written.
    fn socket(&mut self, old: Option<FileEntry>, new: FileEntry) {
        match old {
            Some(old) if old.inode.kind == InodeKind::Socket => {}
            Some(old) => {
                self.gone(old);
                self.changes.push(LayerChange::File(new));
            }
            None => self.changes.push(LayerChange::File(new)),
        }
    }

    /// A file that is in the lower image only.
    fn gone(&mut self, old: FileEntry) {
        if self.is_hidden(&old.path) {
            return;
        }
        self.leave(&old.path);
        if old.inode.kind == InodeKind::Directory {
            self.hidden = Some(old.path.clone());
        }
        if old.inode.kind != InodeKind::Socket {
            self.change(LayerChange::Removed(old.path));
        }
    }

    fn change(&mut self, change: LayerChange) {
        self.enter();
        self.changes.push(change);
    }

    /// The layer has all directories above.
    fn enter(&mut self) {
        for (directory, is_in) in &mut self.directories {
            if !std::mem::replace(is_in, true) {
                self.changes.push(LayerChange::File(directory.clone()));
            }
        }
    }

    /// Forgets directories in which this path is not.
    fn leave(&mut self, path: &[u8]) {
        while self.directories.last().is_some_and(|(above, _)| !is_in(path, &above.path)) {
            self.directories.pop();
        }
    }

    fn is_hidden(&self, path: &[u8]) -> bool {
        self.hidden.as_deref().is_some_and(|hidden| is_in(path, hidden))
    }

    /// Whether two files are the same in all that a layer has of them, but for their names.
    fn is_same(&mut self, old: &StoredInode, new: &StoredInode) -> Result<bool> {
        let about = |inode: &StoredInode| {
            let StoredInode { kind, mode, uid, gid, mtime, mtime_nsec, .. } = *inode;
            (kind, mode, uid, gid, mtime, mtime_nsec)
        };
        let is_directory = new.kind == InodeKind::Directory;
        let is_alike = about(old) == about(new)
            && (is_directory || (old.size, old.links) == (new.size, new.links))
            && self.below.xattrs(old)? == self.above.xattrs(new)?;
        Ok(is_alike && (is_directory || self.has_same_bytes(old, new)?))
    }

    fn has_same_bytes(&mut self, old: &StoredInode, new: &StoredInode) -> Result<bool> {
        let [first, second] = &mut self.buffers;
        let mut at = 0;
        while at < new.size {
            let count = PIECE.min(usize::try_from(new.size - at).unwrap_or(PIECE));
            first.resize(count, 0);
            second.resize(count, 0);
            let read = (self.below.read_at(old, first, at)?, self.above.read_at(new, second, at)?);
            if read != (count, count) || first != second {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(true)
    }
}

/// A file with several names.
struct LinkedFile {
    /// The names, in the order of the image.
    paths: Vec<Vec<u8>>,
    inode: StoredInode,
}

/// All such files of an image, by their numbers.
fn links(image: &Reader<File>) -> Result<HashMap<u64, LinkedFile>> {
    let mut all = HashMap::new();
    for file in image.files() {
        let FileEntry { path, inode } = file?;
        if inode.links > 1 && inode.kind != InodeKind::Directory {
            let known = all.entry(inode.number).or_insert_with(|| LinkedFile { paths: vec![], inode });
            known.paths.push(path);
        }
    }
    Ok(all)
}

fn peeked<'a>(files: &'a mut Peekable<Files<'_, File>>) -> Result<Option<&'a FileEntry>> {
    if let Some(Err(_)) = files.peek() {
        return files.next().transpose().map(|_| None).map_err(Into::into);
    }
    Ok(files.peek().and_then(|file| file.as_ref().ok()))
}

/// The order in which an image has its files: a directory, what is in it, and then its neighbours.
fn order(one: &[u8], other: &[u8]) -> Ordering {
    // The root's path is empty, and comes before all others.
    one.split(|byte| *byte == b'/').cmp(other.split(|byte| *byte == b'/'))
}

/// Whether a path leads into a directory, or is its own.
fn is_in(path: &[u8], directory: &[u8]) -> bool {
    match path.strip_prefix(directory) {
        Some(rest) => directory.is_empty() || rest.is_empty() || rest[0] == b'/',
        None => false,
    }
}
