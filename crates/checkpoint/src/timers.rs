//! Timers of descriptors (`timerfd`) that have expired, are to expire again and again, and have not been read since. The kernel winds such a timer
//! only when it is read or asked, and until then shows no time left; CRIU takes that for a timer that is not to expire any more.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_gettime, timerfd_settime};
use serde::{Deserialize, Serialize};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::timer::set_ticks;

use crate::locks::copied;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A timer that has expired unread, and is to expire again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpiredTimer {
    /// A descriptor of the timer in the process.
    pub fd: i32,
    /// How often it has expired since it was read.
    pub ticks: u64,
    /// Nanoseconds until it expires again.
    pub left_ns: u64,
    /// Nanoseconds from then on.
    pub interval_ns: u64,
}

/// The timer behind a descriptor of a process that stands still, if it is one of these. Asking for it winds it.
pub(crate) fn expired(outer: i32, fd: i32) -> Option<ExpiredTimer> {
    read(copied(outer, fd).ok()?.as_fd(), fd)
}

fn read(timer: BorrowedFd<'_>, fd: i32) -> Option<ExpiredTimer> {
    let Itimerspec { it_interval, it_value } = timerfd_gettime(timer).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", timer.as_raw_fd())).ok()?;
    let ticks = info.lines().find_map(|line| line.strip_prefix("ticks:")?.trim().parse().ok())?;
    let (left_ns, interval_ns) = (nanoseconds(it_value)?, nanoseconds(it_interval)?);
    (ticks > 0 && interval_ns > 0).then_some(ExpiredTimer { fd, ticks, left_ns, interval_ns })
}

/// Winds them again, of processes that are there and stand still.
///
/// # Errors
/// A timer could not be set.
pub fn set_again(inside: EnterTarget<'_>, timers: &[(i32, ExpiredTimer)]) -> Result<()> {
    if timers.is_empty() {
        return Ok(());
    }
    enter::run(EnterTarget { number: None, ..inside }, &[], || {
        for (pid, timer) in timers {
            let about = || format!("process {pid}: timer {}", timer.fd);
            copied(*pid, timer.fd).and_then(|copy| timer.set(copy.as_fd())).context(about)?;
        }
        Ok(())
    })
}

impl ExpiredTimer {
    fn set(&self, timer: BorrowedFd<'_>) -> io::Result<()> {
        // One that expires this very moment is not one that never does.
        let it_value = timespec(self.left_ns.max(1))?;
        let wound = Itimerspec { it_value, it_interval: timespec(self.interval_ns)? };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &wound)?;
        set_ticks(timer, self.ticks)
    }
}

fn nanoseconds(time: Timespec) -> Option<u64> {
    u64::try_from(time.tv_sec).ok()?.checked_mul(SECOND)?.checked_add(u64::try_from(time.tv_nsec).ok()?)
}

fn timespec(nanoseconds: u64) -> io::Result<Timespec> {
    let tv_sec = i64::try_from(nanoseconds / SECOND).map_err(io::Error::other)?;
    let tv_nsec = i64::try_from(nanoseconds % SECOND).map_err(io::Error::other)?;
    Ok(Timespec { tv_sec, tv_nsec })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    use super::*;

    #[test]
    fn a_timer_that_has_expired_unread_is_wound_again() {
        let make = || timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).expect("a timer");
        let (timer, other) = (make(), make());
        let wound = Itimerspec {
            it_value: timespec(1).expect("short"),
            it_interval: timespec(3600 * SECOND).expect("long"),
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &wound).expect("wound");
        std::thread::sleep(Duration::from_millis(20));
        let found = read(timer.as_fd(), 7).expect("it has expired");
        assert_eq!((found.fd, found.ticks, found.interval_ns), (7, 1, 3600 * SECOND));
        assert!(found.left_ns > 0);
        assert_eq!(read(other.as_fd(), 7), None);
        let seven = ExpiredTimer { ticks: 5, ..found };
        match seven.set(other.as_fd()) {
            Ok(()) => {
                let again = read(other.as_fd(), 7).expect("it has ticks");
                assert_eq!((again.ticks, again.interval_ns), (5, 3600 * SECOND));
                assert!(again.left_ns <= seven.left_ns);
            }
            // A kernel without CONFIG_CHECKPOINT_RESTORE.
            Err(e) => assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error())),
        }
    }
}
