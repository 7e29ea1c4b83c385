//! Which pages of a process have been written to since they were looked at last: the kernel protects them and notes the first write to each
//! (`PAGEMAP_SCAN` with an asynchronous `userfaultfd`, since Linux 6.7).
//!
//! A page counts as unchanged only if the kernel says so of this page, in memory that has been watched without interruption: what is new there, has been
//! moved, given back or inherited counts as written.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::memory::page_size;

/// A range of addresses, from the first to before the last.
pub type PageSpan = (u64, u64);

/// What can be asked of a descriptor of `/proc/PID/pagemap`. Source: `linux/fs.h`.
pub const PAGEMAP_SCAN: u32 = 0xc060_6610;
/// Kinds of pages. Source: `linux/fs.h`.
const IS_WATCHED: u64 = 1 << 0;
const IS_WRITTEN: u64 = 1 << 1;
const IS_OF_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;
/// Pages that are found are protected; where memory is not watched that is an error.
const PROTECT: u64 = 1 << 0 | 1 << 1;
/// So many runs are asked for at once.
const MOST_RUNS: usize = 4096;

/// Requests of a `userfaultfd`, and what is asked for. Source: `linux/userfaultfd.h`.
const API: u32 = 0xc018_aa3f;
const REGISTER: u32 = 0xc020_aa00;
const VERSION: u64 = 0xaa;
const ASYNCHRONOUS: u64 = 1 << 15;
const WRITE_PROTECTED: u64 = 1 << 1;
/// Without it the kernel wants a privilege or a setting of the host's.
const USER_MODE_ONLY: u64 = 1;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageScan {
    /// Bytes of this structure.
    size: u64,
    /// `PM_SCAN_*`.
    flags: u64,
    start: u64,
    end: u64,
    /// Where it ended.
    pub walk_end: u64,
    /// Address of the runs that are found.
    pub runs: u64,
    /// How many there is room for.
    pub room: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    /// The kinds that are said of each run.
    wanted: u64,
}

/// `struct page_region`: a run of pages of the same kinds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScannedRun {
    /// Address of the first.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Kinds of these pages.
    pub kinds: u64,
}

impl PageScan {
    /// Bytes of one.
    pub const SIZE: usize = size_of::<Self>();

    /// From its bytes in another process; nothing if it is of another size than this one.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let mut numbers = bytes.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_ne_bytes));
        let mut next = || numbers.next().unwrap_or_default();
        let scan = Self {
            size: next(),
            flags: next(),
            start: next(),
            end: next(),
            walk_end: next(),
            runs: next(),
            room: next(),
            most_pages: next(),
            inverted: next(),
            all_of: next(),
            any_of: next(),
            wanted: next(),
        };
        (scan.size == Self::SIZE as u64).then_some(scan)
    }

    /// Where `walk_end` lies in its bytes.
    pub const WALK_END_AT: u64 = 32;

    /// Whether it only looks, for pages that hold something, however many: all that [`unchanged`] finds are such.
    #[must_use]
    pub fn looks_for_content(&self) -> bool {
        let (there, nothing_else) = (IS_PRESENT | IS_SWAPPED, self.inverted & (IS_OF_FILE | IS_ZERO));
        self.flags == 0
            && self.most_pages == 0
            && self.any_of == there
            && self.inverted & there == 0
            && self.all_of & !nothing_else == 0
    }

    /// Where it looks.
    #[must_use]
    pub fn span(&self) -> PageSpan {
        (self.start, self.end)
    }

    /// The same in a part of where it looks.
    #[must_use]
    pub fn part(&self, (start, end): PageSpan) -> Self {
        Self { start, end, ..*self }
    }

    /// Asks the kernel; the runs that are found, of which there are as many as there is room for, and where it ended.
    ///
    /// # Errors
    /// That of the call.
    pub fn ask(mut self, pagemap: BorrowedFd<'_>, room: usize) -> io::Result<(Vec<ScannedRun>, u64)> {
        let mut runs = vec![ScannedRun::default(); room];
        self.runs = if room == 0 { 0 } else { runs.as_mut_ptr().addr() as u64 };
        self.room = room as u64;
        let found = ioctl(pagemap, PAGEMAP_SCAN, &raw mut self)?;
        runs.truncate(found.unsigned_abs() as usize);
        Ok((runs, self.walk_end))
    }

    fn of((start, end): PageSpan) -> Self {
        Self { size: Self::SIZE as u64, start, end, ..Self::default() }
    }
}

