//! The time by the clock of a file system, which may be another host's, and hours from this one's.

use std::os::fd::BorrowedFd;

use crate::error::Result;
use crate::file::Temp;
use crate::tree::Stamp;
use skiff_sys::SystemContext;

/// A change this long or less before a read might not show in the ctime: two ticks of the slowest kernel clock (100 Hz).
const GRANULE_NS: u32 = 20_000_000;

/// Seconds and nanoseconds since 1970 by the clock that sets the times of files in `dir`: those of a file that is made there now.
pub(crate) fn file_system_time(dir: BorrowedFd<'_>) -> Result<(i64, u32)> {
    let (temp, file) = Temp::create(dir)?;
    let stat = rustix::fs::fstat(&file).on("look at", temp.name())?;
    Ok(Stamp::from(&stat).ctime)
}

/// The moment a snapshot began, by the clock that file systems take their times from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    now: (i64, u32),
}

impl Clock {
    /// The moment now, by the clock of the file system of `dir`.
    pub(crate) fn of(dir: BorrowedFd<'_>) -> Clock {
        // Where no file can be made no index can be written, which that will tell.
        file_system_time(dir).map_or_else(|_| Clock::now(), |now| Clock { now })
    }

    fn now() -> Clock {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Clock { now: (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0)) }
    }

    /// Whether a later change might leave this stamp as it is.
    pub(crate) fn is_racy(self, stamp: &Stamp) -> bool {
        // No nanoseconds at all: most likely a file system that counts whole seconds.
        let (seconds, nanoseconds) = if stamp.ctime.1 == 0 { (1, 0) } else { (0, GRANULE_NS) };
        let mut safe_from = (stamp.ctime.0 + seconds, stamp.ctime.1 + nanoseconds);
        if safe_from.1 >= 1_000_000_000 {
            safe_from = (safe_from.0 + 1, safe_from.1 - 1_000_000_000);
        }
        self.now <= safe_from
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_clock_is_that_of_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let stamp = |name: &str| {
            std::fs::write(dir.path().join(name), "").unwrap();
            Stamp::from(&rustix::fs::stat(dir.path().join(name)).unwrap())
        };
        let before = stamp("before");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let clock = Clock::of(std::fs::File::open(dir.path()).unwrap().as_fd());
        assert!(!clock.is_racy(&before));
        assert!(clock.is_racy(&stamp("after")));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_stamp_is_racy_until_the_clock_has_moved_on() {
        let clock = Clock { now: (100, 500_000_000) };
        let racy = |ctime| clock.is_racy(&Stamp { ctime, ..Stamp::default() });
        for (ctime, expected) in [
            ((100, 499_999_999), true),
            ((100, 480_000_000), true),
            ((100, 479_999_999), false),
            ((99, 999_999_999), false),
            ((100, 0), true),
            ((99, 0), false),
            ((200, 1), true),
        ] {
            assert_eq!(racy(ctime), expected, "{ctime:?}");
        }
    }
}
