//! A file as a block device, for kernels that mount file systems from nothing else.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const CONTROL: &str = "/dev/loop-control";
/// Another process may take the free device that the kernel named before we do.
const TRIES: usize = 64;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const READ_ONLY: u32 = 1;
/// The kernel lets go of the file when the device's last user, a mount, is gone.
const AUTOCLEAR: u32 = 4;

/// `struct loop_config` of the kernel, version of Linux 5.8.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    /// Device, inode, underlying device, offset, size limit.
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// A device that stands for a file, open.
pub struct LoopDevice {
    number: i32,
    _device: File,
}

impl LoopDevice {
    /// What to mount.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/dev/loop{}", self.number)
    }
}

/// Gives `file` a device, read-only. It goes when this and the mounts made from it are gone.
///
/// # Errors
/// `ENOENT` where the kernel has no loop devices, `EBUSY` where all are taken again and again.
pub fn attach_read_only(file: BorrowedFd<'_>) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
    let mut last = io::Error::from_raw_os_error(libc::EBUSY);
    for _ in 0..TRIES {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let device = OpenOptions::new().read(true).open(format!("/dev/loop{number}"))?;
        let config = Config {
            fd: file.as_raw_fd() as u32,
            block_size: 0,
            info: Info {
                numbers: [0; 5],
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags: READ_ONLY | AUTOCLEAR,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        // SAFETY: the structure has the kernel's layout and lives through the call.
        let r = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
        if r == 0 {
            return Ok(LoopDevice { number, _device: device });
        }
        last = io::Error::last_os_error();
        if last.raw_os_error() != Some(libc::EBUSY) {
            break;
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
