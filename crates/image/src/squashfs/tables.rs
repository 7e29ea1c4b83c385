//! The tables of a squashfs as they are written: rows of blocks of metadata, none of them compressed, so that where each comes to lie is
//! known before it is written.

use std::os::fd::BorrowedFd;

use skiff_sys::positional::write_all_at;

use crate::error::Result;
use skiff_sys::SystemContext;

use super::metadata::BLOCK;

/// Before each block of metadata stands its length, with this bit if it is stored as it is.
const STORED: u16 = 1 << 15;
const HEADER: usize = 2;
/// So much is written at once.
const PIECE: usize = 1 << 20;

/// A row of blocks of metadata that grows.
#[derive(Default)]
pub(super) struct Row(Vec<u8>);

/// A place in a row: the block, as bytes from the row's start, and the offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MetadataRef {
    pub block: u32,
    pub offset: u16,
}

/// An inode that was written.
#[derive(Clone, Copy)]
pub(super) struct WrittenInode {
    pub place: MetadataRef,
    pub number: u32,
}

impl MetadataRef {
    /// As references of inodes and attributes are written.
    pub fn reference(self) -> u64 {
        u64::from(self.block) << 16 | u64::from(self.offset)
    }
}

impl Row {
    pub fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn put16(&mut self, number: u16) {
        self.put(&number.to_le_bytes());
    }

    pub fn put32(&mut self, number: u32) {
        self.put(&number.to_le_bytes());
    }

    pub fn put64(&mut self, number: u64) {
        self.put(&number.to_le_bytes());
    }

    /// First bytes of the row.
    pub fn start<const N: usize>(&self) -> [u8; N] {
        let mut start = [0; N];
        let len = self.0.len().min(N);
        start[..len].copy_from_slice(&self.0[..len]);
        start
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where the next byte comes to lie; nothing if no reference leads so far.
    pub fn next(&self) -> Option<MetadataRef> {
        let block = u32::try_from(self.0.len() / BLOCK * (HEADER + BLOCK)).ok()?;
        Some(MetadataRef { block, offset: (self.0.len() % BLOCK) as u16 })
    }
}

/// Writes one piece after the other from some place of a file on.
pub(super) struct Out<'a> {
    file: BorrowedFd<'a>,
    name: &'a str,
    /// Where the buffer's first byte comes to lie.
    at: u64,
    buffer: Vec<u8>,
}

impl<'a> Out<'a> {
    pub fn new(file: BorrowedFd<'a>, name: &'a str, at: u64) -> Out<'a> {
        Out { file, name, at, buffer: vec![] }
    }

    /// Where the next byte comes to lie.
    pub fn at(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < PIECE { Ok(()) } else { self.flush() }
    }

    /// A row; gives the places of its blocks.
    pub fn row(&mut self, row: &Row) -> Result<Vec<u64>> {
        let mut places = vec![];
        for block in row.0.chunks(BLOCK) {
            places.push(self.at());
            self.put(&(block.len() as u16 | STORED).to_le_bytes())?;
            self.put(block)?;
        }
        Ok(places)
    }

    /// A row, and behind it the places of its blocks; gives where those stand.
    pub fn table(&mut self, row: &Row, header: impl FnOnce(&mut Self) -> Result<()>) -> Result<u64> {
        let places = self.row(row)?;
        let list = self.at();
        header(self)?;
        places.iter().try_for_each(|place| self.put(&place.to_le_bytes()))?;
        Ok(list)
    }

    pub fn flush(&mut self) -> Result<()> {
        write_all_at(self.file, &self.buffer, self.at).on("write to", self.name)?;
        self.at = self.at();
        self.buffer.clear();
        Ok(())
    }
}
