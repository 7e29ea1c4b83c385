//! How one inode will lie in the file: how long it is, what stands behind it, and what lies elsewhere.

use super::chunks::{Chunking, of_file};
use super::dirents;
use super::format::{BLOCK_SIZE, CHUNK_INDEX_SIZE, INODE_SIZE, TARGET_MAX, encode_device, file_type};
use super::pack::fits_behind_border;
use super::tree::{Attributes, BLOCK, Content, FileKind, InodeId, Sparse, Tree};
use super::xattr::XattrPlan;

/// One inode's measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the inode and of its extended attributes.
    pub head: usize,
    pub xattr_size: u32,
    /// The file's length.
    pub size: u64,
    pub data: Data,
}

/// Where the data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// Only in blocks of the data region, from `first` on; or there is none.
    Blocks { first: u32 },
    /// The same, but `tail` bytes stand behind the head.
    Tail { first: u32, tail: usize },
    /// In as many blocks of the area for those.
    OwnBlocks(u32),
    /// The same, but `tail` bytes stand behind the head.
    OwnBlocksAndTail(u32, usize),
    /// The table of chunks stands behind the head.
    Chunks(Chunking),
    /// In blocks of the data region, and a tail that gets a block elsewhere: so this is a file of one-block chunks.
    LoneTail { first: u32, count: u32 },
    /// A device, or a thing without data.
    Device(u32),
}

/// The measures of `id`, or why it cannot be stored. The data region is the blocks from 1 to before `data_blocks`.
pub(super) fn shape(
    tree: &Tree,
    xattrs: &XattrPlan<'_>,
    id: InodeId,
    data_blocks: u32,
) -> Result<Shape, String> {
    let inode = tree.inode(id);
    check(&inode.attributes)?;
    let xattr_size = xattrs.size(inode.attributes.xattrs)?;
    let head = INODE_SIZE + xattr_size as usize;
    let device = |major, minor| {
        let number = encode_device(major, minor);
        number.ok_or_else(|| {
            format!("its device number {major}:{minor} is too large: 4095:1048575 is possible")
        })
    };
    let (size, data) = match &inode.kind {
        FileKind::Directory(children) => {
            let size = dirents::size(&dirents::entries(children, id, id)?);
            (size, beside(head, size))
        }
        FileKind::Symlink(target) => {
            check_target(target)?;
            (target.len() as u64, beside(head, target.len() as u64))
        }
        FileKind::File(Content::Whole { size, block, .. }) => {
            (*size, whole(head, *size, *block, data_blocks)?)
        }
        FileKind::File(Content::Sparse(sparse)) => (sparse.size, chunked(sparse, data_blocks)?),
        FileKind::CharDevice(major, minor) | FileKind::BlockDevice(major, minor) => {
            (0, Data::Device(device(*major, *minor)?))
        }
        FileKind::Fifo | FileKind::Socket => (0, Data::Device(0)),
    };
    Ok(Shape { head, xattr_size, size, data })
}

/// How a kind of file is called in a mode, and in a directory's entry.
pub(super) fn type_of(kind: &FileKind) -> (u16, u8) {
    match kind {
        FileKind::Directory(_) => file_type::DIRECTORY,
        FileKind::File(_) => file_type::REGULAR,
        FileKind::Symlink(_) => file_type::SYMLINK,
        FileKind::CharDevice(..) => file_type::CHAR_DEVICE,
        FileKind::BlockDevice(..) => file_type::BLOCK_DEVICE,
        FileKind::Fifo => file_type::FIFO,
        FileKind::Socket => file_type::SOCKET,
    }
}

impl Shape {
    /// How many bytes stand behind the head.
    pub fn behind(&self) -> u64 {
        match self.data {
            Data::Tail { tail, .. } | Data::OwnBlocksAndTail(_, tail) => tail as u64,
            Data::Chunks(chunking) => chunking.count * CHUNK_INDEX_SIZE,
            Data::LoneTail { count, .. } => u64::from(count + 1) * CHUNK_INDEX_SIZE,
            Data::Blocks { .. } | Data::OwnBlocks(_) | Data::Device(_) => 0,
        }
    }

    /// Whether it lies among those whose data makes them long, not in the table.
    pub fn with_tail(&self) -> bool {
        matches!(self.data, Data::Tail { .. } | Data::Chunks(_) | Data::LoneTail { .. })
    }

    /// How many blocks of files have to be copied for it.
    pub fn copied(&self) -> u64 {
        match self.data {
            Data::Chunks(chunking) => chunking.copied,
            Data::LoneTail { .. } => 1,
            _ => 0,
        }
    }
}

/// What the kernel would not show as it is.
fn check(attributes: &Attributes) -> Result<(), String> {
    let Attributes { mode, uid, gid, mtime_nsec, .. } = attributes;
    if *uid == u32::MAX || *gid == u32::MAX {
        return Err(format!("its owner {uid}:{gid} is none"));
    }
    if *mode > 0o7777 || *mtime_nsec >= 1_000_000_000 {
        return Err(format!("its mode {mode:o} or its time's nanoseconds {mtime_nsec} are none"));
    }
    Ok(())
}

fn check_target(target: &[u8]) -> Result<(), String> {
    if target.is_empty() || target.contains(&0) {
        return Err(format!("its target '{}' is not a path", target.escape_ascii()));
    }
    if target.len() > TARGET_MAX {
        return Err(format!("its target has {} bytes, and {TARGET_MAX} are possible", target.len()));
    }
    Ok(())
}

/// Data that the metadata holds: as much of it as possible beside the inode, in the same block.
fn beside(head: usize, size: u64) -> Data {
    let blocks = (size / BLOCK) as u32;
    let tail = size as usize % BLOCK_SIZE;
    if tail > 0 && head + tail <= BLOCK_SIZE {
        Data::OwnBlocksAndTail(blocks, tail)
    } else {
        Data::OwnBlocks(size.div_ceil(BLOCK) as u32)
    }
}

fn whole(head: usize, size: u64, first: u32, data_blocks: u32) -> Result<Data, String> {
    let count = size / BLOCK;
    check_blocks(first, count, data_blocks)?;
    let first = if count == 0 { 0 } else { first };
    let tail = size as usize % BLOCK_SIZE;
    Ok(match tail {
        0 => Data::Blocks { first },
        tail if head + tail <= BLOCK_SIZE || fits_behind_border(head, tail) => Data::Tail { first, tail },
        _ => Data::LoneTail { first, count: count as u32 },
    })
}

fn chunked(sparse: &Sparse, data_blocks: u32) -> Result<Data, String> {
    if sparse.size > i64::MAX as u64 {
        return Err(format!("it is {} bytes long, and {} are possible", sparse.size, i64::MAX));
    }
    let mut end = 0;
    for run in sparse.runs.iter().filter(|run| run.blocks > 0) {
        check_blocks(run.block, u64::from(run.blocks), data_blocks)?;
        if of_file(run).start < end || of_file(run).end > sparse.size.div_ceil(BLOCK) {
            return Err("its pieces overlap, or reach beyond its end".to_owned());
        }
        end = of_file(run).end;
    }
    Ok(if sparse.size == 0 { Data::Blocks { first: 0 } } else { Data::Chunks(Chunking::of(sparse)) })
}

fn check_blocks(first: u32, count: u64, data_blocks: u32) -> Result<(), String> {
    let end = u64::from(first).saturating_add(count);
    if count > 0 && (first == 0 || end > u64::from(data_blocks)) {
        return Err(format!("its blocks {first} to {end} are not those of data, 1 to {data_blocks}"));
    }
    Ok(())
}
