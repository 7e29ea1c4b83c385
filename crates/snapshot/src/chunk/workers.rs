//! Threads that compress frames beside the one that writes them: processes that are being saved stand still meanwhile, and their
//! processors are free.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;
use skiff_sys::SystemError;

use super::pack::FrameCompressor;
use crate::error::Result;

/// A frame, ready to be stored.
pub(super) struct CompressedFrame {
    pub(super) number: usize,
    pub(super) stored: Vec<u8>,
    /// Bytes of its chunks.
    pub(super) length: usize,
}

/// A frame that is to be compressed, with its number.
type FrameJob = (usize, Vec<u8>);

/// The threads.
pub(super) struct FrameWorkers {
    jobs: SyncSender<FrameJob>,
    done: Receiver<CompressedFrame>,
    threads: Vec<JoinHandle<()>>,
}

impl FrameWorkers {
    /// Starts so many, one at least.
    pub(super) fn start(threads: usize, object: &[u8]) -> Result<Self> {
        let threads = threads.max(1);
        let (jobs, waiting) = sync_channel::<FrameJob>(threads);
        let (compressed, done) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let start = |_| {
            let (compressor, waiting, compressed) =
                (FrameCompressor::new(object)?, waiting.clone(), compressed.clone());
            let thread = std::thread::Builder::new()
                .name("compress".into())
                .spawn(move || work(compressor, &waiting, &compressed));
            thread.map_err(|e| {
                let errno = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
                SystemError::new("start a thread that compresses", object, errno).into()
            })
        };
        let threads = (0..threads).map(start).collect::<Result<_>>()?;
        Ok(Self { jobs, done, threads })
    }

    /// Has a frame compressed; what is ready meanwhile, or nothing if all threads have ended.
    pub(super) fn compress(&mut self, number: usize, bytes: Vec<u8>) -> Option<Vec<CompressedFrame>> {
        self.jobs.send((number, bytes)).ok()?;
        Some(self.done.try_iter().collect())
    }

    /// Waits for all frames, and gives those that are left.
    pub(super) fn end(self) -> Vec<CompressedFrame> {
        let Self { jobs, done, threads } = self;
        drop(jobs);
        let left = done.iter().collect();
        // One that has panicked has given nothing back for its frame: that shows.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        left
    }
}

fn work(
    mut compressor: FrameCompressor,
    waiting: &Mutex<Receiver<FrameJob>>,
    compressed: &Sender<CompressedFrame>,
) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, bytes)) = job else { return };
        let stored = compressor.compress(&bytes);
        let frame = match stored.len() == bytes.len() {
            true => CompressedFrame { number, length: bytes.len(), stored: bytes },
            false => CompressedFrame { number, length: bytes.len(), stored: stored.to_vec() },
        };
        if compressed.send(frame).is_err() {
            return;
        }
    }
}