/// The pages in a range that hold something and have not been written to since they were protected, as runs. `pagemap` is a process's.
///
/// # Errors
/// `ENOTTY` before Linux 6.7.
pub fn unchanged(pagemap: BorrowedFd<'_>, range: PageSpan) -> io::Result<Vec<PageSpan>> {
    let mut found: Vec<PageSpan> = vec![];
    let mut at = range.0;
    while at < range.1 {
        // Whether a page is a file's is not asked, which takes longer than all the rest: only private memory of no file is watched.
        let not = IS_WRITTEN | IS_ZERO;
        let scan = PageScan {
            inverted: not,
            all_of: not | IS_WATCHED,
            any_of: IS_PRESENT | IS_SWAPPED,
            wanted: IS_WATCHED,
            ..PageScan::of((at, range.1))
        };
        let (runs, end) = scan.ask(pagemap, MOST_RUNS)?;
        for ScannedRun { start, end, .. } in runs {
            match found.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => found.push((start, end)),
            }
        }
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(found)
}

/// Whether any memory in a range is in huge pages: where these are protected, the kernel divides each as it is written to, and does not join it again.
///
/// # Errors
/// `ENOTTY` before Linux 6.7.
pub fn has_huge_pages(pagemap: BorrowedFd<'_>, range: PageSpan) -> io::Result<bool> {
    let scan = PageScan { most_pages: 1, all_of: IS_HUGE, wanted: IS_HUGE, ..PageScan::of(range) };
    Ok(!scan.ask(pagemap, 1)?.0.is_empty())
}

/// Whether the mapping that begins there is watched.
///
/// # Errors
/// `ENOTTY` before Linux 6.7.
pub fn is_watched(pagemap: BorrowedFd<'_>, start: u64) -> io::Result<bool> {
    let first = (start, start.saturating_add(page_size() as u64));
    let scan = PageScan { most_pages: 1, all_of: IS_WATCHED, wanted: IS_WATCHED, ..PageScan::of(first) };
    Ok(!scan.ask(pagemap, 1)?.0.is_empty())
}

/// Protects the pages in a range that hold something, but no huge ones: from now on the kernel notes which are written to. What is not protected counts as
/// written. `pagemap` is a process's, which must stand still.
///
/// # Errors
/// `EPERM` where memory in the range is not watched, `ENOTTY` before Linux 6.7.
pub fn protect(pagemap: BorrowedFd<'_>, range: PageSpan) -> io::Result<()> {
    let mut at = range.0;
    while at < range.1 {
        let scan = PageScan {
            flags: PROTECT,
            inverted: IS_HUGE,
            all_of: IS_WRITTEN | IS_HUGE,
            any_of: IS_PRESENT | IS_SWAPPED,
            wanted: IS_WRITTEN,
            ..PageScan::of((at, range.1))
        };
        // Where no runs are asked for, the kernel protects also what holds nothing, which then seems to hold something.
        let (_, end) = scan.ask(pagemap, MOST_RUNS)?;
        if end <= at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = end;
    }
    Ok(())
}

/// Whether the kernel can watch memory so. (This process's own is not.)
#[must_use]
pub fn is_available() -> bool {
    // Before, a page that was moved by mremap(2) may keep the bit by which it counts as unchanged, whatever is written to it.
    if !crate::kernel::is_at_least(6, 13) {
        return false;
    }
    let flags = u64::from(libc::O_CLOEXEC.unsigned_abs()) | USER_MODE_ONLY;
    // SAFETY: plain integers.
    let number = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let Some(number) = i32::try_from(number).ok().filter(|number| *number >= 0) else { return false };
    // SAFETY: the kernel has just opened it for this process, and nobody else has it.
    WatchedMemory(unsafe { OwnedFd::from_raw_fd(number) }).begin().is_ok()
}

/// The memory of a process, being watched for as long as this descriptor is open in any process. The process does not have it itself.
#[derive(Debug)]
pub struct WatchedMemory(OwnedFd);

impl AsFd for WatchedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for WatchedMemory {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl WatchedMemory {
    /// Has a process, all of whose threads stand still, make one, and takes it from there. By `call` it makes system calls.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.7, `EMFILE`, or what a filter of the process says.
    pub fn of(process: Pid, call: impl Fn(libc::c_long, &[u64]) -> io::Result<u64>) -> io::Result<Self> {
        let flags = u64::from(libc::O_CLOEXEC.unsigned_abs()) | USER_MODE_ONLY;
        let number = call(libc::SYS_userfaultfd, &[flags])?;
        let taken = take(process, number);
        // In any case: what the process has open is as it was.
        call(libc::SYS_close, &[number])?;
        Self(taken?).begin()
    }

    fn begin(self) -> io::Result<Self> {
        let mut api = [VERSION, ASYNCHRONOUS, 0];
        ioctl(self.0.as_fd(), API, api.as_mut_ptr())?;
        Ok(self)
    }

