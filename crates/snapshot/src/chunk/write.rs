//! A layer's stream on its way into the depot. One thread reads the environment and cuts; another one hashes what was cut, sees what the
//! depot has already, compresses the rest and writes it.

use std::collections::HashMap;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::io::Errno;
use skiff_sys::SystemError;

use super::cutter::Cutter;
use super::list::{ChunkRef, PackFrame};
use super::pack::PackWriter;
use super::workers::{CompressedFrame, FrameWorkers};
use super::{ChunkList, FRAME, LARGEST_FRAME};
use crate::digest::PackId;
use crate::error::Result;
use crate::layer::LayerSink;

/// How many chunks wait for the second thread.
const WAITING: usize = 64;

/// A layer being cut, compressed and written.
pub(crate) struct ChunkWriter {
    cutter: Cutter,
    /// To the second thread; nothing once that has failed.
    to_packer: Option<SyncSender<CutMessage>>,
    thread: Option<JoinHandle<Result<Written>>>,
}

/// What came of a layer.
pub(crate) struct Written {
    pub(crate) list: ChunkList,
    /// Chunks that the depot had not, with the length of the file; nothing if it had all.
    pub(crate) pack: Option<(OwnedFd, PackId, u64)>,
}

/// What the first thread tells the second one.
enum CutMessage {
    Chunk(Vec<u8>),
    /// All but so many chunks are not part of the layer.
    Rewind(usize),
}

impl ChunkWriter {
    /// Writes what none of the `known` lists has to `pack`, an empty file.
    pub(crate) fn new(pack: OwnedFd, object: Vec<u8>, known: Vec<ChunkList>) -> Result<Self> {
        let packer = ChunkPacker::new(PackWriter::new(pack, object.clone())?, known);
        Self::begin(packer, object, WAITING)
    }

    /// The same for a stream that is to be taken as fast as possible: up to `waiting` chunks wait in memory, and so many further threads
    /// compress.
    pub(crate) fn fast(
        pack: OwnedFd,
        object: Vec<u8>,
        known: Vec<ChunkList>,
        (waiting, threads): (usize, usize),
    ) -> Result<Self> {
        let mut packer = ChunkPacker::new(PackWriter::new(pack, object.clone())?, known);
        packer.workers = Some(FrameWorkers::start(threads, &object)?);
        Self::begin(packer, object, waiting)
    }

    fn begin(mut packer: ChunkPacker, object: Vec<u8>, waiting: usize) -> Result<Self> {
        let (to_packer, waiting) = sync_channel(waiting);
        let work = move || {
            packer.work(&waiting)?;
            packer.finish()
        };
        let thread = std::thread::Builder::new().name("packer".into()).spawn(work);
        let thread = thread.map_err(|e| {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
            SystemError::new("start the thread that writes", object, errno)
        })?;
        Ok(Self { cutter: Cutter::default(), to_packer: Some(to_packer), thread: Some(thread) })
    }

    /// Appends a chunk, cut by whoever knows better. Not together with [`LayerSink::append`].
    pub(crate) fn chunk(&mut self, bytes: Vec<u8>) -> Result<()> {
        send(self.to_packer.as_ref(), CutMessage::Chunk(bytes)).map_err(|Closed| self.failure())
    }

    pub(crate) fn finish(mut self) -> Result<Written> {
        let cutter = take(&mut self.cutter);
        let to_packer = self.to_packer.take();
        // If that fails, the thread says why.
        let (Ok(()) | Err(Closed)) =
            cutter.finish(|chunk| send(to_packer.as_ref(), CutMessage::Chunk(chunk.to_vec())));
        drop(to_packer);
        self.end()
    }

    /// Why the thread has ended too early.
    fn failure(&mut self) -> crate::Error {
        self.to_packer = None;
        match self.end() {
            Err(e) => e,
            Ok(_) => broken().into(),
        }
    }

    fn end(&mut self) -> Result<Written> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) | None => Err(broken().into()),
        }
    }
}

impl LayerSink for ChunkWriter {
    fn append(&mut self, bytes: &[u8], _at: u64) -> Result<()> {
        let to_packer = &self.to_packer;
        match self.cutter.append(bytes, |chunk| send(to_packer.as_ref(), CutMessage::Chunk(chunk.to_vec()))) {
            Ok(()) => Ok(()),
            Err(Closed) => Err(self.failure()),
        }
    }

    fn mark(&mut self, at: u64) {
        self.cutter.mark(at);
    }

    fn divide(&mut self, at: u64) {
        self.cutter.divide(at);
    }

    fn rewind(&mut self, _at: u64) -> Result<()> {
        let left = self.cutter.rewind();
        send(self.to_packer.as_ref(), CutMessage::Rewind(left)).map_err(|Closed| self.failure())
    }
}

impl Drop for ChunkWriter {
    /// A layer that is given up is written to no longer.
    fn drop(&mut self) {
        self.to_packer = None;
        // What it says is of no use any more.
        let (Ok(_) | Err(_)) = self.end();
    }
}

/// The thread takes no more.
struct Closed;

fn send(to_packer: Option<&SyncSender<CutMessage>>, message: CutMessage) -> std::result::Result<(), Closed> {
    to_packer.ok_or(Closed)?.send(message).map_err(|_| Closed)
}

fn broken() -> SystemError {
    SystemError::new("write", "a pack", Errno::PIPE)
}

/// Where a chunk lies.
#[derive(Clone, Copy)]
enum ChunkLocation {
    /// In a frame of a list that was known before.
    Known { list: u32, frame: u32, offset: u32 },
    /// In a frame of the new pack.
    New { frame: u32, offset: u32 },
}

