//! Chunks of what checkpoints hold: a directory of packs, and for each checkpoint a list beside it of the chunks that it needs.
//!
//! ```text
//! DIR/lock               who reads or writes has it shared, who collects has it alone; its time is that of the last collection
//! DIR/turn               who waits to collect has it alone; who comes to read or write waits for that; its time is that of the last such wait
//! DIR/packs/DIGEST.pack  chunks, as in a depot
//! ```
//!
//! Packs appear whole, by rename, and never change; only what no list needs is taken out of them. Whoever relies on a pack before its list is on the
//! disk has the lock. The lists themselves are kept by who calls. Collection waits for nobody, unless there was none for an hour: where one save always begins before another ends, it would never find the store unused.

mod collect;
mod frames;
mod read;
mod write;

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode};
use skiff_site::TrustedDir;
use skiff_sys::{SystemContext, lock};

pub use collect::{ChunkUse, CollectedChunks};
pub use read::StoredStream;
pub use write::{StoreWriter, StreamPart, WrittenList};

use crate::chunk::{ChunkList, ListFault, ListReadFault};
use crate::depot::{PACKS, make_dir};
use crate::error::{Error, Result};
use crate::tree::dir_flags;

const LOCK: &str = "lock";
const TURN: &str = "turn";
/// How long somebody may collect, or wait to do so.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A store that is open: nothing goes from it meanwhile.
#[derive(Debug)]
pub struct ChunkStore {
    path: PathBuf,
    packs: OwnedFd,
    lock: OwnedFd,
}

impl ChunkStore {
    /// Opens the store in this directory, and makes it where it is missing.
    ///
    /// # Errors
    /// The system's, or somebody collects for longer than a minute.
    pub fn open(dir: &TrustedDir) -> Result<Self> {
        make_dir(dir.as_fd(), PACKS.as_bytes())?;
        let locked = lock::within(LONGEST_WAIT, || {
            let turn = dir.lock(TURN, FlockOperation::NonBlockingLockShared)?;
            turn.map_or(Ok(None), |_turn| dir.lock(LOCK, FlockOperation::NonBlockingLockShared))
        })?;
        let lock = locked.ok_or_else(|| Error::Collecting {
            object: dir.path().display().to_string(),
            seconds: LONGEST_WAIT.as_secs(),
        })?;
        Ok(Self { path: dir.path().into(), packs: packs(dir)?, lock })
    }

    /// What a child needs of it, which is to write or read.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.packs.as_fd(), self.lock.as_fd()].into_iter()
    }
}

fn packs(dir: &TrustedDir) -> Result<OwnedFd> {
    let opened = rustix::fs::openat(dir, PACKS, dir_flags(), Mode::empty());
    Ok(opened.on("open", dir.path_of(PACKS).into_os_string().into_encoded_bytes())?)
}

/// The chunks of one checkpoint, in order.
#[derive(Debug, Clone)]
pub struct StoredList(ChunkList);

impl StoredList {
    /// Reads one; `name` is the file's, for messages.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub fn read(file: OwnedFd, name: &str) -> Result<Self> {
        let length = length(&file, name)?;
        let read = ChunkList::read(File::from(file), length, u32::MAX);
        read.map(Self).map_err(|fault| failed(fault, name))
    }

    /// Bytes of the stream.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.0.length()
    }

    /// Bytes of each chunk, in order.
    pub fn lengths(&self) -> impl Iterator<Item = u64> {
        self.0.chunks.iter().map(|chunk| u64::from(chunk.length))
    }
}

/// The packs and frames of a list, for whoever does not need its chunks. Damage of these shows only in part.
fn read_frames(file: OwnedFd, name: &str) -> Result<ChunkList> {
    let length = length(&file, name)?;
    let body = length.saturating_sub(blake3::OUT_LEN as u64);
    let mut from = BufReader::new(File::from(file)).take(body);
    let read = ChunkList::read_frames(&mut from, body, u32::MAX);
    read.map(|(list, _)| list).map_err(|fault| failed(fault, name))
}

/// The same with the digest of the whole list checked. Its chunks, of which there are many millions, are not kept in memory.
fn check_frames(file: OwnedFd, name: &str) -> Result<ChunkList> {
    let length = length(&file, name)?;
    ChunkList::check_frames(File::from(file), length).map_err(|fault| failed(fault, name))
}

fn length(file: &OwnedFd, name: &str) -> Result<u64> {
    Ok(rustix::fs::fstat(file).on("look at", name)?.st_size.cast_unsigned())
}

fn failed(fault: ListReadFault, name: &str) -> Error {
    let why = match fault {
        ListReadFault::Io(error) => error.to_string(),
        ListReadFault::List(ListFault::Damaged(why)) => why.into(),
        ListReadFault::List(ListFault::OtherVersion(version)) => {
            format!("its list of chunks is of version {version}, which is unknown here")
        }
    };
    Error::BadChunks { object: name.into(), why }
}
