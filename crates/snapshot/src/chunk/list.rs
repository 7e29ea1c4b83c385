//! The chunks of a layer, and where they lie.
//!
//! ```text
//! file  = "SKIFFCHK" version:u32 packs:u32 frames:u32 chunks:u32 pack* frame* chunk* digest:[u8; 32]     numbers little-endian
//! pack  = digest:[u8; 32]                                       name of a file in packs/
//! frame = pack:u32 at:u64 stored:u32 length:u32                 `stored` bytes of it there are `length` bytes; as many: as they are
//! chunk = digest:[u8; 32] length:u32 frame:u32 offset:u32       BLAKE3 of its bytes, which lie in the frame from `offset` on
//! ```
//!
//! The digest at the end is BLAKE3 of all before it. It finds damage; that a chunk is the right one is seen by what the layer's records say.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};

use super::{LARGEST, LARGEST_FRAME};
use crate::digest::PackId;
use crate::error::Error;

const MAGIC: &[u8; 8] = b"SKIFFCHK";
const VERSION: u32 = 1;
const UNSOUND: &str = "its list of chunks names what there is not";
const CUT: ListFault = ListFault::Damaged("its list of chunks is cut off");
const HEADER: usize = 8 + 4 * 4;
const DIGEST: usize = 32;
const FRAME_SIZE: usize = 20;
const CHUNK_SIZE: usize = 44;
/// Read at once of a file, in bytes.
const READ_AT_ONCE: usize = 256 << 10;
/// The largest list that is read: a layer of some 2 TB.
pub(crate) const MAX_SIZE: u64 = 2 << 30;

/// Why bytes are not a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListFault {
    /// Another version of Skiff has written it.
    OtherVersion(u32),
    Damaged(&'static str),
}

impl ListFault {
    pub(crate) const TOO_LONG: Self = Self::Damaged("its list of chunks is too long");

    /// As an error of this layer.
    pub(crate) fn of(self, layer: String) -> Error {
        match self {
            Self::OtherVersion(version) => Error::OtherVersion { layer, version },
            Self::Damaged(why) => Error::BadLayer { layer, why: why.into() },
        }
    }
}

/// Chunks compressed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackFrame {
    /// Number of the pack in the list.
    pub(crate) pack: u32,
    /// Where in that file it begins.
    pub(crate) at: u64,
    /// Bytes there.
    pub(crate) stored: u32,
    /// Bytes of its chunks.
    pub(crate) length: u32,
}

/// A piece of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkRef {
    pub(crate) digest: [u8; 32],
    pub(crate) length: u32,
    /// Number of the frame in the list.
    pub(crate) frame: u32,
    /// Where in the frame's bytes it begins.
    pub(crate) offset: u32,
}

/// What a layer consists of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ChunkList {
    pub(crate) packs: Vec<PackId>,
    pub(crate) frames: Vec<PackFrame>,
    pub(crate) chunks: Vec<ChunkRef>,
}

