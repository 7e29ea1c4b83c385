//! Maps of sparse files: which parts of a file the archive has; everything else in it is a hole.

use super::header::{RECORD, number};

/// A part of a sparse file that the archive has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A map may have so many segments, 16 MiB of memory.
pub(super) const MOST_SEGMENTS: usize = 1 << 20;

const SEGMENT_BYTES: usize = 24;
const IN_HEADER: std::ops::Range<usize> = 386..482;
const HEADER_CONTINUES: usize = 482;
const REAL_SIZE: std::ops::Range<usize> = 483..495;
const IN_EXTENSION: std::ops::Range<usize> = 0..504;
const EXTENSION_CONTINUES: usize = 504;

/// A map that grows record by record, as GNU tar's own sparse headers have it.
pub(super) struct GnuMap {
    pub map: Vec<Segment>,
    /// Another record with more segments follows.
    pub continues: bool,
    /// The file's size, holes counted.
    pub size: u64,
}

impl GnuMap {
    pub fn new(header: &[u8; RECORD]) -> Result<GnuMap, String> {
        let mut map = GnuMap {
            map: vec![],
            continues: header[HEADER_CONTINUES] != 0,
            size: field(&header[REAL_SIZE])?,
        };
        map.take(&header[IN_HEADER])?;
        Ok(map)
    }

    pub fn extend(&mut self, extension: &[u8; RECORD]) -> Result<(), String> {
        self.continues = extension[EXTENSION_CONTINUES] != 0;
        self.take(&extension[IN_EXTENSION])?;
        if self.map.len() > MOST_SEGMENTS {
            return Err(too_many(self.map.len()));
        }
        Ok(())
    }

    fn take(&mut self, segments: &[u8]) -> Result<(), String> {
        for segment in segments.chunks_exact(SEGMENT_BYTES) {
            let (offset, len) = segment.split_at(SEGMENT_BYTES / 2);
            if offset[0] == 0 {
                // Unused, as are those behind it.
                break;
            }
            self.map.push(Segment { offset: field(offset)?, len: field(len)? });
        }
        Ok(())
    }
}

fn field(bytes: &[u8]) -> Result<u64, String> {
    u64::try_from(number(bytes)?).map_err(|_| "a negative number in the map of a sparse file".into())
}

pub(super) fn too_many(segments: usize) -> String {
    format!("a sparse file of {segments} parts, more than the {MOST_SEGMENTS} allowed")
}

/// Checks that the segments come in order, apart, within the file, and are together as long as the data in the archive.
pub(super) fn check(map: &[Segment], size: u64, stored: u64) -> Result<(), String> {
    let (mut end, mut sum) = (0u64, 0u64);
    for segment in map {
        if segment.offset < end {
            return Err("a sparse file whose parts overlap or are not in order".into());
        }
        end = segment
            .offset
            .checked_add(segment.len)
            .filter(|end| *end <= size)
            .ok_or("a sparse file with a part beyond its end")?;
        // No overflow: the segments lie apart below `size`.
        sum += segment.len;
    }
    if sum != stored {
        return Err(format!("a sparse file with {stored} bytes of data where its map has {sum}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_maps_pass() {
        let map = |pairs: &[(u64, u64)]| {
            pairs.iter().map(|&(offset, len)| Segment { offset, len }).collect::<Vec<_>>()
        };
        for (pairs, size, stored, sound) in [
            (&[][..], 0, 0, true),
            (&[(10, 0)][..], 10, 0, true),
            (&[(0, 5), (5, 5)][..], 10, 10, true),
            (&[(0, 5), (4, 5)][..], 10, 10, false),
            (&[(6, 1), (2, 1)][..], 10, 2, false),
            (&[(6, 5)][..], 10, 5, false),
            (&[(u64::MAX, 2)][..], u64::MAX, 2, false),
            (&[(0, 5)][..], 10, 4, false),
            (&[(0, 5)][..], 10, 6, false),
        ] {
            assert_eq!(
                check(&map(pairs), size, stored).is_ok(),
                sound,
                "{pairs:?} in {size}, {stored} stored"
            );
        }
    }
}
