//! Frames of a list, read out of their packs.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use skiff_sys::positional::read_exact_at;
use skiff_sys::{IgnoreError, SystemContext};
use zstd::bulk::Decompressor;

use super::ChunkStore;
use crate::chunk::{ChunkList, ChunkRef, PackFrame};
use crate::error::{Error, Result};
use crate::packs::pack_name;

/// Frames that are kept: of a few packs chunks may lie between each other.
const KEPT: usize = 16;
/// So many packs are open at once, by all threads together: a checkpoint that was saved often has chunks in thousands.
const MOST_OPEN: usize = 64;

/// Who reads frames, one at a time.
pub(super) struct FrameReader<'a> {
    store: &'a ChunkStore,
    list: &'a ChunkList,
    open: HashMap<u32, OwnedFd>,
    most_open: usize,
    decompressor: Decompressor<'static>,
    /// What lies in a pack of a frame that is compressed there.
    stored: Vec<u8>,
    /// Frames that were read last, with their numbers; the last one first.
    frames: VecDeque<(u32, Vec<u8>)>,
}

impl<'a> FrameReader<'a> {
    /// One of so many that read at once.
    pub(super) fn new(store: &'a ChunkStore, list: &'a ChunkList, readers: usize) -> Result<Self> {
        let decompressor =
            Decompressor::new().map_err(|_| Errno::NOMEM).on("decompress", store.object(""))?;
        let (open, stored, frames) = (HashMap::new(), vec![], VecDeque::new());
        let most_open = MOST_OPEN / readers.clamp(1, MOST_OPEN);
        Ok(Self { store, list, open, most_open, decompressor, stored, frames })
    }

    /// The bytes of these chunks, which lie in one frame, one behind the other; each is checked by its digest.
    pub(super) fn chunks(&mut self, chunks: &[ChunkRef]) -> Result<&[u8]> {
        let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else { return Ok(&[]) };
        let number = first.frame;
        let kept = self.frames.iter().position(|(kept, _)| *kept == number);
        let bytes = match kept.and_then(|at| self.frames.remove(at)) {
            Some((_, bytes)) => bytes,
            None => self.frame(self.list.frames[number as usize])?,
        };
        self.frames.push_front((number, bytes));
        let bytes = &self.frames[0].1;
        let is_right = |chunk: &ChunkRef| {
            let bytes = &bytes[chunk.offset as usize..][..chunk.length as usize];
            *blake3::hash(bytes).as_bytes() == chunk.digest
        };
        match chunks.iter().all(is_right) {
            true => Ok(&bytes[first.offset as usize..(last.offset + last.length) as usize]),
            false => Err(self.damaged(self.list.frames[number as usize], "a chunk has another digest")),
        }
    }

    /// Has the kernel begin to read the frames of these chunks. Where it does not, they are read when they are wanted.
    pub(super) fn read_ahead(&mut self, chunks: &[ChunkRef]) {
        let frames = chunks.chunk_by(|one, next| one.frame == next.frame).map(|same| same[0].frame);
        let mut frames = frames.map(|number| self.list.frames[number as usize]).peekable();
        while let Some(PackFrame { pack, at, stored, .. }) = frames.next() {
            let mut end = at.saturating_add(u64::from(stored));
            while let Some(next) = frames.next_if(|next| next.pack == pack && next.at == end) {
                end = end.saturating_add(u64::from(next.stored));
            }
            if let Ok(file) = self.pack(pack) {
                rustix::fs::fadvise(file, at, NonZero::new(end - at), Advice::WillNeed)
                    .ignore_error("it is only faster");
            }
        }
    }

    fn frame(&mut self, frame: PackFrame) -> Result<Vec<u8>> {
        let PackFrame { pack, at, stored, length } = frame;
        // Memory for a frame is found once, not for each.
        let mut bytes = match self.frames.len() < KEPT {
            true => vec![],
            false => self.frames.pop_back().map(|(_, bytes)| bytes).unwrap_or_default(),
        };
        let is_compressed = stored != length;
        let mut read = if is_compressed { mem::take(&mut self.stored) } else { mem::take(&mut bytes) };
        read.resize(stored as usize, 0);
        let object = self.store.object(&pack_name(&self.list.packs[pack as usize]));
        match read_exact_at(self.pack(pack)?.as_fd(), &mut read, at) {
            Ok(()) => {}
            Err(Errno::NODATA) => return Err(self.damaged(frame, "it is cut off")),
            Err(errno) => return Err(errno).on("read", &object)?,
        }
        if !is_compressed {
            return Ok(read);
        }
        bytes.resize(length as usize, 0);
        let inflated = self.decompressor.decompress_to_buffer(&read, &mut bytes[..]);
        self.stored = read;
        match inflated {
            Ok(inflated) if inflated == length as usize => Ok(bytes),
            _ => Err(self.damaged(frame, "it cannot be decompressed")),
        }
    }

    fn pack(&mut self, pack: u32) -> Result<&OwnedFd> {
        if !self.open.contains_key(&pack) && self.open.len() >= self.most_open {
            let one = self.open.keys().next().copied();
            one.and_then(|one| self.open.remove(&one));
        }
        match self.open.entry(pack) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(place) => {
                let name = pack_name(&self.list.packs[pack as usize]);
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                match rustix::fs::openat(&self.store.packs, &name, flags, Mode::empty()) {
                    Ok(file) => Ok(place.insert(file)),
                    Err(Errno::NOENT) => Err(missing(self.store.object(&name))),
                    Err(errno) => Err(errno).on("open", self.store.object(&name))?,
                }
            }
        }
    }

    fn damaged(&self, PackFrame { pack, at, .. }: PackFrame, why: &str) -> Error {
        let object = self.store.object(&pack_name(&self.list.packs[pack as usize]));
        let object = skiff_sys::error::show(&object);
        Error::BadChunks { object, why: format!("{why} (at {at})") }
    }
}

fn missing(pack: Vec<u8>) -> Error {
    Error::BadChunks { object: skiff_sys::error::show(&pack), why: "it is missing".into() }
}
