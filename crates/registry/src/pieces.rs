//! What of one blob is in memory, until it has been hashed and read. Pure.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// What takes up memory for so many bytes of a blob.
pub(super) trait Held {
    fn length(&self) -> usize;
}

impl Held for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }
}

/// Some pieces in order, each with where it begins.
pub(super) type Pieces<P> = Vec<(u64, Arc<P>)>;

/// Pieces of a blob by where they begin; they lie apart.
pub(super) struct PieceMap<P> {
    pieces: BTreeMap<u64, Arc<P>>,
    /// Nobody here hashes it.
    is_hashed_elsewhere: bool,
    /// How far it has been hashed, from its beginning.
    hashed: u64,
    /// How far it has been read.
    read: u64,
}

impl<P> Default for PieceMap<P> {
    fn default() -> Self {
        PieceMap { pieces: BTreeMap::new(), is_hashed_elsewhere: false, hashed: 0, read: 0 }
    }
}

impl<P: Held> PieceMap<P> {
    /// One that is only to be read.
    pub(super) fn hashed_elsewhere() -> PieceMap<P> {
        PieceMap { is_hashed_elsewhere: true, ..PieceMap::default() }
    }

    pub(super) fn insert(&mut self, at: u64, piece: P) {
        self.pieces.insert(at, Arc::new(piece));
        self.release();
    }

    /// The pieces that have some of these bytes.
    pub(super) fn within(&self, begin: u64, end: u64) -> Pieces<P> {
        let before = self.pieces.range(..begin).next_back();
        let before = before.filter(|(at, piece)| *at + piece.length() as u64 > begin);
        before.into_iter().chain(self.pieces.range(begin..end)).map(|(at, p)| (*at, Arc::clone(p))).collect()
    }

    /// All before `end` has been hashed.
    pub(super) fn hashed(&mut self, end: u64) {
        self.hashed = self.hashed.max(end);
        self.release();
    }

    /// These bytes have been read. Who reads in order will not come back; a look at the blob's end is none of that.
    pub(super) fn read(&mut self, begin: u64, end: u64) {
        if begin <= self.read {
            self.read = self.read.max(end);
            self.release();
        }
    }

    /// How far it has been read in order.
    pub(super) fn read_before(&self) -> u64 {
        self.read
    }

    pub(super) fn clear(&mut self) {
        *self = PieceMap { is_hashed_elsewhere: self.is_hashed_elsewhere, ..PieceMap::default() };
    }

    fn release(&mut self) {
        let done = if self.is_hashed_elsewhere { self.read } else { self.hashed.min(self.read) };
        while let Some(first) = self.pieces.first_entry()
            && *first.key() + first.get().length() as u64 <= done
        {
            first.remove();
        }
    }
}

/// Fills `buffer` with the bytes from `offset`, from pieces that [`PieceMap::within`] gave, and by `read` where there is none.
pub(super) fn fill<P: Deref<Target = [u8]>, E>(
    pieces: &[(u64, Arc<P>)],
    buffer: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let (mut at, end) = (offset, offset + buffer.len() as u64);
    let place = |from: u64, to: u64| (from - offset) as usize..(to - offset) as usize;
    for (begin, piece) in pieces {
        if at < *begin {
            read(&mut buffer[place(at, *begin)], at)?;
            at = *begin;
        }
        let to = end.min(begin + piece.len() as u64);
        buffer[place(at, to)].copy_from_slice(&piece[(at - begin) as usize..(to - begin) as usize]);
        at = to;
    }
    if at < end { read(&mut buffer[place(at, end)], at) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_piece_goes_when_it_is_both_hashed_and_read() {
        let mut map = PieceMap::default();
        map.insert(0, vec![1; 10]);
        map.insert(20, vec![2; 10]);
        let begins =
            |map: &PieceMap<Vec<u8>>| map.within(0, 100).iter().map(|(at, _)| *at).collect::<Vec<_>>();
        map.hashed(30);
        map.read(26, 30);
        assert_eq!((begins(&map), map.read_before()), (vec![0, 20], 0), "a look at the end");
        map.read(0, 5);
        map.read(0, 9);
        assert_eq!((begins(&map), map.read_before()), (vec![0, 20], 9));
        map.read(9, 20);
        assert_eq!(begins(&map), [20]);
        map.insert(30, vec![3; 10]);
        map.read(20, 40);
        assert_eq!(begins(&map), [30], "not hashed yet");
    }

    proptest! {
        #[test]
        fn bytes_come_from_memory_or_the_file_in_their_places(
            cuts in proptest::collection::vec((0usize..9, 1usize..9), 0..6),
            begin in 0usize..60,
            len in 0usize..60,
        ) {
            let file: Vec<u8> = (0..120).collect();
            let mut map = PieceMap::default();
            let mut at = 0;
            for (gap, piece) in cuts {
                at += gap;
                map.insert(at as u64, file[at..at + piece].to_vec());
                at += piece;
            }
            let mut buffer = vec![0; len];
            let pieces = map.within(begin as u64, (begin + len) as u64);
            let mut from_file = 0;
            fill(&pieces, &mut buffer, begin as u64, |buffer, at| {
                from_file += buffer.len();
                buffer.copy_from_slice(&file[at as usize..at as usize + buffer.len()]);
                Ok::<(), ()>(())
            }).unwrap();
            prop_assert_eq!(&buffer, &file[begin..begin + len]);
            let kept_bytes: usize = pieces.iter().map(|(at, piece)| {
                (*at as usize + piece.len()).min(begin + len) - (*at as usize).max(begin)
            }).sum();
            prop_assert_eq!(from_file + kept_bytes, len);
        }
    }
}
