//! The process that fetches asks the relay on its node, ahead of what it reads.

use std::collections::VecDeque;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use skiff_snapshot::{DepotPiece, PieceCounts, PieceReader};

use crate::link::{LinkReader, LinkWriter};
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// Bytes that are asked for before they are read.
const AHEAD: usize = 24 << 20;
/// So many questions at most.
const MOST_ASKED: usize = 500;
/// A relay that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(10);

/// Reads pieces by the relay on this node.
pub struct RelayReader {
    state: Mutex<Option<State>>,
    counts: Mutex<PieceCounts>,
}

struct State {
    reader: LinkReader,
    writer: LinkWriter,
    /// What will be read, and has not been asked for.
    planned: VecDeque<DepotPiece>,
    asked: VecDeque<DepotPiece>,
    open: usize,
}

impl RelayReader {
    /// By this connection to it.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(relay: UnixStream) -> std::io::Result<Self> {
        relay.set_read_timeout(Some(SILENCE))?;
        relay.set_write_timeout(Some(SILENCE))?;
        let reader = LinkReader::Local(relay.try_clone()?);
        let (planned, asked) = (VecDeque::new(), VecDeque::new());
        let state = State { reader, writer: LinkWriter::Local(relay), planned, asked, open: 0 };
        Ok(Self { state: Mutex::new(Some(state)), counts: Mutex::default() })
    }
}

impl fmt::Debug for RelayReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayReader").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl PieceReader for RelayReader {
    fn begin(&self, pieces: &[DepotPiece]) {
        if let Some(state) = lock(&self.state).as_mut() {
            state.planned = pieces.iter().copied().collect();
            // Answers to what was asked for before are passed over as they come.
            state.asked.clear();
            state.open = 0;
        }
    }

    fn read(&self, piece: &DepotPiece) -> Option<Vec<u8>> {
        let mut slot = lock(&self.state);
        match slot.as_mut()?.read(piece) {
            Some((bytes, counted)) => {
                let mut counts = lock(&self.counts);
                counts.relayed += counted.relayed;
                counts.read += counted.read;
                Some(bytes)
            }
            None => {
                // Whatever is wrong with it: from here on this process reads the depot itself.
                *slot = None;
                None
            }
        }
    }

    fn counts(&self) -> PieceCounts {
        *lock(&self.counts)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn read(&mut self, piece: &DepotPiece) -> Option<(Vec<u8>, PieceCounts)> {
        self.ask()?;
        if self.asked.pop_front()? != *piece {
            return None;
        }
        self.open -= piece.length as usize;
        loop {
            let answer: PieceAnswer = self.reader.receive().ok()??;
            if answer.piece != *piece {
                continue;
            }
            let count = |bytes: &Vec<u8>| bytes.len() as u64;
            return match answer.state {
                PieceState::NotYet => continue,
                PieceState::Failed => None,
                PieceState::Relayed(bytes) => {
                    let counted = PieceCounts { relayed: count(&bytes), read: 0 };
                    Some((bytes, counted))
                }
                PieceState::Read(bytes) => {
                    let counted = PieceCounts { relayed: 0, read: count(&bytes) };
                    Some((bytes, counted))
                }
            };
        }
    }

    /// Asks for as much as may be asked for ahead.
    fn ask(&mut self) -> Option<()> {
        while self.open < AHEAD
            && self.asked.len() < MOST_ASKED
            && let Some(piece) = self.planned.pop_front()
        {
            self.writer.send(&PieceRequest(piece)).ok()?;
            self.open += piece.length as usize;
            self.asked.push_back(piece);
        }
        Some(())
    }
}
