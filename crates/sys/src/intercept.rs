//! Answering another process's calls (`seccomp_unotify(2)`). Of `openat`: it waits until whoever listens has it open what it asked for, or gives it
//! another descriptor. Of `ioctl(PAGEMAP_SCAN)`: it waits for the pages that it is told of. Of `listen` and `accept`: whoever answers listens itself,
//! and says which connection is accepted.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;

use crate::process::{CloneFlags, Fork, exit_now, fork, positive_pid};
use crate::seccomp::{NATIVE_ARCHITECTURE, install_listener, jump, load_word, ret};
use crate::written::PAGEMAP_SCAN;

/// Where a filter finds the number of a call, the architecture, and the lower halves of the call's first two words (`struct seccomp_data`).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_WORD: u32 = 16;
const SECOND_WORD: u32 = 24;
/// No call has this number.
const NO_CALL: u32 = u32::MAX;
/// Since Linux 5.19 only a deadly signal takes a call back from whoever has received it.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;
/// What is asked of the listener, by `ioctl`. Source: `linux/seccomp.h`.
const RECEIVE: u32 = 0xc050_2100;
const SEND: u32 = 0xc018_2101;
const ADD_DESCRIPTOR: u32 = 0x4018_2103;
const SET_FLAGS: u32 = 0x4008_2104;
/// Whoever is woken up runs on the processor of whoever then waits for it: no other one has to be woken up.
const SYNCHRONOUS: u64 = 1;
/// The call goes on as if nobody listened.
const CONTINUE: u32 = 1;

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    words: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddedDescriptor {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

/// Whether the kernel can do that, and lets this process: nobody under a filter that has a listener already may have another.
#[must_use]
pub fn is_available() -> bool {
    static IS_AVAILABLE: OnceLock<bool> = OnceLock::new();
    *IS_AVAILABLE.get_or_init(|| is_known() && is_allowed())
}

/// Tries it in another process, as it cannot be taken back.
fn is_allowed() -> bool {
    match fork(CloneFlags::NONE) {
        Ok(Fork::Child) => {
            // SAFETY: plain integers.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            exit_now(i32::from(listen_to_self(Scans::Unheard).is_err()))
        }
        Ok(Fork::Parent(child)) => {
            let ended = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty());
            ended.is_ok_and(|ended| ended.is_some_and(|(_, status)| status.exit_status() == Some(0)))
        }
        Err(_) => false,
    }
}

fn is_known() -> bool {
    let action = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: the kernel reads one number, which lives through the call.
    let asked =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    asked == 0
}

/// Whether whoever listens hears of calls of `ioctl(PAGEMAP_SCAN)` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scans {
    /// The listener hears of them.
    Heard,
    /// The kernel answers them.
    Unheard,
}

/// From now on calls of this process, and of all that descend from it, wait for whoever has the listener that is given: those of `listen` and `accept`,
/// and those of `openat` that name a directory by a descriptor. Needs `no_new_privs` or `SYS_ADMIN`.
///
/// # Errors
/// `EBUSY` if somebody listens already, `EINVAL` on a kernel without seccomp filters.
pub fn listen_to_self(scans: Scans) -> io::Result<OwnedFd> {
    let number = |call| u32::try_from(call).map_err(io::Error::other);
    let ask = if scans == Scans::Heard { number(libc::SYS_ioctl)? } else { NO_CALL };
    let mut program = [
        load_word(ARCHITECTURE),
        jump(NATIVE_ARCHITECTURE, 0, 11),
        load_word(NUMBER),
        jump(ask, 6, 0),
        jump(number(libc::SYS_listen)?, 7, 0),
        jump(number(libc::SYS_accept)?, 6, 0),
        jump(number(libc::SYS_accept4)?, 5, 0),
        jump(number(libc::SYS_openat)?, 0, 5),
        load_word(FIRST_WORD),
        jump(libc::AT_FDCWD.cast_unsigned(), 3, 2),
        load_word(SECOND_WORD),
        jump(PAGEMAP_SCAN, 0, 1),
        ret(libc::SECCOMP_RET_USER_NOTIF),
        ret(libc::SECCOMP_RET_ALLOW),
    ];
    let listener = match install_listener(&mut program, WAIT_KILLABLE) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => install_listener(&mut program, 0),
        listener => listener,
    }?;
    // SAFETY: plain integers. Before Linux 6.6 it fails, and each call takes longer.
    unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS as _, SYNCHRONOUS) };
    Ok(listener)
}

/// A call of `openat` that waits.
#[derive(Clone, Copy, Debug)]
pub struct OpenCall {
    id: u64,
    /// Who calls, as numbered in the namespace of this process.
    pub pid: Pid,
    /// The descriptor of the directory, in the calling process.
    pub dir: RawFd,
    /// Where its memory has the path.
    pub path: u64,
}