    /// Watches this range too: whole mappings of private memory of no file.
    ///
    /// # Errors
    /// `EINVAL` for other mappings, `EBUSY` where somebody else watches, `ESRCH` and `ENOMEM` when the memory is gone.
    pub fn add(&self, (start, end): PageSpan) -> io::Result<()> {
        let mut range = [start, end - start, WRITE_PROTECTED, 0];
        ioctl(self.0.as_fd(), REGISTER, range.as_mut_ptr()).map(drop)
    }
}

/// Takes a copy of a descriptor of another process.
fn take(process: Pid, number: u64) -> io::Result<OwnedFd> {
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    copy_of(pidfd.as_fd(), number)
}

/// A copy of a descriptor that the process of this handle has open.
///
/// # Errors
/// `EBADF` if it has none of that number, `EPERM` without the right to trace it.
pub fn copy_of(pidfd: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
    let copy = i32::try_from(copy).ok().filter(|copy| *copy >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just opened it for this process, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

fn ioctl<T>(fd: BorrowedFd<'_>, request: u32, with: *mut T) -> io::Result<libc::c_int> {
    // SAFETY: each request is made with the structure that the kernel has for it, of plain integers, which lives through the call; where it names a
    // place for runs, there is room for as many as it says.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, with) } {
        -1 => Err(io::Error::last_os_error()),
        given => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

    use super::*;
    use crate::memory::write_of;
    use crate::process::{CloneFlags, Fork, fork};
    use crate::traced::Traced;

    const PAGE: u64 = 4096;
    const LENGTH: u64 = 64 * PAGE;

    /// Another process, which sleeps, and is ended with this.
    struct Sleeper(Pid);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            kill_process(self.0, Signal::KILL).expect("killed");
            waitpid(Some(self.0), WaitOptions::empty()).expect("gone");
        }
    }

    fn sleeper() -> Sleeper {
        match fork(CloneFlags::NONE).expect("a process") {
            Fork::Parent(child) => Sleeper(child.pid),
            Fork::Child => loop {
                std::thread::park();
            },
        }
    }

    fn number(pid: Pid) -> i32 {
        pid.as_raw_nonzero().get()
    }

    /// New memory, from a multiple of 2 MiB on.
    fn memory(process: &Traced, length: u64) -> u64 {
        let end = process.call(libc::SYS_brk, &[0]).expect("its heap's end");
        let at = end.next_multiple_of(2 << 20);
        assert_eq!(process.call(libc::SYS_brk, &[at + length]).expect("longer"), at + length);
        at
    }

    fn descriptors(pid: Pid) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", number(pid))).expect("there").count()
    }

    fn fill(pid: Pid, at: u64, length: u64, byte: u8) {
        let bytes = vec![byte; length as usize];
        assert_eq!(write_of(number(pid), at, &bytes).expect("written"), bytes.len());
    }

