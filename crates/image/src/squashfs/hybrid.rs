//! An image's file as a squashfs as well, for kernels without EROFS and for programs that read nothing else.
//!
//! Nothing is compressed and no data moves. A squashfs begins with its superblock, where an EROFS leaves room for a boot sector; all its
//! tables may lie behind the EROFS; and with blocks of 4096 bytes each file's blocks are where squashfs looks for them, one after the
//! other, and its last, not full one is a fragment of its own. Only files with holes may have to be copied.
//!
//! What squashfs cannot hold is left out: fractions of a second, and attributes other than `user.`, `trusted.` and `security.` (lists of
//! access rights among them).

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use skiff_erofs::tree::BLOCK;
use skiff_erofs::{Extent, InodeKind, ReadAt, Reader, StoredInode};
use skiff_sys::positional::write_all_at;

use crate::error::{Error, Result};
use skiff_sys::SystemContext;

use super::directory;
use super::inode;
use super::sets::Sets;
use super::tables::{Out, Row, WrittenInode};
use super::{MAGIC, NO_FRAGMENT, NOWHERE, STORED, SUPERBLOCK};

/// Inodes, data, fragments, attributes and ids are stored as they are.
const UNCOMPRESSED: u16 = 0x1 | 0x2 | 0x8 | 0x100 | 0x800;
/// What nothing is compressed with. Every kernel has it.
const GZIP: u16 = 1;

/// Makes `file`, which begins with the image that `reader` reads, and ends there, a squashfs as well. `name` is the file's, for messages.
///
/// # Errors
/// Of the system; [`Error::Unstorable`] for what no squashfs can hold.
pub fn add<S: ReadAt>(reader: &Reader<S>, file: BorrowedFd<'_>, name: &str) -> Result<()> {
    let mut writer = HybridWriter {
        reader,
        out: Out::new(file, name, reader.size()),
        inodes: Row::default(),
        directories: Row::default(),
        fragments: Row::default(),
        ids: Row::default(),
        ids_known: HashMap::new(),
        sets: Sets::default(),
        several: HashMap::new(),
        count: 0,
        blocks_left: MOST_BLOCKS,
    };
    let root = writer.tree()?;
    let superblock = writer.finish(root)?;
    Ok(write_all_at(file, &superblock, 0).on("write to", name)?)
}

struct HybridWriter<'a, S> {
    reader: &'a Reader<S>,
    out: Out<'a>,
    inodes: Row,
    directories: Row,
    fragments: Row,
    ids: Row,
    ids_known: HashMap<u32, u16>,
    sets: Sets,
    /// Files with several names, by their numbers in the image.
    several: HashMap<u64, WrittenInode>,
    /// How many inodes have a number.
    count: u32,
    blocks_left: u64,
}

/// A directory, by its place among all, and that of the one it is in.
struct Directory {
    inode: StoredInode,
    parent: usize,
}

