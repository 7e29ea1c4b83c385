//! How a blob is cut into ranges that are asked for one by one. Pure.

/// The last and the first bytes are chunks of their own, asked for first: the end of a gzip stream has its length, by which room is made, and
/// the beginning says that it is one.
const EDGE: u64 = 64 << 10;

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

    /// How long the first and the last one are, which are shorter than the others; 0 where it is not worth cutting.
    fn edge(&self) -> u64 {
        if self.size > self.chunk { EDGE.min(self.size / 3) } else { 0 }
    }

    /// How many lie between the first and the last one.
    fn between(&self) -> u64 {
        (self.size - 2 * self.edge()).div_ceil(self.chunk)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        (self.between() + if self.edge() > 0 { 2 } else { 0 }) as usize
    }

    /// Where the `index`th begins and ends.
    pub(super) fn range(&self, index: usize) -> (u64, u64) {
        let (edge, index) = (self.edge(), index as u64);
        let end = self.size - edge;
        match index.checked_sub(u64::from(edge > 0)) {
            None => (0, edge),
            Some(between) if between < self.between() => {
                let begin = edge + between * self.chunk;
                (begin, (begin + self.chunk).min(end))
            }
            Some(_) => (end, self.size),
        }
    }

    /// How long the `index`th is; 0 where there is none.
    pub(super) fn length(&self, index: usize) -> u64 {
        if index >= self.count() {
            return 0;
        }
        let (begin, end) = self.range(index);
        end - begin
    }

    /// The one that holds the byte at `offset`.
    pub(super) fn index_of(&self, offset: u64) -> usize {
        let edge = self.edge();
        if edge > 0 && offset >= self.size - edge {
            return self.count() - 1;
        }
        offset.checked_sub(edge).map_or(0, |offset| offset / self.chunk + u64::from(edge > 0)) as usize
    }

    /// Whether it is one of the two that are asked for first.
    pub(super) fn is_edge(&self, index: usize) -> bool {
        self.edge() > 0 && (index == 0 || index + 1 == self.count())
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
    fn the_edges_come_first() {
        let size = (20 << 20) + 5;
        let chunks = Chunks::new(size, 8 << 20);
        assert_eq!(chunks.count(), 5);
        assert_eq!(chunks.order().collect::<Vec<_>>(), [4, 0, 1, 2, 3]);
        assert_eq!((chunks.range(0), chunks.range(4)), ((0, EDGE), (size - EDGE, size)));
        assert_eq!([0, 1, 3, 4].map(|index| chunks.is_edge(index)), [true, false, false, true]);
        assert!(!Chunks::new(100, 8 << 20).is_edge(0));
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
