//! A sum of an image's data blocks, by which `store verify` finds what a failing disk has changed in files. (The metadata has its
//! own in the image itself, see `crates/erofs/src/seal.rs`.)
//!
//! Layers write at the same time, each in its own order, so every block adds a number that follows from its bytes and its place. It is
//! CRC-32, not a digest: against disks, not people, and made while the bytes are in the processor's cache.

use std::os::fd::BorrowedFd;

use flate2::Crc;
use skiff_erofs::Summary;
use skiff_erofs::tree::BLOCK;

use crate::error::Result;
use crate::space::BlockRange;
use skiff_sys::SystemContext;

/// CRC-32 of a block of zeros. Such a block adds nothing, whether it is stored or a hole.
const ZEROS: u32 = 0xC71C_0011;
/// Blocks are read back in pieces of this size.
const PIECE: usize = 1 << 20;

/// The sum of what has been added so far: whole blocks, once all that was begun is done.
#[derive(Default)]
pub struct DataSum {
    total: u64,
    block: Crc,
}

impl DataSum {
    /// Adds bytes at this offset of the image: the next of the block that was begun, or the first of another.
    pub fn add(&mut self, mut at: u64, mut bytes: &[u8]) {
        let follows = u64::from(self.block.amount()) == at % BLOCK;
        debug_assert!(follows || bytes.is_empty(), "blocks are written one after the other");
        while !bytes.is_empty() {
            let room = (BLOCK - at % BLOCK) as usize;
            let (here, rest) = bytes.split_at(room.min(bytes.len()));
            self.block.update(here);
            if here.len() == room {
                self.total = self.total.wrapping_add(term(at / BLOCK, self.block.sum()));
                self.block.reset();
            }
            at += here.len() as u64;
            bytes = rest;
        }
    }

    /// The sum of all blocks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

fn term(block: u64, crc: u32) -> u64 {
    u64::from(crc ^ ZEROS).wrapping_mul(block * 2 + 1)
}

/// The sum of the blocks that finishing an image has put behind its data: chunks of files with holes, put together anew. They are data, too,
/// and lie before the metadata, where `store verify` sums up everything.
///
/// # Errors
/// As [`of_blocks`].
pub fn of_copies(image: BorrowedFd<'_>, name: &str, data_end: u32, summary: &Summary) -> Result<u64> {
    let copies = data_end..summary.blocks - summary.metadata_blocks;
    of_blocks(image, name, &[copies])
}

/// The sum of these blocks as they are in the file; what lies beyond its end is zero.
///
/// # Errors
/// The file, which has this name in messages, cannot be read.
pub fn of_blocks(image: BorrowedFd<'_>, name: &str, blocks: &[BlockRange]) -> Result<u64> {
    let mut buffer = vec![0; PIECE];
    let mut total = 0u64;
    for blocks in blocks {
        let mut sum = DataSum::default();
        let (mut at, end) = (u64::from(blocks.start) * BLOCK, u64::from(blocks.end) * BLOCK);
        while at < end {
            let wanted = (end - at).min(PIECE as u64) as usize;
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(image, &mut buffer[..wanted], at));
            let count = read.on("read", name)?;
            if count == 0 {
                break;
            }
            sum.add(at, &buffer[..count]);
            at += count as u64;
        }
        total = total.wrapping_add(sum.total());
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn sum(parts: &[(u64, &[u8])]) -> u64 {
        let mut sum = DataSum::default();
        parts.iter().for_each(|(at, bytes)| sum.add(*at, bytes));
        sum.total()
    }

    #[test]
    fn order_and_pieces_do_not_matter_but_every_bit_and_place_does() {
        let bytes: Vec<u8> = (0..3 * BLOCK).map(|n| (n * 7 % 251) as u8).collect();
        let block = BLOCK as usize;
        let whole = sum(&[(BLOCK, &bytes)]);
        let (first, rest) = bytes.split_at(block);
        assert_eq!(sum(&[(2 * BLOCK, rest), (BLOCK, first)]), whole);
        assert_eq!(sum(&[(BLOCK, &bytes[..100]), (BLOCK + 100, &bytes[100..])]), whole);
        assert_ne!(sum(&[(2 * BLOCK, &bytes)]), whole);
        for at in [0, 1, block - 1, block, 3 * block - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_ne!(sum(&[(BLOCK, &changed)]), whole, "byte {at}");
        }
    }

    #[test]
    fn holes_are_as_zeros_and_files_as_what_was_written() {
        assert_eq!(sum(&[(7 * BLOCK, &[0; 2 * BLOCK as usize])]), 0);
        let mut file = tempfile();
        file.write_all(&[5; 3 * BLOCK as usize]).expect("written");
        file.set_len(9 * BLOCK).expect("longer");
        let read = |blocks: BlockRange| of_blocks(file.as_fd(), "test", &[blocks]).expect("read");
        assert_eq!(read(0..9), sum(&[(0, &[5; 3 * BLOCK as usize])]));
        assert_eq!(read(3..20), 0);
        assert_eq!(read(0..1).wrapping_add(read(1..3)), read(0..3));
    }

    fn tempfile() -> std::fs::File {
        let fd = rustix::fs::memfd_create("sum", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        std::fs::File::from(fd)
    }
}
