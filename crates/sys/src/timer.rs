//! Timers of descriptors (`timerfd_create(2)`), as far as no library has a function.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TFD_IOC_SET_TICKS`. Source: `linux/timerfd.h`.
const SET_TICKS: u32 = 0x4008_5400;

/// Has a timer have expired so often since it was last read; once at least.
///
/// # Errors
/// `ENOTTY` of a kernel without `CONFIG_CHECKPOINT_RESTORE`.
pub fn set_ticks(timer: BorrowedFd<'_>, ticks: u64) -> io::Result<()> {
    // SAFETY: the kernel reads a number of 64 bits, which lives through the call.
    match unsafe { libc::ioctl(timer.as_raw_fd(), SET_TICKS as _, &raw const ticks) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
