//! Priority of a thread's input and output, for which no library has a function.

use std::io;

use rustix::process::Pid;

const WHO_PROCESS: libc::c_int = 1;

/// Priority of a thread: class and level, as in `ioprio_get(2)`.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn get(thread: Pid) -> io::Result<i32> {
    // SAFETY: plain integers.
    let r = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread.as_raw_nonzero().get()) };
    if r < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(r).map_err(io::Error::other) }
}

/// Gives it to a thread.
///
/// # Errors
/// `EPERM` of somebody else's thread, `EINVAL` if there is no such priority.
pub fn set(thread: Pid, priority: i32) -> io::Result<()> {
    // SAFETY: as above.
    let r =
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread.as_raw_nonzero().get(), priority) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
