//! Whole reads and writes at a place in a file: interrupted and short ones are gone on with.

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread, pwrite, retry_on_intr};

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// Of the system; `EIO` where it takes no more bytes.
pub fn write_all_at(file: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match retry_on_intr(|| pwrite(file, bytes, offset))? {
            0 => return Err(Errno::IO),
            written => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}

/// Fills `bytes` from `offset`; how many there were before the end of the file.
///
/// # Errors
/// Of the system.
pub fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match retry_on_intr(|| pread(file, &mut bytes[filled..], offset + filled as u64))? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Fills `bytes` from `offset`; that the file has fewer is an error.
///
/// # Errors
/// Of the system; `ENODATA` at the end of the file.
pub fn read_exact_at(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> rustix::io::Result<()> {
    if read_at(file, bytes, offset)? == bytes.len() { Ok(()) } else { Err(Errno::NODATA) }
}