    #[test]
    fn what_is_written_given_back_moved_or_made_anew_is_not_unchanged() {
        let sleeper = sleeper();
        let pid = sleeper.0;
        let process = Traced::stop(pid).expect("stopped");
        let before = descriptors(pid);
        let watched = match WatchedMemory::of(pid, |number, words| process.call(number, words)) {
            Ok(watched) => watched,
            Err(e) => {
                assert!(!crate::kernel::is_at_least(6, 7), "{e}");
                return;
            }
        };
        assert_eq!(descriptors(pid), before, "it has none of it");
        let pagemap = File::open(format!("/proc/{}/pagemap", number(pid))).expect("there");
        let at = memory(&process, LENGTH);
        let one_by_one = libc::MADV_NOHUGEPAGE.unsigned_abs();
        process.call(libc::SYS_madvise, &[at, LENGTH, one_by_one.into()]).expect("advised");
        let page = |number: u64| at + number * PAGE;
        fill(pid, at, 60 * PAGE, 1);
        let all = (at, at + LENGTH);
        assert!(!has_huge_pages(pagemap.as_fd(), all).expect("looked at"));
        let unchanged = || unchanged(pagemap.as_fd(), all).expect("looked at");
        assert_eq!(protect(pagemap.as_fd(), all).expect_err("not watched").raw_os_error(), Some(libc::EPERM));
        assert_eq!(unchanged(), []);
        let is_watched = || is_watched(pagemap.as_fd(), at).expect("looked at");
        assert!(!is_watched());
        watched.add(all).expect("watched");
        assert!(is_watched());
        watched.add(all).expect("watched already");
        assert_eq!(unchanged(), [], "nothing is known of before");
        protect(pagemap.as_fd(), all).expect("protected");
        assert_eq!(unchanged(), [(at, page(60))], "where nothing is, nothing is unchanged");
        // By whom it is written makes no difference: by another process, by the kernel, with what is there already.
        fill(pid, page(3) + 17, 1, 2);
        process.call(libc::SYS_getrandom, &[page(5) + 4090, 12, 0]).expect("random numbers");
        fill(pid, page(9), 1, 1);
        fill(pid, page(61), 1, 1);
        let told = [(at, page(3)), (page(4), page(5)), (page(7), page(9)), (page(10), page(60))];
        assert_eq!(unchanged(), told);
        assert_eq!(unchanged(), told, "looking changes nothing");
        protect(pagemap.as_fd(), all).expect("protected");
        assert_eq!(unchanged(), [(at, page(60)), (page(61), page(62))]);
        // Given back: what is read there then is empty.
        let give_back = |at, length| {
            process.call(libc::SYS_madvise, &[at, length, libc::MADV_DONTNEED.unsigned_abs().into()])
        };
        give_back(page(20), 2 * PAGE).expect("given back");
        let mut byte = [1];
        crate::memory::read_of(number(pid), page(20), &mut byte).expect("read");
        assert_eq!((byte, unchanged()[0]), ([0], (at, page(20))));
        // Moved away and back, and made anew at its place.
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).unsigned_abs();
        let elsewhere = memory(&process, 2 * PAGE);
        let move_to = |from, to| process.call(libc::SYS_mremap, &[from, PAGE, PAGE, flags.into(), to]);
        move_to(page(30), elsewhere).expect("moved");
        assert_eq!(super::unchanged(pagemap.as_fd(), (elsewhere, elsewhere + PAGE)).expect("looked at"), []);
        move_to(elsewhere, page(30)).expect("moved");
        process.call(libc::SYS_munmap, &[page(40), PAGE]).expect("gone");
        fill(pid, elsewhere + PAGE, PAGE, 1);
        move_to(elsewhere + PAGE, page(40)).expect("moved");
        let told = [(at, page(20)), (page(22), page(30)), (page(31), page(40)), (page(41), page(60))];
        assert_eq!(unchanged(), [&told[..], &[(page(61), page(62))]].concat());
        // What can no longer be written, or can again, is as it was.
        process.call(libc::SYS_mprotect, &[at, LENGTH, libc::PROT_READ.unsigned_abs().into()]).expect("done");
        assert_eq!(unchanged()[0], told[0]);
        let rights = (libc::PROT_READ | libc::PROT_WRITE).unsigned_abs();
        process.call(libc::SYS_mprotect, &[at, LENGTH, rights.into()]).expect("done");
        fill(pid, at, PAGE, 7);
        assert_eq!(unchanged()[0], (page(1), page(20)));
        drop(watched);
        assert_eq!(unchanged(), [], "nobody watches any more");
        fill(pid, at, 60 * PAGE, 3);
        process.release().expect("it goes on");
    }

    #[test]
    fn huge_pages_are_left_alone_and_count_as_written() {
        let sleeper = sleeper();
        let pid = sleeper.0;
        let process = Traced::stop(pid).expect("stopped");
        let Ok(watched) = WatchedMemory::of(pid, |number, words| process.call(number, words)) else {
            assert!(!crate::kernel::is_at_least(6, 7));
            return;
        };
        let pagemap = File::open(format!("/proc/{}/pagemap", number(pid))).expect("there");
        let length = 8 << 20;
        let at = memory(&process, length);
        let huge = libc::MADV_HUGEPAGE.unsigned_abs();
        process.call(libc::SYS_madvise, &[at, length, huge.into()]).expect("advised");
        fill(pid, at, length, 1);
        let all = (at, at + length);
        let has_huge_pages = || has_huge_pages(pagemap.as_fd(), all).expect("looked at");
        let has_any = has_huge_pages();
        if std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|it| !it.contains("[never]"))
        {
            assert!(has_any);
        }
        watched.add(all).expect("watched");
        assert!(is_watched(pagemap.as_fd(), at).expect("looked at"));
        protect(pagemap.as_fd(), all).expect("protected");
        let told = unchanged(pagemap.as_fd(), all).expect("looked at");
        // There may be small ones among them.
        let most = if has_any { length - (2 << 20) } else { length };
        assert!(told.iter().map(|(start, end)| end - start).sum::<u64>() <= most, "{told:x?}");
        fill(pid, at + length / 2 + 5, 1, 2);
        assert_eq!(has_huge_pages(), has_any, "none is divided");
        process.release().expect("it goes on");
    }
}