/// A call of `ioctl(PAGEMAP_SCAN)` that waits.
#[derive(Clone, Copy, Debug)]
pub struct ScanCall {
    id: u64,
    /// Who calls, as numbered in the namespace of this process.
    pub pid: Pid,
    /// The descriptor that it asks, in the calling process.
    pub pagemap: RawFd,
    /// Where its memory has what it asks for ([`PageScan`](crate::written::PageScan)).
    pub scan: u64,
}

/// A call of `listen` or `accept` that waits.
#[derive(Clone, Copy, Debug)]
pub struct SocketCall {
    id: u64,
    /// Who calls, as numbered in the namespace of this process.
    pub pid: Pid,
    /// The descriptor of the socket, in the calling process.
    pub socket: RawFd,
}

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub enum InterceptedCall {
    /// Of `openat`.
    Open(OpenCall),
    /// Of `ioctl(PAGEMAP_SCAN)`.
    Scan(ScanCall),
    /// Of `listen`.
    Listen(SocketCall),
    /// Of `accept` or `accept4`.
    Accept(SocketCall),
}

/// What [`OpenListener::next_event`] waits for.
#[derive(Clone, Copy, Debug)]
pub enum ListenerEvent {
    /// A call.
    Call(InterceptedCall),
    /// One of the sockets, by its place among them, has something to read or accept.
    Readable(usize),
}

/// What a call waits for.
pub struct OpenListener(OwnedFd);

impl From<OwnedFd> for OpenListener {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for OpenListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl OpenListener {
    /// Waits for the next call; nothing once no process is left that could call.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn next_call(&self) -> io::Result<Option<InterceptedCall>> {
        loop {
            match self.next_event(&[])? {
                Some(ListenerEvent::Call(call)) => return Ok(Some(call)),
                Some(ListenerEvent::Readable(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits for the next call or for one of these sockets; nothing once no process is left that could call.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn next_event(&self, sockets: &[BorrowedFd<'_>]) -> io::Result<Option<ListenerEvent>> {
        loop {
            let all = [&[self.0.as_fd()], sockets].concat();
            let mut ready: Vec<PollFd<'_>> =
                all.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            // Calls come first: whoever keeps a socket busy delays none.
            if ready[0].revents().is_empty() {
                let readable = ready[1..].iter().position(|socket| !socket.revents().is_empty());
                let Some(place) = readable else { continue };
                return Ok(Some(ListenerEvent::Readable(place)));
            }
            if !ready[0].revents().contains(PollFlags::IN) {
                return Ok(None);
            }
            if let Some(call) = self.receive()? {
                return Ok(Some(ListenerEvent::Call(call)));
            }
        }
    }

    /// The call that waits; nothing if a signal has taken it back, or nobody of this namespace has made it.
    fn receive(&self) -> io::Result<Option<InterceptedCall>> {
        let mut call = Notification::default();
        match self.ask(RECEIVE, &mut call) {
            Ok(_) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(None),
            Err(e) => return Err(e),
        }
        let pid = i32::try_from(call.pid).ok().and_then(positive_pid);
        let Some(pid) = pid else {
            self.answer(call.id, 0, 0, CONTINUE)?;
            return Ok(None);
        };
        // The kernel has numbers of descriptors in the lower half.
        let (id, fd, [_, second, third, ..]) = (call.id, call.words[0] as RawFd, call.words);
        Ok(Some(match libc::c_long::from(call.number) {
            libc::SYS_ioctl => InterceptedCall::Scan(ScanCall { id, pid, pagemap: fd, scan: third }),
            libc::SYS_listen => InterceptedCall::Listen(SocketCall { id, pid, socket: fd }),
            libc::SYS_accept | libc::SYS_accept4 => {
                InterceptedCall::Accept(SocketCall { id, pid, socket: fd })
            }
            _ => InterceptedCall::Open(OpenCall { id, pid, dir: fd, path: second }),
        }))
    }

    /// Has the kernel do what a call about a socket asks for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn proceed_socket(&self, call: SocketCall) -> io::Result<()> {
        self.answer(call.id, 0, 0, CONTINUE)
    }

    /// Says that a call of `listen` has been done.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listened(&self, call: SocketCall) -> io::Result<()> {
        self.answer(call.id, 0, 0, 0)
    }

    /// Gives a copy of the connection as the one that the call has accepted.
    ///
    /// # Errors
    /// `EMFILE` if the process has no room for it.
    pub fn accepted(&self, call: SocketCall, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.give_to(call.id, connection)
    }

    /// Has the kernel do what the call asks for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn proceed(&self, call: OpenCall) -> io::Result<()> {
        self.answer(call.id, 0, 0, CONTINUE)
    }

    /// Answers what the call asks the kernel for: with this number of runs, or as the kernel does.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn answer_scan(&self, call: ScanCall, runs: Option<usize>) -> io::Result<()> {
        match runs {
            Some(runs) => self.answer(call.id, runs as i64, 0, 0),
            None => self.answer(call.id, 0, 0, CONTINUE),
        }
    }

    /// Has the call fail, as one on a broken disk does.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn fail(&self, call: OpenCall) -> io::Result<()> {
        self.answer(call.id, 0, -libc::EIO, 0)
    }

