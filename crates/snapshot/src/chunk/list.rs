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

use super::{LARGEST, LARGEST_FRAME};
use crate::digest::PackId;
use crate::error::Error;

const MAGIC: &[u8; 8] = b"SKIFFCHK";
const VERSION: u32 = 1;
const UNSOUND: &str = "its list of chunks names what there is not";
const HEADER: usize = 8 + 4 * 4;
const DIGEST: usize = 32;
const FRAME_SIZE: usize = 20;
const CHUNK_SIZE: usize = 44;
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
        let damaged = ListFault::Damaged;
        let cut = damaged("its list of chunks is cut off");
        let mut rest = body.strip_prefix(MAGIC).ok_or(damaged("it is not a list of chunks"))?;
        let version = int(&mut rest).ok_or(cut)?;
        if version != VERSION {
            return Err(ListFault::OtherVersion(version));
        }
        let mut count = || int(&mut rest).map(|count| count as usize).ok_or(cut);
        let [packs, frames, chunks] = [count()?, count()?, count()?];
        // Checked before anything is reserved for them.
        let sizes = [(packs, DIGEST), (frames, FRAME_SIZE), (chunks, CHUNK_SIZE)];
        if rest.len() as u64 != sizes.iter().map(|(count, size)| *count as u64 * *size as u64).sum::<u64>() {
            return Err(damaged("its list of chunks has another length"));
        }
        let packs: Option<_> = (0..packs).map(|_| take(&mut rest).map(PackId)).collect();
        let frames: Option<_> = (0..frames).map(|_| frame(&mut rest)).collect();
        let chunks: Option<_> = (0..chunks).map(|_| chunk(&mut rest)).collect();
        let list = Self { packs: packs.ok_or(cut)?, frames: frames.ok_or(cut)?, chunks: chunks.ok_or(cut)? };
        if list.is_sound() { Ok(list) } else { Err(damaged(UNSOUND)) }
    }

    fn is_sound(&self) -> bool {
        let frame = |frame: &PackFrame| {
            (frame.pack as usize) < self.packs.len()
                && (1..=LARGEST_FRAME).contains(&(frame.length as usize))
                && (1..=frame.length).contains(&frame.stored)
                && frame.at.checked_add(u64::from(frame.stored)).is_some_and(|end| i64::try_from(end).is_ok())
        };
        let chunk = |chunk: &ChunkRef| {
            (1..=LARGEST).contains(&(chunk.length as usize))
                && self.frames.get(chunk.frame as usize).is_some_and(|frame| {
                    chunk.offset.checked_add(chunk.length).is_some_and(|end| end <= frame.length)
                })
        };
        self.frames.iter().all(frame) && self.chunks.iter().all(chunk)
    }
}

fn frame(rest: &mut &[u8]) -> Option<PackFrame> {
    let (pack, at) = (int(rest)?, u64::from_le_bytes(take(rest)?));
    Some(PackFrame { pack, at, stored: int(rest)?, length: int(rest)? })
}

fn chunk(rest: &mut &[u8]) -> Option<ChunkRef> {
    let digest = take(rest)?;
    Some(ChunkRef { digest, length: int(rest)?, frame: int(rest)?, offset: int(rest)? })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn int(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
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
