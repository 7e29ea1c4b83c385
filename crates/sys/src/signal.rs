//! Signals as data: blocked once at the start, then read from a descriptor together with everything else a process
//! waits for. No handler runs, so nothing needs to be async-signal-safe.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The signals a process had blocked before [`Signals::block`]; a program it starts must get them back.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

/// The kernel knows signals 1 to this.
const LAST: i32 = 64;

impl SignalMask {
    /// The mask of a program that nothing is kept from.
    #[must_use]
    pub fn none() -> Self {
        Self::from_bits(0)
    }

    /// Signal N is bit N-1: how a mask crosses an exec on a command line.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        // SAFETY: the set is initialised, the numbers are valid.
        let blocked = |number: &i32| unsafe { libc::sigismember(&raw const self.0, *number) == 1 };
        (1..=LAST).filter(blocked).fold(0, |bits, number| bits | 1 << (number - 1))
    }

    /// The reverse; 0 blocks nothing.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        // SAFETY: sigemptyset initialises the set; the numbers are valid.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for number in (1..=LAST).filter(|number| bits & 1 << (number - 1) != 0) {
                libc::sigaddset(&raw mut set, number);
            }
            Self(set)
        }
    }
}

/// What [`hold`] has blocked, as in [`SignalMask::to_bits`].
static HELD: AtomicU64 = AtomicU64::new(0);

/// Blocks a signal from now on, so that one that comes before somebody looks waits for that. It is this process's own affair:
/// no program that it starts has it blocked.
pub fn hold(number: i32) {
    HELD.fetch_or(1 << (number - 1), Relaxed);
    block_one(number);
}

/// The signals by which a user or Slurm asks a command to end.
const ASKED_TO_END: [i32; 2] = [libc::SIGINT, libc::SIGTERM];
/// Of them, those that a [`HeldEnd`] holds, as in [`SignalMask::to_bits`].
static HELD_BY_END: AtomicU64 = AtomicU64::new(0);

/// Keeps SIGINT and SIGTERM from this process until it is dropped: what has been begun can be taken back first. One that came meanwhile then
/// ends the process. What is ignored stays so, and what [`hold`] has blocked.
pub struct HeldEnd(Vec<i32>);

impl HeldEnd {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        let is_free = |number: &i32| HELD.load(Relaxed) & 1 << (number - 1) == 0 && !is_ignored(*number);
        let held: Vec<i32> = ASKED_TO_END.into_iter().filter(is_free).collect();
        for number in &held {
            hold(*number);
            HELD_BY_END.fetch_or(1 << (number - 1), Relaxed);
        }
        Self(held)
    }

    /// The signal that has come meanwhile, if one has.
    #[must_use]
    pub fn caught(&self) -> Option<i32> {
        let waiting = waiting();
        self.0.iter().copied().find(|number| waiting & 1 << (number - 1) != 0)
    }

    /// Keeps them from this process for good: it has done what it was to do, and has only to say so.
    pub fn keep(self) {
        HELD_BY_END.store(0, Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for HeldEnd {
    fn drop(&mut self) {
        for number in &self.0 {
            HELD_BY_END.fetch_and(!(1 << (number - 1)), Relaxed);
            HELD.fetch_and(!(1 << (number - 1)), Relaxed);
            unblock_one(*number);
        }
    }
}

/// Whether a signal that a [`HeldEnd`] keeps asks this process to end.
#[must_use]
pub fn is_end_wanted() -> bool {
    waiting() & HELD_BY_END.load(Relaxed) != 0
}

/// Whether a [`HeldEnd`] is there.
#[must_use]
pub fn is_end_held() -> bool {
    HELD_BY_END.load(Relaxed) != 0
}

/// The blocked signals that have come, as in [`SignalMask::to_bits`].
fn waiting() -> u64 {
    // SAFETY: a zeroed sigset_t is valid memory for sigpending to write.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut set);
        set
    };
    SignalMask(set).to_bits()
}

/// Whether this process ignores a signal.
fn is_ignored(number: i32) -> bool {
    // SAFETY: a zeroed sigaction is valid memory for the call to write; no new action is given (a null pointer).
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut action);
        action
    };
    action.sa_sigaction == libc::SIG_IGN
}

