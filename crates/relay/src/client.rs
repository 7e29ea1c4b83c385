//! The process that fetches asks the relay on its node, ahead of what it reads.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use skiff_snapshot::{DepotPiece, PieceCounts, PieceReader};

use crate::link::{LinkReader, LinkWriter};
use crate::piece::{IMAGE_PIECE, RelayFile, RelayPiece};
use crate::thread::lock;
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// Bytes that are asked for before they are read.
const AHEAD: usize = 24 << 20;
/// So many questions at most.
const MOST_ASKED: usize = 500;
/// A relay that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(10);
/// If fewer than `LEAST` bytes arrive within `PATIENCE` of waiting, the depot is read instead. (Tests have slow nodes.)
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 30 });
const LEAST: u64 = 30 << 20;

/// Reads pieces by the relay on this node.
pub struct RelayReader {
    state: Mutex<Option<RelayConnection>>,
    counts: Mutex<PieceCounts>,
}

/// The connection to the relay, and what is asked for by it.
struct RelayConnection {
    reader: LinkReader,
    writer: LinkWriter,
    /// What will be read, and has not been asked for.
    planned: VecDeque<RelayPiece>,
    /// What has been asked for and has not come, and how many bytes these are.
    asked: VecDeque<RelayPiece>,
    open: usize,
    pace: ArrivalPace,
}

/// How fast pieces come, while they are waited for.
#[derive(Default)]
struct ArrivalPace {
    waited: Duration,
    came: u64,
}

impl ArrivalPace {
    /// Whether enough has come, with this that has been waited for so long.
    fn is_enough(&mut self, waited: Duration, came: u64) -> bool {
        self.waited += waited;
        self.came += came;
        if self.waited < PATIENCE {
            return true;
        }
        let is_enough = self.came >= LEAST;
        *self = Self::default();
        is_enough
    }
}

impl RelayReader {
    /// By this connection to it.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(relay: UnixStream) -> io::Result<Self> {
        relay.set_read_timeout(Some(SILENCE))?;
        relay.set_write_timeout(Some(SILENCE))?;
        let reader = LinkReader::Local(relay.try_clone()?, vec![]);
        let (planned, asked) = (VecDeque::new(), VecDeque::new());
        let state = RelayConnection {
            reader,
            writer: LinkWriter::Local(relay),
            planned,
            asked,
            open: 0,
            pace: ArrivalPace::default(),
        };
        Ok(Self { state: Mutex::new(Some(state)), counts: Mutex::default() })
    }

    /// Reads the file of an image that has this SHA-256 and length; whether all of it has come. What has come is not checked.
    ///
    /// # Errors
    /// Those of `take`, which gets the bytes in order.
    pub fn read_image(
        &self,
        (digest, length): ([u8; 32], u64),
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let starts = (0..length).step_by(IMAGE_PIECE as usize);
        let pieces = starts.map(|at| RelayPiece::of_image(RelayFile::Image(digest), at));
        self.plan(pieces.clone());
        for piece in pieces {
            let expected = (length - piece.at).min(piece.length.into());
            match self.read_piece(&piece).filter(|bytes| bytes.len() as u64 == expected) {
                Some(bytes) => take(&bytes)?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Notes which pieces will be read.
    fn plan(&self, pieces: impl Iterator<Item = RelayPiece>) {
        if let Some(state) = lock(&self.state).as_mut() {
            state.planned = pieces.collect();
            // Answers to what was asked for before are passed over as they come.
            state.asked.clear();
            state.open = 0;
        }
    }

    fn read_piece(&self, piece: &RelayPiece) -> Option<Vec<u8>> {
        let mut slot = lock(&self.state);
        match slot.as_mut()?.read(piece) {
            Some(None) => None,
            Some(Some((bytes, counted))) => {
                let mut counts = lock(&self.counts);
                counts.relayed += counted.relayed;
                counts.read += counted.read;
                Some(bytes)
            }
            None => {
                // It hangs, is gone, or slower than the depot could be: from here on this process reads that itself. Nobody else who has this socket
                // knows where in an answer it is.
                if let Some(state) = slot.take() {
                    state.writer.close();
                }
                None
            }
        }
    }
}

impl fmt::Debug for RelayReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayReader").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl PieceReader for RelayReader {
    fn begin(&self, pieces: &[DepotPiece]) {
        self.plan(pieces.iter().copied().map(RelayPiece::from));
    }

    fn read(&self, piece: &DepotPiece) -> Option<Vec<u8>> {
        self.read_piece(&(*piece).into())
    }

    fn counts(&self) -> PieceCounts {
        *lock(&self.counts)
    }
}

/// Reads pieces of images' files by the relay on this node. A pack is such a file, called by its SHA-256.
#[derive(Debug)]
pub struct ImagePieceReader<'a>(pub &'a RelayReader);

impl PieceReader for ImagePieceReader<'_> {
    fn begin(&self, pieces: &[DepotPiece]) {
        self.0.plan(pieces.iter().map(of_image));
    }

    fn read(&self, piece: &DepotPiece) -> Option<Vec<u8>> {
        self.0.read_piece(&of_image(piece))
    }

    fn counts(&self) -> PieceCounts {
        self.0.counts()
    }
}

fn of_image(piece: &DepotPiece) -> RelayPiece {
    let digest = *RelayFile::Depot(piece.file).digest();
    RelayPiece { file: RelayFile::Image(digest), at: piece.at, length: piece.length }
}

impl RelayConnection {
    /// A piece; `Some(None)` if the relay cannot have it, and nothing if that is of no use any more.
    fn read(&mut self, piece: &RelayPiece) -> Option<Option<(Vec<u8>, PieceCounts)>> {
        self.ask()?;
        if self.asked.pop_front()? != *piece {
            return None;
        }
        self.open -= piece.length as usize;
        loop {
            let began = Instant::now();
            let answer: PieceAnswer = self.reader.receive().ok()??;
            let came = match &answer.state {
                PieceState::Relayed(bytes) | PieceState::Read(bytes) => bytes.len() as u64,
                PieceState::NotYet | PieceState::Failed => 0,
            };
            if !self.pace.is_enough(began.elapsed(), came) {
                return None;
            }
            if answer.piece != *piece {
                continue;
            }
            return match answer.state {
                PieceState::NotYet => continue,
                PieceState::Failed => Some(None),
                PieceState::Relayed(bytes) => {
                    Some(Some((Arc::unwrap_or_clone(bytes), PieceCounts { relayed: came, read: 0 })))
                }
                PieceState::Read(bytes) => {
                    Some(Some((Arc::unwrap_or_clone(bytes), PieceCounts { relayed: 0, read: came })))
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
            self.writer.send(&PieceRequest::of(piece)).ok()?;
            self.open += piece.length as usize;
            self.asked.push_back(piece);
        }
        Some(())
    }
}
