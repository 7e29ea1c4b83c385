//! A blob that can be read while it arrives. Readers wait for bytes that are not there yet; whoever fetches tells of each.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_oci::manifest::Descriptor;
use skiff_sys::IgnoreError;

use super::chunks::Chunks;
use super::error::Told;
use super::memory::Piece;
use super::pieces::{self, PieceMap, Pieces};
use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// No file is cut into smaller chunks: another process's word for it shall not cost memory.
const MIN_CHUNK: u64 = 64 << 10;

/// What is being done about a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// The blob's turn has not come.
    Queued,
    /// Another process, here or on another node, fetches it.
    Followed,
    /// Bytes arrive.
    Fetching,
    /// Something failed, and is tried again soon.
    Retrying(String),
    /// All is here, and has the digest asked for.
    Verified,
    /// The blob will not come; readers get the reason.
    Failed,
}

/// What happens to a blob that is fetched for another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The blob's file is there.
    Opened {
        /// The file is cut into chunks of so many bytes.
        chunk: u64,
        /// How many bytes of each chunk are in it.
        filled: Vec<u64>,
    },
    /// More of a chunk is in the file.
    Filled {
        /// How often all was thrown away before.
        round: u32,
        /// Number of the chunk.
        chunk: usize,
        /// How many bytes of the chunk are there.
        bytes: u64,
    },
    /// Another process fetches it.
    Followed {
        /// How many bytes that one has.
        bytes: u64,
    },
    /// All was thrown away.
    Restarted {
        /// The round that begins.
        round: u32,
    },
    /// The blob is released, and right as far as the other process said so.
    Verified,
    /// The blob will not come.
    Failed(Told),
}

/// Tells another process of what happens to a blob.
pub type Tell = Arc<dyn Fn(&Digest, Event) + Send + Sync>;

/// One blob, from the moment it is wanted.
pub struct Growing {
    digest: Digest,
    size: u64,
    state: Mutex<State>,
    changed: Condvar,
    /// Where another process reads and hashes it.
    tell: Option<Tell>,
}

struct State {
    /// The file, and how it is cut; known once its turn has come.
    file: Option<(Arc<OwnedFd>, Chunks)>,
    /// Of each chunk, how many bytes are there, from its beginning.
    filled: Vec<u64>,
    /// How many bytes are there without a gap, from the blob's beginning.
    prefix: u64,
    /// What of it is in memory, for those who read it.
    pieces: PieceMap<Piece>,
    /// Whether anybody does.
    is_read: bool,
    /// Who waits for bytes: from where to where.
    waiting: Vec<(u64, u64)>,
    /// Bytes of what another process fetches.
    followed: u64,
    /// Counts how often all was thrown away because the digest was wrong.
    round: u32,
    abandoned: bool,
    status: Status,
    error: Option<Arc<Error>>,
}

impl Growing {
    pub(super) fn new(blob: &Descriptor) -> Growing {
        Growing::create(blob.digest, blob.size, None)
    }

    /// One that another process reads.
    pub(super) fn served(blob: &Descriptor, tell: Tell) -> Growing {
        let growing = Growing::create(blob.digest, blob.size, Some(tell));
        growing.change(|state| {
            state.pieces = PieceMap::hashed_elsewhere();
            state.is_read = true;
        });
        growing
    }

    /// One that another process fetches: [`Growing::apply`] has what happens to it.
    pub fn remote(digest: Digest, size: u64) -> Growing {
        Growing::create(digest, size, None)
    }

    fn create(digest: Digest, size: u64, tell: Option<Tell>) -> Growing {
        let state = State {
            file: None,
            filled: vec![],
            prefix: 0,
            pieces: PieceMap::default(),
            is_read: false,
            waiting: vec![],
            followed: 0,
            round: 0,
            abandoned: false,
            status: Status::Queued,
            error: None,
        };
        Growing { digest, size, state: Mutex::new(state), changed: Condvar::new(), tell }
    }

    /// Whether another process reads and hashes it.
    pub(super) fn is_served(&self) -> bool {
        self.tell.is_some()
    }

    fn tell(&self, event: Event) {
        if let Some(tell) = &self.tell {
            tell(&self.digest, event);
        }
    }

