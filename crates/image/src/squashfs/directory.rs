//! Directories: headers, each with up to 256 entries whose inodes lie in one block of metadata.

use skiff_sys::IgnoreError;

use super::inode::DirLocation;
use super::metadata::{Bad, MetadataBlocks};
use super::tables::{Row, WrittenInode};

/// Counted for `.` and `..`, which are not there.
const DOTS: u32 = 3;
const HEADER: u32 = 12;
const ENTRY: u32 = 8;
const MOST_UNDER_HEADER: u32 = 256;
const LONGEST_NAME: usize = 255;

/// A name, and the reference of its inode.
pub(super) type DirEntry = (Box<[u8]>, u64);

pub(super) fn entries(blocks: &MetadataBlocks, place: &DirLocation) -> Result<Vec<DirEntry>, Bad> {
    let mut cursor = blocks.place(place.block.into(), place.offset.into());
    let mut entries = vec![];
    let mut left = place.size.saturating_sub(DOTS);
    let too_long = || Bad::new("a directory is longer than it says");
    while left > 0 {
        left = left.checked_sub(HEADER).ok_or_else(too_long)?;
        let (count, block, _number) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        if count >= MOST_UNDER_HEADER {
            return Err(Bad::new("a directory has more entries under one header than it can"));
        }
        for _ in 0..=count {
            let (offset, _difference, _kind) = (cursor.u16()?, cursor.u16()?, cursor.u16()?);
            let len = usize::from(cursor.u16()?) + 1;
            let name = cursor.bytes(len, LONGEST_NAME, "a name")?;
            left = left.checked_sub(ENTRY + len as u32).ok_or_else(too_long)?;
            if matches!(&*name, b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
                return Err(Bad::new(format!("{:?} is not a file name", name.escape_ascii().to_string())));
            }
            entries.push((name, u64::from(block) << 16 | u64::from(offset)));
        }
    }
    Ok(entries)
}

/// An entry that is written: its name, the inode, and what kind of file that is.
pub(super) type NamedInode = (Box<[u8]>, WrittenInode, u16);

/// Writes a directory, whose entries are in the order of their names; nothing if no reference leads so far.
pub(super) fn write(row: &mut Row, mut entries: &[NamedInode]) -> Option<DirLocation> {
    let (place, begin) = (row.next()?, row.len());
    while let Some((_, first, _)) = entries.first() {
        let difference =
            |inode: &WrittenInode| i16::try_from(i64::from(inode.number) - i64::from(first.number));
        let fits =
            |(_, inode, _): &&NamedInode| inode.place.block == first.place.block && difference(inode).is_ok();
        let count = entries.iter().take(MOST_UNDER_HEADER as usize).take_while(fits).count();
        let (now, rest) = entries.split_at(count);
        row.put32(count as u32 - 1);
        row.put32(first.place.block);
        row.put32(first.number);
        for (name, inode, kind) in now {
            row.put16(inode.place.offset);
            row.put(
                &difference(inode)
                    .default_on_error("each of these is near enough: others are taken into the next run")
                    .to_le_bytes(),
            );
            row.put16(*kind);
            row.put16(name.len() as u16 - 1);
            row.put(name);
        }
        entries = rest;
    }
    let size = u32::try_from(row.len() - begin).ok()?.checked_add(DOTS)?;
    Some(DirLocation { block: place.block, offset: place.offset, size })
}
