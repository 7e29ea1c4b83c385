//! Finding memory for files before anything is written there, by threads of its own. It can take longer than all the rest: under a hypervisor that takes
//! back what nobody uses, 3 s for 1 GiB were measured, against 0.3 s for memory that had just been used.

use std::fs::File;
use std::io::ErrorKind;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, available_parallelism, spawn};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

/// So many bytes are found at a time.
const PART: u64 = 16 << 20;
/// More processors than these do not find it faster.
const MOST_THREADS: usize = 8;

/// Memory that has been found for what is no file: given back to the kernel just before somebody wants as much of it, it is the first that they get.
#[derive(Debug)]
pub struct Reserve {
    file: File,
    /// Bytes that have been given back.
    given: AtomicU64,
    size: u64,
}

impl Reserve {
    /// One with no memory in it yet, but for so many bytes.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn new(size: u64) -> Result<Self> {
        let about = || "memory for pages";
        let file = File::from(memfd_create("reserve", MemfdFlags::CLOEXEC).context(about)?);
        ftruncate(&file, size).context(about)?;
        Ok(Self { file, given: AtomicU64::new(0), size })
    }

    /// As a file for [`Populating`], and how much of it.
    pub(crate) fn file(&self) -> Result<(Arc<File>, u64)> {
        Ok((Arc::new(self.file.try_clone().context(|| "memory for pages")?), self.size))
    }

    /// Gives so many bytes back, or all that are left.
    pub fn give(&self, bytes: u64) {
        let at = self.given.fetch_add(bytes, Ordering::Relaxed);
        let length = bytes.min(self.size.saturating_sub(at));
        if length > 0 {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, how, at, length)
                .ignore_error("who wants it finds other memory; it only takes longer");
        }
    }
}

impl AsFd for Reserve {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A part of a file.
struct Part {
    file: Arc<File>,
    at: u64,
    length: u64,
}

/// What is to be done, and how far it is.
struct Work {
    parts: Vec<Part>,
    next: AtomicUsize,
}

/// Memory being allocated before it is used.
pub struct Populating {
    work: Arc<Work>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Populating {
    /// Begins with so many bytes of each file, from their beginnings on, and waits for half: with what comes from then on it keeps pace.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn begin(files: &[(Arc<File>, u64)]) -> Result<Self> {
        let parts: Vec<Part> = files
            .iter()
            .flat_map(|(file, bytes)| {
                let starts = (0..bytes.div_ceil(PART)).map(|part| part * PART);
                starts.map(move |at| Part { file: file.clone(), at, length: PART.min(bytes - at) })
            })
            .collect();
        let threads = available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS).min(parts.len());
        let half = parts.len().div_ceil(2);
        let work = Arc::new(Work { parts, next: AtomicUsize::new(0) });
        let (done, news) = mpsc::channel();
        let start = |_| {
            let (work, done) = (work.clone(), done.clone());
            spawn(move || work.carry_out(&done))
        };
        let mut begun = Self { threads: (0..threads).map(start).collect(), work: work.clone() };
        drop(done);
        // Fewer only if they have all ended.
        if news.iter().take(half).count() < half {
            begun.join()?;
        }
        Ok(begun)
    }

    /// Ends it, wherever it is: what has come by then has found its place.
    ///
    /// # Errors
    /// When there was no memory.
    pub fn end(&mut self) -> Result<()> {
        self.work.next.store(self.work.parts.len(), Ordering::Relaxed);
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        let ended = self.threads.drain(..).map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Fault::new("memory for pages: a thread has failed")))
        });
        ended.fold(Ok(()), Result::and)
    }
}

impl Drop for Populating {
    fn drop(&mut self) {
        self.end().ignore_error("whoever drops it unended has another error to tell");
    }
}

impl Work {
    fn carry_out(&self, done: &mpsc::Sender<()>) -> Result<()> {
        while let Some(Part { file, at, length }) = self.parts.get(self.next.fetch_add(1, Ordering::Relaxed))
        {
            let about = || format!("{length} bytes of memory for pages");
            let room = usize::try_from(*length).map_err(std::io::Error::other);
            let found = room.and_then(|length| skiff_sys::memory::populate(file.as_fd(), *at, length));
            found
                .or_else(|e| match e.kind() {
                    // Linux before 5.14.
                    ErrorKind::InvalidInput => Ok(fallocate(file, FallocateFlags::empty(), *at, *length)?),
                    _ => Err(e),
                })
                .context(about)?;
            done.send(()).ignore_error("nobody listens any more once there is half of it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn file(length: u64) -> Arc<File> {
        let file = File::from(memfd_create("t", MemfdFlags::CLOEXEC).expect("a file"));
        file.set_len(length).expect("longer");
        Arc::new(file)
    }

    #[test]
    fn half_of_it_is_there_at_once_and_no_more_than_was_asked_for() {
        let files: Vec<(Arc<File>, u64)> =
            [PART + 4096, 8192, 0].map(|bytes| (file(bytes + 4096), bytes)).into();
        let mut populating = Populating::begin(&files).expect("memory");
        populating.join().expect("memory");
        for (file, bytes) in &files {
            assert_eq!(file.metadata().expect("known").blocks() * 512, *bytes);
        }
        let many: Vec<_> = (0..8).map(|_| (file(PART), PART)).collect();
        let mut populating = Populating::begin(&many).expect("memory");
        populating.end().expect("memory");
        let there: u64 = many.iter().map(|(file, _)| file.metadata().expect("known").blocks() * 512).sum();
        assert!(there >= 4 * PART, "{there}");
        assert!(Populating::begin(&[]).is_ok());
    }

    #[test]
    fn a_reserve_gives_back_what_it_has_and_no_more() {
        let reserve = Reserve::new(PART).expect("a file");
        let there = || reserve.file.metadata().expect("known").blocks() * 512;
        Populating::begin(&[reserve.file().expect("a file")]).expect("memory").join().expect("memory");
        assert_eq!(there(), PART);
        reserve.give(8192);
        assert_eq!(there(), PART - 8192);
        for bytes in [PART - 4096, 4096, PART] {
            reserve.give(bytes);
            assert_eq!(there(), 0);
        }
    }
}