impl ChunkList {
    /// Bytes of the stream.
    pub(crate) fn length(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.length)).sum()
    }

    /// How long each pack has to be.
    pub(crate) fn pack_lengths(&self) -> BTreeMap<PackId, u64> {
        let mut lengths = BTreeMap::new();
        for frame in &self.frames {
            let length = lengths.entry(self.packs[frame.pack as usize]).or_default();
            *length = frame.at.saturating_add(u64::from(frame.stored)).max(*length);
        }
        lengths
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { packs, frames, chunks } = self;
        let size =
            HEADER + packs.len() * DIGEST + frames.len() * FRAME_SIZE + chunks.len() * CHUNK_SIZE + DIGEST;
        let mut out = Vec::with_capacity(size);
        out.extend(MAGIC);
        for number in [VERSION as usize, packs.len(), frames.len(), chunks.len()] {
            // As many as fit: far more than a layer of the largest size has.
            out.extend((number as u32).to_le_bytes());
        }
        packs.iter().for_each(|pack| out.extend(pack.0));
        for PackFrame { pack, at, stored, length } in frames {
            out.extend(pack.to_le_bytes());
            out.extend(at.to_le_bytes());
            out.extend(stored.to_le_bytes());
            out.extend(length.to_le_bytes());
        }
        for ChunkRef { digest, length, frame, offset } in chunks {
            out.extend(digest);
            [length, frame, offset].into_iter().for_each(|number| out.extend(number.to_le_bytes()));
        }
        let digest = blake3::hash(&out);
        out.extend(digest.as_bytes());
        out
    }

    /// From the bytes of its file; what is wrong with them, if they are none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ListFault> {
        let (body, digest) = bytes.split_last_chunk::<DIGEST>().ok_or(ListFault::Damaged("it is cut off"))?;
        if blake3::hash(body).as_bytes() != digest {
            return Err(ListFault::Damaged("its list of chunks has another digest"));
        }
        Self::parse_body(body)
    }

    /// The part before the digest. Apart, so that fuzzing gets past the digest.
    pub(crate) fn parse_body(body: &[u8]) -> Result<Self, ListFault> {
        Self::read_body(&mut &body[..], body.len() as u64, u32::MAX).map_err(|fault| match fault {
            ListReadFault::Io(_) => CUT,
            ListReadFault::List(fault) => fault,
        })
    }

    /// From a file, of which a list has the next `length` bytes; with no more than `most_packs` packs. What memory that takes follows from what is
    /// there, and not from the length that the file says: a hole has no frames and no chunks.
    pub(crate) fn read(from: impl Read, length: u64, most_packs: u32) -> Result<Self, ListReadFault> {
        Self::read_checked(from, length, |all, body| Self::read_body(all, body, most_packs))
    }

    /// The same without its chunks, which count for the digest alone.
    pub(crate) fn check_frames(from: impl Read, length: u64) -> Result<Self, ListReadFault> {
        Self::read_checked(from, length, |mut all, body| {
            let (list, _) = Self::read_frames(&mut all, body, u32::MAX)?;
            std::io::copy(&mut all, &mut std::io::sink())?;
            Ok(list)
        })
    }

    fn read_checked(
        from: impl Read,
        length: u64,
        read: impl FnOnce(&mut dyn Read, u64) -> Result<Self, ListReadFault>,
    ) -> Result<Self, ListReadFault> {
        let body = length.checked_sub(DIGEST as u64).ok_or(ListFault::Damaged("it is cut off"))?;
        let mut hashed = HashedReader { from, hasher: blake3::Hasher::new() };
        let list = {
            let mut all = BufReader::with_capacity(READ_AT_ONCE, hashed.by_ref().take(body));
            read(&mut all, body)?
        };
        let mut digest = [0; DIGEST];
        hashed.from.read_exact(&mut digest)?;
        match hashed.hasher.finalize().as_bytes() == &digest {
            true => Ok(list),
            false => Err(ListFault::Damaged("its list of chunks has another digest").into()),
        }
    }

    fn read_body(mut from: impl Read, length: u64, most_packs: u32) -> Result<Self, ListReadFault> {
        let from = &mut from;
        let (mut list, chunks) = Self::read_frames(from, length, most_packs)?;
        for _ in 0..chunks {
            let chunk = chunk(from)?;
            if !list.has_frame_of(&chunk) {
                return Err(ListFault::Damaged(UNSOUND).into());
            }
            list.chunks.push(chunk);
        }
        Ok(list)
    }

    /// Packs and frames of a list whose part before the digest has so many bytes, and how many chunks follow.
    pub(crate) fn read_frames(
        from: &mut impl Read,
        length: u64,
        most_packs: u32,
    ) -> Result<(Self, u32), ListReadFault> {
        let damaged = |why| Err(ListFault::Damaged(why).into());
        if &take::<8>(from)? != MAGIC {
            return damaged("it is not a list of chunks");
        }
        let version = int(from)?;
        if version != VERSION {
            return Err(ListFault::OtherVersion(version).into());
        }
        let [packs, frames, chunks] = [int(from)?, int(from)?, int(from)?];
        // Checked before anything is read for them.
        let sizes = [(packs, DIGEST), (frames, FRAME_SIZE), (chunks, CHUNK_SIZE)];
        let size: u64 = sizes.iter().map(|(count, size)| u64::from(*count) * *size as u64).sum();
        if length != HEADER as u64 + size {
            return damaged("its list of chunks has another length");
        }
        if packs > most_packs {
            return damaged("its list of chunks names too many packs");
        }
        let mut list = Self::default();
        for _ in 0..packs {
            list.packs.push(PackId(take(from)?));
        }
        for _ in 0..frames {
            let frame = frame(from)?;
            if !list.has_packs_of(&frame) {
                return damaged(UNSOUND);
            }
            list.frames.push(frame);
        }
        Ok((list, chunks))
    }

    fn has_packs_of(&self, frame: &PackFrame) -> bool {
        (frame.pack as usize) < self.packs.len()
            && (1..=LARGEST_FRAME).contains(&(frame.length as usize))
            && (1..=frame.length).contains(&frame.stored)
            && frame.at.checked_add(u64::from(frame.stored)).is_some_and(|end| i64::try_from(end).is_ok())
    }

    fn has_frame_of(&self, chunk: &ChunkRef) -> bool {
        (1..=LARGEST).contains(&(chunk.length as usize))
            && self.frames.get(chunk.frame as usize).is_some_and(|frame| {
                chunk.offset.checked_add(chunk.length).is_some_and(|end| end <= frame.length)
            })
    }
}

