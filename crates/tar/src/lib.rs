//! Reads tar streams as Docker and GNU tar do: V7, ustar, star, GNU and PAX, sparse files of all kinds.
//!
//! What comes in is foreign: each length is bounded, and where programs have read one archive in two ways (whose size
//! counts: CVE-2025-62518, GHSA-3cv2-h65g-fgmm), this reads as Go's `archive/tar` does, with which images are made.

pub mod build;
pub mod fuzz;
mod header;
mod pax;
mod read;
mod sparse;
#[cfg(test)]
mod tests;
mod write;

use std::convert::Infallible;

pub use read::TarReader;
pub use sparse::Segment;
pub use write::{HEADER, Writer, plain_header};

/// Linux has no longer paths.
pub const LONGEST_PATH: usize = 4096;

/// Bytes that come in order, from a buffer that whoever makes them keeps.
pub trait ByteStream {
    /// Why there are no more.
    type Error;

    /// Some of the next bytes; none at the end.
    fn fill(&mut self) -> Result<&[u8], Self::Error>;
    /// So many of those have been used.
    fn consume(&mut self, used: usize);
    /// Passes over some of the next bytes, so many at most, unseen; gives how many: none at the end.
    fn skip(&mut self, most: u64) -> Result<u64, Self::Error> {
        let have = self.fill()?.len();
        let used = usize::try_from(most).map_or(have, |most| most.min(have));
        self.consume(used);
        Ok(used as u64)
    }
}

impl ByteStream for &[u8] {
    type Error = Infallible;

    fn fill(&mut self) -> Result<&[u8], Self::Error> {
        Ok(self)
    }

    fn consume(&mut self, used: usize) {
        *self = &self[used..];
    }
}

impl<S: ByteStream> ByteStream for &mut S {
    type Error = S::Error;

    fn fill(&mut self) -> Result<&[u8], Self::Error> {
        (**self).fill()
    }

    fn consume(&mut self, used: usize) {
        (**self).consume(used);
    }

    fn skip(&mut self, most: u64) -> Result<u64, Self::Error> {
        (**self).skip(most)
    }
}

/// What a tar stream cannot be read for, where `E` is what its bytes cannot be had for.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    /// Not a tar stream, or one that nobody should unpack: why, and where.
    #[error("no tar stream, or a damaged one: {0}")]
    Bad(String),
    /// The stream could not be read.
    #[error(transparent)]
    Stream(#[from] E),
}

/// One file of the archive. Names are as they stand there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    /// Where it belongs, unchecked: at most [`LONGEST_PATH`] bytes.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits, 0o7777 at most.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub mtime_nsec: u32,
    /// Extended attributes, full names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl TarEntry {
    /// A file of root's that all may read, of no time.
    #[must_use]
    pub const fn plain_file(path: Vec<u8>, size: u64) -> TarEntry {
        TarEntry {
            path,
            kind: EntryKind::File(size),
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 0,
            mtime_nsec: 0,
            xattrs: vec![],
        }
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A file of so many bytes, which follow.
    File(u64),
    /// A file of `size` bytes, of which those in `map` follow.
    Sparse {
        /// Length of the file, holes counted.
        size: u64,
        /// In order, apart from each other, all within the size.
        map: Vec<Segment>,
    },
    /// Another name of the file with this path.
    HardLink(Vec<u8>),
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A directory.
    Directory,
    /// A character device, major and minor number.
    CharDevice(u32, u32),
    /// A block device, major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}
