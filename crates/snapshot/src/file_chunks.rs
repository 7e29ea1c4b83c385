//! The chunks of a file that nodes share, such as a copy of an image. The file itself is the pack: a list says which chunks it has and where.
//!
//! So a node that has most of the chunks in other files reads only the rest, by whoever reads packs for it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use skiff_sys::SystemContext;
use skiff_sys::positional::read_exact_at;

use crate::chunk::cutter::Cutter;
use crate::chunk::{ChunkList, ChunkReader, ChunkRef, LayerStream, NearLayer, PackFrame, PackSource};
use crate::digest::{LayerId, PackId};
use crate::error::Result;
use crate::piece::PieceReader;

/// Chunks are read together until they have this many bytes. A change costs at least as much.
const FRAME: u32 = 64 << 10;
/// Read and written at once.
const AT_ONCE: usize = 1 << 20;

/// The chunks of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChunks {
    pub(crate) list: ChunkList,
}

/// Why a file could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// The chunks cannot be had.
    #[error("{0}")]
    Chunks(crate::error::Error),
    /// What cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl FileChunks {
    /// Cuts a file. `name` is the digest that it is called by.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn cut(mut file: impl Read, name: [u8; 32]) -> io::Result<Self> {
        let mut list = ChunkList { packs: vec![PackId(name)], ..ChunkList::default() };
        let mut add = |bytes: &[u8]| -> io::Result<()> {
            push(&mut list, bytes);
            Ok(())
        };
        let (mut cutter, mut buffer) = (Cutter::default(), vec![0; AT_ONCE]);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => cutter.append(&buffer[..read], &mut add)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        cutter.finish(&mut add)?;
        Ok(Self { list })
    }

    /// From the bytes of a list; nothing if it is damaged, or another file's.
    #[must_use]
    pub fn parse(bytes: &[u8], (name, length): ([u8; 32], u64)) -> Option<Self> {
        let list = ChunkList::parse(bytes).ok()?;
        let is_plain = list.frames.iter().all(|frame| frame.stored == frame.length);
        (list.packs == [PackId(name)] && list.length() == length && is_plain).then_some(Self { list })
    }

    /// The bytes of the list.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.list.bytes()
    }

    /// How many bytes are read of the file if others have these chunks.
    #[must_use]
    pub fn missing(&self, near: &[NearLayer]) -> u64 {
        let far = self.list.chunks.iter().filter(|chunk| !near.iter().any(|near| near.has(&chunk.digest)));
        let mut frames: Vec<u32> = far.map(|chunk| chunk.frame).collect();
        frames.dedup();
        frames.iter().map(|frame| u64::from(self.list.frames[*frame as usize].length)).sum()
    }

    /// Puts the file together: of what is near, and of the file itself, which `reader` reads as far as it can. Whether the bytes are the right ones is for
    /// the caller to see.
    ///
    /// # Errors
    /// The file cannot be read, or `to` not be written to.
    pub fn write(
        self,
        (file, reader): (OwnedFd, Option<&dyn PieceReader>),
        near: Vec<NearLayer>,
        to: &mut dyn Write,
    ) -> std::result::Result<(), FileFault> {
        let name = self.list.packs.first().map_or([0; 32], |pack| pack.0);
        let packs = OneFile(file);
        let chunks = ChunkReader::new(&packs, reader, LayerId(name), self.list);
        let mut chunks = chunks.map_err(FileFault::Chunks)?;
        chunks.take_from(near);
        let mut buffer = vec![0; AT_ONCE];
        loop {
            match chunks.read(&mut buffer)? {
                0 => return Ok(()),
                read => to.write_all(&buffer[..read])?,
            }
        }
    }
}

/// Adds the next chunk of the file.
fn push(list: &mut ChunkList, bytes: &[u8]) {
    // No chunk has more than 128 KiB.
    let length = bytes.len() as u32;
    let at = list.frames.last().map_or(0, |frame| frame.at + u64::from(frame.length));
    match list.frames.last_mut() {
        Some(frame) if frame.length < FRAME => {
            frame.length += length;
            frame.stored = frame.length;
        }
        _ => list.frames.push(PackFrame { pack: 0, at, stored: length, length }),
    }
    let frame = list.frames.len() as u32 - 1;
    let offset = list.frames[frame as usize].length - length;
    list.chunks.push(ChunkRef { digest: *blake3::hash(bytes).as_bytes(), length, frame, offset });
}

/// The only pack.
struct OneFile(OwnedFd);

impl PackSource for OneFile {
    fn open_pack(&self, _pack: &PackId) -> Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.0, 0).on("open", "the copy of an image")?)
    }
}

/// A file that this node has, whose bytes are the stream.
pub struct ImageFileStream(pub File);

impl LayerStream for ImageFileStream {
    fn read_at(&mut self, into: &mut [u8], at: u64) -> bool {
        read_exact_at(self.0.as_fd(), into, at).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::chunk::SharedChunks;

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.finalize_xof().fill(&mut bytes);
        bytes
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file
    }

    #[test]
    fn only_what_no_other_file_has_is_read() {
        let old = noise(1, 3_000_000);
        let mut new = old.clone();
        new.splice(1_000_000..1_000_000, noise(2, 5000));
        let [old_list, list] =
            [(&old, 1), (&new, 2)].map(|(bytes, name)| FileChunks::cut(&bytes[..], [name; 32]).expect("cut"));
        let bytes = list.bytes();
        assert_eq!(FileChunks::parse(&bytes, ([2; 32], new.len() as u64)), Some(list.clone()));
        for other in [([1; 32], new.len() as u64), ([2; 32], 1)] {
            assert_eq!(FileChunks::parse(&bytes, other), None);
        }
        assert_eq!(list.missing(&[]), new.len() as u64);
        let near = |source: File| {
            let wanted: HashMap<_, _> =
                list.list.chunks.iter().map(|chunk| (chunk.digest, chunk.length)).collect();
            let shared = SharedChunks::of(&wanted, (LayerId([1; 32]), &old_list.list));
            let taken = Arc::new(AtomicU64::new(0));
            (shared.read_by(Box::new(ImageFileStream(source)), Arc::clone(&taken)), taken)
        };
        // What is there need not be in the file at all.
        let (layer, taken) = near(file(&old));
        let missing = list.missing(std::slice::from_ref(&layer));
        assert!(missing < 500_000, "{missing}");
        let mut holey = vec![0; new.len()];
        holey[800_000..1_300_000].copy_from_slice(&new[800_000..1_300_000]);
        let mut out = vec![];
        list.clone().write((file(&holey).into(), None), vec![layer], &mut out).expect("put together");
        assert!(out == new);
        assert!(taken.load(Ordering::Relaxed) > 2_500_000);
        // What the other file has lost is read.
        let (layer, _) = near(file(&old[..1_500_000]));
        let mut out = vec![];
        list.clone().write((file(&new).into(), None), vec![layer], &mut out).expect("put together");
        assert!(out == new);
    }
}
