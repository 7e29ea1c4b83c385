//! System V semaphores, message queues and shared memory, as whoever saves and restores them needs them.

use std::io;
use std::ptr::{NonNull, null_mut};

use rustix::process::Pid;

/// Makes a new object or fails. Source: `linux/ipc.h`.
const NEW: libc::c_int = libc::IPC_CREAT | libc::IPC_EXCL;
/// What `semctl` and `msgrcv` are asked for, which libraries do not always name. Source: `linux/sem.h`, `linux/msg.h`, `linux/kcmp.h`.
const GET_PID: libc::c_int = 11;
const GET_VALUE: libc::c_int = 12;
const SET_VALUE: libc::c_int = 16;
const COPY: libc::c_int = 0o40_000;
/// Of a segment: memory is taken as it is written, and not set aside before. Source: `linux/shm.h`.
const NO_RESERVE: libc::c_int = 0o10_000;
const COMPARE_UNDO_LISTS: libc::c_int = 6;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A set of semaphores.
    Semaphores,
    /// A queue of messages.
    Queue,
    /// A segment of shared memory.
    Segment,
}

impl Kind {
    /// What the kernel calls it in `/proc/sysvipc` and `/proc/sys/kernel`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Semaphores => "sem",
            Self::Queue => "msg",
            Self::Segment => "shm",
        }
    }
}

/// `struct semid64_ds` of 64-bit machines, which not all C libraries have. Source: `asm/sembuf.h`, `asm/ipcbuf.h`.
#[repr(C)]
struct SemaphoreSet {
    key: i32,
    uid: u32,
    gid: u32,
    creator_uid: u32,
    creator_gid: u32,
    mode: u32,
    /// The longest has 80 bytes more.
    rest: [u64; 12],
}

/// Makes a new set of so many semaphores; its number.
///
/// # Errors
/// `EEXIST` if the key is taken.
pub fn create_semaphores(key: i32, count: i32, mode: u32) -> io::Result<i32> {
    // SAFETY: plain integers.
    checked(unsafe { libc::semget(key, count, NEW | mode.cast_signed()) })
}

/// Makes a new queue of messages; its number.
///
/// # Errors
/// `EEXIST` if the key is taken.
pub fn create_queue(key: i32, mode: u32) -> io::Result<i32> {
    // SAFETY: plain integers.
    checked(unsafe { libc::msgget(key, NEW | mode.cast_signed()) })
}

/// Makes a new segment of shared memory, for which no memory is set aside; its number.
///
/// # Errors
/// `EEXIST` if the key is taken, `ENOSPC` and `ENOMEM` without room.
pub fn create_segment(key: i32, size: usize, mode: u32) -> io::Result<i32> {
    // SAFETY: plain integers.
    checked(unsafe { libc::shmget(key, size, NEW | NO_RESERVE | mode.cast_signed()) })
}

/// The value of a semaphore of a set.
///
/// # Errors
/// `EINVAL` if there is no such semaphore.
pub fn semaphore_value(id: i32, number: i32) -> io::Result<u16> {
    // All at once (`GETALL`) would need a buffer for as many as there are by then, and another may have made the set anew.
    // SAFETY: plain integers.
    let value = checked(unsafe { libc::semctl(id, number, GET_VALUE) })?;
    u16::try_from(value).map_err(io::Error::other)
}

/// The process that has last changed a semaphore; 0 for none.
///
/// # Errors
/// `EINVAL` if there is no such semaphore.
pub fn semaphore_pid(id: i32, number: i32) -> io::Result<i32> {
    // SAFETY: plain integers.
    checked(unsafe { libc::semctl(id, number, GET_PID) })
}

/// Sets a semaphore. This process is then the one that has last changed it.
///
/// # Errors
/// `ERANGE` for a value that is too large.
pub fn set_semaphore(id: i32, number: i32, value: u16) -> io::Result<()> {
    // SAFETY: plain integers.
    checked(unsafe { libc::semctl(id, number, SET_VALUE, libc::c_int::from(value)) }).map(drop)
}

