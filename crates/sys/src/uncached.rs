//! Writes of much data that nobody reads soon: it is on its way to the disk at once, and leaves the page cache when it is there.
//!
//! The sync at the end then finds next to nothing left to do. New data goes into the pages that the data before has just left,
//! not into ever more memory, which the kernel would have to find, and take from the files of whoever works on the machine.
//! Measured in docs/image-files.md.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, retry_on_intr};

/// `RWF_DONTCACHE`, since Linux 6.14, for which rustix has no name yet.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// Where the kernel or the file system has no such writes, it is told after so many bytes what it would do by itself.
const STEP: u64 = 32 << 20;

/// How one file is written to, by any number of threads.
#[derive(Default)]
pub struct Uncached {
    /// Such writes are not known here.
    refused: AtomicBool,
    written: AtomicU64,
}

impl Uncached {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Of the system.
    pub fn write_all_at(
        &self,
        file: BorrowedFd<'_>,
        mut bytes: &[u8],
        mut offset: u64,
    ) -> rustix::io::Result<()> {
        while !bytes.is_empty() {
            let refused = self.refused.load(Ordering::Relaxed);
            let flags = if refused { ReadWriteFlags::empty() } else { DONTCACHE };
            let written = match retry_on_intr(|| pwritev2(file, &[IoSlice::new(bytes)], offset, flags)) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => written,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if !refused => {
                    self.refused.store(true, Ordering::Relaxed);
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            bytes = &bytes[written..];
            offset += written as u64;
            if refused {
                self.advise(file, written as u64);
            }
        }
        Ok(())
    }

    /// Begins to write to the disk what is not there yet, and lets go of what is.
    fn advise(&self, file: BorrowedFd<'_>, more: u64) {
        let before = self.written.fetch_add(more, Ordering::Relaxed);
        if before / STEP != (before + more) / STEP {
            // Where advice is not taken, the data is as safe, and all is only slower.
            fadvise(file, 0, None, Advice::DontNeed).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_written_is_read_with_and_without_the_kernels_help() {
        let file = tempfile::tempfile().unwrap();
        for refused in [false, true] {
            let uncached = Uncached { refused: refused.into(), written: (STEP - 1).into() };
            let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8 ^ u8::from(refused)).collect();
            uncached.write_all_at(file.as_fd(), &bytes, 77).unwrap();
            let mut read = vec![0; bytes.len()];
            crate::positional::read_exact_at(file.as_fd(), &mut read, 77).unwrap();
            assert_eq!(read, bytes);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_to_is_an_error() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Uncached::default().write_all_at(null.as_fd(), b"x", 0), Err(Errno::BADF));
    }
}
