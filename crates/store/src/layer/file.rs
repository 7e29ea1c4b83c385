//! A layer's stream as an EROFS file that an overlay takes as a lower layer.
//!
//! The stream is foreign. Its reader lets nothing through that is not well-formed, and tells in the end whether it is the layer asked for.

use std::io::Read;
use std::os::fd::BorrowedFd;

use skiff_erofs as erofs;
use skiff_erofs::tree::{Attributes, Content, FileKind, Inode, InodeId, Tree, XattrsId};
use skiff_image::assemble::{ImageLimits, WrittenImage};
use skiff_image::spill::Spill;
use skiff_image::sum::of_copies;
use skiff_snapshot::LayerId;
use skiff_snapshot::stream::{Attr, LayerReader, LayerRecord, OPAQUE};

use super::data::DataWriter;
use crate::error::{Error, Result};

/// A character device of a number that no device has: overlayfs takes it for "nothing of this name below".
const WHITEOUT: FileKind = FileKind::CharDevice(0, 0);
/// The ends of files are read back in pieces of this size.
const READ_AHEAD: usize = 256 << 10;

/// Where a layer's file is written.
pub(super) struct LayerFile<'a> {
    /// An empty file, open for reading and writing.
    pub image: BorrowedFd<'a>,
    /// What the file is called in messages.
    pub name: &'a str,
    /// A directory for a temporary file without a name, and what it is called.
    pub scratch: (BorrowedFd<'a>, &'a str),
    /// What is too much, whatever the user may have.
    pub limits: ImageLimits,
    /// Fails when the user has too much. Called often.
    pub check_quota: &'a mut dyn FnMut() -> Result<()>,
    /// Fails when the user has too much with so many bytes more. Called once, before they are written.
    pub room: &'a mut dyn FnMut(u64) -> Result<()>,
}

/// Writes the file. It is of no use if this fails.
pub(super) fn write<R: Read>(
    reader: LayerReader<R>,
    id: LayerId,
    file: LayerFile<'_>,
) -> Result<WrittenImage> {
    let LayerFile { image, name, scratch: (dir, dir_name), limits, check_quota, room } = file;
    let data = DataWriter::new(image, name, Spill::new(dir, dir_name)?);
    let mut builder = Builder { tree: None, open: vec![], links: vec![], whiteout: None, data, name };
    let mut reader = reader;
    let (mut records, mut bytes) = (0, 0);
    while let Some(record) = reader.record()? {
        records += 1;
        bytes += texts(&record);
        if records > limits.entries {
            return Err(Error::unsound(name, format!("it has more than {} entries", limits.entries)));
        }
        if bytes > limits.texts {
            let most = limits.texts;
            let why = format!("it has more than {most} bytes of names, links and attributes");
            return Err(Error::unsound(name, why));
        }
        builder.add(record, &mut reader, check_quota)?;
    }
    reader.finish_as(&id)?;
    let Builder { tree, data, .. } = builder;
    let tree = tree.ok_or_else(|| Error::unsound(name, "it has no root"))?;
    let (data_end, sum, tails) = data.finish()?;
    let mut tails = ReadAhead { tails, at: 0, bytes: vec![] };
    let mut read = |_, at, buffer: &mut [u8]| tails.read(at, buffer);
    let summary = erofs::finish::<Error>(&tree, &mut read, room, image, name, data_end)?;
    let data_sum = sum.wrapping_add(of_copies(image, name, data_end, &summary)?);
    Ok(WrittenImage { summary, data_sum })
}

/// Bytes of what a record has beside numbers and data: they are in memory until the file is written.
fn texts(record: &LayerRecord) -> u64 {
    let (name, attr, target) = match record {
        LayerRecord::Dir { name, attr, .. }
        | LayerRecord::File { name, attr, .. }
        | LayerRecord::Fifo { name, attr } => (name.len(), Some(attr), 0),
        LayerRecord::Symlink { name, attr, target } => (name.len(), Some(attr), target.len()),
        LayerRecord::Whiteout { name } | LayerRecord::Link { name, .. } => (name.len(), None, 0),
        LayerRecord::Up | LayerRecord::End { .. } => (0, None, 0),
    };
    let xattrs = attr.iter().flat_map(|attr| &attr.xattrs).map(|(name, value)| name.len() + value.len());
    (name + target + xattrs.sum::<usize>()) as u64
}

/// The ends of files, which are asked for in nearly the order in which they lie.
struct ReadAhead {
    tails: Spill,
    /// Where these begin.
    at: u64,
    bytes: Vec<u8>,
}

impl ReadAhead {
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> Result<()> {
        let end = at + buffer.len() as u64;
        if at < self.at || end > self.at + self.bytes.len() as u64 {
            let length = self.tails.end().saturating_sub(at).min(READ_AHEAD as u64) as usize;
            self.bytes.resize(length.max(buffer.len()), 0);
            self.tails.read_at(&mut self.bytes, at)?;
            self.at = at;
        }
        let from = (at - self.at) as usize;
        buffer.copy_from_slice(&self.bytes[from..from + buffer.len()]);
        Ok(())
    }
}

