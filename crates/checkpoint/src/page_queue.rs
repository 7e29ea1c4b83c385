//! Pages that wait in memory: the processes that they come from stand still as long as copying takes, not hashing and compressing.

use std::collections::VecDeque;
use std::io::Read;

use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::memory::prefer_huge_pages;

/// Memory is cut at addresses that are multiples of this. Smaller chunks keep what is written for a page that has changed small, and have
/// longer lists: 44 bytes for each.
pub const CHUNK: u64 = 16 << 10;
/// Memory is had in blocks of so many bytes.
const BLOCK: usize = 16 << 20;
/// So many times it is asked what is expected: memory for the first answer takes time, in which more comes to be expected.
const MOST_ROUNDS: usize = 8;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How many chunks a run of `length` bytes is cut into whose first has this address.
#[must_use]
pub fn chunks_in(address: u64, length: u64) -> usize {
    match length {
        0 => 0,
        length => (address % CHUNK).saturating_add(length).div_ceil(CHUNK) as usize,
    }
}

/// Chunks that wait, the oldest first.
pub struct PageQueue {
    /// Blocks there may be.
    most: usize,
    filled: VecDeque<Block>,
    /// Blocks that are there before they are needed.
    spare: Vec<Vec<u8>>,
}

/// Chunks that lie one behind the other.
struct Block {
    bytes: Vec<u8>,
    /// Lengths of the chunks.
    chunks: Vec<u16>,
    used: usize,
}

impl PageQueue {
    /// An empty queue, in which so many bytes may wait. One block may in any case.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { most: blocks(limit).max(1), filled: VecDeque::new(), spare: vec![] }
    }

    /// Finds memory for as many bytes as are `expected`, until it has enough for what is expected by then.
    ///
    /// # Errors
    /// The error of `expected`.
    pub fn prepare(&mut self, mut expected: impl FnMut() -> Result<u64>) -> Result<()> {
        for _ in 0..MOST_ROUNDS {
            let wanted = blocks(expected()?).saturating_add(1).min(self.most);
            if self.spare.len() >= wanted {
                break;
            }
            // If there is no more to be had, what comes is written early.
            self.spare.extend((self.spare.len()..wanted).map_while(|_| memory().ok()));
        }
        Ok(())
    }

    /// Reads a run of `length` bytes whose first has this address. What there is no room for waits no longer: `out` takes it, the oldest first.
    ///
    /// # Errors
    /// Why they cannot be read, or the error of `out`.
    pub fn read(
        &mut self,
        from: &mut impl Read,
        (mut address, mut length): (u64, u64),
        mut out: impl FnMut(Vec<u8>) -> Result<()>,
    ) -> Result<std::io::Result<()>> {
        while length > 0 {
            let block = self.block_with_room(&mut out)?;
            let mut end = block.used;
            while length > 0 {
                let chunk = (CHUNK - address % CHUNK).min(length);
                if block.bytes.len() - end < chunk as usize {
                    break;
                }
                block.chunks.push(chunk as u16);
                end += chunk as usize;
                address = address.wrapping_add(chunk);
                length -= chunk;
            }
            let read = from.read_exact(&mut block.bytes[block.used..end]);
            block.used = end;
            if read.is_err() {
                return Ok(read);
            }
        }
        Ok(Ok(()))
    }

    /// Has `out` take all that waits.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn drain(mut self, mut out: impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        self.spare.clear();
        // What has been taken frees its memory at once.
        while let Some(block) = self.filled.pop_front() {
            block.each(&mut out)?;
        }
        Ok(())
    }

    /// The last block, with room for a chunk.
    fn block_with_room(&mut self, out: &mut impl FnMut(Vec<u8>) -> Result<()>) -> Result<&mut Block> {
        let has_room = |block: &Block| block.bytes.len() - block.used >= CHUNK as usize;
        if !self.filled.back().is_some_and(has_room) {
            let bytes = self.memory_for_block(out)?;
            self.filled.push_back(Block { bytes, chunks: vec![], used: 0 });
        }
        self.filled.back_mut().ok_or_else(no_memory)
    }

    fn memory_for_block(&mut self, out: &mut impl FnMut(Vec<u8>) -> Result<()>) -> Result<Vec<u8>> {
        if self.filled.len() < self.most {
            if let Some(bytes) = self.spare.pop().or_else(|| memory().ok()) {
                return Ok(bytes);
            }
            // There is no more to be had.
            self.most = self.filled.len();
        }
        let oldest = self.filled.pop_front().ok_or_else(no_memory)?;
        oldest.each(out)?;
        Ok(oldest.bytes)
    }
}

