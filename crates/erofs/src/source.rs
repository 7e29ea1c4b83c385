//! Where a reader's bytes come from: a file, or memory in tests.

use std::cell::RefCell;
use std::fs::File;
use std::io;

use rustix::io::Errno;

/// Bytes that can be read at any place, and whose number does not change.
pub trait ReadAt {
    /// How many there are.
    ///
    /// # Errors
    /// Of the system.
    fn size(&self) -> io::Result<u64>;

    /// Fills the buffer from this place on.
    ///
    /// # Errors
    /// Of the system; `ENODATA` where there are no more bytes.
    fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(self)?.st_size as u64)
    }

    fn read(&self, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match rustix::io::pread(self, &mut *buffer, at) {
                Ok(0) => return Err(Errno::NODATA.into()),
                Ok(count) => {
                    at += count as u64;
                    buffer = &mut buffer[count..];
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl ReadAt for &[u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(Errno::NODATA)?);
        Ok(())
    }
}

/// A part of the source is read at once, since metadata is asked for in small pieces that lie close together.
const PART: u64 = 64 << 10;
/// As many parts are kept.
const PARTS: u64 = 16;

/// Keeps the last parts read of a source.
pub(super) struct Cached<S> {
    source: S,
    size: u64,
    parts: RefCell<Vec<Part>>,
}

#[derive(Clone, Default)]
struct Part {
    number: u64,
    bytes: Vec<u8>,
}

impl<S: ReadAt> Cached<S> {
    pub fn new(source: S) -> io::Result<Cached<S>> {
        let size = source.size()?;
        Ok(Cached { source, size, parts: RefCell::new(vec![Part::default(); PARTS as usize]) })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Past the kept parts: for data, and for much at once.
    pub fn read_directly(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.source.read(buffer, at)
    }

    pub fn read(&self, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let (number, offset) = (at / PART, (at % PART) as usize);
            let part = &mut self.parts.borrow_mut()[(number % PARTS) as usize];
            if part.bytes.is_empty() || part.number != number {
                let length = self.size.saturating_sub(number * PART).min(PART) as usize;
                // Not taken for a part until all of it is there.
                let mut bytes = std::mem::take(&mut part.bytes);
                bytes.resize(length, 0);
                self.source.read(&mut bytes, number * PART)?;
                *part = Part { number, bytes };
            }
            let bytes = part.bytes.get(offset..).filter(|bytes| !bytes.is_empty()).ok_or(Errno::NODATA)?;
            let count = bytes.len().min(buffer.len());
            let (here, rest) = buffer.split_at_mut(count);
            here.copy_from_slice(&bytes[..count]);
            buffer = rest;
            at += count as u64;
        }
        Ok(())
    }
}
