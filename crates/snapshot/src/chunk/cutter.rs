//! Where a stream is cut, and how it goes back to a place before.

use fastcdc::v2020::FastCDC;

use super::{LARGEST, SIZES};

/// A stream of which not all is cut yet.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// What is not cut yet begins at `begin`.
    buffer: Vec<u8>,
    begin: usize,
    /// Place of `begin` in the stream.
    at: u64,
    /// Chunks before it.
    count: usize,
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
    pub(super) fn append<E>(
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
    pub(super) fn finish<E>(mut self, mut chunk: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        while self.begin < self.buffer.len() {
            self.cut(&mut chunk)?;
        }
        Ok(())
    }

    fn cut<E>(&mut self, chunk: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let rest = &self.buffer[self.begin..];
        let window = &rest[..rest.len().min(LARGEST)];
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

    /// Remembers a place at the end of the stream, or beyond, in place of the one before.
    pub(super) fn mark(&mut self, at: u64) {
        self.mark = at;
        self.marked = None;
    }

    /// Goes back to the mark. Of the chunks that were cut, so many are still part of the stream.
    pub(super) fn rewind(&mut self) -> usize {
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

    /// Streams of pieces, each with so many wrong bytes before it, on which it goes back, if it does.
    fn check(lengths: Vec<(usize, bool, usize)>) {
        let (mut cutter, mut found, mut all) = (Cutter::default(), vec![], vec![]);
        for (number, (length, back, wrong)) in lengths.into_iter().enumerate() {
            cutter.mark(all.len() as u64);
            let mut append = |cutter: &mut Cutter, bytes: &[u8]| {
                let Ok(()) = cutter.append(bytes, |chunk| {
                    found.push(chunk.to_vec());
                    Ok::<_, Infallible>(())
                });
            };
            if back {
                append(&mut cutter, &noise(99, wrong));
                let left = cutter.rewind();
                found.truncate(left);
            }
            let piece = noise(number as u64, length);
            let mut append = |cutter: &mut Cutter, bytes: &[u8]| {
                let Ok(()) = cutter.append(bytes, |chunk| {
                    found.push(chunk.to_vec());
                    Ok::<_, Infallible>(())
                });
            };
            append(&mut cutter, &piece);
            all.extend(piece);
        }
        let Ok(()) = cutter.finish(|chunk| {
            found.push(chunk.to_vec());
            Ok::<_, Infallible>(())
        });
        assert_eq!(found.concat(), all);
        assert!(found == chunks(&[&all]));
    }

    #[test]
    fn the_byte_behind_a_chunk_counts_for_its_end() {
        check(vec![(0, false, 0), (122_902, false, 0), (1, true, 91_574)]);
    }

    proptest! {
        #[test]
        fn pieces_and_ways_back_change_no_cut(
            lengths in prop::collection::vec((0..300_000_usize, any::<bool>(), 0..300_000_usize), 1..8)
        ) {
            check(lengths);
        }
    }
}
