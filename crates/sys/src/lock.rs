//! Locks: on files, of which the first free one of several can be taken; and on parts of a file (POSIX record locks), which can be many in
//! one file and of which the kernel says who holds one. Nothing here waits in the kernel: a wait for either has an end, by [`within`].

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::error::show;

/// Between two attempts to take a lock that another has.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// How a part of a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// With others that do the same.
    Shared,
    /// Alone.
    Exclusive,
    /// Not any more.
    None,
}

/// Changes this process's lock on some bytes of a file that it has open for reading and writing; false if another process's lock is in the
/// way. Never waits. All of this process's locks on a file end when it closes any descriptor of that file.
///
/// # Errors
/// `ENOLCK` when the kernel has no memory for one more.
pub fn set(file: BorrowedFd<'_>, bytes: Range<u64>, lock: Lock) -> io::Result<bool> {
    let request = request(bytes, lock)?;
    // SAFETY: the kernel reads a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const request) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        e => Err(e),
    }
}

/// Changes the lock that an open file description has on some bytes of its file, up to the greatest number for all that follow; false if
/// another's lock is in the way, and this one is as it was. Never waits. Whoever has the description can change it.
///
/// # Errors
/// `EBADF` if the file is not open for what the lock is for: a shared one for reading, an exclusive one for writing.
pub fn set_of_description(file: BorrowedFd<'_>, bytes: Range<u64>, lock: Lock) -> io::Result<bool> {
    let request = request(bytes, lock)?;
    // SAFETY: the kernel reads a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        e => Err(e),
    }
}

/// Whether another's lock is in the way of one on these bytes.
///
/// # Errors
/// `EINVAL` of bytes that no file has.
pub fn conflicts(file: BorrowedFd<'_>, bytes: Range<u64>, lock: Lock) -> io::Result<bool> {
    let mut request = request(bytes, lock)?;
    // SAFETY: the kernel reads and writes a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request.l_type != libc::F_UNLCK as libc::c_short)
}

/// A process whose lock is in the way of an exclusive one; nothing if there is none, or none of this PID namespace.
///
/// # Errors
/// `EBADF` if the file is not open for writing.
pub fn holder(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<Option<u32>> {
    let mut request = request(bytes, Lock::Exclusive)?;
    // SAFETY: the kernel reads and writes a flock structure, which lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let free = request.l_type == libc::F_UNLCK as libc::c_short;
    Ok(u32::try_from(request.l_pid).ok().filter(|pid| *pid != 0 && !free))
}

/// Locks a file in `dir`, made for its owner alone if it is missing, as long as a descriptor of it is open, also in children. Nothing if it
/// is locked already. Never waits. Whoever is given the descriptor can write nothing by it, nor lock anything else.
///
/// # Errors
/// Of `open(2)` and `flock(2)`.
pub fn try_file(dir: BorrowedFd<'_>, name: impl Arg) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::AGAIN) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The process that has locked a file as [`try_file`] does, with its name; nothing where the kernel names none of this PID namespace, or the one
/// that it names has ended and left the lock to its children.
#[must_use]
pub fn file_holder(file: BorrowedFd<'_>) -> Option<(u32, String)> {
    let found = fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
    let wanted = format!("{major:02x}:{minor:02x}:{}", found.st_ino);
    let pid = holder_in(&std::fs::read_to_string("/proc/locks").ok()?, &wanted)?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, show(name.trim_ascii_end())))
}

/// From lines such as `2: FLOCK  ADVISORY  WRITE 708 08:01:2621 0 EOF`; those who wait have `->` in front.
fn holder_in(locks: &str, wanted: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
        pid.parse().ok().filter(|_| file == wanted)
    })
}

/// Locks the first of `NAME.0`, `NAME.1` ... that is free, as [`try_file`] does; nothing if all `count` of them are locked.
///
/// # Errors
/// As [`try_file`].
pub fn try_one_of(dir: BorrowedFd<'_>, name: &str, count: u32) -> io::Result<Option<OwnedFd>> {
    (0..count).find_map(|number| try_file(dir, format!("{name}.{number}")).transpose()).transpose()
}