fn unblock_one(number: i32) {
    // SAFETY: as in `block`.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, number);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// A queue of the blocked signals.
pub struct Signals {
    fd: OwnedFd,
    before: SignalMask,
}

/// One signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of the signal.
    pub number: i32,
    /// Whether the kernel sent it of itself (a terminal's key, a broken pipe), not a process by `kill`.
    pub from_kernel: bool,
    /// The sender's process, where it was one.
    pub sender: u32,
}

/// Everything but what the kernel raises for a fault of the program itself: those must keep killing.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

impl Signals {
    /// Blocks all signals but faults and those in `except`, and opens the queue of them.
    ///
    /// # Errors
    /// `EMFILE` when descriptors are used up.
    pub fn block(except: &[i32]) -> io::Result<Self> {
        let (set, before) = block(except);
        // SAFETY: set is initialised; the call gives a new descriptor or -1.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// What was blocked before, for programs that are started.
    #[must_use]
    pub fn before(&self) -> SignalMask {
        SignalMask::from_bits(self.before.to_bits() & !HELD.load(Relaxed))
    }

    /// Blocks what was blocked before, and nothing else.
    pub fn end(self) {
        restore(self.before);
    }

    /// The next signal, or none if none is waiting.
    ///
    /// # Errors
    /// Only for a descriptor that is broken.
    pub fn next(&self) -> io::Result<Option<Received>> {
        // SAFETY: signalfd_siginfo is plain integers.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is one record long and that is the size given.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size) };
        if n < 0 {
            let e = io::Error::last_os_error();
            return if e.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(e) };
        }
        Ok(Some(Received {
            number: info.ssi_signo as i32,
            from_kernel: info.ssi_code > 0,
            sender: info.ssi_pid,
        }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends a process group a signal by its number: libraries' types have no names for the real-time ones.
///
/// # Errors
/// `ESRCH` if it is gone, `EINVAL` if there is no such signal.
pub fn send_to_group(group: rustix::process::Pid, number: i32) -> io::Result<()> {
    // SAFETY: plain numbers; a group's is positive, so that this means the group and nothing else.
    match unsafe { libc::kill(-group.as_raw_nonzero().get(), number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The same to a process.
///
/// # Errors
/// As [`send_to_group`].
pub fn send_to_process(pidfd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    // SAFETY: plain numbers, and no further information on the signal (a null pointer).
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            number,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Blocks one more signal (for a moment: `SIGTTOU` while the terminal changes hands).
pub fn block_one(number: i32) {
    // SAFETY: as in `block`.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, number);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Blocks all signals but faults and those in `except`; what was blocked before.
pub fn block_all(except: &[i32]) -> SignalMask {
    block(except).1
}

/// The same; also what is blocked now.
fn block(except: &[i32]) -> (libc::sigset_t, SignalMask) {
    // SAFETY: a zeroed sigset_t is valid memory for sigfillset and sigprocmask to write; numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        for number in FAULTS.iter().chain(except) {
            libc::sigdelset(&raw mut set, *number);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, &raw mut before);
        (set, SignalMask(before))
    }
}

/// A time after which the kernel ends this process by `SIGALRM`, whatever it waits for then. An `exec` does not take it away; a `fork`'s
/// child does not have it.
pub struct Deadline {
    /// Seconds left of the alarm that there was before.
    left: u32,
    ignored: bool,
}

impl Deadline {
    /// In so many seconds.
    #[must_use]
    pub fn begin(seconds: u32) -> Self {
        // SAFETY: SIG_DFL is always a valid action, and there never is a handler of ours.
        let before = unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
        // SAFETY: a plain integer.
        Self { left: unsafe { libc::alarm(seconds) }, ignored: before == libc::SIG_IGN }
    }

    /// Puts back what there was before.
    pub fn end(&self) {
        // SAFETY: a plain integer.
        unsafe { libc::alarm(self.left) };
        self.restore_action();
    }

    /// Puts the signal's action back only.
    pub fn restore_action(&self) {
        if self.ignored {
            // SAFETY: SIG_IGN is always a valid action.
            unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
        }
    }
}

/// Gives a program about to be exec'd the mask it would have had without us.
pub fn restore(mask: SignalMask) {
    // SAFETY: the set came from the kernel.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) };
}

/// Has a program start with these signals blocked. The standard library hands its caller's mask on, and who waits for signals has all of
/// them blocked: such a program could only be killed.
pub fn start_with(command: &mut std::process::Command, mask: SignalMask) {
    let set = move || {
        restore(mask);
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, set) };
}

/// Has a program get SIGTERM when the thread ends that has started it: however this process ends, the program does not outlive it.
pub fn end_with_caller(command: &mut std::process::Command) {
    let caller = std::process::id();
    let set = move || {
        // SAFETY: plain integers; between fork and exec these are two system calls.
        let (set, parent) =
            unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong), libc::getppid()) };
        // It may have ended before.
        match set == 0 && u32::try_from(parent) == Ok(caller) {
            true => Ok(()),
            false => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: it makes two system calls and allocates nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, set) };
}

/// Puts a signal's action back to the default (Rust's runtime ignores `SIGPIPE`, which children would inherit).
pub fn default_action(number: i32) {
    // SAFETY: SIG_DFL is always a valid action.
    unsafe { libc::signal(number, libc::SIG_DFL) };
}

/// Ends this process by the signal that ended its child, so that the caller sees the same; without a core of ours.
pub fn die_by(number: i32) -> ! {
    // SAFETY: lowering our own core limit and unblocking and raising a signal touch no memory.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(number, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, number);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::kill(libc::getpid(), number);
        libc::_exit(128 + number)
    }
}

#[cfg(test)]
mod tests {
    use super::{HeldEnd, SignalMask, Signals, hold, is_end_wanted};

    #[test]
    fn an_end_that_is_asked_for_waits_and_shows() {
        let held = HeldEnd::begin();
        assert_eq!((held.caught(), is_end_wanted()), (None, false));
        // SAFETY: a plain integer; the signal is blocked in this thread, which it is for.
        unsafe { libc::raise(libc::SIGTERM) };
        assert_eq!((held.caught(), is_end_wanted()), (Some(libc::SIGTERM), true));
        // SAFETY: as in `block`; the signal is taken, so that it ends no test.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigwait(&raw const set, &mut 0);
        }
        assert_eq!((held.caught(), is_end_wanted()), (None, false));
    }

    #[test]
    fn a_program_ends_with_the_thread_that_has_started_it() {
        use std::os::unix::process::ExitStatusExt;
        let start = || {
            let mut command = std::process::Command::new("sleep");
            super::end_with_caller(command.arg("1000"));
            command.spawn().expect("started")
        };
        let mut child = std::thread::spawn(start).join().expect("joined");
        assert_eq!(child.wait().expect("reaped").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn masks_come_back_as_they_went() {
        for bits in [0, 1, 1 << 63, 0b1010 << 8] {
            assert_eq!(SignalMask::from_bits(bits).to_bits(), bits, "{bits:x}");
        }
    }
    #[test]
    fn what_is_held_is_blocked_here_and_for_no_program() {
        hold(libc::SIGUSR2);
        let bit = 1 << (libc::SIGUSR2 - 1);
        for _ in 0..2 {
            let signals = Signals::block(&[]).expect("a queue");
            assert_eq!((signals.before.to_bits() & bit, signals.before().to_bits() & bit), (bit, 0));
            signals.end();
        }
    }
}