/// Uses a set of which this semaphore is zero, so that programs see that it has been. This process is then the one that has last changed it.
///
/// # Errors
/// `EAGAIN` if the semaphore is not zero.
pub fn use_semaphores(id: i32, number: u16) -> io::Result<()> {
    let mut wait = libc::sembuf { sem_num: number, sem_op: 0, sem_flg: libc::IPC_NOWAIT as libc::c_short };
    // SAFETY: one operation, which lives through the call.
    checked(unsafe { libc::semop(id, &raw mut wait, 1) }).map(drop)
}

/// Whether two processes differ in the list of what semaphores are to become when they end (`SEM_UNDO`). One that has none is like another that has
/// none.
///
/// # Errors
/// `ESRCH`, `EPERM`, and `ENOSYS` on a kernel without `kcmp`.
pub fn undo_lists_differ(one: Pid, other: Pid) -> io::Result<bool> {
    let (one, other) = (one.as_raw_nonzero().get(), other.as_raw_nonzero().get());
    // SAFETY: plain integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, COMPARE_UNDO_LISTS, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        order => Ok(order != 0),
    }
}

/// Sets whose an object is, and who may do what with it. Of a queue the bytes that it may hold are set, too.
///
/// # Errors
/// `EPERM` for who may not.
pub fn set_owner(kind: Kind, id: i32, (uid, gid, mode): (u32, u32, u32), limit: u64) -> io::Result<()> {
    // SAFETY: structures of plain integers, for which zero is valid; the kernel fills them, and reads them.
    unsafe {
        match kind {
            Kind::Semaphores => {
                let mut all: SemaphoreSet = std::mem::zeroed();
                checked(libc::semctl(id, 0, libc::IPC_STAT, &raw mut all))?;
                (all.uid, all.gid, all.mode) = (uid, gid, mode);
                checked(libc::semctl(id, 0, libc::IPC_SET, &raw mut all))?;
            }
            Kind::Queue => {
                let mut all: libc::msqid_ds = std::mem::zeroed();
                checked(libc::msgctl(id, libc::IPC_STAT, &raw mut all))?;
                (all.msg_perm.uid, all.msg_perm.gid, all.msg_perm.mode) = (uid, gid, mode as _);
                all.msg_qbytes = limit as _;
                checked(libc::msgctl(id, libc::IPC_SET, &raw mut all))?;
            }
            Kind::Segment => {
                let mut all: libc::shmid_ds = std::mem::zeroed();
                checked(libc::shmctl(id, libc::IPC_STAT, &raw mut all))?;
                (all.shm_perm.uid, all.shm_perm.gid, all.shm_perm.mode) = (uid, gid, mode as _);
                checked(libc::shmctl(id, libc::IPC_SET, &raw mut all))?;
            }
        }
    }
    Ok(())
}

/// How many bytes a queue may hold.
///
/// # Errors
/// `EINVAL` if there is no such queue.
pub fn queue_limit(id: i32) -> io::Result<u64> {
    // SAFETY: a structure of plain integers, for which zero is valid; the kernel fills it.
    let all = unsafe {
        let mut all: libc::msqid_ds = std::mem::zeroed();
        checked(libc::msgctl(id, libc::IPC_STAT, &raw mut all))?;
        all
    };
    Ok(all.msg_qbytes as u64)
}

/// A message: its type, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMessage {
    /// The type, from 1 on.
    pub kind: i64,
    /// The text.
    pub text: Vec<u8>,
}

