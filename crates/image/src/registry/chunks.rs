//! How a blob is cut into ranges that are asked for one by one. Pure.

/// The last bytes are a chunk of their own, asked for first: a gzip stream ends with its length, by which room is made.
const TAIL: u64 = 64 << 10;

/// The ranges of one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    size: u64,
    chunk: u64,
}

impl Chunks {
    /// `size` bytes in chunks of `chunk` bytes.
    pub(super) fn new(size: u64, chunk: u64) -> Chunks {
        Chunks { size, chunk: chunk.max(1) }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn chunk_size(&self) -> u64 {
        self.chunk
    }

    /// All but the tail; all, where it is not worth cutting.
    fn body(&self) -> u64 {
        if self.size > self.chunk { self.size - TAIL.min(self.size / 2) } else { self.size }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let body = self.body();
        (body.div_ceil(self.chunk) + u64::from(body < self.size)) as usize
    }

    /// Where the `index`th begins and ends.
    pub(super) fn range(&self, index: usize) -> (u64, u64) {
        let (body, begin) = (self.body(), index as u64 * self.chunk);
        if begin >= body { (body, self.size) } else { (begin, (begin + self.chunk).min(body)) }
    }

    /// The one that holds the byte at `offset`.
    pub(super) fn index_of(&self, offset: u64) -> usize {
        if offset >= self.body() && offset > 0 { self.count() - 1 } else { (offset / self.chunk) as usize }
    }

    /// In the order in which to ask for them.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> {
        let last = self.count().saturating_sub(1);
        std::iter::once(last).filter(|last| *last > 0).chain(0..last).chain((self.count() == 1).then_some(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_tail_comes_first() {
        let chunks = Chunks::new((20 << 20) + 5, 8 << 20);
        assert_eq!(chunks.count(), 4);
        assert_eq!(chunks.order().collect::<Vec<_>>(), [3, 0, 1, 2]);
        assert_eq!(chunks.range(3), ((20 << 20) + 5 - TAIL, (20 << 20) + 5));
        assert_eq!(Chunks::new(100, 8 << 20).order().collect::<Vec<_>>(), [0]);
        assert_eq!(Chunks::new(0, 8 << 20).order().count(), 0);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_chunk(size in 0u64..400_000, chunk in 1u64..200_000) {
            // A chunk of a few bytes only makes the test slow.
            let chunks = Chunks::new(size, chunk.max(size / 500));
            let mut end = 0;
            for index in 0..chunks.count() {
                let (begin, next) = chunks.range(index);
                prop_assert!(begin == end && next > begin);
                prop_assert_eq!(chunks.index_of(begin), index);
                prop_assert_eq!(chunks.index_of(next - 1), index);
                end = next;
            }
            prop_assert_eq!(end, size);
            let mut order: Vec<_> = chunks.order().collect();
            order.sort_unstable();
            prop_assert_eq!(order, (0..chunks.count()).collect::<Vec<_>>());
        }
    }
}
