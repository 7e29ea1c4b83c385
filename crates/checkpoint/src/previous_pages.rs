//! The pages of the checkpoint before: what the kernel says of as unchanged is taken from there, by its chunks, and not read again.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use skiff_snapshot::StoredList;
use skiff_sys::written::{self, PageSpan};

/// Private memory of processes, as the checkpoint before has it.
#[derive(Debug)]
pub(crate) struct PreviousPages {
    /// All chunks of that checkpoint.
    pub list: StoredList,
    /// Chunks of each process by their addresses: those that a new list may name.
    pub processes: BTreeMap<i32, Vec<PreviousChunk>>,
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreviousChunk {
    /// Address of its first byte.
    pub address: u64,
    pub length: u64,
    /// Place in the list.
    pub place: usize,
    /// Flags of its pages.
    pub flags: u16,
}

/// Chunks that follow each other, in the process and in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRun {
    /// Address of the first byte.
    pub address: u64,
    pub length: u64,
    pub flags: u16,
    /// Places in the list.
    pub places: Range<usize>,
}

impl PreviousChunk {
    pub fn end(&self) -> u64 {
        self.address + self.length
    }
}

impl PreviousPages {
    /// The chunks of a process that lie whole in these ranges, which are in order.
    pub fn within<'a>(&'a self, pid: i32, ranges: &'a [PageSpan]) -> impl Iterator<Item = &'a PreviousChunk> {
        // Both are in order.
        let mut left = ranges;
        self.processes.get(&pid).into_iter().flatten().filter(move |chunk| {
            while left.first().is_some_and(|range| range.1 <= chunk.address) {
                left = &left[1..];
            }
            left.first().is_some_and(|range| range.0 <= chunk.address && chunk.end() <= range.1)
        })
    }

    /// Ranges of whole chunks of a process that are as they were, in order, as the kernel says it now; `pagemap` is the process's.
    pub fn unchanged(&self, pid: i32, pagemap: BorrowedFd<'_>) -> io::Result<Vec<PageSpan>> {
        let Some(bounds) = self.bounds(pid) else { return Ok(vec![]) };
        let pages = written::unchanged(pagemap, bounds)?;
        let chunks = self.within(pid, &pages);
        Ok(united(chunks.map(|chunk| (chunk.address, chunk.end())).collect()))
    }

    /// From where to where a process has chunks.
    pub fn bounds(&self, pid: i32) -> Option<(u64, u64)> {
        let chunks = self.processes.get(&pid)?;
        Some((chunks.first()?.address, chunks.last()?.end()))
    }

    /// The chunks of a process that make up these ranges, which are in order; nothing if they do not.
    pub fn runs(&self, pid: i32, ranges: &[PageSpan]) -> Option<Vec<ChunkRun>> {
        let mut runs: Vec<ChunkRun> = vec![];
        let mut length = 0;
        for chunk in self.within(pid, ranges) {
            length += chunk.length;
            match runs.last_mut() {
                Some(last)
                    if last.address + last.length == chunk.address
                        && last.places.end == chunk.place
                        && last.flags == chunk.flags =>
                {
                    last.length += chunk.length;
                    last.places.end += 1;
                }
                _ => runs.push(ChunkRun {
                    address: chunk.address,
                    length: chunk.length,
                    flags: chunk.flags,
                    places: chunk.place..chunk.place + 1,
                }),
            }
        }
        let wanted: u64 = ranges.iter().map(|(start, end)| end - start).sum();
        (length == wanted).then_some(runs)
    }
}

/// Ranges in order, those that touch as one.
pub(crate) fn united(mut ranges: Vec<PageSpan>) -> Vec<PageSpan> {
    ranges.sort_unstable();
    let mut all: Vec<PageSpan> = vec![];
    for (start, end) in ranges {
        match all.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}
