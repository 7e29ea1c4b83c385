//! How long a thread may run before another one has its turn, for which no library has a function.

use std::io;
use std::mem::size_of;

use rustix::process::Pid;

/// Policies by which slices count: the usual one, and that of batch work.
const FAIR: [u32; 2] = [libc::SCHED_OTHER.unsigned_abs(), libc::SCHED_BATCH.unsigned_abs()];

/// `struct sched_attr` of its first version. Source: `linux/sched/types.h`.
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<SchedulingAttributes>() as u32;

/// The slice of a thread in nanoseconds; nothing where its policy has none, or the kernel (before 6.12) does not tell.
///
/// # Errors
/// `ESRCH` if there is no such thread.
pub fn get(thread: Pid) -> io::Result<Option<u64>> {
    let found = attributes(thread)?;
    Ok(Some(found.runtime).filter(|slice| *slice != 0 && FAIR.contains(&found.policy)))
}

/// Gives a slice of so many nanoseconds to a thread; one whose policy has none keeps what it has.
///
/// # Errors
/// `EPERM` of somebody else's thread.
pub fn set(thread: Pid, slice: u64) -> io::Result<()> {
    let wanted = SchedulingAttributes { size: SIZE, runtime: slice, ..attributes(thread)? };
    if !FAIR.contains(&wanted.policy) {
        return Ok(());
    }
    // SAFETY: a structure of the size that it says, which the kernel reads.
    let r = unsafe {
        libc::syscall(libc::SYS_sched_setattr, thread.as_raw_nonzero().get(), &raw const wanted, 0)
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn attributes(thread: Pid) -> io::Result<SchedulingAttributes> {
    let mut found = SchedulingAttributes::default();
    // SAFETY: the kernel writes no more than the size that it is told.
    let r = unsafe {
        libc::syscall(libc::SYS_sched_getattr, thread.as_raw_nonzero().get(), &raw mut found, SIZE, 0)
    };
    if r == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_slice_is_had_again() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let pid = crate::process::positive_pid(child.id().cast_signed()).expect("a number");
        let before = get(pid);
        let done = set(pid, 12_000_000).and_then(|()| get(pid));
        child.kill().and_then(|()| child.wait()).expect("ended");
        // A kernel that does not tell takes none either.
        assert_eq!(done.expect("set"), before.expect("there").map(|_| 12_000_000));
    }
}
