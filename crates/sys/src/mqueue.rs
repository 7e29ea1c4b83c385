//! POSIX message queues, as whoever saves and restores them needs them. Nothing here waits.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, null};

/// What the kernel says of a queue, and is told of a new one: `struct mq_attr`. Source: `linux/mqueue.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAttributes {
    flags: libc::c_long,
    /// The most messages that it holds.
    pub most: libc::c_long,
    /// The longest message, in bytes.
    pub longest: libc::c_long,
    /// Messages that are in it.
    pub messages: libc::c_long,
    reserved: [libc::c_long; 4],
}

impl QueueAttributes {
    /// Of a new one.
    #[must_use]
    pub fn new(most: i64, longest: i64) -> Self {
        Self { most, longest, ..Self::default() }
    }
}

/// A message with its priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityMessage {
    /// Higher ones come first.
    pub priority: u32,
    /// The text.
    pub text: Vec<u8>,
}

/// Opens a queue of this process's IPC namespace, by its name without the slash.
///
/// # Errors
/// `ENOENT`, `EACCES`.
pub fn open(name: &CStr) -> io::Result<OwnedFd> {
    open_with(name, libc::O_RDWR, 0, None)
}

/// Makes a new one, to be read and written by its owner.
///
/// # Errors
/// `EEXIST`; `EINVAL` and `EMFILE` beyond the limits of the namespace and of the process.
pub fn create(name: &CStr, attributes: QueueAttributes) -> io::Result<OwnedFd> {
    open_with(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600, Some(&attributes))
}

fn open_with(
    name: &CStr,
    flags: libc::c_int,
    mode: u32,
    attributes: Option<&QueueAttributes>,
) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let attributes = attributes.map_or_else(null, std::ptr::from_ref);
    // SAFETY: the name ends with a zero, and the structure, if there is one, lives through the call.
    let fd = unsafe { libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, mode, attributes) };
    let fd = RawFd::try_from(checked(fd)?).map_err(io::Error::other)?;
    // SAFETY: it is new, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel says of a queue.
///
/// # Errors
/// `EBADF` of what is no queue.
pub fn attributes(queue: BorrowedFd<'_>) -> io::Result<QueueAttributes> {
    let mut all = QueueAttributes::default();
    let none = null::<QueueAttributes>();
    // SAFETY: the kernel writes such a structure, which lives through the call.
    checked(unsafe { libc::syscall(libc::SYS_mq_getsetattr, queue.as_raw_fd(), none, &raw mut all) })?;
    Ok(all)
}

/// Takes the first message out of a queue with messages of at most so many bytes; nothing if it is empty.
///
/// # Errors
/// `EMSGSIZE` if the queue has longer ones.
pub fn take(queue: BorrowedFd<'_>, longest: usize) -> io::Result<Option<PriorityMessage>> {
    let mut text = vec![0_u8; longest];
    let mut priority = 0_u32;
    let no_time = null::<libc::timespec>();
    // SAFETY: the kernel writes as many bytes as it is told, and the priority, which live through the call.
    let got = checked(unsafe {
        libc::syscall(
            libc::SYS_mq_timedreceive,
            queue.as_raw_fd(),
            text.as_mut_ptr(),
            text.len(),
            &raw mut priority,
            no_time,
        )
    });
    match got {
        Ok(length) => {
            text.truncate(usize::try_from(length).map_err(io::Error::other)?);
            Ok(Some(PriorityMessage { priority, text }))
        }
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Puts a message into a queue, behind those of its priority.
///
/// # Errors
/// `EAGAIN` without room, `EMSGSIZE` for one that is too long.
pub fn put(queue: BorrowedFd<'_>, message: &PriorityMessage) -> io::Result<()> {
    let no_time = null::<libc::timespec>();
    // SAFETY: the kernel reads as many bytes as it is told, which live through the call.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mq_timedsend,
            queue.as_raw_fd(),
            message.text.as_ptr(),
            message.text.len(),
            message.priority,
            no_time,
        )
    })
    .map(drop)
}

