//! Reads squashfs 4.0 files, which Apptainer and Enroot keep images in. Anyone may have made them: every length is bounded
//! by what is there, and every place by the file.
//!
//! Format: <https://dr-emann.github.io/squashfs/squashfs.html>, and `fs/squashfs/squashfs_fs.h` of Linux.

mod directory;
pub mod hybrid;
mod inode;
mod metadata;
mod sets;
mod tables;
mod unpack;
mod xattrs;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::convert::{Children, FilePiece, Foreign, ForeignFile};
use crate::error::{Error, Result};
use crate::transport::FilePart;

use inode::{DataLocation, SquashfsInode};
use metadata::{Cursor, LookupTable, MetadataBlocks, u16_at, u32_at, u64_at};
use unpack::Decompressor;
use xattrs::XattrTable;

const SUPERBLOCK: usize = 96;
const MAGIC: u32 = 0x7371_7368;
/// Files are packed in blocks of so many bytes at most.
const LARGEST_BLOCK: u32 = 1 << 20;
/// A place that stands for nothing.
const NOWHERE: u64 = u64::MAX;
const NO_FRAGMENT: u32 = u32::MAX;
/// A block's length has this bit if it is stored as it is.
const STORED: u32 = 1 << 24;
/// As many ends of files that share a block are kept unpacked.
const FRAGMENTS_KEPT: usize = 8;

/// A squashfs file that is open.
pub(crate) struct Squashfs {
    part: FilePart,
    block_size: u32,
    root: u64,
    unpacker: Decompressor,
    inodes: MetadataBlocks,
    directories: MetadataBlocks,
    ids: Vec<u32>,
    fragments: Option<LookupTable>,
    xattrs: Option<XattrTable>,
    /// The last fragments that were read, the newest last.
    kept: RefCell<Vec<(u32, Rc<[u8]>)>>,
    buffer: RefCell<Vec<u8>>,
    /// Bytes of blocks that were read.
    read: Cell<u64>,
}

impl Squashfs {
    /// Whether it begins like one.
    pub fn is_one(part: &FilePart) -> bool {
        let mut magic = [0; 4];
        part.read(&mut magic, 0).is_ok() && u32_at(&magic, 0) == MAGIC
    }

    /// Opens one.
    ///
    /// # Errors
    /// It is none, of an old version, or damaged.
    pub fn open(part: FilePart) -> Result<Squashfs> {
        let mut superblock = [0; SUPERBLOCK];
        if part.size < SUPERBLOCK as u64 {
            return Err(refused(&part, "it is shorter than a squashfs superblock", None));
        }
        part.read(&mut superblock, 0)?;
        check(&part, &superblock)?;
        let unpacker =
            Decompressor::new(u16_at(&superblock, 20)).map_err(|(why, hint)| refused(&part, why, hint))?;
        let table = |at| MetadataBlocks::new(part.clone(), unpacker, u64_at(&superblock, at));
        let (fragments, ids) = (u32_at(&superblock, 16), u16_at(&superblock, 26));
        let table_of = |at, count, width| LookupTable::new(table(at), u64_at(&superblock, at), count, width);
        let ids = table_of(48, ids.into(), 4)?.all()?.chunks_exact(4).map(|id| u32_at(id, 0)).collect();
        let xattrs = match u64_at(&superblock, 56) {
            NOWHERE => None,
            at => Some(XattrTable::open(&part, unpacker, at)?),
        };
        Ok(Squashfs {
            block_size: u32_at(&superblock, 12),
            root: u64_at(&superblock, 32),
            unpacker,
            inodes: table(64),
            directories: table(72),
            ids,
            fragments: (fragments > 0).then(|| table_of(80, fragments, 16)).transpose()?,
            xattrs,
            kept: RefCell::default(),
            buffer: RefCell::default(),
            read: Cell::default(),
            part,
        })
    }

    fn bad(&self, why: &str) -> Error {
        refused(&self.part, &format!("it is damaged: {why}"), None)
    }

    fn inode(&self, reference: u64) -> Result<SquashfsInode> {
        let mut cursor = self.inodes.at(reference);
        SquashfsInode::read(&mut cursor).map_err(|error| error.in_file(&self.part))
    }

    fn found(&self, reference: u64) -> Result<ForeignFile<SquashfsInode>> {
        let inode = self.inode(reference)?;
        let id = |index: u16| self.ids.get(usize::from(index)).copied();
        let (uid, gid) = (id(inode.uid), id(inode.gid));
        let (Some(uid), Some(gid)) = (uid, gid) else {
            return Err(self.bad("a file's owner is not among those listed"));
        };
        let xattrs = match (&self.xattrs, inode.xattrs) {
            (_, u32::MAX) | (None, _) => vec![],
            (Some(table), index) => table.read(index)?,
        };
        Ok(inode.found(uid, gid, xattrs))
    }

    /// The block of a file at this place of the image, unpacked into the buffer; it must have so many bytes.
    fn block(&self, at: u64, packed: u32, wanted: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let len = packed & !STORED;
        if len > LARGEST_BLOCK {
            return Err(self.bad("a block is longer than any can be"));
        }
        self.read.set(self.read.get() + u64::from(len));
        let read =
            |bytes: &mut [u8]| self.part.read(bytes, at).map_err(|_| self.bad("a block does not lie in it"));
        if packed & STORED != 0 {
            buffer.resize(len as usize, 0);
            read(buffer)?;
        } else {
            let mut bytes = self.buffer.borrow_mut();
            bytes.resize(len as usize, 0);
            read(&mut bytes)?;
            buffer.resize(wanted, 0);
            let count = self.unpacker.unpack(&bytes, buffer).map_err(|why| self.bad(&why))?;
            buffer.truncate(count);
        }
        if buffer.len() == wanted {
            Ok(())
        } else {
            Err(self.bad("a block has another length than its file says"))
        }
    }

