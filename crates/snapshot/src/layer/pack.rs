//! Reads entries of an upper, which may be in use, and appends them to a layer.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::entry::{
    attr, bare_attr, digest, directory_record, extents, fifo_digest, file_record, fstat, symlink_digest,
};
use super::{LayerRecord, LayerSink, LayerWriter};
use crate::error::{Error, Result};
use crate::tree::{DirStack, NodeType, Stamp, TreeNode, split};
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

/// How often a file that changes while it is read is read again, and how long to wait before.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(15);

/// Something to put into a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// The node of this number. `fresh`: no earlier layer has anything at its path, so that it may vanish unnoticed.
    Ship { node: usize, opaque: bool, fresh: bool },
    /// Nothing is at this path any more, and nothing is in the base.
    Whiteout { path: Vec<u8> },
}

/// What happened to the nodes that were to be shipped.
#[derive(Debug, Default)]
pub(crate) struct PackOutcome {
    /// Files that vanished before they were read.
    pub(crate) gone: Vec<usize>,
}

/// Appends `items`, which are in tree order with all their parents, to a layer. Their `nodes` get fingerprints, and files
/// the stamps of the moment they were read.
pub(crate) fn pack<S: LayerSink>(
    root: BorrowedFd<'_>,
    items: &[Item],
    nodes: &mut [TreeNode],
    writer: &mut LayerWriter<S>,
) -> Result<PackOutcome> {
    let mut packer = LayerPacker {
        stack: DirStack::new(root)?,
        writer,
        open: Vec::new(),
        links: HashMap::new(),
        outcome: PackOutcome::default(),
    };
    for item in items {
        match item {
            Item::Ship { node, opaque, fresh } => {
                if !packer.ship(&mut nodes[*node], *opaque)? {
                    if !fresh {
                        return Err(Error::Moved { object: show(&nodes[*node].path) });
                    }
                    packer.outcome.gone.push(*node);
                }
            }
            Item::Whiteout { path } => packer.whiteout(path)?,
        }
    }
    while packer.open.pop().is_some() {
        packer.writer.record(&LayerRecord::Up)?;
    }
    Ok(packer.outcome)
}

struct LayerPacker<'a, S> {
    stack: DirStack,
    writer: &'a mut LayerWriter<S>,
    /// Paths of the directories whose records are not ended yet.
    open: Vec<Vec<u8>>,
    /// Numbers of the linked files already in the layer, by inode.
    links: HashMap<u64, (u32, [u8; 32])>,
    outcome: PackOutcome,
}

