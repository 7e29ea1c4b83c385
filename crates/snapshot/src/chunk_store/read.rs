//! A stream out of its chunks, each checked by its digest: in order, or by several threads in any order.

use std::io::Write;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use skiff_sys::SystemContext;

use super::frames::FrameReader;
use super::{ChunkStore, StoredList};
use crate::chunk::{ChunkList, ChunkRef};
use crate::error::{Error, Result};

/// Fewest and most chunks of a part: 1 and 16 MiB of the usual size.
const PART: RangeInclusive<usize> = 64..=1024;
/// Parts that the kernel is asked to read ahead: what a disk needs to be busy.
const AHEAD: usize = 8;
/// With two, one hashes while the other waits for the disk. More than eight are not faster.
const THREADS: RangeInclusive<usize> = 2..=8;

/// A stream that is read from its beginning.
pub struct StoredStream<'a> {
    list: &'a ChunkList,
    next: usize,
    frames: FrameReader<'a>,
}

impl ChunkStore {
    /// Begins to read the stream of a list.
    ///
    /// # Errors
    /// There is no memory.
    pub fn read<'a>(&'a self, StoredList(list): &'a StoredList) -> Result<StoredStream<'a>> {
        Ok(StoredStream { list, next: 0, frames: FrameReader::new(self, list, 1)? })
    }

    /// Passes each piece of the stream of a list to `take`, from several threads and in any order, once it is checked: with its place in the stream.
    ///
    /// # Errors
    /// The stream is damaged, or an error of `take`. What is left then is not taken.
    pub fn read_all<E: From<Error> + Send>(
        &self,
        StoredList(list): &StoredList,
        take: impl Fn(u64, &[u8]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<(), E> {
        let parts = parts(&list.chunks);
        let threads = thread::available_parallelism().map_or(1, Into::into);
        let threads = threads.clamp(*THREADS.start(), *THREADS.end()).min(parts.len());
        let [next, advised] = [const { AtomicUsize::new(0) }; 2];
        let work = || {
            let mut frames = FrameReader::new(self, list, threads)?;
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let ahead = part.number + AHEAD;
                for coming in advised.fetch_max(ahead, Ordering::Relaxed)..ahead {
                    parts.get(coming).iter().for_each(|part| frames.read_ahead(part.chunks));
                }
                let mut at = part.at;
                for together in part.chunks.chunk_by(|one, next| follows(next, one)) {
                    let bytes = frames.chunks(together)?;
                    take(at, bytes)?;
                    at += bytes.len() as u64;
                }
            }
            Ok(())
        };
        let until_failed = || work().inspect_err(|_: &E| next.store(parts.len(), Ordering::Relaxed));
        thread::scope(|scope| {
            let start = |_| thread::Builder::new().name("read".into()).spawn_scoped(scope, until_failed);
            // Where there can be no more threads, those that are there do all.
            let started: Vec<_> = (1..threads).map_while(|number| start(number).ok()).collect();
            let own = until_failed();
            // Each has ended when this returns: the caller may fork.
            let joined =
                started.into_iter().map(|thread| thread.join().unwrap_or_else(|why| resume_unwind(why)));
            joined.collect::<Vec<_>>().into_iter().fold(own, std::result::Result::and)
        })
    }
}

/// Chunks that one thread reads.
struct Part<'a> {
    number: usize,
    chunks: &'a [ChunkRef],
    /// Where they begin in the stream.
    at: u64,
}

/// Splits the chunks where a frame ends, so that no frame is read twice if its chunks lie together.
fn parts(chunks: &[ChunkRef]) -> Vec<Part<'_>> {
    let (mut parts, mut left, mut at) = (vec![], chunks, 0);
    while !left.is_empty() {
        let is_cut = |n: &usize| left[n - 1].frame != left[*n].frame;
        let most = left.len().min(*PART.end());
        let end = (*PART.start()..most).find(is_cut).unwrap_or(most);
        let (chunks, rest) = left.split_at(end);
        parts.push(Part { number: parts.len(), chunks, at });
        at += chunks.iter().map(|chunk| u64::from(chunk.length)).sum::<u64>();
        left = rest;
    }
    parts
}

/// Whether a chunk lies right behind another one in its frame.
fn follows(chunk: &ChunkRef, before: &ChunkRef) -> bool {
    chunk.frame == before.frame && chunk.offset == before.offset + before.length
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
            let chunk = self.list.chunks.get(self.next..=self.next).ok_or_else(end)?;
            left = left.checked_sub(u64::from(chunk[0].length)).ok_or_else(end)?;
            to.write_all(self.frames.chunks(chunk)?).on("write", name)?;
            self.next += 1;
        }
        Ok(())
    }
}