/// Why a list cannot be read from a file.
#[derive(Debug)]
pub(crate) enum ListReadFault {
    Io(std::io::Error),
    List(ListFault),
}

impl From<std::io::Error> for ListReadFault {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ListFault> for ListReadFault {
    fn from(fault: ListFault) -> Self {
        Self::List(fault)
    }
}

/// Sums what is read.
struct HashedReader<R> {
    from: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for HashedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

fn frame(from: &mut impl Read) -> std::io::Result<PackFrame> {
    let (pack, at) = (int(from)?, u64::from_le_bytes(take(from)?));
    Ok(PackFrame { pack, at, stored: int(from)?, length: int(from)? })
}

fn chunk(from: &mut impl Read) -> std::io::Result<ChunkRef> {
    let digest = take(from)?;
    Ok(ChunkRef { digest, length: int(from)?, frame: int(from)?, offset: int(from)? })
}

fn take<const N: usize>(from: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map(|()| bytes)
}

fn int(from: &mut impl Read) -> std::io::Result<u32> {
    take(from).map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ChunkList {
        let frame = |pack, at, stored, length| PackFrame { pack, at, stored, length };
        let chunk = |byte, length, frame, offset| ChunkRef { digest: [byte; 32], length, frame, offset };
        ChunkList {
            packs: vec![PackId([1; 32]), PackId([2; 32])],
            frames: vec![frame(1, 0, 50, 100), frame(0, 1 << 40, 7, 7)],
            chunks: vec![chunk(5, 60, 0, 0), chunk(6, 40, 0, 60), chunk(7, 7, 1, 0), chunk(5, 60, 0, 0)],
        }
    }

    #[test]
    fn a_list_comes_back_as_it_was() {
        assert_eq!(ChunkList::parse(&sample().bytes()), Ok(sample()));
        assert_eq!(ChunkList::parse(&ChunkList::default().bytes()), Ok(ChunkList::default()));
        assert_eq!(sample().length(), 167);
    }

    #[test]
    fn a_list_is_read_from_a_file_for_the_memory_of_what_is_there() {
        let bytes = sample().bytes();
        let read = |bytes: &[u8], length: u64, most| match ChunkList::read(bytes, length, most) {
            Ok(list) => Ok(list),
            Err(ListReadFault::List(ListFault::Damaged(why))) => Err(why),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(read(&bytes, bytes.len() as u64, 2), Ok(sample()));
        assert_eq!(read(&bytes, bytes.len() as u64, 1), Err("its list of chunks names too many packs"));
        let mut altered = bytes.clone();
        *altered.last_mut().expect("bytes") ^= 1;
        assert_eq!(read(&altered, bytes.len() as u64, 2), Err("its list of chunks has another digest"));
        // Holes: after the first entry, which is none, nothing is read.
        struct Holes(Vec<u8>, u64);
        impl Read for Holes {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let head = self.0.len().min(buffer.len());
                buffer[..head].copy_from_slice(&self.0[..head]);
                self.0.drain(..head);
                buffer[head..].fill(0);
                self.1 += buffer.len() as u64;
                Ok(buffer.len())
            }
        }
        for [packs, frames, chunks] in [[1u32, 100_000_000, 0], [1, 0, 40_000_000]] {
            let numbers = [VERSION, packs, frames, chunks].map(u32::to_le_bytes).concat();
            let mut holes = Holes([&MAGIC[..], &numbers].concat(), 0);
            let body = HEADER as u64 + 32 + u64::from(frames) * 20 + u64::from(chunks) * 44;
            let read = ChunkList::read(&mut holes, body + 32, 1);
            assert!(matches!(read, Err(ListReadFault::List(ListFault::Damaged(UNSOUND)))), "{read:?}");
            assert!(holes.1 <= READ_AT_ONCE as u64, "{} bytes", holes.1);
        }
    }

    #[test]
    fn of_a_list_without_its_chunks_all_is_checked() {
        let (bytes, whole) = (sample().bytes(), sample());
        let read = |bytes: &[u8]| ChunkList::check_frames(bytes, bytes.len() as u64);
        let list = read(&bytes).unwrap();
        assert_eq!((list.packs, list.frames, list.chunks.len()), (whole.packs, whole.frames, 0));
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(read(&altered).is_err(), "byte {at}");
            assert!(read(&bytes[..at]).is_err(), "{at} bytes");
            assert!(ChunkList::check_frames(&bytes[..at], bytes.len() as u64).is_err(), "{at} bytes of all");
        }
    }

