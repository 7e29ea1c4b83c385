//! Files with holes. EROFS knows holes only as whole chunks, all of one size, each of which lies in one piece.
//!
//! A small chunk makes a long table: 4 bytes for each, 1 GiB for a file of 1 TiB in chunks of 4 KiB. In a large one, data and hole
//! may meet: then it has to be put together anew elsewhere. So the size is chosen that costs the fewest bytes in all.

use std::ops::Range;

use super::format::{CHUNK_BITS_MAX, CHUNK_INDEX_SIZE};
use super::tree::{BLOCK, BlockRun, Sparse};

/// How a file with holes is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunking {
    /// A chunk is `1 << bits` blocks.
    pub bits: u32,
    /// How many there are.
    pub count: u64,
    /// How many blocks those chunks have that must be put together anew.
    pub copied: u64,
}

/// What is to be done for one chunk.
#[derive(Debug, PartialEq)]
pub(super) enum Chunk<'a> {
    Hole,
    /// The data lies in one piece, from this block on.
    Whole(u32),
    /// These blocks of the file are to be put together from what these runs have of them.
    Mixed(Range<u64>, &'a [BlockRun]),
}

impl Chunking {
    /// The cheapest one.
    pub fn of(sparse: &Sparse) -> Chunking {
        let blocks = sparse.size.div_ceil(BLOCK);
        let each = (0..=CHUNK_BITS_MAX).map(|bits| Chunking {
            bits,
            count: blocks.div_ceil(1 << bits),
            copied: copied(&sparse.runs, blocks, bits),
        });
        let cost = |chunking: &Chunking| chunking.count * CHUNK_INDEX_SIZE + chunking.copied * BLOCK;
        each.min_by_key(cost).expect("there are some")
    }

    /// The chunks one after the other.
    pub fn chunks(self, sparse: &Sparse) -> impl Iterator<Item = Chunk<'_>> {
        let blocks = sparse.size.div_ceil(BLOCK);
        let mut runs = &sparse.runs[..];
        (0..self.count).map(move |number| {
            let span = span(number, self.bits, blocks);
            while runs.first().is_some_and(|run| of_file(run).end <= span.start) {
                runs = &runs[1..];
            }
            let within = runs.iter().take_while(|run| u64::from(run.at) < span.end).count();
            match &runs[..within] {
                [] => Chunk::Hole,
                [run] if covers(run, &span) => {
                    Chunk::Whole(run.block + (span.start - u64::from(run.at)) as u32)
                }
                parts => Chunk::Mixed(span, parts),
            }
        })
    }
}

/// The blocks of the file that a run has.
pub(super) fn of_file(run: &BlockRun) -> Range<u64> {
    u64::from(run.at)..u64::from(run.at) + u64::from(run.blocks)
}

fn span(number: u64, bits: u32, blocks: u64) -> Range<u64> {
    number << bits..((number + 1) << bits).min(blocks)
}

fn covers(run: &BlockRun, span: &Range<u64>) -> bool {
    of_file(run).start <= span.start && of_file(run).end >= span.end
}

/// Blocks of chunks that hold data but do not lie within one run; only those at a run's ends can be such.
fn copied(runs: &[BlockRun], blocks: u64, bits: u32) -> u64 {
    let mut copied = 0;
    let mut last = None;
    for run in runs.iter().filter(|run| run.blocks > 0) {
        for end in [of_file(run).start, of_file(run).end - 1] {
            let number = end >> bits;
            let span = span(number, bits, blocks);
            if last != Some(number) && !covers(run, &span) {
                copied += span.end - span.start;
                last = Some(number);
            }
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIB: u64 = 1 << 40;

    fn sparse(size: u64, runs: &[(u32, u32, u32)]) -> Sparse {
        let runs = runs.iter().map(|&(at, block, blocks)| BlockRun { at, block, blocks }).collect();
        Sparse { size, runs }
    }

    #[test]
    fn little_is_written_for_huge_files() {
        for (file, most) in [
            (sparse(TIB, &[]), 4),
            (sparse(TIB, &[(77_777_777, 1, 1)]), 8 << 20),
            (sparse(i64::MAX as u64, &[]), 4 << 20),
            // As long as it is dense, nothing is copied.
            (sparse(1 << 30, &[(0, 1, 1 << 17), ((1 << 17) + 1, 1 << 17, (1 << 17) - 1)]), 1 << 20),
        ] {
            let chunking = Chunking::of(&file);
            let cost = chunking.count * CHUNK_INDEX_SIZE + chunking.copied * BLOCK;
            assert!(cost <= most, "{chunking:?}");
        }
    }

    #[test]
    fn runs_that_lie_well_stay() {
        let file = sparse(16 * BLOCK, &[(0, 10, 4), (8, 14, 8)]);
        let chunking = Chunking::of(&file);
        assert_eq!(chunking, Chunking { bits: 2, count: 4, copied: 0 });
        let chunks: Vec<_> = chunking.chunks(&file).collect();
        assert_eq!(chunks, [Chunk::Whole(10), Chunk::Hole, Chunk::Whole(14), Chunk::Whole(18)]);
    }

    proptest! {
        /// What the chunks say is what the runs say, and as much is copied as was foretold.
        #[test]
        fn chunks_are_the_runs(gaps in prop::collection::vec((0u32..40, 1u32..40), 0..12), extra in 0u64..100_000) {
            let mut file = sparse(0, &[]);
            let mut at = 0;
            for (index, (hole, blocks)) in gaps.iter().enumerate() {
                at += hole;
                file.runs.push(BlockRun { at, block: 1000 * (index as u32 + 1), blocks: *blocks });
                at += blocks;
            }
            file.size = u64::from(at) * BLOCK + extra;
            let expected = |number: u64| {
                let run = file.runs.iter().find(|run| of_file(run).contains(&number))?;
                Some(run.block + (number - u64::from(run.at)) as u32)
            };
            for bits in [0, 1, 3, 6, 20, Chunking::of(&file).bits] {
                let blocks = file.size.div_ceil(BLOCK);
                let chunking =
                    Chunking { bits, count: blocks.div_ceil(1 << bits), copied: copied(&file.runs, blocks, bits) };
                let mut done = 0;
                let mut mixed = 0;
                for (number, chunk) in chunking.chunks(&file).enumerate() {
                    let span = span(number as u64, bits, blocks);
                    prop_assert_eq!(span.start, done);
                    done = span.end;
                    match chunk {
                        Chunk::Hole => prop_assert!(span.clone().all(|block| expected(block).is_none())),
                        Chunk::Whole(first) => prop_assert!(
                            span.clone().all(|block| expected(block) == Some(first + (block - span.start) as u32))
                        ),
                        Chunk::Mixed(range, runs) => {
                            prop_assert_eq!(&range, &span);
                            prop_assert!(!runs.is_empty());
                            mixed += span.end - span.start;
                        }
                    }
                }
                prop_assert_eq!(done, blocks);
                prop_assert_eq!(mixed, chunking.copied);
            }
        }
    }
}
