//! New chunks on their way into the store.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::AtFlags;
use skiff_sys::SystemContext;

use super::{ChunkStore, StoredList};
use crate::chunk::{ChunkList, ChunkRef, ChunkWriter, ListBuilder};
use crate::depot::PACKS;
use crate::digest::PackId;
use crate::error::{Error, Result};
use crate::file::Temp;
use crate::packs::pack_name;

/// Chunks that wait in memory: 64 MiB of the usual size.
const WAITING: usize = 4096;
/// No more threads compress: so many are faster than the one that brings the bytes.
const MOST_THREADS: usize = 8;

/// A stream of chunks being written.
pub struct StoreWriter<'a> {
    store: &'a ChunkStore,
    temp: Temp<'a>,
    writer: ChunkWriter,
}

/// A part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamPart {
    /// The next so many of the chunks that were appended.
    Appended(usize),
    /// These chunks of another list.
    Other(Range<usize>),
}

/// What was written.
pub struct WrittenList {
    /// The bytes of the list.
    pub list: Vec<u8>,
    /// Bytes of the stream.
    pub length: u64,
    /// Bytes of the chunks that the store had not, compressed.
    pub new: u64,
}

impl ChunkStore {
    /// Begins a stream. Of its chunks those are written that none of these lists has.
    ///
    /// # Errors
    /// The system's.
    pub fn writer(&self, known: Vec<StoredList>) -> Result<StoreWriter<'_>> {
        let mut lengths = HashMap::new();
        let known = known.into_iter().map(|StoredList(list)| self.reliable(list, &mut lengths));
        let known = known.collect::<Result<_>>()?;
        let (temp, file) = Temp::create(self.packs.as_fd())?;
        let object = self.object(temp.name());
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
        let writer = ChunkWriter::fast(file, object, known, (WAITING, threads))?;
        Ok(StoreWriter { store: self, temp, writer })
    }

    /// The list without chunks that are written anew.
    fn reliable(&self, mut list: ChunkList, lengths: &mut HashMap<PackId, u64>) -> Result<ChunkList> {
        let mut are_reliable = self.are_reliable(&list, lengths)?.into_iter();
        list.chunks.retain(|_| are_reliable.next().unwrap_or_default());
        Ok(list)
    }

    /// Of each chunk of the list, whether a new list may name it. Others are written anew: in a pack that is not there or too short, or in a frame of
    /// which the list needs less than half. Otherwise frames would stay for ever for the few of their chunks that never change.
    ///
    /// # Errors
    /// The system's.
    pub fn reusable(&self, StoredList(list): &StoredList) -> Result<Vec<bool>> {
        self.are_reliable(list, &mut HashMap::new())
    }

    fn are_reliable(&self, list: &ChunkList, lengths: &mut HashMap<PackId, u64>) -> Result<Vec<bool>> {
        let mut missing = HashSet::new();
        for (pack, least) in list.pack_lengths() {
            let length = match lengths.get(&pack) {
                Some(length) => *length,
                None => *lengths.entry(pack).or_insert(self.pack_length(&pack)?),
            };
            if length < least {
                missing.insert(pack);
            }
        }
        let (mut seen, mut needed) = (HashSet::new(), vec![0; list.frames.len()]);
        for chunk in list.chunks.iter().filter(|chunk| seen.insert((chunk.frame, chunk.offset))) {
            needed[chunk.frame as usize] += u64::from(chunk.length);
        }
        let is_reliable = |chunk: &ChunkRef| {
            let frame = list.frames[chunk.frame as usize];
            !missing.contains(&list.packs[frame.pack as usize])
                && needed[chunk.frame as usize] * 2 >= u64::from(frame.length)
        };
        Ok(list.chunks.iter().map(is_reliable).collect())
    }

    /// Length of a pack, 0 if it is not there.
    fn pack_length(&self, pack: &PackId) -> Result<u64> {
        let name = pack_name(pack);
        match rustix::fs::statat(&self.packs, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(stat.st_size.cast_unsigned()),
            Err(rustix::io::Errno::NOENT) => Ok(0),
            other => Ok(other.on("look at", self.object(&name)).map(|_| 0)?),
        }
    }

    pub(super) fn object(&self, name: &str) -> Vec<u8> {
        self.path.join(PACKS).join(name).into_os_string().into_encoded_bytes()
    }
}

impl StoreWriter<'_> {
    /// Appends a chunk, of 1 to 131,072 bytes. It waits if too many do.
    ///
    /// # Errors
    /// Why chunks before could not be written.
    pub fn chunk(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.writer.chunk(bytes)
    }

    /// Waits until all is written. On return the chunks are on the disk; the list is for the caller to keep, before the store is closed.
    ///
    /// # Errors
    /// Why they could not be written.
    pub fn finish(self) -> Result<WrittenList> {
        let (list, new) = self.end()?;
        Ok(WrittenList { list: list.bytes(), length: list.length(), new })
    }

    /// The same for a stream of which a part is in another list: `parts` say in which order, and name each chunk that was appended.
    ///
    /// # Errors
    /// As [`StoreWriter::finish`], or a part is neither in the other list nor new.
    pub fn finish_with(self, other: &StoredList, parts: &[StreamPart]) -> Result<WrittenList> {
        let object = self.store.object("");
        let (appended, new) = self.end()?;
        let is_in = |list: &ChunkList, at: &Range<usize>| list.chunks.get(at.clone()).is_some();
        let mut next = 0;
        let mut builder = ListBuilder::default();
        for part in parts {
            let (list, at) = match part {
                StreamPart::Appended(count) => {
                    next += count;
                    (&appended, next - count..next)
                }
                StreamPart::Other(at) => (&other.0, at.clone()),
            };
            if !is_in(list, &at) {
                break;
            }
            list.chunks[at].iter().for_each(|chunk| builder.add(list, chunk));
        }
        let counts = parts.iter().map(|part| match part {
            StreamPart::Appended(count) => *count,
            StreamPart::Other(at) => at.len(),
        });
        if builder.list.chunks.len() != counts.sum::<usize>() || next != appended.chunks.len() {
            let object = skiff_sys::error::show(&object);
            return Err(Error::BadChunks { object, why: "a part of what was written is missing".into() });
        }
        Ok(WrittenList { list: builder.list.bytes(), length: builder.list.length(), new })
    }

    /// The list, and how many bytes are new.
    fn end(self) -> Result<(ChunkList, u64)> {
        let Self { store, temp, writer } = self;
        let written = writer.finish()?;
        let mut new = 0;
        if let Some((file, id, length)) = written.pack {
            let name = pack_name(&id);
            rustix::fs::fsync(&file).on("sync", store.object(&name))?;
            temp.publish(&name).on("rename into place", store.object(&name))?;
            rustix::fs::fsync(&store.packs).on("sync", store.object(""))?;
            new = length;
        }
        Ok((written.list, new))
    }
}
