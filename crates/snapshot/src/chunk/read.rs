//! A layer's stream, put together again from its chunks.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use skiff_sys::SystemContext;
use skiff_sys::positional::{read_at, write_all_at};
use zstd::bulk::Decompressor;

use super::LARGEST_FRAME;
use super::list::{ChunkList, ChunkRef, PackFrame};
use super::near::NearLayer;
use crate::digest::{LayerId, PackId};
use crate::error::{Error, Result};
use crate::piece::{DepotPiece, PieceFile, PieceReader};

/// Where packs are.
pub(crate) trait PackSource: Sync {
    /// Opens a pack.
    fn open_pack(&self, pack: &PackId) -> Result<OwnedFd>;
}

/// The bytes of a layer in order. Whether they are the right ones is for its reader to see.
pub(crate) struct ChunkReader<'a> {
    packs: &'a dyn PackSource,
    /// Who is asked first.
    reader: Option<&'a dyn PieceReader>,
    layer: LayerId,
    list: ChunkList,
    /// Layers that are on this node: what they have is not read elsewhere.
    near: Vec<NearLayer>,
    /// By number, those that are open.
    open: Vec<Option<OwnedFd>>,
    decompressor: Decompressor<'static>,
    /// What lies in the depot of a frame.
    stored: Vec<u8>,
    /// The frame that was read last, and its number.
    frame: Vec<u8>,
    current: Option<u32>,
    /// Nothing before the first read. Then the numbers of the frames that the reader was told of, as far as they have not been read.
    planned: Option<VecDeque<u32>>,
    /// The chunk that is read, and how much of it was.
    chunk: usize,
    taken: usize,
    /// The chunk, if a near layer had it.
    near_chunk: Option<Vec<u8>>,
}

impl<'a> ChunkReader<'a> {
    pub(crate) fn new(
        packs: &'a dyn PackSource,
        reader: Option<&'a dyn PieceReader>,
        layer: LayerId,
        list: ChunkList,
    ) -> Result<Self> {
        let open = list.packs.iter().map(|_| None).collect();
        let decompressor =
            Decompressor::new().map_err(|_| Errno::NOMEM).on("decompress", layer.to_string())?;
        let [stored, frame] = [vec![0; LARGEST_FRAME], vec![0; LARGEST_FRAME]];
        Ok(Self {
            packs,
            reader,
            layer,
            list,
            near: vec![],
            open,
            decompressor,
            stored,
            frame,
            current: None,
            planned: None,
            chunk: 0,
            taken: 0,
            near_chunk: None,
        })
    }

    /// What it consists of.
    pub(crate) fn list(&self) -> &ChunkList {
        &self.list
    }

    /// Before the first read: takes chunks from these layers where they have them.
    pub(crate) fn take_from(&mut self, near: Vec<NearLayer>) {
        self.near = near;
    }

    /// Says to whoever reads for this process what will be read, in order.
    fn plan(&self) -> VecDeque<u32> {
        let far =
            self.list.chunks.iter().filter(|chunk| !self.near.iter().any(|near| near.has(&chunk.digest)));
        let mut numbers: Vec<u32> = far.map(|chunk| chunk.frame).collect();
        numbers.dedup();
        if let Some(reader) = self.reader {
            let piece = |number: &u32| piece(&self.list, self.list.frames[*number as usize]);
            reader.begin(&numbers.iter().map(piece).collect::<Vec<_>>());
        }
        numbers.into()
    }

    /// The chunk as a near layer has it; nothing where none has, or has something else in its place.
    fn take_near(&mut self, chunk: &ChunkRef) -> Option<Vec<u8>> {
        let near = self.near.iter_mut().find(|near| near.has(&chunk.digest))?;
        near.read(chunk)
    }

