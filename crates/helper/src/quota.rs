//! How many helpers work for one user at a time. A helper is root's process, so the kernel counts it for nobody: neither the limit of the
//! caller's processes nor the caller's signals reach it, and one that is frozen with the caller's control group stays.
//!
//! Each holds a lock on a file named after its caller's uid, which goes with it. While it waits for one, its real uid is still its
//! caller's: as such it counts among the caller's processes and may be ended. No user waits for a lock of another's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use skiff_spec::fault::{Context, Fault as Error, Result};
use skiff_sys::lock;

use crate::state;

/// In `/run/skiff`, for root alone: whoever could open a file there could hold its locks.
const DIR: &str = "callers";
/// How long another helper's end is waited for.
const WAIT: Duration = Duration::from_secs(10);
/// How many of the store's writers work for one user at a time: some that pull, and one that answers a short question meanwhile.
const MOST_WRITERS: u32 = 8;

/// One of the helpers that a user may have, for as long as this is open.
pub struct Slot(OwnedFd);

impl Slot {
    /// Takes one of so many, or waits for one.
    pub fn take(uid: u32, most: u32) -> Result<Self> {
        lock::within(WAIT, || try_one_of(uid, "helper", most))?.ok_or_else(|| {
            Error::new(format!("user {uid}: limit of {most} helpers at once reached")).hint(
                "end some of what you are starting, then try again; administrator: helpers_each in /etc/skiff/helper.conf",
            )
        })
    }

    /// Takes the place of one of the store's writers that a user may have; nothing if there is none. It is the writer's who keeps it open:
    /// the caller waits, not we.
    pub fn of_writer(uid: u32) -> Result<Option<Self>> {
        let Some(Self(file)) = try_one_of(uid, "writer", MOST_WRITERS)? else { return Ok(None) };
        // Above the standard ones, which the writer gets new.
        Ok(Some(Self(fcntl_dupfd_cloexec(&file, 3).context(|| DIR)?)))
    }

    /// Takes the place of the one helper of this user's that makes what all users share; nothing if another has it for so long.
    pub fn of_maker(uid: u32, patience: Duration) -> Result<Option<Self>> {
        lock::within(patience, || try_one_of(uid, "maker", 1))
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn try_one_of(uid: u32, what: &str, most: u32) -> Result<Option<Slot>> {
    let about = || format!("{}/{DIR}", state::DIR);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || openat2(CWD, about(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let dir = match open() {
        Err(Errno::NOENT) => {
            match state::make(state::dir()?, DIR, 0o700) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e).context(about),
            }
            open()
        }
        other => other,
    };
    let dir = dir.context(about)?;
    Ok(lock::try_one_of(dir.as_fd(), &format!("{uid}.{what}"), most).context(about)?.map(Slot))
}