/// The message at a place in a queue, which stays there; nothing behind the last one.
///
/// # Errors
/// `ENOSYS` on a kernel that cannot, `E2BIG` for one that is longer.
pub fn peek_message(id: i32, place: usize, longest: usize) -> io::Result<Option<QueueMessage>> {
    let mut buffer = vec![0_u8; size_of::<libc::c_long>() + longest];
    let place = libc::c_long::try_from(place).map_err(io::Error::other)?;
    // SAFETY: the buffer has room for a type and as many bytes as the kernel is told.
    let got =
        unsafe { libc::msgrcv(id, buffer.as_mut_ptr().cast(), longest, place, libc::IPC_NOWAIT | COPY) };
    match usize::try_from(got) {
        Ok(length) => {
            let (kind, text) = buffer.split_at(size_of::<libc::c_long>());
            let kind = kind.try_into().map(i64::from_ne_bytes).map_err(io::Error::other)?;
            Ok(Some(QueueMessage { kind, text: text[..length.min(longest)].to_vec() }))
        }
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENOMSG) => Ok(None),
            e => Err(e),
        },
    }
}

/// Puts a message into a queue.
///
/// # Errors
/// `EAGAIN` if there is no room, `EINVAL` for one that no queue takes.
pub fn send_message(id: i32, message: &QueueMessage) -> io::Result<()> {
    let buffer = [&message.kind.to_ne_bytes()[..], &message.text].concat();
    // SAFETY: the buffer holds a type and as many bytes as the kernel is told.
    checked(unsafe { libc::msgsnd(id, buffer.as_ptr().cast(), message.text.len(), libc::IPC_NOWAIT) })
        .map(drop)
}

/// Marks a segment for removal: it goes once nobody has it attached.
///
/// # Errors
/// `EPERM` for who may not.
pub fn remove_segment(id: i32) -> io::Result<()> {
    // SAFETY: plain integers; the structure is not looked at.
    checked(unsafe { libc::shmctl(id, libc::IPC_RMID, null_mut()) }).map(drop)
}

/// Has a segment stay in memory, and out of swap space.
///
/// # Errors
/// `EPERM` for who may not.
pub fn lock_segment(id: i32) -> io::Result<()> {
    // SAFETY: plain integers; the structure is not looked at.
    checked(unsafe { libc::shmctl(id, libc::SHM_LOCK, null_mut()) }).map(drop)
}

/// A segment that this process has attached.
pub struct Attached {
    at: NonNull<u8>,
    length: usize,
}