/// A part of a file into which the kernel writes a message with the call that takes it from a queue. So the message is in one of both, whenever this
/// process is killed: first its priority (4 bytes, in the order of this host), from [`MessageSlot::TEXT`] on its text.
pub struct MessageSlot {
    at: *mut libc::c_void,
    length: usize,
    longest: usize,
}

impl MessageSlot {
    /// Where the text begins.
    pub const TEXT: usize = 8;

    /// Maps a file from `offset` on, which is a multiple of the size of pages, for messages of at most so many bytes. The file must be long enough.
    ///
    /// # Errors
    /// `ENODEV` of a file system that has no such mappings; `ENOSPC`.
    pub fn map(file: BorrowedFd<'_>, offset: u64, longest: usize) -> io::Result<Self> {
        let length = longest.checked_add(Self::TEXT).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no memory of ours is touched; the descriptor is open.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), offset)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let slot = Self { at, length, longest };
        // What is there already the kernel need not wait for while it has the message: who is killed meanwhile would not wait.
        // SAFETY: exactly what has just been mapped; it changes nothing of what is in it.
        match unsafe { libc::madvise(at, length, libc::MADV_POPULATE_WRITE) } {
            0 => Ok(slot),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes the first message out of a queue, as [`take`] does; the length of its text.
    ///
    /// # Errors
    /// As [`take`].
    pub fn take(&self, queue: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        let text = self.at.wrapping_byte_add(Self::TEXT);
        let no_time = null::<libc::timespec>();
        // SAFETY: the kernel writes at most `longest` bytes to the text and four to the priority, all within what is mapped. No reference leads there.
        let got = checked(unsafe {
            libc::syscall(libc::SYS_mq_timedreceive, queue.as_raw_fd(), text, self.longest, self.at, no_time)
        });
        match got {
            Ok(length) => usize::try_from(length).map(Some).map_err(io::Error::other),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Drop for MessageSlot {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nobody has a pointer into it.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

fn checked(given: libc::c_long) -> io::Result<libc::c_long> {
    match given {
        -1 => Err(io::Error::last_os_error()),
        given => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::apart::is_apart;

    #[test]
    fn messages_come_by_priority() {
        if !is_apart("mqueue::tests::messages_come_by_priority") {
            return;
        }
        let queue = create(c"queue", QueueAttributes::new(3, 10)).expect("made");
        create(c"queue", QueueAttributes::new(3, 10)).expect_err("it is there");
        let message = |priority, text: &[u8]| PriorityMessage { priority, text: text.into() };
        for (priority, text) in [(1, &b"one"[..]), (7, b"seven"), (1, b"")] {
            put(queue.as_fd(), &message(priority, text)).expect("put");
        }
        assert_eq!(
            put(queue.as_fd(), &message(0, b"x")).expect_err("full").kind(),
            io::ErrorKind::WouldBlock
        );
        let again = open(c"queue").expect("opened");
        let all = attributes(again.as_fd()).expect("said");
        assert_eq!((all.most, all.longest, all.messages), (3, 10, 3));
        let take = || take(again.as_fd(), 10).expect("taken");
        let taken = [take(), take(), take(), take()];
        let wanted = [Some(message(7, b"seven")), Some(message(1, b"one")), Some(message(1, b"")), None];
        assert_eq!(taken, wanted);
        let file = std::fs::File::from(
            rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"),
        );
        file.set_len(20).expect("longer");
        let slot = MessageSlot::map(file.as_fd(), 0, 10).expect("mapped");
        put(queue.as_fd(), &message(7, b"seven")).expect("put");
        assert_eq!(slot.take(queue.as_fd()).expect("taken"), Some(5));
        let mut bytes = [1; 14];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("read");
        assert_eq!((&bytes[..4], &bytes[8..]), (&7_u32.to_ne_bytes()[..], &b"seven\0"[..]));
        assert_eq!(slot.take(queue.as_fd()).expect("asked"), None);
        assert_eq!(open(c"other").expect_err("none").kind(), io::ErrorKind::NotFound);
    }
}
