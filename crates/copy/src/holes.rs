//! Where a file has bytes: what lies between is neither read nor sent.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, Stat, seek};
use rustix::io::Errno;
use skiff_tar::Segment;

/// GNU tar's records, by which parts begin and end.
const RECORD: u64 = 512;
/// `st_blocks` counts these.
const BLOCK: u64 = 512;
/// A file in more parts is read as a whole: its map would take more memory than it saves time.
const MOST: usize = 1 << 16;

/// The parts of a file that have bytes; nothing if it has no holes, or its file system does not tell where.
pub fn parts(file: BorrowedFd<'_>, stat: &Stat) -> Option<Vec<Segment>> {
    let size = u64::try_from(stat.st_size).ok()?;
    let stored = u64::try_from(stat.st_blocks).ok()?.saturating_mul(BLOCK);
    if stored >= size {
        return None;
    }
    let mut parts: Vec<Segment> = vec![];
    let mut at = 0;
    while at < size {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) if begin < size => begin / RECORD * RECORD,
            // Up to its end there is only a hole.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        let end = seek(file, SeekFrom::Hole(begin.max(at))).ok()?.next_multiple_of(RECORD).min(size);
        if end <= at || parts.len() == MOST {
            return None;
        }
        parts.push(Segment { offset: begin.max(at), len: end - begin.max(at) });
        at = end;
    }
    let is_whole = matches!(parts[..], [Segment { offset: 0, len }] if len == size);
    (!is_whole).then_some(parts)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::fstat;
    use skiff_sys::positional::write_all_at;
    use tempfile::tempfile;

    use super::*;

    #[test]
    fn holes_are_left_out() {
        let file = tempfile().unwrap();
        let parts_now = || parts(file.as_fd(), &fstat(&file).unwrap());
        assert_eq!(parts_now(), None, "empty");
        file.set_len(1 << 40).unwrap();
        assert_eq!(parts_now(), Some(vec![]), "only a hole");
        for at in [1 << 30, (1 << 40) - 1] {
            write_all_at(file.as_fd(), b"x", at).unwrap();
        }
        let found = parts_now().unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].offset <= 1 << 30 && found[0].len <= 1 << 20, "{found:?}");
        assert_eq!(found[1].offset + found[1].len, 1 << 40, "{found:?}");
        let whole = tempfile().unwrap();
        write_all_at(whole.as_fd(), b"all of it", 0).unwrap();
        assert_eq!(parts(whole.as_fd(), &fstat(&whole).unwrap()), None);
    }
}
