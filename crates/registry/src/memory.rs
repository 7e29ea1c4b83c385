//! Memory in which what has come stays until it is hashed and unpacked: read back from the disk, it would cost more than it did to fetch.
//! There is a limit to it: who finds no room waits, or goes by the disk.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pieces::Held;

/// How many bytes are written at once.
pub(super) const PIECE: usize = 256 << 10;

/// All of it.
pub(super) struct Memory(Mutex<State>);

struct State {
    /// How many pieces are nobody's.
    free: usize,
    /// Free pieces that have been used before: memory is slow when it is used for the first time.
    buffers: Vec<Vec<u8>>,
}

impl Memory {
    /// So many bytes of it.
    pub(super) fn new(bytes: u64) -> Arc<Memory> {
        let free = usize::try_from(bytes).unwrap_or(usize::MAX) / PIECE;
        Arc::new(Memory(Mutex::new(State { free, buffers: vec![] })))
    }

    /// Pieces for so many bytes, if there is room for all of them.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let pieces = usize::try_from(bytes).ok()?.div_ceil(PIECE);
        let mut state = self.state();
        state.free = state.free.checked_sub(pieces)?;
        Some(Reserved { memory: Arc::clone(self), pieces })
    }

    fn give_back(&self, pieces: usize, buffer: Option<Vec<u8>>) {
        let mut state = self.state();
        state.free += pieces;
        state.buffers.extend(buffer);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for some pieces, which is free again when this is dropped.
pub(super) struct Reserved {
    memory: Arc<Memory>,
    pieces: usize,
}

impl Reserved {
    /// The next piece; nothing if all have been taken.
    pub(super) fn piece(&mut self) -> Option<Piece> {
        self.pieces = self.pieces.checked_sub(1)?;
        let buffer = self.memory.state().buffers.pop();
        let bytes = buffer.unwrap_or_else(|| vec![0; PIECE]);
        Some(Piece { bytes, used: PIECE, memory: Arc::clone(&self.memory) })
    }

    /// Stands for a piece of so many bytes that are in the page cache.
    pub(super) fn cached(&mut self, used: usize) -> Option<Piece> {
        self.pieces = self.pieces.checked_sub(1)?;
        Some(Piece { bytes: vec![], used: used.min(PIECE), memory: Arc::clone(&self.memory) })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.memory.give_back(self.pieces, None);
    }
}

/// A piece of memory, of which the first bytes are in use.
pub(super) struct Piece {
    bytes: Vec<u8>,
    used: usize,
    memory: Arc<Memory>,
}

impl Piece {
    /// So many of its bytes are of use.
    pub(super) fn truncate(&mut self, used: usize) {
        self.used = used.min(PIECE);
    }
}

impl Held for Piece {
    fn length(&self) -> usize {
        self.used
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.used]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.bytes);
        self.memory.give_back(1, Some(buffer).filter(|buffer| !buffer.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_had_again() {
        let memory = Memory::new(4 * PIECE as u64);
        let reserve = |pieces: usize| memory.reserve((pieces * PIECE) as u64);
        let mut three = memory.reserve((2 * PIECE + 1) as u64).expect("room for three");
        assert!(reserve(2).is_none(), "there is room for one");
        let mut piece = three.piece().expect("the first of three");
        piece[..2].copy_from_slice(b"ab");
        piece.truncate(2);
        assert_eq!(&*piece, b"ab");
        drop(three);
        assert!(reserve(4).is_none() && reserve(3).is_some(), "the piece is still there");
        drop(piece);
        let mut all = reserve(4).expect("all is free again");
        assert_eq!((0..5).filter_map(|_| all.piece()).map(|piece| piece.len()).sum::<usize>(), 4 * PIECE);
    }
}