/// The second thread's work.
struct ChunkPacker {
    pack: PackWriter,
    /// Who compresses; nobody: this thread does.
    workers: Option<FrameWorkers>,
    known: Vec<ChunkList>,
    locations: HashMap<[u8; 32], ChunkLocation>,
    /// The layer's chunks and their lengths.
    chunks: Vec<([u8; 32], u32)>,
    /// Frames of the new pack; one that is not compressed yet is there with no length.
    frames: Vec<PackFrame>,
    /// The next one.
    frame: Vec<u8>,
}

impl ChunkPacker {
    fn new(pack: PackWriter, mut known: Vec<ChunkList>) -> Self {
        let mut locations = HashMap::with_capacity(known.iter().map(|list| list.chunks.len()).sum());
        for (number, list) in known.iter_mut().enumerate() {
            // Of the list its packs and frames are needed from here on; there may be many millions of chunks.
            for ChunkRef { digest, frame, offset, .. } in take(&mut list.chunks) {
                locations.entry(digest).or_insert(ChunkLocation::Known {
                    list: number as u32,
                    frame,
                    offset,
                });
            }
        }
        let frame = Vec::with_capacity(LARGEST_FRAME);
        Self { pack, workers: None, known, locations, chunks: vec![], frames: vec![], frame }
    }

    fn work(&mut self, waiting: &Receiver<CutMessage>) -> Result<()> {
        for message in waiting {
            match message {
                CutMessage::Chunk(bytes) => self.chunk(&bytes)?,
                CutMessage::Rewind(left) => self.chunks.truncate(left),
            }
        }
        Ok(())
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let digest = *blake3::hash(bytes).as_bytes();
        self.chunks.push((digest, bytes.len() as u32));
        if self.locations.contains_key(&digest) {
            return Ok(());
        }
        let (frame, offset) = (self.frames.len() as u32, self.frame.len() as u32);
        self.locations.insert(digest, ChunkLocation::New { frame, offset });
        self.frame.extend_from_slice(bytes);
        if self.frame.len() >= FRAME {
            self.end_frame()?;
        }
        Ok(())
    }

    fn end_frame(&mut self) -> Result<()> {
        let Some(workers) = &mut self.workers else {
            let frame = self.pack.frame(&self.frame)?;
            self.frames.push(frame);
            self.frame.clear();
            return Ok(());
        };
        let bytes = std::mem::replace(&mut self.frame, Vec::with_capacity(LARGEST_FRAME));
        let number = self.frames.len();
        self.frames.push(PackFrame { pack: 0, at: 0, stored: 0, length: 0 });
        let compressed = workers.compress(number, bytes).ok_or_else(broken)?;
        self.place(compressed)
    }

    /// Appends what the workers have compressed to the pack.
    fn place(&mut self, compressed: Vec<CompressedFrame>) -> Result<()> {
        for CompressedFrame { number, stored, length } in compressed {
            self.frames[number] = self.pack.compressed(&stored, length)?;
        }
        Ok(())
    }

    /// Puts together the layer's list, of what was known and what is new.
    fn finish(mut self) -> Result<Written> {
        if !self.frame.is_empty() {
            self.end_frame()?;
        }
        if let Some(workers) = self.workers.take() {
            self.place(workers.end())?;
        }
        let Self { pack, known, locations, chunks, frames: new, .. } = self;
        // A worker that has ended too early has not given its frame back.
        if new.iter().any(|frame| frame.length == 0) {
            return Err(SystemError::new("compress into", pack.object(), Errno::PIPE).into());
        }
        let (file, id, length) = pack.finish();
        let mut builder = ListBuilder::default();
        builder.list.chunks.reserve_exact(chunks.len());
        for (digest, length) in chunks {
            let (frame, offset) = match locations[&digest] {
                ChunkLocation::New { frame, offset } => (builder.frame(id, new[frame as usize]), offset),
                ChunkLocation::Known { list, frame, offset } => {
                    let list = &known[list as usize];
                    let frame = list.frames[frame as usize];
                    (builder.frame(list.packs[frame.pack as usize], frame), offset)
                }
            };
            builder.list.chunks.push(ChunkRef { digest, length, frame, offset });
        }
        Ok(Written { list: builder.list, pack: (!new.is_empty()).then_some((file, id, length)) })
    }
}

/// The list that is being put together, and what is in it already.
#[derive(Default)]
pub(crate) struct ListBuilder {
    pub(crate) list: ChunkList,
    packs: HashMap<PackId, u32>,
    frames: HashMap<(u32, u64), u32>,
}

impl ListBuilder {
    /// Appends a chunk of another list.
    pub(crate) fn add(&mut self, from: &ChunkList, chunk: &ChunkRef) {
        let frame = from.frames[chunk.frame as usize];
        let frame = self.frame(from.packs[frame.pack as usize], frame);
        self.list.chunks.push(ChunkRef { frame, ..*chunk });
    }

    /// The number of a frame in a pack.
    fn frame(&mut self, pack: PackId, frame: PackFrame) -> u32 {
        let Self { list, packs, frames } = self;
        let pack = *packs.entry(pack).or_insert_with(|| {
            list.packs.push(pack);
            list.packs.len() as u32 - 1
        });
        *frames.entry((pack, frame.at)).or_insert_with(|| {
            list.frames.push(PackFrame { pack, ..frame });
            list.frames.len() as u32 - 1
        })
    }
}