    /// Takes over what has happened in the process that fetches the blob; `open` opens its file for reading. `false`, and nothing is changed, if
    /// the event makes no sense.
    ///
    /// # Errors
    /// Of `open`.
    pub fn apply(&self, event: Event, open: impl FnOnce() -> Result<OwnedFd>) -> Result<bool> {
        match event {
            Event::Opened { chunk, filled } => {
                let chunks = Chunks::new(self.size, chunk);
                let fits = |(at, bytes): (usize, &u64)| *bytes <= chunks.length(at);
                if chunk < MIN_CHUNK || chunks.count() != filled.len() || !filled.iter().enumerate().all(fits)
                {
                    return Ok(false);
                }
                self.opened(&Arc::new(open()?), chunks, filled);
            }
            Event::Filled { round, chunk, bytes } => {
                return Ok(self.change(|state| state.extend(round, chunk, bytes)));
            }
            Event::Followed { bytes } => self.followed(bytes.min(self.size)),
            Event::Restarted { round } => self.change(|state| {
                state.restart();
                state.round = round;
            }),
            Event::Verified => self.verified(),
            Event::Failed(told) => self.fail(Error::Told(told)),
        }
        Ok(true)
    }

    /// Another process waits for these bytes.
    pub(super) fn wanted(&self, begin: u64, end: u64) {
        self.change(|state| {
            if !state.has(begin, end) {
                state.waiting.push((begin, end));
            }
        });
    }

    /// Another process has read all before `end`.
    pub(super) fn read_before(&self, end: u64) {
        self.change(|state| state.pieces.read(0, end));
    }

    /// How often all was thrown away because the digest was wrong.
    pub fn round(&self) -> u32 {
        self.state().round
    }

    /// Lets what lies before `end` leave the page cache: it has been read, and its reader will not come back to it.
    pub fn let_go(&self, end: u64) {
        if let (Some((file, _)), Some(length)) = (&self.state().file, NonZeroU64::new(end)) {
            fadvise(&**file, 0, Some(length), Advice::DontNeed)
                .ignore_error("where advice is not taken, all is only slower");
        }
    }

    /// Digest of the blob.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// How many bytes it has in the end.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes are here, and what is being done about the others.
    pub fn progress(&self) -> (u64, Status) {
        let state = self.state();
        (state.filled.iter().sum::<u64>().max(state.followed), state.status.clone())
    }