impl Attached {
    /// Attaches a segment of so many bytes; what follows of its last page belongs to it.
    ///
    /// # Errors
    /// `EINVAL` if there is none, or it is shorter.
    pub fn attach(id: i32, length: usize) -> io::Result<Self> {
        // SAFETY: a structure of plain integers, for which zero is valid; the kernel fills it.
        let size = unsafe {
            let mut all: libc::shmid_ds = std::mem::zeroed();
            checked(libc::shmctl(id, libc::IPC_STAT, &raw mut all))?;
            all.shm_segsz
        };
        if size < length {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the kernel chooses an address where nothing is.
        let at = unsafe { libc::shmat(id, null_mut(), 0) };
        match at.addr() {
            usize::MAX => Err(io::Error::last_os_error()),
            _ => {
                let length = length.next_multiple_of(crate::memory::page_size());
                let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
                Ok(Self { at, length })
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }

    /// Which pages are in memory, of so many bytes from a page on. Where the kernel does not say it, all are.
    #[must_use]
    pub fn in_memory(&self, from: usize, length: usize) -> Vec<bool> {
        let from = from.min(self.length);
        let length = length.min(self.length - from);
        let mut pages = vec![1_u8; length.div_ceil(crate::memory::page_size())];
        // SAFETY: what is asked about is ours, and there is a byte for each of its pages.
        let asked = unsafe { libc::mincore(self.at.as_ptr().add(from).cast(), length, pages.as_mut_ptr()) };
        pages.into_iter().map(|page| asked != 0 || page & 1 != 0).collect()
    }

    /// Reads from a place on; how many bytes there were.
    pub fn read(&self, from: usize, into: &mut [u8]) -> usize {
        let length = self.length.saturating_sub(from).min(into.len());
        // SAFETY: so many bytes are there. Whoever writes there at the same time writes bytes, too, any of which will do.
        unsafe {
            self.at.as_ptr().add(from.min(self.length)).copy_to_nonoverlapping(into.as_mut_ptr(), length)
        };
        length
    }

    /// Writes from a place on; how many bytes there was room for.
    pub fn write(&self, from: usize, bytes: &[u8]) -> usize {
        let length = self.length.saturating_sub(from).min(bytes.len());
        // SAFETY: as in `read`.
        unsafe {
            self.at.as_ptr().add(from.min(self.length)).copy_from_nonoverlapping(bytes.as_ptr(), length)
        };
        length
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: it was attached there, and nothing of it is borrowed any more.
        unsafe { libc::shmdt(self.at.as_ptr().cast()) };
    }
}

fn checked(given: libc::c_int) -> io::Result<i32> {
    match given {
        -1 => Err(io::Error::last_os_error()),
        given => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::apart::is_apart;
    use crate::process::positive_pid;

    #[test]
    fn semaphores_are_read_as_they_were_set() {
        if !is_apart("sysv::tests::semaphores_are_read_as_they_were_set") {
            return;
        }
        let id = create_semaphores(5, 2, 0o600).expect("made");
        create_semaphores(5, 2, 0o600).expect_err("the key is taken");
        use_semaphores(id, 0).expect("zero");
        set_semaphore(id, 1, 7).expect("set");
        assert_eq!([0, 1].map(|number| semaphore_value(id, number).expect("read")), [0, 7]);
        semaphore_value(id, 2).expect_err("there are two");
        assert_ne!(semaphore_pid(id, 1).expect("read"), 0);
    }

    #[test]
    fn messages_are_read_and_stay() {
        if !is_apart("sysv::tests::messages_are_read_and_stay") {
            return;
        }
        let id = create_queue(0, 0o600).expect("made");
        let message = |kind, text: &[u8]| QueueMessage { kind, text: text.into() };
        let all = [message(3, b"three"), message(1, b""), message(2, b"two")];
        all.iter().for_each(|message| send_message(id, message).expect("sent"));
        for (place, message) in all.iter().enumerate() {
            assert_eq!(peek_message(id, place, 100).expect("read").as_ref(), Some(message));
        }
        assert_eq!(peek_message(id, 3, 100).expect("read"), None);
        peek_message(id, 0, 2).expect_err("longer");
        set_owner(Kind::Queue, id, (0, 0, 0o640), 1000).expect("set");
        assert_eq!(queue_limit(id).expect("read"), 1000);
    }

    #[test]
    fn segments_are_read_as_they_were_written() {
        if !is_apart("sysv::tests::segments_are_read_as_they_were_written") {
            return;
        }
        let id = create_segment(0, 10_000, 0o600).expect("made");
        let attached = Attached::attach(id, 10_000).expect("attached");
        let page = crate::memory::page_size();
        let end = 10_000_usize.next_multiple_of(page);
        assert_eq!(attached.in_memory(0, end), vec![false; end / page]);
        assert_eq!(attached.write(end - 2, b"abc"), 2);
        assert_eq!(attached.in_memory(end - page, 2 * page), [true]);
        assert!(attached.in_memory(end, page).is_empty());
        let mut into = [0; 5];
        assert_eq!((attached.read(end - 3, &mut into), &into[..3]), (3, &b"\0ab"[..]));
        assert_eq!(attached.read(end, &mut into), 0);
        Attached::attach(id, 10_001).err().expect("it is shorter");
        remove_segment(id).expect("removed");
    }

    #[test]
    fn who_has_no_undo_list_is_like_others() {
        let sleeper = || Command::new("sleep").arg("60").spawn().expect("started");
        let mut children = [sleeper(), sleeper()];
        let [one, other] =
            children.each_ref().map(|child| positive_pid(child.id().cast_signed()).expect("a number"));
        let differ = undo_lists_differ(one, other);
        for child in &mut children {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        assert!(!differ.expect("compared"));
    }
}
