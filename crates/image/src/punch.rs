//! Clears blocks of the image file that no file has: those of files that an upper layer replaced, or of a failed attempt.

use std::os::fd::BorrowedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use skiff_erofs::tree::{BLOCK, Content, FileKind, Tree};
use skiff_sys::positional::write_all_at;

use crate::Result;
use crate::space::BlockRange;
use skiff_sys::SystemContext;

/// What of the blocks in `used` no file of the tree has.
pub(crate) fn unused(tree: &Tree, used: &[BlockRange]) -> Vec<BlockRange> {
    let mut used: Vec<BlockRange> = used.iter().filter(|used| !used.is_empty()).cloned().collect();
    used.sort_by_key(|used| used.start);
    let mut live = live(tree).into_iter().peekable();
    let mut unused = vec![];
    for BlockRange { start: mut free, end } in used {
        while let Some(file) = live.next_if(|file| file.start < end) {
            if free < file.start {
                unused.push(free..file.start);
            }
            free = file.end;
        }
        if free < end {
            unused.push(free..end);
        }
    }
    unused
}

/// The blocks of all files, in order. Each file's lie within one of the areas that layers got.
fn live(tree: &Tree) -> Vec<BlockRange> {
    let mut blocks: Vec<BlockRange> = vec![];
    for inode in tree.inodes().filter(|inode| inode.names > 0) {
        match &inode.kind {
            FileKind::File(Content::Whole { size, block, .. }) if *size >= BLOCK => {
                // A file's blocks lie within the image, whose blocks have numbers of 32 bits.
                blocks.push(*block..*block + (size / BLOCK) as u32);
            }
            FileKind::File(Content::Sparse(sparse)) => {
                blocks.extend(sparse.runs.iter().map(|run| run.block..run.block + run.blocks));
            }
            _ => {}
        }
    }
    blocks.sort_unstable_by_key(|blocks| blocks.start);
    blocks
}

/// Makes these blocks zero, and no longer stored where the file system can do that.
pub(crate) fn clear(image: BorrowedFd<'_>, name: &str, unused: &[BlockRange]) -> Result<()> {
    let end = rustix::fs::fstat(image).on("look at", name)?.st_size as u64;
    for blocks in unused {
        // What was never written need not be cleared.
        let (start, end) = (u64::from(blocks.start) * BLOCK, (u64::from(blocks.end) * BLOCK).min(end));
        if start >= end {
            continue;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(image, flags, start, end - start) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => zero(image, name, start, end)?,
            result => result.on("clear replaced parts of", name)?,
        }
    }
    Ok(())
}

fn zero(image: BorrowedFd<'_>, name: &str, start: u64, end: u64) -> Result<()> {
    let zeros = vec![0; 1 << 20];
    (start..end).step_by(zeros.len()).try_for_each(|at| {
        let len = (end - at).min(zeros.len() as u64) as usize;
        Ok(write_all_at(image, &zeros[..len], at).on("write to", name)?)
    })
}
