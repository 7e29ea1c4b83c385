//! The data of a layer's files on its way into the layer's file: full blocks there, the rest of each file beside them.

use std::os::fd::BorrowedFd;

use skiff_erofs::tree::{BLOCK, BlockRun, Content, Sparse};
use skiff_image::spill::Spill;
use skiff_image::sum::DataSum;
use skiff_sys::SystemContext;
use skiff_sys::positional::write_all_at;

use crate::error::{Error, Result};

/// Data is written in pieces of this size.
const GATHER: usize = 1 << 20;
/// The metadata of files with holes grows with their length: by a few MiB for each TiB. No more than this is a layer's.
const MOST_SPARSE: u64 = 64 << 40;
const BLOCK_SIZE: usize = BLOCK as usize;

/// Takes the data in the order in which it comes.
pub(super) struct DataWriter<'a> {
    image: BorrowedFd<'a>,
    name: &'a str,
    /// Whole blocks that are not written yet.
    gathered: Vec<u8>,
    /// Number of the first of these in the file.
    block: u64,
    sum: DataSum,
    /// Length of all files with holes together.
    sparse: u64,
    /// The ends of files, less than a block each.
    pub tails: Spill,
}

/// What was written of a file so far.
pub(super) enum Part {
    /// All of it comes in one piece.
    Whole { size: u64, block: u32, tail: u64, taken: u64 },
    /// A file with holes.
    Sparse { sparse: Sparse, block: Option<(u32, Box<[u8; BLOCK_SIZE]>)> },
}

impl<'a> DataWriter<'a> {
    pub fn new(image: BorrowedFd<'a>, name: &'a str, tails: Spill) -> Self {
        // The first block is the superblock's.
        Self {
            image,
            name,
            gathered: Vec::with_capacity(GATHER),
            block: 1,
            sum: DataSum::default(),
            sparse: 0,
            tails,
        }
    }

    /// Begins a file of this length, of which the first piece of data is this one.
    pub fn begin(&mut self, size: u64, first: Option<(u64, u64)>) -> Result<Part> {
        self.number(size.div_ceil(BLOCK))?;
        let whole = matches!(first, Some((0, length)) if length == size) || size == 0;
        if whole {
            return Ok(Part::Whole {
                size,
                block: self.number(self.next())?,
                tail: self.tails.end(),
                taken: 0,
            });
        }
        self.sparse = self.sparse.saturating_add(size);
        if self.sparse > MOST_SPARSE {
            return Err(Error::unsound(self.name, "its files with holes are longer than 64 TiB together"));
        }
        Ok(Part::Sparse { sparse: Sparse { size, runs: vec![] }, block: None })
    }

    /// Takes data that lies there in the file.
    pub fn take(&mut self, part: &mut Part, at: u64, bytes: &[u8]) -> Result<()> {
        match part {
            Part::Whole { size, taken, .. } => {
                let full = (*size / BLOCK * BLOCK).saturating_sub(*taken).min(bytes.len() as u64) as usize;
                *taken += bytes.len() as u64;
                self.append(&bytes[..full])?;
                Ok(self.tails.append(&bytes[full..])?)
            }
            Part::Sparse { sparse, block } => self.take_piece(sparse, block, at, bytes),
        }
    }

    /// A file with holes is kept in whole blocks, filled up with zeros.
    fn take_piece(
        &mut self,
        sparse: &mut Sparse,
        open: &mut Option<(u32, Box<[u8; BLOCK_SIZE]>)>,
        mut at: u64,
        mut bytes: &[u8],
    ) -> Result<()> {
        while !bytes.is_empty() {
            let (number, within) = (self.number(at / BLOCK)?, (at % BLOCK) as usize);
            if open.as_ref().is_some_and(|(begun, _)| *begun != number) {
                self.close(sparse, open)?;
            }
            let (_, block) = open.get_or_insert_with(|| (number, Box::new([0; BLOCK_SIZE])));
            let now = bytes.len().min(BLOCK_SIZE - within);
            block[within..within + now].copy_from_slice(&bytes[..now]);
            at += now as u64;
            bytes = &bytes[now..];
        }
        Ok(())
    }

    fn close(&mut self, sparse: &mut Sparse, open: &mut Option<(u32, Box<[u8; BLOCK_SIZE]>)>) -> Result<()> {
        let Some((at, bytes)) = open.take() else { return Ok(()) };
        let block = self.number(self.next())?;
        self.append(&bytes[..])?;
        match sparse.runs.last_mut() {
            Some(run) if run.at + run.blocks == at && run.block + run.blocks == block => run.blocks += 1,
            _ => sparse.runs.push(BlockRun { at, block, blocks: 1 }),
        }
        Ok(())
    }

    /// The file, all of whose data has come.
    pub fn end(&mut self, part: Part) -> Result<Content> {
        match part {
            Part::Whole { size, block, tail, .. } => Ok(Content::Whole { size, block, tail }),
            Part::Sparse { mut sparse, mut block } => {
                self.close(&mut sparse, &mut block)?;
                Ok(Content::Sparse(Box::new(sparse)))
            }
        }
    }

    /// Number of the block that the next byte comes to lie in.
    fn next(&self) -> u64 {
        self.block + (self.gathered.len() / BLOCK_SIZE) as u64
    }

    fn number(&self, block: u64) -> Result<u32> {
        u32::try_from(block)
            .map_err(|_| Error::unsound(self.name, "a layer has at most 2^32 blocks of 4 KiB"))
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let now = bytes.len().min(GATHER - self.gathered.len());
            self.gathered.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
            if self.gathered.len() == GATHER {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.number(self.next())?;
        let at = self.block * BLOCK;
        self.sum.add(at, &self.gathered);
        write_all_at(self.image, &self.gathered, at).on("write to", self.name)?;
        self.block = self.next();
        self.gathered.clear();
        Ok(())
    }

    /// Writes what is left: the number of the block behind all data, the sum of the blocks before it, and the ends of the files.
    pub fn finish(mut self) -> Result<(u32, u64, Spill)> {
        self.flush()?;
        self.tails.flush()?;
        Ok((self.number(self.block)?, self.sum.total(), self.tails))
    }
}
