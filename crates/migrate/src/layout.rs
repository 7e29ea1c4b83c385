//! Where memory lies that is sent before the processes stop: all of it in one row, which both sides reckon alike.

use std::collections::HashMap;

use skiff_criu::page_protocol::PAGE;
use skiff_spec::fault::{Fault, Result};

/// A part of a process's memory: from this address to before that.
pub type AddressRange = (u64, u64);

/// Where in processes, by their numbers inside, memory is that can go so.
pub type MemoryRanges = HashMap<i32, Vec<AddressRange>>;

/// More than this does not go ahead, or what is noted of it would take too much itself: programs may have terabytes, and nothing in them.
const MOST: u64 = 1 << 40;

/// Memory of a process in that row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// The process's number inside.
    pub pid: i32,
    /// Where it is there.
    pub range: AddressRange,
    /// Where it is in the row.
    pub at: u64,
}

/// The row.
#[derive(Debug)]
pub struct MemoryLayout {
    /// By process and address.
    parts: Vec<MemoryPart>,
    size: u64,
}

impl MemoryLayout {
    /// Lays out these ranges, as many of them as may go.
    ///
    /// # Errors
    /// When they are none.
    pub fn new(ranges: &MemoryRanges) -> Result<Self> {
        let mut all: Vec<(i32, AddressRange)> =
            ranges.iter().flat_map(|(pid, ranges)| ranges.iter().map(|range| (*pid, *range))).collect();
        all.sort_unstable();
        let (mut parts, mut size): (Vec<MemoryPart>, u64) = (vec![], 0);
        for (pid, (start, end)) in all {
            let behind = parts.last().is_none_or(|last| last.pid != pid || last.range.1 <= start);
            if !behind || start >= end || (start | end) % PAGE != 0 {
                return Err(Fault::new(format!(
                    "memory of process {pid}: {start:#x} to {end:#x} is not a part of it"
                )));
            }
            if end - start <= MOST - size {
                parts.push(MemoryPart { pid, range: (start, end), at: size });
                size += end - start;
            }
        }
        Ok(Self { parts, size })
    }

    /// How long it is.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All of it.
    #[must_use]
    pub fn parts(&self) -> &[MemoryPart] {
        &self.parts
    }

    /// Parts of one process.
    #[must_use]
    pub fn of(&self, pid: i32) -> &[MemoryPart] {
        let from = self.parts.partition_point(|part| part.pid < pid);
        let to = self.parts.partition_point(|part| part.pid <= pid);
        self.parts.get(from..to).unwrap_or_default()
    }

    /// Where so many bytes of a process are, if they lie together.
    #[must_use]
    pub fn place(&self, pid: i32, address: u64, bytes: u64) -> Option<u64> {
        let parts = self.of(pid);
        let part = parts.get(parts.partition_point(|part| part.range.1 <= address))?;
        let into = address.checked_sub(part.range.0)?;
        (address.checked_add(bytes)? <= part.range.1).then_some(part.at + into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_its_place() {
        let ranges = MemoryRanges::from([
            (7, vec![(0x5000, 0x7000), (0x1000, 0x2000), (0x2000, 0x3000)]),
            (2, vec![(0x1000, 0x3000)]),
        ]);
        let layout = MemoryLayout::new(&ranges).expect("a row");
        assert_eq!(layout.size(), 0x6000);
        assert_eq!(layout.of(7).len(), 3);
        for (pid, address, bytes, place) in [
            (2, 0x1000, 0x2000, Some(0)),
            (2, 0x2000, 0x1000, Some(0x1000)),
            (7, 0x1000, 0x1000, Some(0x2000)),
            (7, 0x2000, 0x1000, Some(0x3000)),
            (7, 0x6000, 0x1000, Some(0x5000)),
            // Over an end, before a beginning, behind the last, of nobody, and too far.
            (7, 0x1000, 0x2000, None),
            (7, 0x4000, 0x2000, None),
            (7, 0x7000, 0x1000, None),
            (3, 0x1000, 0x1000, None),
            (7, 0x5000, u64::MAX, None),
        ] {
            assert_eq!(layout.place(pid, address, bytes), place, "{bytes:#x} bytes of {pid} at {address:#x}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_is_too_much_left_out() {
        for ranges in
            [vec![(0x2000, 0x1000)], vec![(0x1000, 0x1800)], vec![(0x1000, 0x3000), (0x2000, 0x4000)]]
        {
            let refused =
                MemoryLayout::new(&MemoryRanges::from([(2, ranges.clone())])).expect_err("no memory");
            assert!(refused.message.ends_with("is not a part of it"), "{ranges:?}: {refused}");
        }
        let layout = MemoryLayout::new(&MemoryRanges::from([(
            2,
            vec![(0x1000, MOST + 0x2000), (MOST + 0x2000, MOST + 0x3000)],
        )]));
        assert_eq!(layout.expect("a row").parts().len(), 1);
    }
}
