//! Bypasses slow nodes. A node that has waited long for what the one above it sends compares that one with the next one above: if that has
//! the same pieces already, and sends them several times as fast, it is asked from then on. So a slow source, or a slow link of one's own, is no
//! reason to give up a node.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use skiff_sys::IgnoreError;

use crate::link::{LinkReader, LinkWriter};
use crate::piece::RelayPiece;
use crate::thread::spawn_thread;
use crate::wire::{PieceAnswer, PieceRequest, PieceState};

/// So many bytes of what is waited for are asked of the next node.
const SAMPLE: usize = 2 << 20;
/// So many times as fast that one must be.
const FASTER: f64 = 3.0;
/// The longest wait before the next trial, in multiples of the first.
const MOST_PUT_OFF: u32 = 16;

/// How fast a node sends while it is waited for.
pub(crate) struct LinkPace {
    waited: Duration,
    came: usize,
    /// When it has been waited for so long, the next node is tried.
    due: Duration,
    longest: Duration,
}

impl LinkPace {
    /// The first trial comes after waiting for so long.
    pub(crate) fn new(first: Duration) -> Self {
        Self { waited: Duration::ZERO, came: 0, due: first, longest: first * MOST_PUT_OFF }
    }

    /// Notes that so many bytes have been waited for.
    pub(crate) fn note(&mut self, waited: Duration, came: usize) {
        self.waited += waited;
        self.came += came;
    }

    pub(crate) fn is_trial_due(&self) -> bool {
        self.waited >= self.due
    }

    /// The node is kept. It is measured anew, and for longer.
    pub(crate) fn put_off(&mut self) {
        let due = (self.due * 2).min(self.longest);
        *self = Self { waited: Duration::ZERO, came: 0, due, longest: self.longest };
    }

    /// Whether so many bytes in this time are several times as fast.
    fn is_slower_than(&self, bytes: usize, time: Duration) -> bool {
        bytes as f64 * self.waited.as_secs_f64() >= FASTER * self.came as f64 * time.as_secs_f64()
    }
}

/// A piece, and its bytes.
type ReceivedPiece = (RelayPiece, Arc<Vec<u8>>);

/// Asks the next node for the first of the pieces that another one has been asked for, which has sent at this pace. Gives them if they have come within `limit`, and several times as fast.
pub(crate) fn fetch_if_faster<'a>(
    pace: &LinkPace,
    asked: impl Iterator<Item = &'a RelayPiece>,
    (reader, writer): (&mut LinkReader, &mut LinkWriter),
    limit: Duration,
) -> Option<Vec<ReceivedPiece>> {
    let mut bytes = 0;
    let is_within = |piece: &&RelayPiece| {
        bytes += piece.length as usize;
        bytes <= SAMPLE
    };
    let sample: Vec<RelayPiece> = asked.take_while(is_within).copied().collect();
    let began = Instant::now();
    let watch = end_after(writer, limit)?;
    for piece in &sample {
        writer.send(&PieceRequest { piece: *piece, only_if_here: true }).ok()?;
    }
    let mut received = vec![];
    for expected in sample {
        match reader.receive::<PieceAnswer>().ok()?? {
            PieceAnswer { piece, state: PieceState::Relayed(bytes) | PieceState::Read(bytes) }
                if piece == expected =>
            {
                received.push((piece, bytes));
            }
            _ => return None,
        }
    }
    drop(watch);
    let (came, taken) = (received.iter().map(|(_, bytes)| bytes.len()).sum(), began.elapsed());
    // Later, the connection may have been ended.
    (came > 0 && taken < limit && pace.is_slower_than(came, taken)).then_some(received)
}

/// Ends a connection after this time, unless what is given back is dropped before.
fn end_after(writer: &LinkWriter, limit: Duration) -> Option<Sender<()>> {
    let LinkWriter::Node(writer) = writer else { return None };
    let socket = writer.socket().try_clone().ok()?;
    let (kept, dropped) = channel();
    spawn_thread(move || {
        if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            socket.shutdown(Shutdown::Both).ignore_error("it has ended by itself");
        }
    })
    .ok()?;
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_node_is_compared_after_waiting_and_then_less_often() {
        let mut pace = LinkPace::new(2 * SECOND);
        pace.note(SECOND, 100);
        assert!(!pace.is_trial_due());
        pace.note(SECOND, 100);
        assert!(pace.is_trial_due());
        let mut after = 2 * SECOND;
        for _ in 0..10 {
            pace.put_off();
            after = (after * 2).min(32 * SECOND);
            pace.note(after - Duration::from_millis(1), 0);
            assert!(!pace.is_trial_due(), "{after:?}");
            pace.note(Duration::from_millis(1), 0);
            assert!(pace.is_trial_due(), "{after:?}");
        }
    }

    #[test]
    fn only_one_that_is_several_times_as_fast_is_faster() {
        let mut pace = LinkPace::new(SECOND);
        pace.note(2 * SECOND, 2_000_000);
        assert!(pace.is_slower_than(3_000_000, SECOND));
        assert!(pace.is_slower_than(300_000, SECOND / 10));
        assert!(!pace.is_slower_than(2_900_000, SECOND));
        // From one that sends nothing, anything is faster.
        let mut silent = LinkPace::new(SECOND);
        silent.note(SECOND, 0);
        assert!(silent.is_slower_than(1, SECOND));
    }
}
