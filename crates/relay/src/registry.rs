//! Threads that ask the registry: its answers are long in coming, and neither the depot's pieces nor others of the image should wait for one.

use std::io::Result;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use crate::patience::KEPT_OPEN;
use crate::piece::{RegistryReader, RelayPiece, STRIPE};
use crate::spool::{PieceOrigin, Spool};
use crate::thread::spawn_large_thread;

/// All readers of a relay.
pub(crate) struct RegistryThreads(Vec<Sender<RelayPiece>>);

impl RegistryThreads {
    pub(crate) fn begin(readers: Vec<Box<dyn RegistryReader>>, spool: &Arc<Spool>) -> Result<Self> {
        let begin = |reader| {
            let (send, receive) = channel();
            let spool = Arc::clone(spool);
            spawn_large_thread(move || read_all(reader, &receive, &spool)).map(|()| send)
        };
        readers.into_iter().map(begin).collect::<Result<_>>().map(Self)
    }

    /// Has a piece read, by whoever reads all of its stripe.
    pub(crate) fn read(&self, piece: RelayPiece, spool: &Spool) {
        let reader = reader_of(&piece, self.0.len()).and_then(|number| self.0.get(number));
        match reader.map(|reader| reader.send(piece)) {
            Some(Ok(())) => {}
            _ => spool.fail(piece),
        }
    }
}

/// A pull asks for eight ranges that are two stripes apart: each is another reader's, as are the stripes between them.
fn reader_of(piece: &RelayPiece, readers: usize) -> Option<usize> {
    let stripe = piece.at / STRIPE;
    let number = stripe / 2 + stripe % 2 * 4 + u64::from(piece.file.digest()[1]);
    usize::try_from(number.checked_rem(readers as u64)?).ok()
}

fn read_all(mut reader: Box<dyn RegistryReader>, wanted: &Receiver<RelayPiece>, spool: &Spool) {
    loop {
        let piece = match wanted.recv_timeout(KEPT_OPEN) {
            Ok(piece) => piece,
            Err(RecvTimeoutError::Timeout) => {
                reader.pause();
                let Ok(piece) = wanted.recv() else { return };
                piece
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match reader.read(&piece) {
            Some(bytes) => spool.put(piece, Arc::new(bytes), PieceOrigin::Source),
            None => spool.fail(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::piece::RelayFile;

    #[test]
    fn ranges_that_a_pull_asks_for_at_once_have_readers_of_their_own() {
        let reader = |stripe: u64| {
            let piece = RelayPiece::of_image(RelayFile::Blob([7; 32]), stripe * STRIPE);
            reader_of(&piece, 8).expect("one of them")
        };
        for first in [0, 1, 6, 16] {
            let mut readers: Vec<_> = (0..8).map(|range| reader(first + 2 * range)).collect();
            readers.sort_unstable();
            assert_eq!(readers, (0..8).collect::<Vec<_>>(), "{first}");
        }
        assert_eq!(reader_of(&RelayPiece::of_image(RelayFile::Blob([7; 32]), 0), 0), None);
    }
}
