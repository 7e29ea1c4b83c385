//! All files of an image with their paths, as a listing shows them.

use super::Result;
use super::dirents;
use super::format::BLOCK_SIZE;
use super::layout::DEPTH_MAX;
use super::read::{InodeKind, Reader, StoredInode};
use super::source::ReadAt;
use super::tree::BLOCK;

/// A file under one of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// From the root, without a slash before it; the root's is empty.
    pub path: Vec<u8>,
    /// The file.
    pub inode: StoredInode,
}

/// Goes through an image: each directory before what is in it, names in the order of their bytes. Memory grows with the depth
/// of the directories only. It ends after an error, and in any case.
pub struct Files<'r, S> {
    reader: &'r Reader<S>,
    /// The root's turn has not come yet.
    fresh: bool,
    stack: Vec<Frame>,
    path: Vec<u8>,
    /// More names cannot be in an image of this size, unless directories share their blocks.
    names_left: u64,
}

/// A directory that is being read.
struct Frame {
    inode: StoredInode,
    /// The block after the one whose entries these are.
    block: u64,
    entries: std::vec::IntoIter<dirents::Read>,
    /// How long the path of the directory is.
    path_len: usize,
}

impl<S: ReadAt> Reader<S> {
    /// All files.
    pub fn files(&self) -> Files<'_, S> {
        let names_left = self.most_names();
        Files { reader: self, fresh: true, stack: vec![], path: vec![], names_left }
    }

    /// What is in a directory itself under names that are wanted.
    ///
    /// # Errors
    /// As [`Reader::inode`].
    pub fn children(
        &self,
        directory: &StoredInode,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<StoredInode>> {
        let names = self.names(directory)?.into_iter();
        names.filter(|(name, _)| is_wanted(name)).map(|(_, number)| self.inode(number)).collect()
    }

    /// The names in a directory itself but `.` and `..`, sorted by their bytes, and the numbers of the inodes that they name.
    ///
    /// # Errors
    /// As [`Reader::inode`].
    pub fn names(&self, directory: &StoredInode) -> Result<Vec<(Box<[u8]>, u64)>> {
        let mut names = vec![];
        for block in 0..directory.size.div_ceil(BLOCK) {
            let entries = self.entries(directory, block)?.into_iter();
            names.extend(entries.filter(|e| !matches!(&*e.name, b"." | b"..")).map(|e| (e.name, e.number)));
        }
        Ok(names)
    }

    /// How many names an image of this length can have at most: each takes at least a byte beside its entry. A bound for whoever walks
    /// through an image that was not verified.
    pub fn most_names(&self) -> u64 {
        (self.size() - self.metadata_start()) / 13
    }

    /// The entries in one block of a directory.
    pub(super) fn entries(&self, directory: &StoredInode, block: u64) -> Result<Vec<dirents::Read>> {
        let length = (directory.size - block * BLOCK).min(BLOCK) as usize;
        let mut bytes = [0; BLOCK_SIZE];
        self.read_at(directory, &mut bytes[..length], block * BLOCK)?;
        dirents::decode(&bytes[..length]).map_err(|why| self.bad(directory.number, why))
    }
}

impl<S: ReadAt> Files<'_, S> {
    fn step(&mut self) -> Result<Option<FileEntry>> {
        if std::mem::take(&mut self.fresh) {
            let inode = self.reader.root()?;
            self.enter(inode)?;
            return Ok(Some(FileEntry { path: vec![], inode }));
        }
        while let Some(frame) = self.stack.last_mut() {
            self.path.truncate(frame.path_len);
            match frame.entries.next() {
                Some(entry) if matches!(&*entry.name, b"." | b"..") => {}
                Some(entry) => {
                    self.names_left = self
                        .names_left
                        .checked_sub(1)
                        .ok_or_else(|| self.reader.bad_image("its directories overlap"))?;
                    if !self.path.is_empty() {
                        self.path.push(b'/');
                    }
                    self.path.extend(&*entry.name);
                    let inode = self.reader.inode(entry.number)?;
                    if inode.kind == InodeKind::Directory {
                        self.enter(inode)?;
                    }
                    return Ok(Some(FileEntry { path: self.path.clone(), inode }));
                }
                None if frame.block * BLOCK < frame.inode.size => {
                    frame.entries = self.reader.entries(&frame.inode, frame.block)?.into_iter();
                    frame.block += 1;
                }
                None => {
                    self.stack.pop();
                }
            }
        }
        Ok(None)
    }

    fn enter(&mut self, inode: StoredInode) -> Result<()> {
        if self.stack.len() >= DEPTH_MAX {
            return Err(self.reader.bad(inode.number, "lies too deep"));
        }
        self.stack.push(Frame { inode, block: 0, entries: vec![].into_iter(), path_len: self.path.len() });
        Ok(())
    }
}

impl<S: ReadAt> Iterator for Files<'_, S> {
    type Item = Result<FileEntry>;

    fn next(&mut self) -> Option<Result<FileEntry>> {
        let next = self.step().transpose();
        if matches!(next, Some(Err(_))) {
            self.stack.clear();
        }
        next
    }
}