    fn fill(&mut self, number: u32) -> Result<()> {
        // It was checked that there is one.
        let frame = self.list.frames[number as usize];
        let PackFrame { pack, at, stored, length } = frame;
        let id = self.list.packs[pack as usize];
        // A frame that was not to be read, as near layers were to have all of it, nobody else is asked for.
        let is_planned = self
            .planned
            .as_mut()
            .is_some_and(|planned| planned.pop_front_if(|next| *next == number).is_some());
        if is_planned && self.filled_by_reader(&piece(&self.list, frame)) {
            return self.inflate(number, (&id, at), (stored, length));
        }
        let slot = &mut self.open[pack as usize];
        let file = match slot {
            Some(file) => file,
            None => slot.insert(self.packs.open_pack(&id)?),
        };
        self.current = None;
        let into = &mut self.stored[..stored as usize];
        if read_at(file.as_fd(), into, at).on("read", id.to_string())? < into.len() {
            return Err(self.damaged("it is cut off", (&id, at)));
        }
        self.inflate(number, (&id, at), (stored, length))
    }

    /// Whether what lies in the depot of a frame has come from somebody else.
    fn filled_by_reader(&mut self, piece: &DepotPiece) -> bool {
        let bytes = self.reader.and_then(|reader| reader.read(piece));
        bytes.filter(|bytes| bytes.len() == piece.length as usize).is_some_and(|bytes| {
            self.stored[..bytes.len()].copy_from_slice(&bytes);
            true
        })
    }

    fn inflate(&mut self, number: u32, place: (&PackId, u64), (stored, length): (u32, u32)) -> Result<()> {
        self.current = None;
        let (stored, frame) = (&self.stored[..stored as usize], &mut self.frame[..length as usize]);
        if stored.len() == frame.len() {
            frame.copy_from_slice(stored);
        } else if self.decompressor.decompress_to_buffer(stored, frame).ok() != Some(length as usize) {
            return Err(self.damaged("what is compressed there cannot be decompressed", place));
        }
        self.current = Some(number);
        Ok(())
    }

    fn damaged(&self, why: &str, (pack, at): (&PackId, u64)) -> Error {
        Error::BadLayer { layer: self.layer.to_string(), why: format!("{why} (in the pack {pack}, at {at})") }
    }
}

fn piece(list: &ChunkList, PackFrame { pack, at, stored, .. }: PackFrame) -> DepotPiece {
    DepotPiece { file: PieceFile::Pack(list.packs[pack as usize]), at, length: stored }
}

impl Read for ChunkReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.planned.is_none() {
            self.planned = Some(self.plan());
        }
        let mut filled = 0;
        while filled < out.len()
            && let Some(&chunk) = self.list.chunks.get(self.chunk)
        {
            let ChunkRef { length, frame, offset, .. } = chunk;
            if self.taken == 0 {
                self.near_chunk = self.take_near(&chunk);
            }
            let bytes = match &self.near_chunk {
                Some(bytes) => &bytes[..],
                None => {
                    if self.current != Some(frame) {
                        self.fill(frame).map_err(io::Error::other)?;
                    }
                    &self.frame[offset as usize..][..length as usize]
                }
            };
            let now = (length as usize - self.taken).min(out.len() - filled);
            out[filled..filled + now].copy_from_slice(&bytes[self.taken..self.taken + now]);
            filled += now;
            self.taken += now;
            if self.taken == length as usize {
                (self.chunk, self.taken) = (self.chunk + 1, 0);
            }
        }
        Ok(filled)
    }
}

/// For fuzzing: reads a layer whose packs are all these bytes, as far as it goes; nothing if there is no memory for them.
pub(crate) fn read_all(list: ChunkList, bytes: &[u8]) -> Option<u64> {
    struct Same(OwnedFd);
    impl PackSource for Same {
        fn open_pack(&self, _pack: &PackId) -> Result<OwnedFd> {
            Ok(rustix::io::fcntl_dupfd_cloexec(&self.0, 0).on("open", "a pack")?)
        }
    }
    let file = rustix::fs::memfd_create(c"pack", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    write_all_at(file.as_fd(), bytes, 0).ok()?;
    let packs = Same(file);
    let mut reader = ChunkReader::new(&packs, None, LayerId([0; 32]), list).ok()?;
    let (mut read, mut buffer) = (0, vec![0; 1 << 16]);
    while let Ok(got @ 1..) = reader.read(&mut buffer) {
        read += got as u64;
    }
    Some(read)
}
