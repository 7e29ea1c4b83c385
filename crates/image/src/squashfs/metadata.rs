//! Metadata: inodes, directories and tables, in blocks of 8 KiB that are compressed one by one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::error::{Error, Result};
use crate::transport::FilePart;

use super::unpack::Decompressor;

/// What a block of metadata unpacks to, at most.
pub(super) const BLOCK: usize = 8192;
/// A block's length has this bit if it is stored as it is.
const STORED: u16 = 1 << 15;
/// So many are kept unpacked: 8 MiB.
const KEPT: usize = 1024;

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..at + 2].try_into().map_or(0, u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// What is wrong with metadata.
#[derive(Debug)]
pub(super) struct Bad(String);

impl Bad {
    pub fn new(why: impl Into<String>) -> Bad {
        Bad(why.into())
    }

    pub fn in_file(self, part: &FilePart) -> Error {
        Error::Foreign { object: part.name.clone(), why: format!("it is damaged: {}", self.0), hint: None }
    }
}

/// A row of blocks of metadata.
pub(super) struct MetadataBlocks {
    part: FilePart,
    unpacker: Decompressor,
    start: u64,
    /// By their places.
    kept: RefCell<HashMap<u64, Block>>,
}

/// A block that was unpacked, and where the next one is.
type Block = (Rc<[u8]>, u64);

impl MetadataBlocks {
    pub fn new(part: FilePart, unpacker: Decompressor, start: u64) -> MetadataBlocks {
        MetadataBlocks { part, unpacker, start, kept: RefCell::default() }
    }

    /// What a reference names: a block, counted in bytes from the start, and a place in it.
    pub fn at(&self, reference: u64) -> Cursor<'_> {
        self.place(reference >> 16, (reference & 0xffff) as usize)
    }

    pub fn place(&self, block: u64, offset: usize) -> Cursor<'_> {
        Cursor { blocks: self, block: self.start.saturating_add(block), offset }
    }

    fn block(&self, at: u64) -> Result<Block, Bad> {
        if let Some((bytes, next)) = self.kept.borrow().get(&at) {
            return Ok((Rc::clone(bytes), *next));
        }
        let outside = |_| Bad::new("some of its metadata does not lie in it");
        let mut header = [0; 2];
        self.part.read(&mut header, at).map_err(outside)?;
        let header = u16::from_le_bytes(header);
        let len = usize::from(header & !STORED);
        if len == 0 || len > BLOCK {
            return Err(Bad::new("a block of metadata has no possible length"));
        }
        let mut packed = vec![0; len];
        self.part.read(&mut packed, at + 2).map_err(outside)?;
        let bytes = if header & STORED != 0 {
            packed
        } else {
            let mut bytes = vec![0; BLOCK];
            let count = self.unpacker.unpack(&packed, &mut bytes).map_err(Bad::new)?;
            bytes.truncate(count);
            bytes
        };
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT {
            kept.clear();
        }
        let found = (Rc::from(bytes), at + 2 + len as u64);
        kept.insert(at, found.clone());
        Ok(found)
    }
}

/// A place in a row of blocks, from which is read on.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    blocks: &'a MetadataBlocks,
    block: u64,
    offset: usize,
}

impl Cursor<'_> {
    /// Fills the buffer.
    pub fn read(&mut self, mut buffer: &mut [u8]) -> Result<(), Bad> {
        while !buffer.is_empty() {
            let (bytes, next) = self.blocks.block(self.block)?;
            let here = bytes.get(self.offset..).unwrap_or_default();
            if here.is_empty() {
                // Only full blocks are followed by others.
                if self.offset != BLOCK || bytes.len() != BLOCK {
                    return Err(Bad::new("its metadata ends too early"));
                }
                (self.block, self.offset) = (next, 0);
                continue;
            }
            let count = here.len().min(buffer.len());
            let (now, rest) = buffer.split_at_mut(count);
            now.copy_from_slice(&here[..count]);
            self.offset += count;
            buffer = rest;
        }
        Ok(())
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    pub fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    /// So many bytes; `most` is how many there can be.
    pub fn bytes(&mut self, len: usize, most: usize, what: &str) -> Result<Box<[u8]>, Bad> {
        if len > most {
            return Err(Bad::new(format!("{what} of {len} bytes; {most} are the limit")));
        }
        let mut bytes = vec![0; len];
        self.read(&mut bytes)?;
        Ok(bytes.into())
    }

    /// This place as a reference, to come back to.
    pub fn reference(&self) -> u64 {
        (self.block - self.blocks.start) << 16 | self.offset as u64
    }
}

/// A table of entries of one length, whose blocks lie anywhere: a list of their places stands at `list`.
pub(super) struct LookupTable {
    blocks: MetadataBlocks,
    list: u64,
    count: u32,
    width: usize,
}

impl LookupTable {
    /// `blocks` is only for reading: its start does not matter.
    pub fn new(mut blocks: MetadataBlocks, list: u64, count: u32, width: usize) -> Result<LookupTable> {
        blocks.start = 0;
        Ok(LookupTable { blocks, list, count, width })
    }

    /// One entry.
    pub fn entry(&self, number: u32) -> Result<Vec<u8>> {
        if number >= self.count {
            return Err(
                Bad::new("it refers to an entry of a table that is not there").in_file(&self.blocks.part)
            );
        }
        let at = u64::from(number) * self.width as u64;
        let mut entry = vec![0; self.width];
        self.read(at / BLOCK as u64, (at % BLOCK as u64) as usize, &mut entry)?;
        Ok(entry)
    }

    /// All of a small table.
    pub fn all(&self) -> Result<Vec<u8>> {
        let mut all = vec![0; self.count as usize * self.width];
        for (number, piece) in all.chunks_mut(BLOCK).enumerate() {
            self.read(number as u64, 0, piece)?;
        }
        Ok(all)
    }

    fn read(&self, block: u64, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let part = &self.blocks.part;
        let outside = || Bad::new("a table does not lie in it").in_file(part);
        let mut place = [0; 8];
        let at = self.list.checked_add(block * 8).ok_or_else(outside)?;
        part.read(&mut place, at).map_err(|_| outside())?;
        let mut cursor = self.blocks.place(u64::from_le_bytes(place), offset);
        cursor.read(buffer).map_err(|error| error.in_file(part))
    }
}
