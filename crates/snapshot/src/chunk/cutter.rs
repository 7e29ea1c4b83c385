//! Where a stream is cut, and how it goes back to a place before.

use fastcdc::v2020::FastCDC;

use super::{LARGEST, SIZES};

/// A stream of which not all is cut yet.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    /// What is not cut yet begins at `begin`.
    buffer: Vec<u8>,
    begin: usize,
    /// Place of `begin` in the stream.
    at: u64,
    /// Chunks before it.
    count: usize,
    /// Where it is cut in any case, ascending.
    divisions: Vec<u64>,
    mark: u64,
    /// The beginning of the chunk that the mark is in, once that is cut.
    marked: Option<Marked>,
}

#[derive(Debug)]
struct Marked {
    at: u64,
    count: usize,
    bytes: Vec<u8>,
}

impl Cutter {
    /// Appends to the stream; `chunk` gets each chunk that is complete by that.
    pub(crate) fn append<E>(
        &mut self,
        bytes: &[u8],
        mut chunk: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.buffer.drain(..self.begin);
        self.begin = 0;
        self.buffer.extend_from_slice(bytes);
        // Where a chunk ends, so many bytes say in any case: however the stream comes here, it is cut at the same places.
        while self.buffer.len() - self.begin >= LARGEST {
            self.cut(&mut chunk)?;
        }
        Ok(())
    }

    /// Ends the stream; `chunk` gets the rest.
    pub(crate) fn finish<E>(mut self, mut chunk: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        while self.begin < self.buffer.len() {
            self.cut(&mut chunk)?;
        }
        Ok(())
    }

    fn cut<E>(&mut self, chunk: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let rest = &self.buffer[self.begin..];
        let division = self.divisions.iter().find(|division| **division > self.at);
        let most = division.map_or(LARGEST, |division| ((division - self.at) as usize).min(LARGEST));
        let window = &rest[..rest.len().min(most)];
        let [least, average, largest] = SIZES;
        let (_, end) = FastCDC::new(window, least, average, largest).cut(0, window.len());
        let bytes = &window[..end];
        let next = self.at + end as u64;
        // One that ends there, too: the byte behind a chunk says that it ends.
        if self.marked.is_none() && (self.at..=next).contains(&self.mark) {
            let before = bytes[..(self.mark - self.at) as usize].to_vec();
            self.marked = Some(Marked { at: self.at, count: self.count, bytes: before });
        }
        chunk(bytes)?;
        self.begin += end;
        self.at = next;
        self.count += 1;
        Ok(())
    }

    /// Has the stream cut at its end, or beyond, before any more comes.
    pub(super) fn divide(&mut self, at: u64) {
        self.divisions.push(at);
    }

    /// Remembers a place at the end of the stream, or beyond, in place of the one before.
    pub(super) fn mark(&mut self, at: u64) {
        self.mark = at;
        self.marked = None;
        self.divisions.retain(|division| *division > self.at);
    }

    /// Goes back to the mark. Of the chunks that were cut, so many are still part of the stream.
    pub(super) fn rewind(&mut self) -> usize {
        self.divisions.retain(|division| *division <= self.mark);
        match self.marked.take() {
            Some(Marked { at, count, bytes }) => {
                (self.buffer, self.begin, self.at, self.count) = (bytes, 0, at, count);
            }
            None => self.buffer.truncate(self.begin + self.mark.saturating_sub(self.at) as usize),
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn chunks(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut cutter, mut found) = (Cutter::default(), vec![]);
        let mut keep = |chunk: &[u8]| {
            found.push(chunk.to_vec());
            Ok::<_, Infallible>(())
        };
        for piece in pieces {
            let Ok(()) = cutter.append(piece, &mut keep);
        }
        let Ok(()) = cutter.finish(&mut keep);
        found
    }

    #[test]
    fn one_byte_more_changes_the_chunks_around_it() {
        let before = noise(1, 8 << 20);
        let mut after = before.clone();
        after.insert(3 << 20, 7);
        let (before, after) = (chunks(&[&before]), chunks(&[&after]));
        let new: usize = after.iter().filter(|chunk| !before.contains(chunk)).map(Vec::len).sum();
        assert!((1..2 * LARGEST).contains(&new), "{new} bytes");
    }

    /// A piece of a stream: its length, whether it is cut in its middle and at its end in any case, and how many wrong bytes come before it, on
    /// which the stream goes back.
    type Piece = (usize, bool, Option<usize>);

    /// The chunks of a stream of these pieces, and the places where it is cut in any case.
    fn cut(pieces: &[Piece], goes_back: bool) -> (Vec<Vec<u8>>, Vec<usize>) {
        let (mut cutter, mut found, mut at, mut places) = (Cutter::default(), vec![], 0, vec![]);
        let append = |cutter: &mut Cutter, found: &mut Vec<Vec<u8>>, bytes: &[u8]| {
            let Ok(()) = cutter.append(bytes, |chunk| {
                found.push(chunk.to_vec());
                Ok::<_, Infallible>(())
            });
        };
        for (number, (length, is_divided, wrong)) in pieces.iter().enumerate() {
            if goes_back {
                cutter.mark(at as u64);
            }
            if let (true, Some(wrong)) = (goes_back, *wrong) {
                append(&mut cutter, &mut found, &noise(99, wrong));
                if *is_divided {
                    cutter.divide((at + wrong) as u64);
                }
                append(&mut cutter, &mut found, &noise(98, wrong / 2));
                let left = cutter.rewind();
                found.truncate(left);
            }
            let piece = noise(number as u64, *length);
            for part in [&piece[..length / 2], &piece[length / 2..]] {
                append(&mut cutter, &mut found, part);
                at += part.len();
                if *is_divided {
                    cutter.divide(at as u64);
                    places.push(at);
                }
            }
        }
        let Ok(()) = cutter.finish(|chunk| {
            found.push(chunk.to_vec());
            Ok::<_, Infallible>(())
        });
        (found, places)
    }

    fn check(pieces: &[Piece]) {
        let (found, places) = cut(pieces, true);
        assert!(found == cut(pieces, false).0);
        let lengths: Vec<usize> = pieces.iter().map(|(length, ..)| *length).collect();
        let all: Vec<u8> =
            lengths.iter().enumerate().flat_map(|(at, length)| noise(at as u64, *length)).collect();
        assert!(found.concat() == all);
        if places.is_empty() {
            assert!(found == chunks(&[&all]));
        }
        let ends: Vec<usize> = found
            .iter()
            .scan(0, |end, chunk| {
                *end += chunk.len();
                Some(*end)
            })
            .collect();
        assert!(places.iter().all(|place| *place == 0 || ends.contains(place)), "{places:?}, {ends:?}");
    }

    #[test]
    fn the_byte_behind_a_chunk_counts_for_its_end() {
        check(&[(0, false, None), (122_902, false, None), (1, false, Some(91_574))]);
    }

    #[test]
    fn what_is_between_two_divisions_is_cut_the_same_wherever_it_lies() {
        let of =
            |before: usize| cut(&[(before, true, None), (600_000, true, None), (70, false, None)], false).0;
        let (one, other) = (of(100), of(70_000));
        let shared: usize = other.iter().filter(|chunk| one.contains(chunk)).map(Vec::len).sum();
        assert!(shared >= 600_000, "{shared} bytes");
    }

    proptest! {
        #[test]
        fn pieces_and_ways_back_change_no_cut(
            pieces in prop::collection::vec(
                (0..300_000_usize, any::<bool>(), prop::option::of(0..300_000_usize)), 1..8
            )
        ) {
            check(&pieces);
        }
    }
}