impl<S: ReadAt> HybridWriter<'_, S> {
    /// Inodes and directories; the root's. What a directory names is written before it: so the directories are gone through from the
    /// last to the first, as each stands behind the one it is in.
    fn tree(&mut self) -> Result<WrittenInode> {
        let directories = self.directories_in_order()?;
        self.count = directories.len() as u32;
        let mut written: HashMap<u64, WrittenInode> = HashMap::new();
        let mut last = None;
        for (index, directory) in directories.iter().enumerate().rev() {
            let mut entries = vec![];
            let mut below = 0;
            for (name, number) in self.reader.names(&directory.inode)? {
                let child = self.reader.inode(number)?;
                let inode = match child.kind {
                    InodeKind::Directory => {
                        below += 1;
                        written.remove(&number).ok_or_else(|| self.bad(number, "is in two directories"))?
                    }
                    _ => self.other(&child)?,
                };
                entries.push((name, inode, kind_of(&child).0));
            }
            let number = index as u32 + 1;
            // As mksquashfs has it, what the root is in comes after all inodes.
            let parent = if index == 0 { u32::MAX } else { directory.parent as u32 + 1 };
            let place = directory::write(&mut self.directories, &entries);
            let place = place.ok_or_else(|| self.bad(directory.inode.number, "is too large"))?;
            let inode = self.directory(&directory.inode, (number, parent), 2 + below, &place)?;
            written.insert(directory.inode.number, inode);
            last = Some(inode);
        }
        last.ok_or_else(|| self.bad(0, "is missing"))
    }

    fn directories_in_order(&self) -> Result<Vec<Directory>> {
        let mut all = vec![Directory { inode: self.reader.root()?, parent: 0 }];
        let mut next = 0;
        while next < all.len() {
            for (_, number) in self.reader.names(&all[next].inode)? {
                let inode = self.reader.inode(number)?;
                if inode.kind == InodeKind::Directory {
                    // Whoever forged the image may have led a directory into itself.
                    if all.len() as u64 > self.reader.most_names() {
                        return Err(self.bad(number, "is in itself"));
                    }
                    all.push(Directory { inode, parent: next });
                }
            }
            next += 1;
        }
        Ok(all)
    }

    fn directory(
        &mut self,
        inode: &StoredInode,
        (number, parent): (u32, u32),
        links: u32,
        place: &inode::DirLocation,
    ) -> Result<WrittenInode> {
        let xattrs = self.xattrs(inode)?;
        let written = self.head(inode, number)?;
        self.inodes.put32(links);
        self.inodes.put32(place.size);
        self.inodes.put32(place.block);
        self.inodes.put32(parent);
        // No index: it only makes looking up quicker.
        self.inodes.put16(0);
        self.inodes.put16(place.offset);
        self.inodes.put32(xattrs);
        Ok(written)
    }

    /// A file that is no directory; once, however many names it has.
    fn other(&mut self, inode: &StoredInode) -> Result<WrittenInode> {
        if let Some(written) = self.several.get(&inode.number) {
            return Ok(*written);
        }
        let xattrs = self.xattrs(inode)?;
        self.count = self.count.checked_add(1).ok_or_else(|| self.bad(inode.number, "is one of too many"))?;
        let written = match inode.kind {
            InodeKind::File => self.file(inode, xattrs)?,
            InodeKind::Symlink => {
                let target = self.reader.target(inode)?;
                let written = self.head(inode, self.count)?;
                self.inodes.put32(inode.links);
                self.inodes.put32(target.len() as u32);
                self.inodes.put(&target);
                self.inodes.put32(xattrs);
                written
            }
            _ => {
                let written = self.head(inode, self.count)?;
                self.inodes.put32(inode.links);
                if let InodeKind::CharDevice(major, minor) | InodeKind::BlockDevice(major, minor) = inode.kind
                {
                    self.inodes.put32(minor & 0xff | major << 8 | (minor & !0xff) << 12);
                }
                self.inodes.put32(xattrs);
                written
            }
        };
        if inode.links > 1 {
            self.several.insert(inode.number, written);
        }
        Ok(written)
    }

    fn file(&mut self, inode: &StoredInode, xattrs: u32) -> Result<WrittenInode> {
        let Pieces { start, blocks, tail } = self.pieces(inode)?;
        let holes = blocks.iter().filter(|block| **block == 0).count() as u64;
        let fragment = match tail {
            None => NO_FRAGMENT,
            Some(place) => {
                let number = self.fragments.len() / FRAGMENT_SIZE;
                self.fragments.put64(place);
                self.fragments.put32((inode.size % BLOCK) as u32 | STORED);
                self.fragments.put32(0);
                u32::try_from(number).map_err(|_| self.bad(inode.number, "has one tail too many"))?
            }
        };
        let written = self.head(inode, self.count)?;
        self.inodes.put64(start);
        self.inodes.put64(inode.size);
        // The kernel counts what is left in units of 512 bytes; less than nothing would be very much.
        self.inodes.put64((holes * BLOCK).min(inode.size.saturating_sub(1)));
        self.inodes.put32(inode.links);
        self.inodes.put32(fragment);
        // Where in the fragment it begins.
        self.inodes.put32(0);
        self.inodes.put32(xattrs);
        blocks.iter().for_each(|block| self.inodes.put32(*block));
        Ok(written)
    }

    /// Where a file's content is. If its blocks do not follow each other, they are copied.
    fn pieces(&mut self, inode: &StoredInode) -> Result<Pieces> {
        let left = self.blocks_left.checked_sub(inode.size.div_ceil(BLOCK));
        self.blocks_left = left.ok_or_else(|| Error::Unstorable {
            file: "all of its files".into(),
            why: format!(
                "a squashfs made of an image has {} bytes at most, holes counted",
                MOST_BLOCKS * BLOCK
            ),
        })?;
        let (mut blocks, mut tail) = (vec![], None);
        let (mut start, mut next, mut in_order) = (None, None, true);
        for extent in self.reader.extents(inode) {
            let Extent { length, place, .. } = extent?;
            let full = length / BLOCK;
            let Some(place) = place else {
                // A hole at the end is one more block.
                blocks.extend(std::iter::repeat_n(0, length.div_ceil(BLOCK) as usize));
                continue;
            };
            if full > 0 {
                in_order &= next.is_none_or(|next| next == place);
                start = start.or(Some(place));
                next = Some(place + full * BLOCK);
                blocks.extend(std::iter::repeat_n(BLOCK as u32 | STORED, full as usize));
            }
            if length > full * BLOCK {
                tail = Some(place + full * BLOCK);
            }
        }
        if !in_order {
            start = Some(self.copied(inode, &blocks)?);
        }
        Ok(Pieces { start: start.unwrap_or(0), blocks, tail })
    }

    /// Copies the blocks of a file that are no holes behind the image; gives where they begin.
    fn copied(&mut self, inode: &StoredInode, blocks: &[u32]) -> Result<u64> {
        let start = self.out.at();
        let mut block = [0; BLOCK as usize];
        for (number, _) in (0u64..).zip(blocks).filter(|(_, length)| **length > 0) {
            self.reader.read_at(inode, &mut block, number * BLOCK)?;
            self.out.put(&block)?;
        }
        Ok(start)
    }

    /// What all inodes begin with.
    fn head(&mut self, inode: &StoredInode, number: u32) -> Result<WrittenInode> {
        let too_many = || self.bad(inode.number, "lies too far behind");
        let place = self.inodes.next().ok_or_else(too_many)?;
        let (uid, gid) = (self.id(inode.uid)?, self.id(inode.gid)?);
        self.inodes.put16(kind_of(inode).1);
        self.inodes.put16(inode.mode);
        self.inodes.put16(uid);
        self.inodes.put16(gid);
        self.inodes.put32(inode.mtime.clamp(0, u32::MAX.into()) as u32);
        self.inodes.put32(number);
        Ok(WrittenInode { place, number })
    }

    fn id(&mut self, id: u32) -> Result<u16> {
        if let Some(index) = self.ids_known.get(&id) {
            return Ok(*index);
        }
        let index = u16::try_from(self.ids_known.len()).ok().filter(|index| *index < u16::MAX);
        let index = index.ok_or_else(|| Error::Unstorable {
            file: format!("the files of {id}"),
            why: "a squashfs has 65535 owners and groups at most".into(),
        })?;
        self.ids.put32(id);
        self.ids_known.insert(id, index);
        Ok(index)
    }

    /// The number of a file's set of extended attributes.
    fn xattrs(&mut self, inode: &StoredInode) -> Result<u32> {
        let number = self.sets.number(self.reader.xattrs(inode)?);
        number.ok_or_else(|| self.bad(inode.number, "has one attribute too many"))
    }

    /// The tables, in the order in which the kernel wants them; then the superblock.
    fn finish(mut self, root: WrittenInode) -> Result<[u8; SUPERBLOCK]> {
        let none = |_: &mut Out<'_>| Ok(());
        let inodes = self.out.at();
        self.out.row(&self.inodes)?;
        let directories = self.out.at();
        self.out.row(&self.directories)?;
        let fragments = self.out.table(&self.fragments, none)?;
        let ids = self.out.table(&self.ids, none)?;
        let sets = self.sets.write(&mut self.out)?.unwrap_or(NOWHERE);
        let end = self.out.at();
        // A block device ends with a whole block.
        self.out.put(&vec![0; (end.next_multiple_of(BLOCK) - end) as usize])?;
        self.out.flush()?;
        let mut superblock = Row::default();
        superblock.put32(MAGIC);
        superblock.put32(self.count);
        // When it was made: the same for the same files.
        superblock.put32(0);
        superblock.put32(BLOCK as u32);
        superblock.put32((self.fragments.len() / FRAGMENT_SIZE) as u32);
        superblock.put16(GZIP);
        superblock.put16(BLOCK.trailing_zeros() as u16);
        superblock.put16(UNCOMPRESSED);
        superblock.put16(self.ids_known.len() as u16);
        // Version 4.0.
        superblock.put16(4);
        superblock.put16(0);
        superblock.put64(root.place.reference());
        superblock.put64(end);
        for place in [ids, sets, inodes, directories, fragments, NOWHERE] {
            superblock.put64(place);
        }
        Ok(superblock.start())
    }

    fn bad(&self, number: u64, why: &str) -> Error {
        self.reader.bad(number, why).into()
    }
}

const FRAGMENT_SIZE: usize = 16;
/// Each block of a file, hole or not, takes 4 bytes of its inode, and of memory: 256 MiB of both for 256 GiB.
const MOST_BLOCKS: u64 = 1 << 26;

/// Where a file's content is.
struct Pieces {
    /// First block of the content.
    start: u64,
    /// The length of each; 0 is a hole.
    blocks: Vec<u32>,
    tail: Option<u64>,
}

/// How directories call what a file is, and how its inode in the long form, which alone has extended attributes.
fn kind_of(inode: &StoredInode) -> (u16, u16) {
    let kind = match inode.kind {
        InodeKind::Directory => 1,
        InodeKind::File => 2,
        InodeKind::Symlink => 3,
        InodeKind::BlockDevice(..) => 4,
        InodeKind::CharDevice(..) => 5,
        InodeKind::Fifo => 6,
        InodeKind::Socket => 7,
    };
    (kind, kind + 7)
}
