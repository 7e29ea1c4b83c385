//! Files without a name, which a process has open and nobody else can see.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, fstat};

/// So many numbers of descriptors are looked at. The store's writer can have no more, and may not ask how many it can have.
const MOST: i32 = 4096;

/// How many bytes of a file system's the regular files take that have no name, belong to `uid`, and are open in this process. `device` is the file
/// system's number, as in [`rustix::fs::Stat`].
#[must_use]
pub fn unnamed_bytes(uid: u32, device: u64) -> u64 {
    let mut files = BTreeMap::new();
    for number in 0..MOST {
        // SAFETY: fstat on any number is harmless: it says whether that descriptor is open, and nothing is kept of it.
        let Ok(stat) = fstat(unsafe { BorrowedFd::borrow_raw(number) }) else { continue };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file && stat.st_nlink == 0 && stat.st_uid == uid && stat.st_dev == device {
            files.insert(stat.st_ino, stat.st_blocks.unsigned_abs() * 512);
        }
    }
    files.values().sum()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_file_counts_once_and_only_without_a_name() {
        let mut file = tempfile::tempfile().expect("a file");
        let about = file.metadata().expect("known");
        let count = || unnamed_bytes(about.uid(), about.dev());
        let before = count();
        file.write_all(&vec![1; 64 << 20]).expect("written");
        let _again = file.try_clone().expect("a second descriptor");
        // Other tests have some as well.
        let grown = count().saturating_sub(before);
        assert!((48 << 20..96 << 20).contains(&grown), "{grown}");
        assert_eq!(unnamed_bytes(about.uid() + 1, about.dev()), 0);
        let mut named = tempfile::NamedTempFile::new().expect("a file");
        let before = count();
        named.write_all(&vec![1; 64 << 20]).expect("written");
        assert!(count().saturating_sub(before) < 48 << 20);
    }
}