impl<S: LayerSink> LayerPacker<'_, S> {
    /// Appends one node; false if it is gone.
    fn ship(&mut self, node: &mut TreeNode, opaque: bool) -> Result<bool> {
        if node.kind.is_dir() {
            return self.directory(node, opaque);
        }
        let (parent, name) = split(&node.path);
        if !self.go(parent)? {
            return Ok(false);
        }
        let name = name.to_vec();
        match node.kind {
            NodeType::File if self.links.contains_key(&node.stamp.ino) => self.link(node, &name),
            NodeType::File => self.file(node, &name),
            NodeType::Symlink => self.symlink(node, &name),
            NodeType::Fifo => self.fifo(node, &name),
            NodeType::Whiteout => self.writer.record(&LayerRecord::Whiteout { name }).map(|()| true),
            NodeType::Other | NodeType::Dir { .. } => Err(moved(&node.path)),
        }
    }

    /// Makes `parent` the current directory here and in the layer; false if it is gone.
    fn go(&mut self, parent: &[u8]) -> Result<bool> {
        match self.stack.go(parent)? {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(moved(parent)),
            Err(errno) => return Err(SystemError::new("open", parent, errno).into()),
        }
        self.close_to(parent)?;
        Ok(true)
    }

    /// Ends the layer's directories that `parent` does not lie in. One that is back after it was found gone is not there.
    fn close_to(&mut self, parent: &[u8]) -> Result<()> {
        while let Some(path) = self.open.last() {
            if path == parent {
                return Ok(());
            }
            if self.open.len() == 1 {
                break;
            }
            self.open.pop();
            self.writer.record(&LayerRecord::Up)?;
        }
        Err(moved(parent))
    }

    fn directory(&mut self, node: &mut TreeNode, opaque: bool) -> Result<bool> {
        if node.path.is_empty() {
            self.stack.go(b"")?.on("open", "/")?;
        } else {
            let (parent, _) = split(&node.path);
            if !self.go(parent)? || !self.go_into(&node.path)? {
                return Ok(false);
            }
        }
        let dir = self.stack.dir();
        let attr = attr(dir, &fstat(dir, &node.path)?, &node.path)?;
        let name = split(&node.path).1.to_vec();
        node.fingerprint = Some(digest(&directory_record(&attr, node.kind), &[], None));
        self.writer.record(&LayerRecord::Dir { name, attr, opaque })?;
        self.open.push(node.path.clone());
        Ok(true)
    }

    fn go_into(&mut self, path: &[u8]) -> Result<bool> {
        match self.stack.go(path)? {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(moved(path)),
            Err(errno) => Err(SystemError::new("open", path, errno).into()),
        }
    }

    fn whiteout(&mut self, path: &[u8]) -> Result<()> {
        let (parent, name) = split(path);
        self.close_to(parent)?;
        self.writer.record(&LayerRecord::Whiteout { name: name.to_vec() })
    }

    /// Another name of a file that is in the layer, if it still is one.
    fn link(&mut self, node: &mut TreeNode, name: &[u8]) -> Result<bool> {
        match rustix::fs::statat(self.stack.dir(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Stamp::from(&stat).ino == node.stamp.ino => {}
            Ok(_) => return Err(moved(&node.path)),
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(SystemError::new("look at", &node.path, errno).into()),
        }
        let (number, fingerprint) = self.links[&node.stamp.ino];
        node.fingerprint = Some(fingerprint);
        self.writer.record(&LayerRecord::Link { name: name.to_vec(), number })?;
        Ok(true)
    }

    fn symlink(&mut self, node: &mut TreeNode, name: &[u8]) -> Result<bool> {
        let Some((fd, stat)) = self.peek(node, name)? else { return Ok(false) };
        let target =
            rustix::fs::readlinkat(&fd, c"", Vec::new()).on("read the link", &node.path)?.into_bytes();
        let attr = bare_attr(&stat);
        node.fingerprint = Some(symlink_digest(&attr, &target));
        self.writer.record(&LayerRecord::Symlink { name: name.to_vec(), attr, target })?;
        Ok(true)
    }

    fn fifo(&mut self, node: &mut TreeNode, name: &[u8]) -> Result<bool> {
        let Some((_, stat)) = self.peek(node, name)? else { return Ok(false) };
        let attr = bare_attr(&stat);
        node.fingerprint = Some(fifo_digest(&attr));
        self.writer.record(&LayerRecord::Fifo { name: name.to_vec(), attr })?;
        Ok(true)
    }

    /// Holds on to an entry that cannot be opened; nothing if it is gone.
    fn peek(&self, node: &TreeNode, name: &[u8]) -> Result<Option<(OwnedFd, Stat)>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(self.stack.dir(), name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(SystemError::new("open", &node.path, errno).into()),
        };
        let stat = fstat(fd.as_fd(), &node.path)?;
        if NodeType::of(&stat) != node.kind {
            return Err(moved(&node.path));
        }
        Ok(Some((fd, stat)))
    }

    /// A regular file, read until it holds still.
    fn file(&mut self, node: &mut TreeNode, name: &[u8]) -> Result<bool> {
        let mut prefix = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE * attempt);
            }
            let Some(fd) = open_file(self.stack.dir(), name, &node.path)? else { return Ok(false) };
            let mark = self.writer.mark();
            if self.try_file(fd.as_fd(), node, name, &mut prefix)? {
                return Ok(true);
            }
            self.writer.rewind(mark)?;
        }
        Err(Error::Busy { object: show(&node.path), tries: TRIES })
    }

    /// Appends a file as it is now; false if it did not hold still. `prefix` is how much of it was read before, and its digest: when
    /// that much is the same again, it is a consistent copy of a file that others only append to, as a log.
    fn try_file(
        &mut self,
        fd: BorrowedFd<'_>,
        node: &mut TreeNode,
        name: &[u8],
        prefix: &mut Option<(u64, [u8; 32])>,
    ) -> Result<bool> {
        let linked = node.stamp.nlink > 1;
        let stat = fstat(fd, &node.path)?;
        let before = Stamp::from(&stat);
        if NodeType::of(&stat) != NodeType::File || (linked && before.ino != node.stamp.ino) {
            return Err(moved(&node.path));
        }
        let size = prefix.map_or(before.size, |(size, _)| size.min(before.size));
        let attr = attr(fd, &stat, &node.path)?;
        let extents = extents(fd, size, &stat).on("look for holes in", &node.path)?;
        let bare = file_record(attr.clone(), size);
        self.writer.record(&LayerRecord::File { name: name.to_vec(), attr, linked, size })?;
        let data = self.writer.content(fd, &extents, &node.path)?;
        let after = Stamp::from(&fstat(fd, &node.path)?);
        let known = data.map(|data| (size, data)).filter(|_| after.size >= size);
        let still = before == after && size == before.size;
        let (Some(data), true) = (data, still || (known.is_some() && known == *prefix)) else {
            *prefix = known;
            return Ok(false);
        };
        let fingerprint = digest(&bare, &extents, Some(data));
        if linked {
            let number = u32::try_from(self.links.len()).map_err(|_| too_many(&node.path))?;
            self.links.insert(before.ino, (number, fingerprint));
        }
        // With the size that was shipped, so that a file that has more is found changed.
        node.stamp = Stamp { size, ..before };
        node.fingerprint = Some(fingerprint);
        Ok(true)
    }
}

/// Opens a regular file for reading; nothing if it is gone.
fn open_file(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Option<OwnedFd>> {
    // Without NONBLOCK a fifo put in the file's place would hold us here for good.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => Err(moved(path)),
        Err(errno) => Err(SystemError::new("read", path, errno).into()),
    }
}

fn moved(path: &[u8]) -> Error {
    Error::Moved { object: show(path) }
}

fn too_many(path: &[u8]) -> Error {
    Error::Unsupported { object: show(path), why: "too many files with several names".into() }
}
