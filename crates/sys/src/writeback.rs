//! Data on its way to the disk before anybody waits for it.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Has the kernel begin to write a part of a file to the disk. The sync at the end then finds less left to do; unlike with [`crate::uncached`] the data stays
/// in the page cache. If the file system does not support this, the sync writes everything.
pub fn begin(file: BorrowedFd<'_>, at: u64, length: u64) {
    let (Ok(at), Ok(length)) = (at.try_into(), length.try_into()) else { return };
    // SAFETY: it takes numbers only.
    unsafe { libc::sync_file_range(file.as_raw_fd(), at, length, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn data_stays_as_it_is() {
        let file = tempfile::tempfile().unwrap();
        crate::positional::write_all_at(file.as_fd(), b"some", 0).unwrap();
        for (at, length) in [(0, 4), (2, 1 << 40), (u64::MAX, 1)] {
            begin(file.as_fd(), at, length);
        }
        let mut read = [0; 4];
        crate::positional::read_exact_at(file.as_fd(), &mut read, 0).unwrap();
        assert_eq!(&read, b"some");
    }
}
