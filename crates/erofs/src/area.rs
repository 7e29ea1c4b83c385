//! An area of the file that is written from its start to its end, except that its last few blocks can still be changed.

use std::os::fd::BorrowedFd;

use super::Result;
use super::error::IoContext;
use super::format::BLOCK_SIZE;
use super::pack::{STEP, WINDOW};
use super::seal::Seal;

/// Writes an area through a window of [`WINDOW`] blocks.
pub(super) struct Area<'a> {
    image: BorrowedFd<'a>,
    name: &'a str,
    /// Where in the file it starts, in blocks.
    start: u64,
    /// The window's first block, counted from there.
    first: u64,
    window: Vec<u8>,
    seal: Seal,
}

impl<'a> Area<'a> {
    /// `name` is the image's, for messages; `start` the area's first block.
    pub fn new(image: BorrowedFd<'a>, name: &'a str, start: u64) -> Area<'a> {
        let window = vec![0; WINDOW * BLOCK_SIZE];
        Area { image, name, start, first: 0, window, seal: Seal::default() }
    }

    /// `len` bytes within one block, `place` bytes from the area's start, to be filled; zeros if they never were.
    pub fn within_block(&mut self, place: u64, len: usize) -> Result<&mut [u8]> {
        let block = place / BLOCK_SIZE as u64;
        assert!(block >= self.first, "inodes are written in the order in which they got their places");
        while block >= self.first + WINDOW as u64 {
            self.slide()?;
        }
        let from = (place - self.first * BLOCK_SIZE as u64) as usize;
        debug_assert!(from % BLOCK_SIZE + len <= BLOCK_SIZE);
        Ok(&mut self.window[from..from + len])
    }

    /// Any number of bytes.
    pub fn put(&mut self, mut place: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = BLOCK_SIZE - place as usize % BLOCK_SIZE;
            let (here, rest) = bytes.split_at(room.min(bytes.len()));
            self.within_block(place, here.len())?.copy_from_slice(here);
            place += here.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Writes what is left of an area of `blocks` blocks; gives the seal of all of it.
    pub fn finish(mut self, blocks: u64) -> Result<Seal> {
        while self.first + (WINDOW as u64) < blocks {
            self.slide()?;
        }
        self.write((blocks - self.first) as usize)?;
        Ok(self.seal)
    }

    fn slide(&mut self) -> Result<()> {
        self.write(STEP)?;
        self.window.copy_within(STEP * BLOCK_SIZE.., 0);
        self.window[(WINDOW - STEP) * BLOCK_SIZE..].fill(0);
        self.first += STEP as u64;
        Ok(())
    }

    /// Writes the window's first blocks.
    fn write(&mut self, blocks: usize) -> Result<()> {
        let first = self.start + self.first;
        let blocks = &self.window[..blocks * BLOCK_SIZE];
        self.seal.add(first, blocks);
        write_all(self.image, self.name, blocks, first * BLOCK_SIZE as u64)
    }
}

/// Writes all of it `at` bytes from the file's start.
pub(super) fn write_all(image: BorrowedFd<'_>, name: &str, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(image, bytes, at) {
            Ok(count) => {
                at += count as u64;
                bytes = &bytes[count..];
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).on("write to", name),
        }
    }
    Ok(())
}