    /// Waits until all bytes are here and have the right digest.
    ///
    /// # Errors
    /// They will not come.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.state();
        loop {
            match (&state.status, &state.error) {
                (Status::Verified, _) => return Ok(()),
                (_, Some(error)) => return Err(Error::Shared(Arc::clone(error))),
                _ if state.abandoned => return Err(self.gone()),
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Lets nobody wait any longer: whoever reads gives up for another reason.
    pub fn abandon(&self) {
        self.change(|state| {
            state.abandoned = true;
            state.pieces.clear();
        });
    }

    /// Someone who reads it from now on.
    pub fn reader(self: &Arc<Self>) -> BlobReader {
        let round = self.change(|state| {
            state.is_read = true;
            state.round
        });
        BlobReader { round, growing: Arc::clone(self) }
    }

    fn gone(&self) -> Error {
        Error::Abandoned { blob: self.digest.to_string() }
    }

    /// The file is known, and how much of each chunk is in it.
    pub(super) fn opened(&self, file: &Arc<OwnedFd>, chunks: Chunks, filled: Vec<u64>) {
        self.change(|state| {
            self.tell(Event::Opened { chunk: chunks.chunk_size(), filled: filled.clone() });
            state.file = Some((Arc::clone(file), chunks));
            state.filled = filled;
            state.followed = 0;
            state.status = Status::Fetching;
            state.advance(chunks);
        });
    }

    /// How many bytes of a chunk are there.
    pub(super) fn filled(&self, chunk: usize) -> u64 {
        self.state().filled.get(chunk).copied().unwrap_or(0)
    }

    /// More bytes of a chunk are in the file, perhaps in memory too.
    pub(super) fn extend(&self, chunk: usize, bytes: u64, piece: Option<Piece>) {
        self.change(|state| {
            if let (Some(filled), Some((_, chunks))) = (state.filled.get_mut(chunk), &state.file) {
                let (chunks, at) = (*chunks, chunks.range(chunk).0 + *filled);
                *filled += bytes;
                let (round, bytes) = (state.round, *filled);
                self.tell(Event::Filled { round, chunk, bytes });
                if let Some(piece) = piece.filter(|_| state.is_read && !state.abandoned) {
                    state.pieces.insert(at, piece);
                }
                state.advance(chunks);
                state.status = Status::Fetching;
                if self.is_served() {
                    let mut waiting = std::mem::take(&mut state.waiting);
                    waiting.retain(|(begin, end)| !state.has(*begin, *end));
                    state.waiting = waiting;
                }
            }
        });
    }

    /// What is in memory of these bytes.
    pub(super) fn pieces(&self, begin: u64, end: u64) -> Pieces<Piece> {
        self.state().pieces.within(begin, end)
    }

    /// All before `end` has been hashed.
    pub(super) fn hashed(&self, end: u64) {
        self.state().pieces.hashed(end);
    }

    /// Whether these bytes must come at once: somebody waits for some of them, or nobody will ever read.
    pub(super) fn is_urgent(&self, begin: u64, end: u64) -> bool {
        let state = self.state();
        !state.is_read
            || state.abandoned
            || state.error.is_some()
            || state.waiting.iter().any(|(from, to)| *from < end && *to > begin)
    }

    /// How many bytes are there that nobody has read.
    pub(super) fn ahead(&self) -> u64 {
        let state = self.state();
        state.filled.iter().sum::<u64>().saturating_sub(state.pieces.read_before())
    }

    pub(super) fn prefix(&self) -> u64 {
        self.state().prefix
    }

    pub(super) fn followed(&self, bytes: u64) {
        self.change(|state| {
            self.tell(Event::Followed { bytes });
            state.followed = bytes;
            state.status = Status::Followed;
        });
    }

    pub(super) fn retrying(&self, why: String) {
        self.change(|state| state.status = Status::Retrying(why));
    }

    pub(super) fn verified(&self) {
        self.change(|state| {
            self.tell(Event::Verified);
            state.status = Status::Verified;
        });
    }

    /// All was wrong: readers begin again.
    pub(super) fn restart(&self) {
        self.change(|state| {
            state.restart();
            self.tell(Event::Restarted { round: state.round });
        });
    }

    /// The process that fetched it has gone.
    pub fn fail_for_good(&self, error: Error) {
        self.fail(error);
    }

    pub(super) fn fail(&self, error: Error) {
        self.change(|state| {
            if state.status != Status::Verified && state.error.is_none() {
                self.tell(Event::Failed(Told::of(&error)));
                state.status = Status::Failed;
                state.error = Some(Arc::new(error));
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_all();
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Another process has this much of a chunk; `false` if it cannot have.
    fn extend(&mut self, round: u32, chunk: usize, bytes: u64) -> bool {
        let Some((_, chunks)) = &self.file else { return false };
        let chunks = *chunks;
        let Some(filled) = self.filled.get_mut(chunk) else { return false };
        if bytes > chunks.length(chunk) {
            return false;
        }
        if round == self.round {
            *filled = bytes.max(*filled);
            self.advance(chunks);
            self.status = Status::Fetching;
        }
        true
    }

    fn restart(&mut self) {
        self.round += 1;
        self.prefix = 0;
        self.filled.fill(0);
        self.pieces.clear();
        self.waiting.clear();
    }

    fn advance(&mut self, chunks: Chunks) {
        while self.prefix < chunks.size() {
            let index = chunks.index_of(self.prefix);
            let (begin, end) = chunks.range(index);
            self.prefix = self.prefix.max(begin + self.filled[index]);
            if self.prefix < end {
                break;
            }
        }
    }

    fn has(&self, begin: u64, end: u64) -> bool {
        if end <= self.prefix {
            return true;
        }
        self.file.as_ref().is_some_and(|(_, chunks)| {
            let index = chunks.index_of(begin);
            end <= chunks.range(index).0 + self.filled[index]
        })
    }
}

/// Reads a blob. Fails with [`Error::is_restart`] when the bytes turn out to be wrong and are fetched anew: then all that
/// was made of them is to be thrown away, and [`Growing::reader`] gives a reader of the new ones.
pub struct BlobReader {
    growing: Arc<Growing>,
    round: u32,
}

impl BlobReader {
    /// The blob that is read.
    pub fn growing(&self) -> &Arc<Growing> {
        &self.growing
    }

    /// Which of the attempts to fetch it this reads.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Whether all bytes before `end` are here.
    pub fn has(&self, end: u64) -> bool {
        self.growing.state().prefix >= end
    }

    /// Fills `buffer` with the bytes from `offset`, and waits for them.
    ///
    /// # Errors
    /// They will not come, lie beyond the end, or are fetched anew.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let name = || self.growing.digest.to_string();
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.growing.size);
        let Some(end) = end else {
            return Err(SystemError::new("read beyond the end of", name(), Errno::NODATA).into());
        };
        if buffer.is_empty() {
            return Ok(());
        }
        let (file, pieces) = self.wait_for(offset, end)?;
        let read = pieces::fill(&pieces, buffer, offset, |buffer, at| {
            skiff_sys::positional::read_exact_at(file.as_fd(), buffer, at).on("read", name())
        });
        drop(pieces);
        let mut state = self.growing.state();
        // What was read may have been thrown away at that moment: then it is no wonder that it was short, or wrong.
        self.check(&state)?;
        state.pieces.read(offset, end);
        Ok(read?)
    }

    /// Waits until the digest has been found right.
    ///
    /// # Errors
    /// The bytes will not come, or are fetched anew.
    pub fn wait_verified(&self) -> Result<()> {
        let mut state = self.growing.state();
        loop {
            self.check(&state)?;
            if state.status == Status::Verified {
                return Ok(());
            }
            state = self.growing.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for these bytes; gives the file, and what is in memory of them.
    fn wait_for(&self, begin: u64, end: u64) -> Result<(Arc<OwnedFd>, Pieces<Piece>)> {
        let mut state = self.growing.state();
        if !state.has(begin, end) {
            state.waiting.push((begin, end));
            let is_waiting = |state: &mut State| self.check(state).is_ok() && !state.has(begin, end);
            let waited = self.growing.changed.wait_while(state, is_waiting);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            let place = state.waiting.iter().position(|other| *other == (begin, end));
            place.map(|place| state.waiting.swap_remove(place));
        }
        self.check(&state)?;
        match &state.file {
            Some((file, _)) => Ok((Arc::clone(file), state.pieces.within(begin, end))),
            None => unreachable!("what has bytes has a file"),
        }
    }

    fn check(&self, state: &State) -> Result<()> {
        match &state.error {
            Some(error) => Err(Error::Shared(Arc::clone(error))),
            None if state.abandoned => Err(self.growing.gone()),
            None if state.round != self.round => {
                Err(Error::Restarted { blob: self.growing.digest.to_string() })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skiff_oci::hash::sha256;

    const SIZE: u64 = 1 << 20;

    fn growing(chunk: u64) -> (Arc<OwnedFd>, Arc<Growing>) {
        let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let (media_type, urls, annotations) = Default::default();
        let blob = Descriptor { media_type, digest: sha256(b""), size: SIZE, urls, annotations };
        let (growing, chunks) = (Arc::new(Growing::new(&blob)), Chunks::new(SIZE, chunk));
        growing.opened(&file, chunks, vec![0; chunks.count()]);
        (file, growing)
    }

    /// Else the whole of a blob, whose end is read first, would go by the disk.
    #[test]
    fn only_what_is_waited_for_is_urgent() {
        let (_file, growing) = growing(SIZE / 2);
        let reader = growing.reader();
        assert!(!growing.is_urgent(SIZE - 4, SIZE));
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| reader.read_at(&mut [0; 4], SIZE - 4));
            while !growing.is_urgent(SIZE - 4, SIZE) {
                std::thread::yield_now();
            }
            let before = growing.is_urgent(0, SIZE / 2);
            growing.abandon();
            assert!(reads.join().unwrap().is_err() && !before);
        });
    }

    #[test]
    fn what_is_thrown_away_while_it_is_read_is_read_anew() {
        let (file, growing) = growing(SIZE);
        for _ in 0..100 {
            rustix::fs::ftruncate(&file, SIZE).unwrap();
            growing.extend(0, SIZE, None);
            let reader = growing.reader();
            let (begun, has_begun) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let reads = scope.spawn(move || {
                    let mut buffer = vec![0; SIZE as usize];
                    loop {
                        if let Err(error) = reader.read_at(&mut buffer, 0) {
                            return error;
                        }
                        begun.send(()).ignore_error("nobody may wait for it any more");
                    }
                });
                has_begun.recv().unwrap();
                // As a transfer does it that begins again.
                growing.restart();
                rustix::fs::ftruncate(&file, 0).unwrap();
                let error = reads.join().unwrap();
                assert!(error.is_restart(), "{error}");
            });
        }
    }
}
