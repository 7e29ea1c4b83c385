//! The image `filelocks.img`, which says what locks processes have on files; for programs that take some of them again themselves.

use prost::Message;

use crate::image_format;

/// The type of `filelocks.img`. Source: `criu/include/magic.h`.
const FILE_LOCKS: u32 = 0x5432_3616;
/// Bits of `flag`: a lock of an open file description, by `flock(2)` or on a range. Source: `criu/include/file-lock.h`.
const OF_DESCRIPTION: u32 = 2 | 4;

/// The part of `file_lock_entry` that is wanted here.
#[derive(Clone, PartialEq, Eq, Message)]
struct Entry {
    #[prost(uint32, required, tag = "1")]
    flag: u32,
}

/// The same image without the locks that belong to open file descriptions. Nothing if `image` is not such an image.
#[must_use]
pub fn of_processes(image: &[u8]) -> Option<Vec<u8>> {
    let mut left = image_format::empty(FILE_LOCKS);
    for body in image_format::entry_bytes(FILE_LOCKS, image)? {
        if Entry::decode(body).ok()?.flag & OF_DESCRIPTION == 0 {
            image_format::append(&mut left, body);
        }
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(flags: &[u32]) -> Vec<u8> {
        let entries: Vec<Entry> = flags.iter().map(|flag| Entry { flag: *flag }).collect();
        image_format::image(FILE_LOCKS, &entries)
    }

    #[test]
    fn locks_of_processes_stay_and_others_go() {
        let read = |flags: &[u32]| of_processes(&image(flags)).expect("read");
        assert_eq!(read(&[1, 2, 4, 1, 8]), image(&[1, 1, 8]));
        assert_eq!(read(&[2]), image(&[]));
        assert_eq!(read(&[]), image(&[]));
        let whole = image(&[1, 2]);
        for end in (0..whole.len()).filter(|end| ![8, 14].contains(end)) {
            assert_eq!(of_processes(&whole[..end]), None, "{end}");
        }
    }
}
