//! Writes a layer front to back in large pieces.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{BUFFER, HEADER, LayerRecord, NO_EXTENT};
use crate::digest::LayerId;
use crate::error::Result;
use skiff_sys::SystemContext;
use skiff_sys::positional::write_all_at;

/// Where file data lies in a file: offset and length, ascending, without the holes.
pub(crate) type Extents = Vec<(u64, u64)>;

/// Where a layer goes.
pub(crate) trait LayerSink {
    /// Appends bytes, which begin there.
    fn append(&mut self, bytes: &[u8], at: u64) -> Result<()>;
    /// Makes a place at the end, or beyond, the one that it can go back to.
    fn mark(&mut self, at: u64);
    /// Forgets what was appended since the mark, which is there.
    fn rewind(&mut self, at: u64) -> Result<()>;
    /// What is before this place, the end of the stream so far, and what will be behind it are not likely to change together.
    fn divide(&mut self, at: u64);
}

/// From so many bytes of data on a file is large: it is in several chunks.
const LARGE: u64 = 64 << 10;

/// A file, empty at first.
pub(crate) struct FileSink {
    pub(crate) file: OwnedFd,
    /// The file's name, for messages.
    pub(crate) name: Vec<u8>,
}

impl LayerSink for FileSink {
    fn append(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        Ok(write_all_at(self.file.as_fd(), bytes, at).on("write to", &self.name)?)
    }

    fn mark(&mut self, _at: u64) {}

    fn rewind(&mut self, at: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(&self.file, at).on("truncate", &self.name)?)
    }

    fn divide(&mut self, _at: u64) {}
}

/// A layer being written.
pub(crate) struct LayerWriter<S> {
    sink: S,
    buffer: Vec<u8>,
    filled: usize,
    scratch: Vec<u8>,
    state: State,
}

/// Everything to go back to when a record turns out not to be wanted.
#[derive(Clone)]
struct State {
    written: u64,
    catalog: blake3::Hasher,
    records: u64,
    entries: u64,
    data: u64,
}

/// A place in the layer to go back to.
pub(crate) struct Mark {
    at: u64,
    state: State,
}

/// A layer that is all written, but not yet known to be on disk.
pub(crate) struct FinishedLayer<S> {
    pub(crate) sink: S,
    pub(crate) id: LayerId,
    /// Length of the stream.
    pub(crate) size: u64,
    pub(crate) entries: u64,
}

impl<S: LayerSink> LayerWriter<S> {
    pub(crate) fn new(sink: S) -> Result<Self> {
        let state = State { written: 0, catalog: blake3::Hasher::new(), records: 0, entries: 0, data: 0 };
        let mut writer = LayerWriter { sink, buffer: vec![0; BUFFER], filled: 0, scratch: Vec::new(), state };
        writer.meta(&HEADER)?;
        Ok(writer)
    }

    /// Appends a record. A file's content has to follow by [`LayerWriter::content`].
    pub(crate) fn record(&mut self, record: &LayerRecord) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        record.encode(&mut bytes);
        self.state.records += 1;
        self.state.entries += u64::from(!matches!(record, LayerRecord::Up | LayerRecord::End { .. }));
        let done = self.meta(&bytes);
        self.scratch = bytes;
        done
    }

    /// Appends the content of the file whose record came last, and gives the digest of its data; nothing if the file ended
    /// before its extents did, and then the caller has to go back to before the record.
    pub(crate) fn content(
        &mut self,
        file: BorrowedFd<'_>,
        extents: &Extents,
        path: &[u8],
    ) -> Result<Option<[u8; 32]>> {
        let mut hasher = blake3::Hasher::new();
        // The time and the digest of a file change with each byte of it. Where it is large, its data is a part of its own.
        let is_large = extents.iter().map(|(_, length)| length).sum::<u64>() >= LARGE;
        for (number, &(offset, length)) in extents.iter().enumerate() {
            self.meta(&offset.to_le_bytes())?;
            self.meta(&length.to_le_bytes())?;
            if is_large && number == 0 {
                self.divide();
            }
            let mut at = offset;
            while at < offset + length {
                let got = self.take(file, at, offset + length - at, &mut hasher, path)?;
                if got == 0 {
                    return Ok(None);
                }
                at += got;
            }
            self.state.data += length;
        }
        let digest = *hasher.finalize().as_bytes();
        if is_large {
            self.divide();
        }
        self.meta(&NO_EXTENT.to_le_bytes())?;
        self.meta(&digest)?;
        if is_large {
            self.divide();
        }
        Ok(Some(digest))
    }

    fn divide(&mut self) {
        self.sink.divide(self.state.written + self.filled as u64);
    }

    /// Reads some of a file into the buffer.
    fn take(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        length: u64,
        hasher: &mut blake3::Hasher,
        path: &[u8],
    ) -> Result<u64> {
        if self.filled == self.buffer.len() {
            self.flush()?;
        }
        let room = &mut self.buffer[self.filled..];
        let length = room.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        let got = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut room[..length], at));
        let got = got.on("read", path)?;
        hasher.update(&room[..got]);
        self.filled += got;
        Ok(got as u64)
    }

    fn meta(&mut self, bytes: &[u8]) -> Result<()> {
        self.state.catalog.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.filled == self.buffer.len() {
                self.flush()?;
            }
            let now = rest.len().min(self.buffer.len() - self.filled);
            self.buffer[self.filled..self.filled + now].copy_from_slice(&rest[..now]);
            self.filled += now;
            rest = &rest[now..];
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.sink.append(&self.buffer[..self.filled], self.state.written)?;
        self.state.written += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// The end of what was appended, to go back to until the next mark.
    pub(crate) fn mark(&mut self) -> Mark {
        let at = self.state.written + self.filled as u64;
        self.sink.mark(at);
        Mark { at, state: self.state.clone() }
    }

    /// Forgets what was appended since `mark`, the last one.
    pub(crate) fn rewind(&mut self, mark: Mark) -> Result<()> {
        let written = self.state.written;
        self.state = mark.state;
        if mark.at >= written {
            self.filled = (mark.at - written) as usize;
            self.state.written = written;
            return Ok(());
        }
        // What was in the buffer at the mark has gone on since, and stays there.
        self.sink.rewind(mark.at)?;
        self.state.written = mark.at;
        self.filled = 0;
        Ok(())
    }

    /// Ends the layer.
    pub(crate) fn finish(mut self) -> Result<FinishedLayer<S>> {
        let end = LayerRecord::End { records: self.state.records, data: self.state.data };
        self.record(&end)?;
        self.flush()?;
        Ok(FinishedLayer {
            sink: self.sink,
            id: LayerId(*self.state.catalog.finalize().as_bytes()),
            size: self.state.written,
            entries: self.state.entries,
        })
    }
}
