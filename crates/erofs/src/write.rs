//! Writes an image's metadata behind its data, and the superblock.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::panic::resume_unwind;
use std::thread::Builder;

use super::area::{Area, write_all};
use super::chunks::{Chunk, Chunking, of_file};
use super::dirents;
use super::error::IoContext;
use super::format::{BLOCK_SIZE, CHUNK_INDEX_SIZE, DataLayout, HOLE, INODE_SIZE, RawInode, SLOT, Superblock};
use super::layout::{Layout, Visit, order, xattr_uses};
use super::seal::Seal;
use super::shape::{Data, Shape, shape, type_of};
use super::tree::{BLOCK, Content, FileKind, Inode, InodeId, Sparse, Tree};
use super::xattr::XattrPlan;
use super::{Error, Result};

/// Gives the last bytes of a file, those that fill no block: takes [`Inode::layer`], the offset that [`Content::Whole`] has for them, and
/// the buffer to fill. What it fails with is what [`finish`] fails with.
pub type Tails<'a, E = Error> = dyn FnMut(u32, u64, &mut [u8]) -> Result<(), E> + 'a;

/// Asked once whether the image may grow by so many bytes, before the first of them is written. What it fails with is what [`finish`] fails with.
pub type SpaceCheck<'a, E = Error> = dyn FnMut(u64) -> Result<(), E> + 'a;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Files of all kinds; those with several names count once.
    pub inodes: u64,
    /// The file's length, in blocks.
    pub blocks: u32,
    /// How many of these blocks are metadata.
    pub metadata_blocks: u32,
    /// Follows from the metadata: the same in all images of the same files.
    pub uuid: [u8; 16],
}

/// Writes the metadata of `tree` behind the data in `image`, and the superblock before it.
///
/// - `tails` gives the last bytes of each file, those that fill no block.
/// - `room` is asked for the bytes that are written behind the data: a file with one byte may take megabytes there, if it is long and all hole.
/// - `image` is open for reading and writing. The blocks from 1 to before `data_blocks`, of [`BLOCK`] bytes each, hold what the tree's files say they
///   do. Whatever lies behind them is cut off. Nothing is synced.
/// - `name` is the image's name in messages.
///
/// # Errors
/// Those of `tails` and `room`; [`Error::Io`]; [`Error::Unstorable`] for what the format cannot hold, with the file's path. The image is of no use then.
pub fn finish<E: From<Error>>(
    tree: &Tree,
    tails: &mut Tails<'_, E>,
    room: &mut SpaceCheck<'_, E>,
    image: BorrowedFd<'_>,
    name: &str,
    data_blocks: u32,
) -> Result<Summary, E> {
    let data_blocks = data_blocks.max(1);
    let order = order(tree)?;
    let xattrs = XattrPlan::new(tree, &xattr_uses(tree, &order));
    let layout = Layout::new(tree, order, &xattrs, data_blocks)?;
    rustix::fs::ftruncate(image, u64::from(data_blocks) * BLOCK).on("cut off the end of", name)?;
    let (begin, end) = (u64::from(data_blocks) * BLOCK, u64::from(layout.end) * BLOCK);
    room(end - begin)?;
    allocate(image, begin, end);
    let job = Job { tree, xattrs: &xattrs, layout: &layout, image, name, data_blocks };
    let writer = |part| Writer::new(job, part);
    let table = || writer(Part::Table).table();
    let (table, tails) = std::thread::scope(|scope| {
        let begun = Builder::new().name("table".into()).spawn_scoped(scope, table);
        let tails = writer(Part::Tails).tails(tails);
        let table = match begun {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // Without a thread it is done here.
            Err(_) => table(),
        };
        (table, tails)
    });
    let mut seal = table?;
    seal.merge(tails?);
    rustix::fs::ftruncate(image, end).on("set the length of", name)?;
    let mut superblock = Superblock {
        root: layout.number(Tree::ROOT) as u16,
        inodes: layout.order.len() as u64,
        blocks: layout.end,
        metadata: layout.table as u32,
        shared_xattrs: layout.shared as u32,
        uuid: [0; 16],
        chunked: layout.chunked,
    };
    seal.add(0, &superblock.encode());
    superblock.uuid = seal.uuid();
    write_all(image, name, &superblock.encode(), 0)?;
    let metadata_blocks = layout.end - layout.table as u32;
    let Superblock { inodes, uuid, .. } = superblock;
    Ok(Summary { inodes, blocks: layout.end, metadata_blocks, uuid })
}