    #[test]
    fn a_torn_or_altered_list_is_none() {
        let bytes = sample().bytes();
        for length in 0..bytes.len() {
            assert!(ChunkList::parse(&bytes[..length]).is_err());
            assert!(ChunkList::parse_body(&bytes[..length.min(bytes.len() - 33)]).is_err());
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(ChunkList::parse(&altered).is_err());
        }
    }

    #[test]
    fn a_list_that_names_what_there_is_not_is_refused() {
        let wrong = |change: fn(&mut ChunkList)| {
            let mut list = sample();
            change(&mut list);
            ChunkList::parse(&list.bytes())
        };
        for change in [
            |list: &mut ChunkList| list.frames[0].pack = 2,
            |list: &mut ChunkList| list.frames[0].stored = 101,
            |list: &mut ChunkList| list.frames[0].stored = 0,
            |list: &mut ChunkList| list.frames[0].length = u32::MAX,
            |list: &mut ChunkList| list.frames[0].at = u64::MAX - 3,
            |list: &mut ChunkList| list.frames[0].at = u64::MAX / 2 - 3,
            |list: &mut ChunkList| list.chunks[0].frame = 2,
            |list: &mut ChunkList| list.chunks[0].length = 0,
            |list: &mut ChunkList| list.chunks[1].offset = 61,
            |list: &mut ChunkList| list.chunks[1].offset = u32::MAX,
        ] {
            assert_eq!(wrong(change), Err(ListFault::Damaged(UNSOUND)));
        }
    }
}
