//! Where inodes come to lie: many in each block, and none of their tails across the end of one.
//!
//! Blocks are filled in the order of the walk, but the last few dozen stay open for what still fits into them, best fit first.

use std::collections::VecDeque;

use super::format::{BLOCK_SIZE, SLOT};

/// How many blocks stay open. The one who writes them holds as many in memory, and slides on in the same steps.
pub(super) const WINDOW: usize = 64;
/// How many are closed at once when a further one is needed.
pub(super) const STEP: usize = WINDOW / 2;

/// Hands out places in an area of the file, which starts at a block's start.
#[derive(Default)]
pub(super) struct Packer {
    /// Number of the first open block.
    first: u64,
    /// What is still free in the open blocks.
    open: VecDeque<Free>,
}

/// From where to where a block is free.
#[derive(Clone, Copy)]
struct Free {
    from: usize,
    to: usize,
}

impl Packer {
    /// A place for `size` bytes, at least one slot, that fit into one block: in bytes from the start of the area, a whole number of slots.
    pub fn within_block(&mut self, size: usize) -> u64 {
        debug_assert!(size <= BLOCK_SIZE);
        let fitting = self.open.iter().enumerate().filter(|(_, free)| free.to - free.from >= size);
        let best = fitting.min_by_key(|(_, free)| free.to - free.from).map(|(index, _)| index);
        let index = best.unwrap_or_else(|| self.open_block(Free { from: 0, to: BLOCK_SIZE }));
        let free = &mut self.open[index];
        let place = free.from;
        free.from = (place + size).next_multiple_of(SLOT as usize).min(free.to);
        self.position(index, place)
    }

    /// A place for `size` bytes that follow each other across as many blocks as they need.
    pub fn across_blocks(&mut self, size: u64) -> u64 {
        let start = self.blocks() * BLOCK_SIZE as u64;
        for _ in 0..size / BLOCK_SIZE as u64 {
            self.open_block(Free { from: 0, to: 0 });
        }
        let rest = (size as usize % BLOCK_SIZE).next_multiple_of(SLOT as usize);
        if rest > 0 {
            self.open_block(Free { from: rest, to: BLOCK_SIZE });
        }
        start
    }

    /// A place for a head such that the tail right behind it has a block for itself; [`fits_behind_border`] for these.
    pub fn around_border(&mut self, head: usize, tail: usize) -> u64 {
        debug_assert!(fits_behind_border(head, tail));
        let before = head - head % SLOT as usize;
        let blocks = before.div_ceil(BLOCK_SIZE);
        let gap = blocks * BLOCK_SIZE - before;
        let start = self.blocks() * BLOCK_SIZE as u64 + gap as u64;
        for block in 0..blocks {
            self.open_block(Free { from: 0, to: if block == 0 { gap } else { 0 } });
        }
        let used = (head - before + tail).next_multiple_of(SLOT as usize);
        self.open_block(Free { from: used, to: BLOCK_SIZE });
        start
    }

    /// How many blocks were handed out.
    pub fn blocks(&self) -> u64 {
        self.first + self.open.len() as u64
    }

    fn open_block(&mut self, free: Free) -> usize {
        if self.open.len() == WINDOW {
            self.open.drain(..STEP);
            self.first += STEP as u64;
        }
        self.open.push_back(free);
        self.open.len() - 1
    }

    fn position(&self, index: usize, place: usize) -> u64 {
        (self.first + index as u64) * BLOCK_SIZE as u64 + place as u64
    }
}

/// Whether a head can stand before a block's end such that the tail right behind it lies in the next block. Heads start at
/// slots, so the end of one with extended attributes may lie up to 28 bytes behind the border.
pub(super) fn fits_behind_border(head: usize, tail: usize) -> bool {
    head % SLOT as usize + tail <= BLOCK_SIZE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Wish {
        Within(usize),
        Across(u64),
        Around(usize, usize),
    }

    fn wish() -> impl Strategy<Value = Wish> {
        prop_oneof![
            8 => (64..=BLOCK_SIZE).prop_map(Wish::Within),
            1 => (64..600_000u64).prop_map(Wish::Across),
            2 => (16..70_000usize, 1..BLOCK_SIZE).prop_map(|(head, tail)| Wish::Around(head * 4, tail)),
        ]
    }

    proptest! {
        /// Nothing overlaps, nothing crosses a border that must not, and nothing lies before the writer's window.
        #[test]
        fn places_are_apart(wishes in prop::collection::vec(wish(), 1..400)) {
            let mut packer = Packer::default();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            let mut window = 0;
            for wish in wishes {
                let block = BLOCK_SIZE as u64;
                let (start, len) = match wish {
                    Wish::Within(size) => {
                        let start = packer.within_block(size);
                        prop_assert_eq!(start / block, (start + size as u64 - 1) / block);
                        (start, size as u64)
                    }
                    Wish::Across(size) => (packer.across_blocks(size), size),
                    Wish::Around(head, tail) if fits_behind_border(head, tail) => {
                        let start = packer.around_border(head, tail);
                        let tail_start = start + head as u64;
                        prop_assert_eq!(tail_start / block, (tail_start + tail as u64 - 1) / block);
                        (start, (head + tail) as u64)
                    }
                    Wish::Around(..) => continue,
                };
                prop_assert_eq!(start % SLOT, 0);
                prop_assert!(start / block >= window, "behind the writer");
                while (start + len - 1) / block >= window + WINDOW as u64 {
                    window += STEP as u64;
                }
                prop_assert!((start + len).div_ceil(block) <= packer.blocks());
                taken.push((start, start + len));
            }
            taken.sort_unstable();
            prop_assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }
}