/// Tries until it gives something, nothing when `limit` is over. Any signal that ends the process ends this wait: it is a sleep, each time
/// twice as long, so that many who wait do not keep the processors busy.
///
/// # Errors
/// The first of an attempt's.
pub fn within<T, E>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let (begun, mut pause) = (Instant::now(), SHORTEST_PAUSE);
    loop {
        let taken = attempt()?;
        let left = limit.saturating_sub(begun.elapsed());
        if taken.is_some() || left.is_zero() {
            return Ok(taken);
        }
        std::thread::sleep(pause.min(left));
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

fn request(bytes: Range<u64>, lock: Lock) -> io::Result<libc::flock> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    // SAFETY: all zeros is a valid flock structure.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    } as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = number(bytes.start)?;
    // No length stands for all that follow.
    request.l_len = match bytes.end {
        u64::MAX => 0,
        end => number(end.saturating_sub(bytes.start))?,
    };
    Ok(request)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn one_of_some_is_held_until_its_last_descriptor_is_closed() {
        let path = std::env::temp_dir().join(format!("skiff-lock-test-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory");
        let dir = File::open(&path).expect("opened");
        let take = || try_one_of(dir.as_fd(), "a", 2).expect("locked");
        let (first, second) = (take().expect("the first"), take().expect("the second"));
        assert!(take().is_none(), "there are two");
        assert!(try_one_of(dir.as_fd(), "b", 1).expect("locked").is_some(), "another name");
        rustix::io::write(&second, b"x").expect_err("it can only be held");
        let copy = first.try_clone().expect("copied");
        drop(first);
        assert!(take().is_none(), "a copy of the descriptor keeps it");
        drop(copy);
        assert!(take().is_some());
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn the_lock_of_a_description_is_changed_by_whoever_has_it() {
        let path = std::env::temp_dir().join(format!("skiff-description-lock-{}", std::process::id()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let (one, other) = (open().expect("opened"), open().expect("opened"));
        let copy = one.try_clone().expect("copied");
        let set = |file: &File, lock| set_of_description(file.as_fd(), 5..u64::MAX, lock).expect("asked");
        assert!(set(&one, Lock::Exclusive));
        assert!(!set(&other, Lock::Shared));
        // From exclusive to shared and back, by a copy.
        assert!(set(&copy, Lock::Shared) && set(&other, Lock::Shared));
        assert!(!set(&copy, Lock::Exclusive), "the other has it, too");
        assert!(conflicts(other.as_fd(), 5..6, Lock::Exclusive).expect("asked"));
        assert!(set(&other, Lock::None) && set(&copy, Lock::Exclusive) && !set(&other, Lock::Shared));
        assert!(!conflicts(other.as_fd(), 0..5, Lock::Exclusive).expect("asked"), "bytes before");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn who_has_locked_a_file_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 08:01:55 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 08:01:5 0 EOF\n3: FLOCK  ADVISORY  WRITE 10 08:01:5 0 EOF\n";
        assert_eq!(holder_in(locks, "08:01:5"), Some(10));
        assert_eq!(holder_in(locks, "08:01:6"), None);
    }

    #[test]
    fn a_wait_ends_with_what_is_waited_for_or_in_time() {
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        assert_eq!(within(limit, || Ok::<_, ()>(None::<()>)), Ok(None));
        assert!((limit..limit * 20).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        let mut tries = 0;
        let third = within(Duration::from_secs(60), || {
            tries += 1;
            Ok::<_, ()>((tries == 3).then_some(tries))
        });
        assert_eq!(third, Ok(Some(3)));
        assert_eq!(within(Duration::ZERO, || Ok::<_, ()>(Some(1))), Ok(Some(1)), "tried once");
        assert_eq!(within(limit, || Err::<Option<()>, _>(7)), Err(7));
    }
}