    /// Gives a copy of the descriptor as what the call has opened.
    ///
    /// # Errors
    /// `EMFILE` if the process has no room for it.
    pub fn give(&self, call: OpenCall, opened: BorrowedFd<'_>) -> io::Result<()> {
        self.give_to(call.id, opened)
    }

    fn give_to(&self, id: u64, opened: BorrowedFd<'_>) -> io::Result<()> {
        let mut added = AddedDescriptor {
            id,
            flags: 0,
            source: opened.as_raw_fd().unsigned_abs(),
            number: 0,
            number_flags: libc::O_CLOEXEC.unsigned_abs(),
        };
        match self.ask(ADD_DESCRIPTOR, &mut added) {
            Ok(number) => self.answer(id, i64::from(number), 0, 0),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn answer(&self, id: u64, value: i64, error: i32, flags: u32) -> io::Result<()> {
        match self.ask(SEND, &mut Answer { id, value, error, flags }) {
            // It has been taken back by a signal.
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => Err(e),
            _ => Ok(()),
        }
    }

    fn ask<T>(&self, what: u32, with: &mut T) -> io::Result<libc::c_int> {
        // SAFETY: each of the three requests is made with its own structure of plain integers, which lives through the call.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), what as _, std::ptr::from_mut(with)) } {
            -1 => Err(io::Error::last_os_error()),
            given => Ok(given),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::fs::{Mode, OFlags, openat};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::fdpass;

    /// Opens what it cannot, and sends what it has got.
    fn open_both(to: BorrowedFd<'_>) -> io::Result<()> {
        let root = File::open("/")?;
        // SAFETY: plain integers.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let said = [own.to_ne_bytes(), root.as_raw_fd().to_ne_bytes()].concat();
        fdpass::send(to, &said, &[listen_to_self(Scans::Unheard)?.as_fd()])?;
        // Nobody hears of this one.
        drop(File::open("/proc/self/status")?);
        for path in ["no such file", "proc/self/comm"] {
            let mut text = String::new();
            File::from(openat(&root, path, OFlags::CLOEXEC, Mode::empty())?).read_to_string(&mut text)?;
            fdpass::send(to, text.as_bytes(), &[])?;
        }
        Ok(())
    }

    /// The process that opens is this program once more: what is forked beside the threads of other tests could wait for a lock of theirs.
    #[test]
    fn nobody_listens_twice() {
        assert!(is_allowed());
        let Fork::Parent(child) = fork(CloneFlags::NONE).expect("forked") else {
            // SAFETY: plain integers.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            // It opens nothing while nobody answers.
            let listener = listen_to_self(Scans::Heard);
            exit_now(i32::from(listener.is_err() || is_allowed()));
        };
        let ended = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty());
        assert!(ended.expect("ended").is_some_and(|(_, status)| status.exit_status() == Some(0)));
    }

    #[test]
    fn a_call_is_answered_with_another_descriptor() {
        const CHILD: &str = "SKIFF_INTERCEPT_TEST";
        const TEST: &str = "intercept::tests::a_call_is_answered_with_another_descriptor";
        if std::env::var_os(CHILD).is_some() {
            // SAFETY: a plain integer. The signal ends this process if nobody answers.
            unsafe { libc::alarm(60) };
            std::process::exit(i32::from(open_both(std::io::stdin().as_fd()).is_err()));
        }
        assert!(is_available());
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", TEST, "--test-threads", "1", "--nocapture"]).env(CHILD, "1");
        child.stdin(theirs).stdout(Stdio::null());
        let mut started = child.spawn().expect("started");
        // It has a copy of their end of the pair.
        drop(child);
        let (caller, mut fds) = fdpass::receive(ours.as_fd(), 8).expect("told");
        let listener = OpenListener::from(fds.pop().expect("a listener"));
        let mut given = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut given, b"something else").expect("written");
        std::io::Seek::rewind(&mut given).expect("rewound");
        let open_call = || match listener.next_call().expect("asked").expect("a call") {
            InterceptedCall::Open(call) => call,
            other => panic!("{other:?}"),
        };
        let call = open_call();
        let pid = call.pid.as_raw_nonzero().get();
        assert_eq!([pid, call.dir].map(i32::to_ne_bytes).concat(), caller);
        let mut path = [0; 7];
        crate::memory::read_of(pid, call.path, &mut path).expect("read");
        assert_eq!(&path, b"no such");
        listener.give(call, given.as_fd()).expect("given");
        let call = open_call();
        listener.proceed(call).expect("told");
        assert_eq!(fdpass::receive(ours.as_fd(), 100).expect("told").0, b"something else");
        assert!(!fdpass::receive(ours.as_fd(), 100).expect("told").0.is_empty());
        assert!(started.wait().expect("ended").success());
        assert!(listener.next_call().expect("asked").is_none());
    }
}
