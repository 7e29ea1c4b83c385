//! A blob on disk while it is fetched: the bytes, and beside them a journal of how much of each chunk is there.
//!
//! The journal's lock says who fetches. It is a whole-file `flock`, which NFS turns into a lock at the server: so it holds
//! between nodes too, and goes with the process that held it. What a killed process left is gone on with by the next.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use skiff_oci::digest::Digest;
use skiff_sys::IgnoreError;
use skiff_sys::uncached::Uncached;

use super::chunks::Chunks;
use super::origin::{self, Note, Origin};
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// The journal begins with this, the blob's size and the chunks' size (little endian); of each chunk follows how many bytes are there.
const MAGIC: &[u8; 16] = b"skiff-blob-00003";
const HEADER: usize = 32;
const ENTRY: usize = 8;

/// A directory of blobs, whole and partly fetched.
#[derive(Clone)]
pub struct BlobDir {
    dir: Arc<OwnedFd>,
    path: String,
}

impl BlobDir {
    /// One that is open already; `path` is for messages.
    pub fn new(dir: OwnedFd, path: impl Into<String>) -> BlobDir {
        BlobDir { dir: Arc::new(dir), path: path.into() }
    }

    /// Opens one.
    ///
    /// # Errors
    /// Of the system.
    pub fn open(path: &Path) -> Result<BlobDir> {
        let shown = path.to_string_lossy();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).on("open", &*shown)?;
        Ok(BlobDir::new(dir, shown))
    }

    /// Removes what there is of a blob, unless someone fetches it.
    ///
    /// # Errors
    /// Of the system.
    pub fn remove(&self, digest: &Digest) -> Result<bool> {
        let names = Names::of(digest);
        let Some(journal) = self.lock(&names)? else {
            return Ok(false);
        };
        self.unlink(&names)?;
        drop(journal);
        Ok(true)
    }

    /// A blob's file, for reading, while another process fetches it.
    ///
    /// # Errors
    /// Of the system; it is not there.
    pub fn open_data(&self, digest: &Digest) -> Result<OwnedFd> {
        let name = Names::of(digest).data;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, &name, flags, Mode::empty()).on("open", self.shown(&name))?)
    }

    /// The origin that all of a blob's bytes came from, if that is known.
    pub fn origin(&self, digest: &Digest) -> Option<Origin> {
        origin::read(&self.dir, &Names::of(digest).origin)
    }

    /// Takes a blob over to fetch it, or learns how far another has come with it.
    pub(super) fn take(&self, digest: &Digest, chunks: Chunks) -> Result<IngestLock> {
        let names = Names::of(digest);
        let Some(journal) = self.lock(&names)? else {
            return Ok(IngestLock::ByAnother(self.received(&names, chunks)));
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let data = rustix::fs::openat(&self.dir, &names.data, flags, Mode::RUSR | Mode::WUSR)
            .on("open", self.shown(&names.data))?;
        let shown = self.shown(&names.data);
        // A size is the manifest's word until there was room for the blob and its journal.
        let is_empty = rustix::fs::fstat(&journal).on("look at", self.shown(&names.journal))?.st_size
            < (HEADER + chunks.count() * ENTRY) as i64
            || filled(journal.as_fd(), chunks).iter().all(|bytes| *bytes == 0);
        let origin = Note::new(&self.dir, names.origin.clone(), is_empty);
        let ingest =
            Ingest { data: Arc::new(data), uncached: Uncached::default(), journal, chunks, shown, origin };
        let is_known = ingest.size()? == chunks.size() && ingest.read_header() == Some(header(chunks));
        if !is_known && let Err(e) = ingest.reset() {
            // Who cannot have the room leaves none taken.
            self.unlink(&names).ignore_error("the first error is the one to tell");
            return Err(e);
        }
        Ok(IngestLock::Ours(ingest))
    }

    /// The journal, locked; nothing if another has it.
    fn lock(&self, names: &Names) -> Result<Option<OwnedFd>> {
        let shown = || self.shown(&names.journal);
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let journal = rustix::fs::openat(&self.dir, &names.journal, flags, Mode::RUSR | Mode::WUSR)
                .on("open", shown())?;
            match rustix::fs::flock(&journal, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(SystemError::new("lock", shown(), errno).into()),
            }
            // Whoever had the lock may have removed the file: then a lock on it is worth nothing.
            let ours = rustix::fs::fstat(&journal).on("look at", shown())?;
            match rustix::fs::statat(&self.dir, &names.journal, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => {
                    return Ok(Some(journal));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("look at", shown(), errno).into()),
            }
        }
    }

    /// How many bytes another process says it has.
    fn received(&self, names: &Names, chunks: Chunks) -> u64 {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(journal) = rustix::fs::openat(&self.dir, &names.journal, flags, Mode::empty()) else {
            return 0;
        };
        filled(journal.as_fd(), chunks).iter().sum()
    }

    fn unlink(&self, names: &Names) -> Result<()> {
        // The journal last: while it is there, its lock protects the data.
        for name in [&names.origin, &names.data, &names.journal] {
            match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("remove", self.shown(name), errno).into()),
            }
        }
        Ok(())
    }

    fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

struct Names {
    data: String,
    journal: String,
    origin: String,
}

