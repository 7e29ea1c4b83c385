//! A stream out of its chunks, each checked by its digest.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use skiff_sys::SystemContext;
use skiff_sys::positional::read_exact_at;
use zstd::bulk::Decompressor;

use super::{ChunkStore, StoredList};
use crate::chunk::{ChunkList, ChunkRef, PackFrame};
use crate::error::{Error, Result};
use crate::packs::pack_name;

/// Frames that are kept: of a few packs chunks may lie between each other.
const KEPT: usize = 16;
/// So many packs are open at once: a checkpoint that was saved often has chunks in thousands.
const MOST_OPEN: usize = 64;

/// A stream that is read from its beginning.
pub struct StoredStream<'a> {
    store: &'a ChunkStore,
    list: ChunkList,
    next: usize,
    open: HashMap<u32, OwnedFd>,
    decompressor: Decompressor<'static>,
    /// Frames that were read last, with their numbers; the last one first.
    frames: VecDeque<(u32, Vec<u8>)>,
}

impl ChunkStore {
    /// Begins to read the stream of a list.
    ///
    /// # Errors
    /// There is no memory.
    pub fn read(&self, StoredList(list): StoredList) -> Result<StoredStream<'_>> {
        let decompressor = Decompressor::new().map_err(|_| Errno::NOMEM).on("decompress", self.object(""))?;
        Ok(StoredStream {
            store: self,
            list,
            next: 0,
            open: HashMap::new(),
            decompressor,
            frames: VecDeque::new(),
        })
    }
}

impl StoredStream<'_> {
    /// Writes the next `length` bytes of the stream, which end with a chunk; `name` is what they are written to, for messages.
    ///
    /// # Errors
    /// They are damaged or end elsewhere, or nobody takes them.
    pub fn copy(&mut self, length: u64, to: &mut dyn Write, name: &str) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let end =
                || Error::BadChunks { object: name.into(), why: "its chunks have another length".into() };
            let chunk = *self.list.chunks.get(self.next).ok_or_else(end)?;
            left = left.checked_sub(u64::from(chunk.length)).ok_or_else(end)?;
            to.write_all(self.chunk(&chunk)?).on("write", name)?;
            self.next += 1;
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &ChunkRef) -> Result<&[u8]> {
        let number = chunk.frame;
        let kept = self.frames.iter().position(|(kept, _)| *kept == number);
        let bytes = match kept.and_then(|at| self.frames.remove(at)) {
            Some((_, bytes)) => bytes,
            None => self.frame(self.list.frames[number as usize])?,
        };
        self.frames.truncate(KEPT - 1);
        self.frames.push_front((number, bytes));
        let bytes = &self.frames[0].1[chunk.offset as usize..][..chunk.length as usize];
        match *blake3::hash(bytes).as_bytes() == chunk.digest {
            true => Ok(bytes),
            false => Err(self.damaged(self.list.frames[number as usize], "a chunk has another digest")),
        }
    }

    fn frame(&mut self, frame: PackFrame) -> Result<Vec<u8>> {
        let PackFrame { pack, at, stored, length } = frame;
        let mut bytes = vec![0; stored as usize];
        let id = self.list.packs[pack as usize];
        let object = self.store.object(&pack_name(&id));
        let file = match self.open.remove(&pack) {
            Some(file) => file,
            None => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                rustix::fs::openat(&self.store.packs, pack_name(&id), flags, Mode::empty())
                    .on("open", &object)?
            }
        };
        match read_exact_at(file.as_fd(), &mut bytes, at) {
            Ok(()) => {}
            Err(Errno::NODATA) => return Err(self.damaged(frame, "it is cut off")),
            Err(errno) => return Err(errno).on("read", &object)?,
        }
        if self.open.len() >= MOST_OPEN {
            self.open.clear();
        }
        self.open.insert(pack, file);
        if stored == length {
            return Ok(bytes);
        }
        match self.decompressor.decompress(&bytes, length as usize) {
            Ok(bytes) if bytes.len() == length as usize => Ok(bytes),
            _ => Err(self.damaged(frame, "it cannot be decompressed")),
        }
    }

    fn damaged(&self, PackFrame { pack, at, .. }: PackFrame, why: &str) -> Error {
        let object = self.store.object(&pack_name(&self.list.packs[pack as usize]));
        let object = skiff_sys::error::show(&object);
        Error::BadChunks { object, why: format!("{why} (at {at})") }
    }
}
