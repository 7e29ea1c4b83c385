//! The image `filelocks.img`, which says what locks processes have on files; for programs that take some of them again themselves.

use prost::Message;

/// What each image of CRIU's begins with. Source: `criu/include/magic.h`.
const MAGIC: u32 = 0x5456_4319;
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
    // Two numbers: an image, and of which type.
    let (head, mut rest) = image.split_at_checked(8)?;
    head.starts_with(&MAGIC.to_ne_bytes()).then_some(())?;
    let mut left = head.to_vec();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let end = 4 + usize::try_from(u32::from_ne_bytes(*length)).ok()?;
        let entry = Entry::decode(rest.get(4..end)?).ok()?;
        if entry.flag & OF_DESCRIPTION == 0 {
            left.extend(&rest[..end]);
        }
        rest = after.get(end - 4..)?;
    }
    rest.is_empty().then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(flags: &[u32]) -> Vec<u8> {
        let mut image = [MAGIC.to_ne_bytes(), [1, 2, 3, 4]].concat();
        for flag in flags {
            let body = Entry { flag: *flag }.encode_to_vec();
            image.extend(u32::try_from(body.len()).expect("short").to_ne_bytes());
            image.extend(body);
        }
        image
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
