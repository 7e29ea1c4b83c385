//! Segments of shared memory.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::memory::page_size;
use skiff_sys::sysv::{self, Attached, Kind};

use super::object::{named, read_part, write_part};
use crate::mappings::{self, Mapping};
use crate::sysv_tables::{Entry, LOCKED, SystemVObject, table};

/// Of what segments hold, blocks of this size are left out that are empty.
const BLOCK: usize = 4096;
/// The longest piece.
const PIECE: usize = 1 << 20;
/// Of so many bytes the kernel is asked at once which are in memory.
const STRETCH: usize = 1 << 30;

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SystemVSegment {
    pub(super) object: SystemVObject,
    pub(super) size: u64,
    /// The process that has made it.
    pub(super) maker: i32,
}

impl SystemVSegment {
    /// What it holds stands in `into` as runs of pages that are not empty: from where, how many bytes, these; a run of none is the last.
    pub(super) fn read(entry: Entry, into: &mut impl Write) -> Result<Self> {
        let about = || named(Kind::Segment, entry.id);
        let size = usize::try_from(entry.size).map_err(|_| Fault::new(about()))?;
        let attached = Attached::attach(entry.id, size).context(about)?;
        refuse_huge(&attached).context(about)?;
        let size = size.next_multiple_of(page_size());
        // What the table said when it was read; the kernel may move pages to swap space at any time.
        let seen = match memory_of(&entry) {
            (held, 0) => Some(write_present(&attached, (size, held), into).context(about)?),
            _ => None,
        };
        let now = table(Kind::Segment)?.into_iter().find(|line| line.id == entry.id);
        let now = now.ok_or_else(|| Fault::new(format!("{}: it is not there any more", about())))?;
        let (held, swapped) = memory_of(&now);
        // If none is in swap space and as many are there as were seen, those were all. Of what is there the kernel does not say which.
        if swapped != 0 || seen != Some(held) {
            mappings::refuse_without_room((size as u64).saturating_sub(held)).context(about)?;
            write_all_of(&attached, size, into).context(about)?;
        }
        write_part(into, 0, &[]).context(about)?;
        let maker = entry.process(4);
        Ok(Self { object: entry.object, size: entry.size, maker })
    }

    pub(super) fn make(&self, from: &mut impl Read) -> Result<()> {
        let id = self.object.id;
        let about = || named(Kind::Segment, id);
        let size = usize::try_from(self.size).map_err(|_| Fault::new(about()))?;
        self.object.make(Kind::Segment, self.maker, |key, mode| sysv::create_segment(key, size, mode))?;
        let attached = Attached::attach(id, size).context(about)?;
        loop {
            let (at, bytes) = read_part(from, PIECE).context(about)?;
            if bytes.is_empty() {
                break;
            }
            if attached.write(usize::try_from(at).unwrap_or(usize::MAX), &bytes) != bytes.len() {
                return Err(Fault::new(format!("{}: more than it held", about())));
            }
        }
        drop(attached);
        if self.object.mode & LOCKED != 0 {
            sysv::lock_segment(id).context(about)?;
        }
        self.object.set_owner(Kind::Segment, 0)
    }
}

/// How many bytes of a segment are in memory, and in swap space.
fn memory_of(entry: &Entry) -> (u64, u64) {
    let bytes = |place| u64::try_from(entry.number(place)).unwrap_or(u64::MAX);
    (bytes(14), bytes(15))
}

/// Writes what of a segment of this size is in memory, where so many bytes should be; how many were. To read what was never written would make
/// it take memory.
fn write_present(attached: &Attached, (size, held): (usize, u64), into: &mut impl Write) -> io::Result<u64> {
    let (page, mut piece, mut seen) = (page_size(), vec![0; PIECE], 0);
    for at in (0..size).step_by(STRETCH) {
        // Most of a large one may be empty.
        if seen >= held {
            break;
        }
        let pages = attached.in_memory(at, STRETCH.min(size - at));
        let mut number = 0;
        while number < pages.len() {
            let run = pages[number..].iter().take(PIECE / page).take_while(|is_there| **is_there).count();
            let from = at + number * page;
            let got = attached.read(from, &mut piece[..run * page]);
            write_runs(from, &piece[..got], into)?;
            seen += got as u64;
            number += run.max(1);
        }
    }
    Ok(seen)
}

/// Writes all that a segment of this size holds.
fn write_all_of(attached: &Attached, size: usize, into: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    for at in (0..size).step_by(PIECE) {
        let got = attached.read(at, &mut piece[..PIECE.min(size - at)]);
        write_runs(at, &piece[..got], into)?;
    }
    Ok(())
}

/// Huge pages are not to be had on every host.
fn refuse_huge(attached: &Attached) -> io::Result<()> {
    let own = mappings::own()?;
    let is_it = |mapping: &&Mapping| mapping.start == attached.address() as u64;
    let device = own.iter().find(is_it).map(|mapping| (mapping.object.0, mapping.object.1));
    match device == mappings::memory_device().ok() {
        true => Ok(()),
        false => Err(io::Error::other("it has huge pages")),
    }
}

/// Writes those of these pages that are not empty.
fn write_runs(at: usize, bytes: &[u8], into: &mut impl Write) -> io::Result<()> {
    let is_empty = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let mut pages = bytes.chunks(BLOCK).enumerate().peekable();
    while let Some((number, page)) = pages.next() {
        if is_empty(page) {
            continue;
        }
        let (begin, mut end) = (number * BLOCK, number * BLOCK + page.len());
        while let Some((_, page)) = pages.next_if(|(_, page)| !is_empty(page)) {
            end += page.len();
        }
        write_part(into, (at + begin) as u64, &bytes[begin..end])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_pages_are_left_out() {
        let mut bytes = vec![0; 4 * BLOCK + 7];
        bytes[BLOCK] = 1;
        bytes[2 * BLOCK] = 2;
        bytes[4 * BLOCK + 6] = 3;
        let mut written = vec![];
        write_runs(PIECE, &bytes, &mut written).expect("written");
        let head = |at: usize, length: usize| [(PIECE + at).to_le_bytes(), length.to_le_bytes()].concat();
        let wanted =
            [&head(BLOCK, 2 * BLOCK)[..], &bytes[BLOCK..3 * BLOCK], &head(4 * BLOCK, 7), &bytes[4 * BLOCK..]]
                .concat();
        assert_eq!(written, wanted);
    }
}