/// For less, preallocation is not worth the call, in bytes.
const LEAST_ALLOCATED: u64 = 1 << 20;

/// Preallocates the bytes `begin..end`: written into such room, data costs the kernel half the processor's time, and it lies together.
fn allocate(image: BorrowedFd<'_>, begin: u64, end: u64) {
    if end - begin >= LEAST_ALLOCATED {
        // That there is no room is said by the write that finds none; not every file system can preallocate.
        let (Ok(()) | Err(_)) =
            rustix::fs::fallocate(image, rustix::fs::FallocateFlags::empty(), begin, end - begin);
    }
}

/// Which inodes a writer writes; the two are written side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Inodes in the table, with the blocks of their own and the shared attributes.
    Table,
    /// Inodes with tails, and the copies.
    Tails,
}

/// What both writers work on.
#[derive(Clone, Copy)]
struct Job<'a> {
    tree: &'a Tree,
    xattrs: &'a XattrPlan<'a>,
    layout: &'a Layout,
    image: BorrowedFd<'a>,
    name: &'a str,
    data_blocks: u32,
}

struct Writer<'a> {
    part: Part,
    job: Job<'a>,
    table: Area<'a>,
    tails: Area<'a>,
    own_blocks: Area<'a>,
    /// The next free block of these two regions.
    next_copy: u64,
    next_own: u64,
    /// Where pieces are put together.
    scratch: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(job: Job<'a>, part: Part) -> Writer<'a> {
        let layout = job.layout;
        let area = |start| Area::new(job.image, job.name, start);
        Writer {
            part,
            job,
            table: area(layout.table),
            tails: area(layout.tails),
            own_blocks: area(layout.own_blocks),
            next_copy: layout.copies,
            next_own: layout.own_blocks,
            scratch: vec![],
        }
    }

    /// Everything but the superblock and what the other part has.
    fn table(mut self) -> Result<Seal> {
        let layout = self.job.layout;
        // Nothing in the table has a tail, so none is asked for.
        let mut none = |_, _, _: &mut [u8]| Ok::<_, Error>(());
        for visit in &layout.order {
            self.inode(*visit, &mut none)?;
        }
        let mut shared = Area::new(self.job.image, self.job.name, layout.shared);
        let mut place = 0;
        for piece in self.job.xattrs.shared() {
            shared.put(place, &piece)?;
            place += piece.len() as u64;
        }
        let mut seal = self.table.finish(layout.tails - layout.table)?;
        seal.merge(self.own_blocks.finish(layout.shared - layout.own_blocks)?);
        seal.merge(shared.finish(u64::from(layout.end) - layout.shared)?);
        Ok(seal)
    }

    fn tails<E: From<Error>>(mut self, spilled: &mut Tails<'_, E>) -> Result<Seal, E> {
        let layout = self.job.layout;
        let is_file = |visit: &&Visit| matches!(self.job.tree.inode(visit.id).kind, FileKind::File(_));
        for visit in layout.order.iter().filter(is_file) {
            self.inode(*visit, spilled)?;
        }
        Ok(self.tails.finish(layout.own_blocks - layout.tails)?)
    }

    /// One inode, and all of its data that is not in the data region.
    fn inode<E: From<Error>>(&mut self, visit: Visit, spilled: &mut Tails<'_, E>) -> Result<(), E> {
        let inode = self.job.tree.inode(visit.id);
        let shape = shape(self.job.tree, self.job.xattrs, visit.id, self.job.data_blocks)
            .expect("it was measured before, and has not changed");
        if shape.with_tail() != (self.part == Part::Tails) {
            return Ok(());
        }
        let place = self.place(visit.id, &shape);
        let raw = self.raw(visit.id, inode, &shape);
        self.put(&shape, place, &raw.encode())?;
        let mut xattrs = std::mem::take(&mut self.scratch);
        self.job.xattrs.encode(inode.attributes.xattrs, &mut xattrs);
        debug_assert_eq!(xattrs.len(), shape.xattr_size as usize);
        self.put(&shape, place + INODE_SIZE as u64, &xattrs)?;
        self.scratch = xattrs;
        let behind = place + shape.head as u64;
        match &inode.kind {
            FileKind::Directory(children) => self.directory(children, visit, &shape, behind)?,
            FileKind::Symlink(target) => self.target(target, &shape, behind)?,
            FileKind::File(Content::Whole { tail: at, .. }) => match shape.data {
                Data::Tail { tail, .. } => spilled(inode.layer, *at, self.tails.within_block(behind, tail)?)?,
                Data::LoneTail { first, count } => {
                    let mut block = [0; BLOCK_SIZE];
                    spilled(inode.layer, *at, &mut block[..shape.size as usize % BLOCK_SIZE])?;
                    self.lone_tail(first, count, &block, behind)?;
                }
                _ => {}
            },
            FileKind::File(Content::Sparse(sparse)) => {
                if let Data::Chunks(chunking) = shape.data {
                    self.chunks(sparse, chunking, behind)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn raw(&self, id: InodeId, inode: &Inode, shape: &Shape) -> RawInode {
        let (layout, data) = match shape.data {
            Data::Blocks { first } => (DataLayout::Flat, first),
            Data::Tail { first, .. } => (DataLayout::Inline, first),
            Data::OwnBlocks(_) => (DataLayout::Flat, self.next_own as u32),
            Data::OwnBlocksAndTail(0, _) => (DataLayout::Inline, 0),
            Data::OwnBlocksAndTail(..) => (DataLayout::Inline, self.next_own as u32),
            Data::Chunks(chunking) => (DataLayout::Chunked, chunking.bits),
            Data::LoneTail { .. } => (DataLayout::Chunked, 0),
            Data::Device(number) => (DataLayout::Flat, number),
        };
        let links = match &inode.kind {
            FileKind::Directory(children) => {
                let is_directory =
                    |id: &&InodeId| matches!(self.job.tree.inode(**id).kind, FileKind::Directory(_));
                2 + children.values().filter(is_directory).count() as u32
            }
            _ => inode.names,
        };
        let attributes = &inode.attributes;
        RawInode {
            layout,
            xattr_size: shape.xattr_size,
            mode: type_of(&inode.kind).0 | attributes.mode,
            size: shape.size,
            data,
            short_number: self.job.layout.number(id) as u32,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: attributes.mtime,
            mtime_nsec: attributes.mtime_nsec,
            links,
        }
    }

    fn directory(
        &mut self,
        children: &BTreeMap<Box<[u8]>, InodeId>,
        visit: Visit,
        shape: &Shape,
        behind: u64,
    ) -> Result<()> {
        let (tree, layout) = (self.job.tree, self.job.layout);
        let target = |id: InodeId| (layout.number(id), type_of(&tree.inode(id).kind).1);
        let entries = dirents::entries(children, visit.id, visit.parent).expect("they were checked before");
        let mut left = shape.size;
        for (block, _) in dirents::blocks(&entries) {
            let len = left.min(BLOCK) as usize;
            let beside = matches!(shape.data, Data::OwnBlocksAndTail(..)) && len < BLOCK_SIZE;
            let place = if beside { self.table.within_block(behind, len)? } else { self.own_block(len)? };
            dirents::encode(block, place, target);
            left -= len as u64;
        }
        Ok(())
    }

    fn target(&mut self, target: &[u8], shape: &Shape, behind: u64) -> Result<()> {
        let beside = matches!(shape.data, Data::OwnBlocksAndTail(..));
        let len = target.len();
        let place = if beside { self.table.within_block(behind, len)? } else { self.own_block(len)? };
        place.copy_from_slice(target);
        Ok(())
    }

    /// The table of a file that is cut into chunks, and those chunks that have to be put together.
    fn chunks(&mut self, sparse: &Sparse, chunking: Chunking, mut behind: u64) -> Result<()> {
        for chunk in chunking.chunks(sparse) {
            let block = match chunk {
                Chunk::Hole => HOLE,
                Chunk::Whole(block) => block,
                Chunk::Mixed(span, runs) => {
                    let start = self.next_copy;
                    self.next_copy += span.end - span.start;
                    for run in runs {
                        let part = of_file(run).start.max(span.start)..of_file(run).end.min(span.end);
                        let from = u64::from(run.block) + (part.start - of_file(run).start);
                        self.copy(from, start + (part.start - span.start), part.end - part.start)?;
                    }
                    start as u32
                }
            };
            self.tails.put(behind, &block.to_le_bytes())?;
            behind += CHUNK_INDEX_SIZE;
        }
        Ok(())
    }

    /// The same for a file whose tail is the only thing that does not lie where it should.
    fn lone_tail(&mut self, first: u32, count: u32, tail: &[u8; BLOCK_SIZE], mut behind: u64) -> Result<()> {
        write_all(self.job.image, self.job.name, tail, self.next_copy * BLOCK)?;
        for block in (first..first + count).chain([self.next_copy as u32]) {
            self.tails.put(behind, &block.to_le_bytes())?;
            behind += CHUNK_INDEX_SIZE;
        }
        self.next_copy += 1;
        Ok(())
    }

    /// Copies blocks within the file.
    fn copy(&mut self, mut from: u64, mut to: u64, blocks: u64) -> Result<()> {
        let end = from + blocks;
        while from < end {
            let count = (end - from).min(COPY_BLOCKS);
            self.scratch.resize((count * BLOCK) as usize, 0);
            read_all(self.job.image, self.job.name, &mut self.scratch, from * BLOCK)?;
            write_all(self.job.image, self.job.name, &self.scratch, to * BLOCK)?;
            (from, to) = (from + count, to + count);
        }
        Ok(())
    }

    /// The first bytes of the next block of metadata that belongs to one inode alone.
    fn own_block(&mut self, len: usize) -> Result<&mut [u8]> {
        let place = (self.next_own - self.job.layout.own_blocks) * BLOCK;
        self.next_own += 1;
        self.own_blocks.within_block(place, len)
    }

    /// Where an inode lies in its area, and the way to write there.
    fn place(&self, id: InodeId, shape: &Shape) -> u64 {
        let before = if shape.with_tail() { self.job.layout.tails - self.job.layout.table } else { 0 };
        self.job.layout.number(id) * SLOT - before * BLOCK
    }

    fn put(&mut self, shape: &Shape, place: u64, bytes: &[u8]) -> Result<()> {
        let area = if shape.with_tail() { &mut self.tails } else { &mut self.table };
        area.put(place, bytes)
    }
}

/// As many blocks are copied at once.
const COPY_BLOCKS: u64 = 256;

fn read_all(image: BorrowedFd<'_>, name: &str, mut bytes: &mut [u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pread(image, &mut *bytes, at) {
            Ok(0) => return Err(rustix::io::Errno::NODATA).on("read the data of", name),
            Ok(count) => {
                at += count as u64;
                bytes = &mut bytes[count..];
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).on("read", name),
        }
    }
    Ok(())
}
