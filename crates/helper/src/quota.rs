//! How many helpers work for one user at a time. A helper is root's process, so the kernel counts it for nobody: neither the limit of the
//! caller's processes nor the caller's signals reach it, and one that is frozen with the caller's control group stays.
//!
//! Each holds a lock on one byte of a file of its caller's uid, which goes with it. While it waits for one, its real uid is still its
//! caller's: as such it counts among the caller's processes and may be ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock, mkdirat, openat2};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use skiff_sandbox::{Context, Error, Result};
use skiff_spec::site::Site;
use skiff_spec::wire::WRITERS_BUSY;
use skiff_sys::lock;

use crate::{mask, site};

/// In `/run/skiff`, for root alone: whoever could open a file there could hold its locks.
const DIR: &str = "callers";
/// How long another helper's end is waited for, and how far apart it is looked for: twice as far each time, so that many who wait do not
/// keep the processors busy.
const WAIT: Duration = Duration::from_secs(10);
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(128));

/// How many of the store's writers work for one user at a time: some that pull, and one that answers a short question meanwhile.
const MOST_WRITERS: u64 = 8;

/// One of the helpers that a user may have, for as long as this is open.
pub struct Slot(OwnedFd);

impl Slot {
    /// Takes one, or waits for one.
    pub fn take(uid: u32) -> Result<Self> {
        let about = || format!("helpers of user {uid}");
        let file = open(&uid.to_string(), OFlags::RDWR)?;
        // A broken configuration is told of by who needs it.
        let most = site::read().unwrap_or_else(|_| Site::default()).helpers_each;
        // Not all begin with the same one.
        let first = std::process::id() % most;
        let (begun, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            for at in (first..most).chain(0..first).map(u64::from) {
                if lock::hold(file.as_fd(), at..at + 1).context(about)? {
                    return Ok(Self(file));
                }
            }
            if begun.elapsed() >= WAIT {
                break;
            }
            std::thread::sleep(pause);
            pause = PAUSES.1.min(pause * 2);
        }
        Err(Error::new(format!("user {uid}: limit of {most} helpers at once reached"))
            .hint("end some of what you are starting, then try again; administrator: helpers_each in /etc/skiff/helper.conf"))
    }

    /// Takes the place of one of the store's writers that a user may have. It is the writer's who keeps it open: the caller waits, not we.
    pub fn of_writer(uid: u32) -> Result<Self> {
        for number in 0..MOST_WRITERS {
            // Each in a file of its own that cannot be written to: a writer that was taken over has no more than its own place by it.
            let file = open(&format!("{uid}.writer.{number}"), OFlags::RDONLY)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Above the standard ones, which the writer gets new.
                Ok(()) => return Ok(Self(fcntl_dupfd_cloexec(&file, 3).context(|| DIR)?)),
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(e).context(|| DIR),
            }
        }
        Err(Error::new(format!("{WRITERS_BUSY} ({MOST_WRITERS})"))
            .hint("wait until a pull, import or other question to the store has ended"))
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A file for locks of a user.
fn open(name: &str, access: OFlags) -> Result<OwnedFd> {
    let path = format!("{}/{DIR}/{name}", mask::DIR);
    let flags = access | OFlags::CREATE | OFlags::CLOEXEC;
    let open = || openat2(CWD, &path, flags, Mode::from_raw_mode(0o600), ResolveFlags::NO_SYMLINKS);
    match open() {
        Err(Errno::NOENT) => {
            match mkdirat(mask::state_dir()?, DIR, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e).context(|| format!("{}/{DIR}", mask::DIR)),
            }
            open()
        }
        other => other,
    }
    .context(|| path.clone())
}