impl Block {
    fn each(&self, out: &mut impl FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let mut rest = &self.bytes[..self.used];
        for length in &self.chunks {
            let (chunk, others) = rest.split_at(usize::from(*length));
            out(chunk.to_vec())?;
            rest = others;
        }
        Ok(())
    }
}

fn blocks(bytes: u64) -> usize {
    usize::try_from(bytes / BLOCK as u64).unwrap_or(usize::MAX)
}

/// A block's memory. The kernel has found it, so that nothing waits for that later.
fn memory() -> Result<Vec<u8>> {
    let mut bytes = vec![];
    bytes.try_reserve_exact(BLOCK).context(|| "memory for pages")?;
    prefer_huge_pages(bytes.spare_capacity_mut());
    // Piece by piece, which is as fast in a debug build.
    while bytes.len() < BLOCK {
        bytes.extend_from_slice(&ZEROS);
    }
    Ok(bytes)
}

fn no_memory() -> Fault {
    Fault::new("memory for pages: there is none")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 4096;

    /// Reads two runs of so many bytes; what came out on the way, and what at the end.
    fn through((limit, expected): (u64, u64), runs: &[(u64, u64)]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut queue = PageQueue::new(limit);
        queue.prepare(|| Ok(expected)).expect("expected");
        let (mut early, mut late) = (vec![], vec![]);
        for (number, run) in runs.iter().enumerate() {
            let bytes: Vec<u8> = (0..run.1).map(|n| (n / 1000 + number as u64) as u8).collect();
            let read = queue.read(&mut &bytes[..], *run, |chunk| {
                early.push(chunk);
                Ok(())
            });
            read.expect("taken").expect("read");
        }
        let drained = queue.drain(|chunk| {
            late.push(chunk);
            Ok(())
        });
        drained.expect("taken");
        (early, late)
    }

    #[test]
    fn nothing_goes_on_before_the_end_where_there_is_room() {
        let runs = [(PAGES, 3 * PAGES), (0x10_0000 - PAGES, 33 << 20), (7 * PAGES, PAGES)];
        let all: u64 = runs.iter().map(|run| run.1).sum();
        let (early, late) = through((64 << 20, 1 << 20), &runs);
        assert!(early.is_empty());
        assert_eq!(late.iter().map(|chunk| chunk.len() as u64).sum::<u64>(), all);
        let lengths: Vec<usize> = late.iter().map(Vec::len).collect();
        assert_eq!(lengths[..3], [12 << 10, 4 << 10, 16 << 10]);
        // Where there is less room, the same chunks come in the same order.
        for limit in [0, 20 << 20, 32 << 20] {
            let (mut early, rest) = through((limit, u64::MAX), &runs);
            assert!(!early.is_empty() && !rest.is_empty(), "{limit}");
            let waited: usize = rest.iter().map(Vec::len).sum();
            assert!(waited <= (limit as usize).max(BLOCK), "{waited} bytes waited");
            early.extend(rest);
            assert!(early == late, "{limit}");
        }
    }

    #[test]
    fn memory_is_found_for_what_comes_meanwhile_too() {
        let block = BLOCK as u64;
        // What is expected each time it is asked, and how much memory there is then, in blocks.
        for (limit, expected, found) in [
            (9, &[0, 0][..], 1),
            (9, &[2, 2], 3),
            (9, &[2, 1], 3),
            (9, &[2, 4, 5, 5], 6),
            (4, &[2, 9, 9], 4),
            (0, &[9, 9], 1),
        ] {
            let mut queue = PageQueue::new(limit * block);
            let mut answers = expected.iter();
            queue.prepare(|| Ok(answers.next().expect("asked no more") * block)).expect("found");
            assert_eq!((queue.spare.len(), answers.next()), (found, None), "{limit} {expected:?}");
        }
        let mut queue = PageQueue::new(u64::MAX);
        let mut times = 0;
        queue
            .prepare(|| {
                Ok({
                    times += 1;
                    times * block
                })
            })
            .expect("found");
        assert_eq!(queue.spare.len(), MOST_ROUNDS + 1, "it ends, though more and more comes");
    }

    #[test]
    fn what_ends_too_early_is_said() {
        let mut queue = PageQueue::new(0);
        let read = queue.read(&mut &[1; 5000][..], (0, 8192), |_| Ok(())).expect("none goes on");
        assert_eq!(read.expect_err("cut").kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