impl Names {
    fn of(digest: &Digest) -> Names {
        let data = format!("{}-{}", digest.algorithm(), digest.hex());
        Names { journal: format!("{data}.journal"), origin: format!("{data}.origin"), data }
    }
}

/// Who fetches a blob.
pub(super) enum IngestLock {
    /// We do.
    Ours(Ingest),
    /// Another process does, and has this many bytes.
    ByAnother(u64),
}

/// A blob that this process fetches: nobody else writes to it.
pub(super) struct Ingest {
    data: Arc<OwnedFd>,
    uncached: Uncached,
    journal: OwnedFd,
    chunks: Chunks,
    shown: String,
    origin: Note,
}

impl Ingest {
    /// The next bytes come from there.
    pub(super) fn comes_from(&self, origin: Option<Origin>) {
        self.origin.comes_from(origin);
    }

    pub(super) fn data(&self) -> &Arc<OwnedFd> {
        &self.data
    }

    pub(super) fn chunks(&self) -> Chunks {
        self.chunks
    }

    /// Nothing more is written: others may have it, or remove it.
    pub(super) fn release(&self) -> Result<()> {
        Ok(rustix::fs::flock(&self.journal, FlockOperation::Unlock).on("unlock", &self.shown)?)
    }

    /// Of each chunk, how many bytes an earlier process brought.
    pub(super) fn filled(&self) -> Vec<u64> {
        filled(self.journal.as_fd(), self.chunks)
    }

    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.uncached.write_all_at(self.data.as_fd(), bytes, offset);
        written.map_err(|errno| self.write_error(errno))
    }

    /// The same where another process reads it at once.
    pub(super) fn write_cached(&self, bytes: &[u8], offset: u64) -> Result<()> {
        skiff_sys::positional::write_all_at(self.data.as_fd(), bytes, offset)
            .map_err(|errno| self.write_error(errno))
    }

    /// Reads exactly these bytes.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        Ok(skiff_sys::positional::read_exact_at(self.data.as_fd(), buffer, offset).on("read", &self.shown)?)
    }

    /// So many bytes of a chunk are there. Not synced: after a crash of the machine the digest tells.
    pub(super) fn mark(&self, chunk: usize, bytes: u64) -> Result<()> {
        let at = (HEADER + chunk * ENTRY) as u64;
        skiff_sys::positional::write_all_at(self.journal.as_fd(), &bytes.to_le_bytes(), at)
            .map_err(|errno| self.write_error(errno))
    }

    /// Forgets all, and makes room for all: better to learn now than in the middle that there is not enough.
    pub(super) fn reset(&self) -> Result<()> {
        let fail = |errno| self.write_error(errno);
        self.origin.reset();
        rustix::fs::ftruncate(&self.journal, 0).map_err(fail)?;
        rustix::fs::ftruncate(&self.data, 0).map_err(fail)?;
        let size = self.chunks.size();
        if size > 0 {
            match rustix::fs::fallocate(&self.data, FallocateFlags::empty(), 0, size) {
                // NFS before 4.2 and some others cannot.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    rustix::fs::ftruncate(&self.data, size).map_err(fail)?;
                }
                allocated => allocated.map_err(fail)?,
            }
        }
        let mut journal = header(self.chunks).to_vec();
        journal.resize(HEADER + self.chunks.count() * ENTRY, 0);
        skiff_sys::positional::write_all_at(self.journal.as_fd(), &journal, 0).map_err(fail)
    }

    fn size(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.data).on("look at", &self.shown)?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn read_header(&self) -> Option<[u8; HEADER]> {
        let mut header = [0; HEADER];
        let read = skiff_sys::positional::read_at(self.journal.as_fd(), &mut header, 0);
        (read == Ok(HEADER)).then_some(header)
    }

    fn write_error(&self, errno: Errno) -> Error {
        if !matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            return SystemError::new("write to", &self.shown, errno).into();
        }
        let free = rustix::fs::fstatvfs(&self.data).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
        let there =
            rustix::fs::fstat(&self.data).map_or(0, |stat| (stat.st_blocks as u64).saturating_mul(512));
        Error::NoSpace {
            object: self.shown.clone(),
            needed: self.chunks.size(),
            free: free.saturating_add(there),
        }
    }
}

fn header(chunks: Chunks) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..16].copy_from_slice(MAGIC);
    header[16..24].copy_from_slice(&chunks.size().to_le_bytes());
    header[24..].copy_from_slice(&chunks.chunk_size().to_le_bytes());
    header
}

/// Of each chunk, how many bytes are there.
fn filled(journal: BorrowedFd<'_>, chunks: Chunks) -> Vec<u64> {
    let mut entries = vec![0; chunks.count() * ENTRY];
    // What cannot be read was not brought.
    if skiff_sys::positional::read_at(journal, &mut entries, HEADER as u64).is_err() {
        entries.fill(0);
    }
    let (entries, _) = entries.as_chunks::<ENTRY>();
    let filled = |(i, entry): (usize, &[u8; ENTRY])| {
        let (begin, end) = chunks.range(i);
        // More than fits nobody can have brought.
        Some(u64::from_le_bytes(*entry)).filter(|bytes| *bytes <= end - begin).unwrap_or(0)
    };
    entries.iter().enumerate().map(filled).collect()
}