struct Builder<'a> {
    /// Nothing before the root's record.
    tree: Option<Tree>,
    /// The directories from the root to the current one.
    open: Vec<InodeId>,
    /// Files with several names, by their numbers in the stream.
    links: Vec<InodeId>,
    /// One serves for all names.
    whiteout: Option<InodeId>,
    data: DataWriter<'a>,
    name: &'a str,
}

impl Builder<'_> {
    fn add<R: Read>(
        &mut self,
        record: LayerRecord,
        reader: &mut LayerReader<R>,
        check_quota: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        match record {
            LayerRecord::Dir { name, attr, opaque } => self.directory(&name, &attr, opaque),
            LayerRecord::File { name, attr, linked, size } => {
                let content = self.content(size, reader, check_quota)?;
                let id = self.inode(&name, &attr, FileKind::File(content))?;
                self.links.extend(linked.then_some(id));
                Ok(())
            }
            LayerRecord::Symlink { name, attr, target } => {
                // Nobody looks at a link's own mode, and all systems show this one.
                let attr = Attr { mode: 0o777, ..attr };
                self.inode(&name, &attr, FileKind::Symlink(target.into())).map(drop)
            }
            LayerRecord::Fifo { name, attr } => self.inode(&name, &attr, FileKind::Fifo).map(drop),
            LayerRecord::Whiteout { name } => self.whiteout(&name),
            LayerRecord::Link { name, number } => {
                let id = self.links.get(number as usize).copied();
                let id = id.ok_or_else(|| self.bad("a link to a file that did not come before"))?;
                self.link(&name, id)
            }
            LayerRecord::Up => {
                self.open.pop();
                Ok(())
            }
            LayerRecord::End { .. } => Ok(()),
        }
    }

    fn directory(&mut self, name: &[u8], attr: &Attr, opaque: bool) -> Result<()> {
        let mark = opaque.then_some((OPAQUE.to_vec(), b"y".to_vec()));
        let attr = Attr { xattrs: attr.xattrs.iter().cloned().chain(mark).collect(), ..attr.clone() };
        let id = if self.open.is_empty() {
            let tree = self.tree.insert(Tree::new(attributes(&attr, XattrsId(0))));
            let xattrs = xattrs(tree, &attr);
            tree.inode_mut(Tree::ROOT).attributes.xattrs = xattrs;
            Tree::ROOT
        } else {
            self.inode(name, &attr, FileKind::Directory(Default::default()))?
        };
        self.open.push(id);
        Ok(())
    }

    fn content<R: Read>(
        &mut self,
        size: u64,
        reader: &mut LayerReader<R>,
        check_quota: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Content> {
        let mut extent = reader.extent()?;
        let mut part = self.data.begin(size, extent)?;
        while let Some((mut at, _)) = extent {
            while let Some(piece) = reader.piece()? {
                self.data.take(&mut part, at, piece)?;
                at += piece.len() as u64;
                check_quota()?;
            }
            extent = reader.extent()?;
        }
        self.data.end(part)
    }

    fn whiteout(&mut self, name: &[u8]) -> Result<()> {
        let id = match self.whiteout {
            Some(id) => id,
            None => {
                let attributes = attributes(&Attr::default(), XattrsId(0));
                let tree = self.tree.as_mut().ok_or_else(|| outside(self.name))?;
                let id = tree.add(Inode { attributes, kind: WHITEOUT, layer: 0, names: 0 });
                *self.whiteout.insert(id)
            }
        };
        self.link(name, id)
    }

    fn inode(&mut self, name: &[u8], attr: &Attr, kind: FileKind) -> Result<InodeId> {
        let tree = self.tree.as_mut().ok_or_else(|| outside(self.name))?;
        let attributes = attributes(attr, xattrs(tree, attr));
        let id = tree.add(Inode { attributes, kind, layer: 0, names: 0 });
        self.link(name, id).map(|()| id)
    }

    fn link(&mut self, name: &[u8], id: InodeId) -> Result<()> {
        let linked = match (&mut self.tree, self.open.last()) {
            (Some(tree), Some(directory)) => tree.link(*directory, name, id),
            _ => return Err(outside(self.name)),
        };
        if linked { Ok(()) } else { Err(self.bad("a name comes twice")) }
    }

    fn bad(&self, why: &str) -> Error {
        Error::unsound(self.name, why)
    }
}

/// The stream's reader refuses such a layer already.
fn outside(name: &str) -> Error {
    Error::unsound(name, "an entry is outside the root directory")
}

fn attributes(attr: &Attr, xattrs: XattrsId) -> Attributes {
    let Attr { mode, uid, gid, mtime: (mtime, mtime_nsec), .. } = *attr;
    // The reader lets no more than these bits through.
    Attributes { mode: (mode & 0o7777) as u16, uid, gid, mtime, mtime_nsec, xattrs }
}

fn xattrs(tree: &mut Tree, attr: &Attr) -> XattrsId {
    tree.intern(attr.xattrs.iter().map(|(name, value)| ((&name[..]).into(), (&value[..]).into())).collect())
}
