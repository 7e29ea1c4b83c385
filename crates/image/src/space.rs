//! Where in the image file each layer's blocks go, while all layers are unpacked at once.
//!
//! The file must not depend on who was faster. So each layer has a region of its own, as long as the layer promises to be
//! (`inflate::promised_size`, which follows from its bytes alone), the lowest layer's first. What does not fit, because a
//! promise was wrong, goes behind all regions, where layers get room strictly in order: each waits for those below it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use skiff_erofs::tree::BLOCK;

/// Consecutive blocks of the image file: `start..end`.
pub(crate) type BlockRange = std::ops::Range<u32>;

/// The regions of all layers, and what is behind them.
pub(crate) struct BlockSpace {
    regions: Vec<BlockRange>,
    overflow: Mutex<Overflow>,
    turn: Condvar,
}

struct Overflow {
    /// Which layers are done. Only the lowest that is not gets room.
    done: Vec<bool>,
    end: u32,
    /// Someone failed: nobody's turn comes any more.
    over: bool,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The image would be larger than the format allows, 16 TiB.
    Full,
    /// Another layer failed.
    Over,
}

impl BlockSpace {
    /// Regions for layers that promise to be so many bytes each. Block 0 is the superblock's.
    pub fn new(promises: &[u64]) -> Result<BlockSpace, Refusal> {
        let mut start = 1;
        let mut regions = vec![];
        for promise in promises {
            let end =
                u32::try_from(promise.div_ceil(BLOCK)).ok().and_then(|blocks| blocks.checked_add(start));
            regions.push(start..end.ok_or(Refusal::Full)?);
            start = regions[regions.len() - 1].end;
        }
        let overflow = Overflow { done: vec![false; promises.len()], end: start, over: false };
        Ok(BlockSpace { regions, overflow: Mutex::new(overflow), turn: Condvar::new() })
    }

    /// The layer has all the room it needs.
    pub fn done(&self, layer: usize) {
        self.lock().done[layer] = true;
        self.turn.notify_all();
    }

    /// Wakes all who wait, for nothing.
    pub fn give_up(&self) {
        self.lock().over = true;
        self.turn.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Overflow> {
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One layer's room.
pub(crate) struct Room<'a> {
    space: &'a BlockSpace,
    layer: usize,
    /// What is used: some of the region, and some behind all of them.
    used: [BlockRange; 2],
}

impl<'a> Room<'a> {
    pub fn new(space: &'a BlockSpace, layer: usize) -> Room<'a> {
        let start = space.regions[layer].start;
        Room { space, layer, used: [start..start, 0..0] }
    }

    /// So many blocks, one behind the other: the first one's number. `wait` is called around what may take long.
    pub fn allocate(&mut self, blocks: u32, wait: impl FnOnce(&mut dyn FnMut())) -> Result<u32, Refusal> {
        let region = &mut self.used[0];
        if blocks <= self.space.regions[self.layer].end - region.end {
            region.end += blocks;
            return Ok(region.end - blocks);
        }
        if !self.my_turn(&self.space.lock()) {
            wait(&mut || {
                let overflow = self.space.lock();
                drop(
                    self.space
                        .turn
                        .wait_while(overflow, |overflow| !overflow.over && !self.my_turn(overflow)),
                );
            });
        }
        let mut overflow = self.space.lock();
        if overflow.over {
            return Err(Refusal::Over);
        }
        let start = overflow.end;
        overflow.end = start.checked_add(blocks).ok_or(Refusal::Full)?;
        if self.used[1].is_empty() {
            self.used[1].start = start;
        }
        self.used[1].end = overflow.end;
        Ok(start)
    }

    fn my_turn(&self, overflow: &Overflow) -> bool {
        overflow.done[..self.layer].iter().all(|done| *done)
    }

    /// Where the layer's own region ends, in bytes.
    pub fn limit(&self) -> u64 {
        u64::from(self.space.regions[self.layer].end) * BLOCK
    }

    /// The blocks in use.
    pub fn used(&self) -> [BlockRange; 2] {
        self.used.clone()
    }

    /// Gives all back: the layer begins anew.
    pub fn reset(&mut self) {
        if !self.used[1].is_empty() {
            // It is still this layer's turn, so nobody has room behind.
            self.space.lock().end = self.used[1].start;
        }
        *self = Room::new(self.space, self.layer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_once(wait: &mut dyn FnMut()) {
        wait();
    }

    #[test]
    fn layers_fill_their_regions_then_the_rest_in_order() {
        let space = BlockSpace::new(&[BLOCK * 2, 0, BLOCK + 1]).unwrap();
        let mut rooms: Vec<Room<'_>> = (0..3).map(|layer| Room::new(&space, layer)).collect();
        assert_eq!(rooms[0].allocate(1, at_once), Ok(1));
        assert_eq!(rooms[2].allocate(2, at_once), Ok(3));
        assert_eq!(rooms[0].allocate(2, at_once), Ok(5), "does not fit into what is left of its region");
        assert_eq!(rooms[0].allocate(1, at_once), Ok(2), "but this does");
        rooms[0].reset();
        assert_eq!(rooms[0].allocate(3, at_once), Ok(5));
        std::thread::scope(|scope| {
            let higher = scope.spawn(|| rooms[2].allocate(1, at_once));
            space.done(0);
            space.done(1);
            assert_eq!(higher.join().unwrap(), Ok(8));
        });
    }

    #[test]
    fn who_waits_for_a_failed_layer_is_woken() {
        let space = BlockSpace::new(&[0, 0]).unwrap();
        std::thread::scope(|scope| {
            let higher = scope.spawn(|| Room::new(&space, 1).allocate(1, at_once));
            space.give_up();
            assert_eq!(higher.join().unwrap(), Err(Refusal::Over));
        });
    }

    #[test]
    fn promises_beyond_the_format_are_refused() {
        assert_eq!(BlockSpace::new(&[1 << 44, 1 << 44]).err(), Some(Refusal::Full));
    }
}