    /// A block that the ends of several files share.
    fn fragment(&self, number: u32) -> Result<Rc<[u8]>> {
        let kept =
            self.kept.borrow().iter().find(|(other, _)| *other == number).map(|(_, bytes)| Rc::clone(bytes));
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        let table = self.fragments.as_ref().ok_or_else(|| self.bad("it has no fragments"))?;
        let entry = table.entry(number)?;
        let (at, packed) = (u64_at(&entry, 0), u32_at(&entry, 8));
        let mut bytes = vec![];
        self.fragment_block(at, packed, &mut bytes)?;
        let bytes: Rc<[u8]> = bytes.into();
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= FRAGMENTS_KEPT {
            kept.remove(0);
        }
        kept.push((number, Rc::clone(&bytes)));
        Ok(bytes)
    }

    /// Nothing says how long a fragment is when it is unpacked, only how long it may be.
    fn fragment_block(&self, at: u64, packed: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let len = packed & !STORED;
        if len > LARGEST_BLOCK {
            return Err(self.bad("a fragment is longer than any can be"));
        }
        self.read.set(self.read.get() + u64::from(len));
        let mut raw = vec![0; len as usize];
        self.part.read(&mut raw, at).map_err(|_| self.bad("a fragment does not lie in it"))?;
        if packed & STORED != 0 {
            *bytes = raw;
            return Ok(());
        }
        bytes.resize(self.block_size as usize, 0);
        let count = self.unpacker.unpack(&raw, bytes).map_err(|why| self.bad(&why))?;
        bytes.truncate(count);
        Ok(())
    }

    fn file_pieces(
        &self,
        file: &DataLocation,
        lengths: &mut Cursor<'_>,
        each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>,
    ) -> Result<()> {
        let block_size = u64::from(self.block_size);
        let mut left = file.size;
        let mut at = file.start;
        let mut buffer = vec![];
        while left >= block_size || (left > 0 && file.fragment == NO_FRAGMENT) {
            let wanted = left.min(block_size);
            let packed = lengths.u32().map_err(|error| error.in_file(&self.part))?;
            if packed == 0 {
                each(FilePiece::Hole(wanted))?;
            } else {
                self.block(at, packed, wanted as usize, &mut buffer)?;
                each(FilePiece::Data(&buffer))?;
            }
            at = at.checked_add((packed & !STORED).into()).ok_or_else(|| self.bad("a file lies nowhere"))?;
            left -= wanted;
        }
        if left == 0 {
            return Ok(());
        }
        let fragment = self.fragment(file.fragment)?;
        let start = file.offset as usize;
        let end = fragment.get(start..start + left as usize);
        each(FilePiece::Data(end.ok_or_else(|| self.bad("a file's end does not lie in its fragment"))?))
    }
}

impl Foreign for Squashfs {
    type File = SquashfsInode;

    fn root(&self) -> Result<ForeignFile<SquashfsInode>> {
        let root = self.found(self.root)?;
        match root.file.kind {
            inode::InodeType::Directory(_) => Ok(root),
            _ => Err(self.bad("its root is not a directory")),
        }
    }

    fn children(&self, directory: &SquashfsInode) -> Result<Children<SquashfsInode>> {
        let inode::InodeType::Directory(place) = &directory.kind else { return Ok(vec![]) };
        let entries =
            directory::entries(&self.directories, place).map_err(|error| error.in_file(&self.part))?;
        entries.into_iter().map(|(name, reference)| Ok((name, self.found(reference)?))).collect()
    }

    fn pieces(&self, file: &SquashfsInode, each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()> {
        let inode::InodeType::File(file) = &file.kind else { return Ok(()) };
        self.file_pieces(file, &mut self.inodes.at(file.lengths), each)
    }

    fn bytes_read(&self, _unpacked: u64) -> u64 {
        self.read.get()
    }
}

fn check(part: &FilePart, superblock: &[u8; SUPERBLOCK]) -> Result<()> {
    if u32_at(superblock, 0) != MAGIC {
        return Err(refused(part, "it is not a squashfs file", None));
    }
    let (major, minor) = (u16_at(superblock, 28), u16_at(superblock, 30));
    if (major, minor) != (4, 0) {
        let why = format!("it is squashfs {major}.{minor}; 4.0 is known");
        return Err(refused(part, &why, Some("make it anew with mksquashfs of this decade")));
    }
    let (block_size, log) = (u32_at(superblock, 12), u16_at(superblock, 22));
    if !(4096..=LARGEST_BLOCK).contains(&block_size) || block_size != 1 << log.min(31) {
        return Err(refused(part, "it is damaged: its blocks are of no possible size", None));
    }
    if u64_at(superblock, 40) > part.size {
        return Err(refused(part, "it is cut off: it is shorter than it says", None));
    }
    Ok(())
}

fn refused(part: &FilePart, why: &str, hint: Option<&'static str>) -> Error {
    Error::Foreign { object: part.name.clone(), why: why.into(), hint }
}
