//! fs-verity: a file whose content the kernel lets nobody change any more, and checks against a digest whenever it reads it.
//!
//! <https://docs.kernel.org/filesystems/fsverity.html>. ext4, F2FS (where made with the feature) and Btrfs have it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IOW('f', 133, struct fsverity_enable_arg)` and `_IOWR('f', 134, struct fsverity_digest)`.
const ENABLE: u32 = 0x4080_6685;
const MEASURE: u32 = 0xC004_6686;
const SHA256: u32 = 1;
const BLOCK: u32 = 4096;
/// Of SHA-256.
const LENGTH: usize = 32;

/// `struct fsverity_enable_arg`.
#[repr(C)]
struct Enable {
    version: u32,
    algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved: u32,
    signature: u64,
    reserved_too: [u64; 11],
}

/// `struct fsverity_digest`, with room for one of SHA-256.
#[repr(C)]
struct Digest {
    algorithm: u16,
    size: u16,
    digest: [u8; LENGTH],
}

/// Gives a file fs-verity, unless it has it. `false`: the kernel or the file system has none. The file is open for reading, and for writing nowhere.
///
/// # Errors
/// Of the kernel, which reads the whole file: `EIO`, `ENOSPC`, `ETXTBSY` where it is open for writing, `EACCES` where it must not be written to.
pub fn enable(file: BorrowedFd<'_>) -> io::Result<bool> {
    let argument = Enable {
        version: 1,
        algorithm: SHA256,
        block_size: BLOCK,
        salt_size: 0,
        salt: 0,
        signature_size: 0,
        reserved: 0,
        signature: 0,
        reserved_too: [0; 11],
    };
    loop {
        // SAFETY: the structure has the kernel's layout and lives through the call; it points to nothing.
        match unsafe { libc::ioctl(file.as_raw_fd(), ENABLE as libc::Ioctl, &raw const argument) } {
            0 => return Ok(true),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::EEXIST) => return Ok(true),
                e if e.kind() == io::ErrorKind::Interrupted => {}
                // EINVAL: a file system whose blocks are not of that size.
                e if matches!(
                    e.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL)
                ) =>
                {
                    return Ok(false);
                }
                e => return Err(e),
            },
        }
    }
}

/// What the kernel holds a file to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// To this digest.
    Digest([u8; LENGTH]),
    /// To nothing, although its file system has fs-verity.
    Nothing,
    /// The file system, or the kernel, has no fs-verity.
    Unsupported,
}

/// What the kernel holds the file to.
///
/// # Errors
/// Of the kernel; `EOVERFLOW` where the digest is not SHA-256.
pub fn measure(file: BorrowedFd<'_>) -> io::Result<Measured> {
    let mut held_to = Digest { algorithm: 0, size: LENGTH as u16, digest: [0; LENGTH] };
    // SAFETY: the structure has the kernel's layout, says how long it is and lives through the call.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), MEASURE as libc::Ioctl, &raw mut held_to) };
    if r == 0 {
        let is_ours = (u32::from(held_to.algorithm), usize::from(held_to.size)) == (SHA256, LENGTH);
        return if is_ours {
            Ok(Measured::Digest(held_to.digest))
        } else {
            Err(io::ErrorKind::InvalidData.into())
        };
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::ENODATA) => Ok(Measured::Nothing),
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL) => Ok(Measured::Unsupported),
        _ => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Enable>(), size_of::<Digest>()), (128, 4 + LENGTH));
    }

    /// With `SKIFF_TEST_VERITY=DIR`, of a file system that has it, it must be there.
    #[test]
    fn a_file_with_it_stays_as_it_is() {
        let wanted = std::env::var_os("SKIFF_TEST_VERITY");
        let dir = wanted.clone().map_or_else(std::env::temp_dir, std::path::PathBuf::from);
        let path = dir.join(format!("skiff-verity-test-{}", std::process::id()));
        std::fs::write(&path, [7; 10_000]).expect("written");
        let file = File::open(&path).expect("opened");
        let before = measure(file.as_fd()).expect("measured");
        let enabled = enable(file.as_fd()).expect("enabled, or not known");
        let after = measure(file.as_fd()).expect("measured");
        let changed = OpenOptions::new().write(true).open(&path);
        std::fs::remove_file(&path).expect("removed");
        assert!(!matches!(before, Measured::Digest(_)), "{before:?}");
        assert_eq!(matches!(after, Measured::Digest(_)), enabled, "{after:?}");
        let refused = changed.err().map(|e| e.kind());
        assert_eq!(refused, enabled.then_some(io::ErrorKind::PermissionDenied));
        if wanted.is_some() {
            assert_eq!(before, Measured::Nothing);
        }
        if !enabled {
            assert!(wanted.is_none(), "no fs-verity in {dir:?}");
            eprintln!("skipped: {dir:?} has no fs-verity");
        }
    }
}
