//! Making processes: `fork` with namespaces of their own, and the last step, `exec`.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::Mode;
use rustix::process::Pid;

/// What a new process shall have for itself; a bit set of `CLONE_*` values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneFlags(u64);

impl CloneFlags {
    /// Shares everything with its maker: a plain fork.
    pub const NONE: Self = Self(0);
    /// User namespace.
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    /// Mount namespace.
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    /// PID namespace: the new process is its process 1.
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    /// Host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);
    /// System V and POSIX message queues and shared memory.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    /// A new network namespace.
    pub const NETWORK: Self = Self(libc::CLONE_NEWNET as u64);
    /// What `/proc/PID/cgroup` and mounts of cgroups begin at.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP as u64);
    /// The new process becomes a sibling: child of its maker's parent, who waits for it.
    pub const SIBLING: Self = Self(libc::CLONE_PARENT as u64);

    /// Both sets together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The two sides that come out of [`fork`].
pub enum Fork {
    /// In the maker: the new process.
    Parent(Child),
    /// In the new process.
    Child,
}

/// A process just made, held so that its number cannot come to mean another.
pub struct Child {
    /// PID in the maker's PID namespace.
    pub pid: Pid,
    /// A handle that stays true after its end.
    pub pidfd: OwnedFd,
}

/// What processes and threads may have in common, as kcmp(2) numbers that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Memory.
    Memory = 1,
    /// The table of descriptors.
    Descriptors = 2,
    /// Root, current directory and umask.
    Directories = 3,
    /// Handlers of signals.
    Handlers = 4,
}

/// The order of what two processes or threads have of a kind; equal if they have it in common.
///
/// # Errors
/// `ESRCH` if one has ended, `EPERM` for who may not look into both.
pub fn compare_shared(one: Pid, other: Pid, what: Shared) -> io::Result<std::cmp::Ordering> {
    use std::cmp::Ordering;
    let (one, other) = (one.as_raw_nonzero().get(), other.as_raw_nonzero().get());
    // SAFETY: plain integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, what as libc::c_int, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        _ => Ok(Ordering::Greater),
    }
}

/// Forks, giving the new process the namespaces asked for.
///
/// The calling process must have one thread: the copy has only the calling thread, so a lock (malloc's, say) that
/// another one held would stay locked in it forever. Every Skiff process that forks is single-threaded by design.
///
/// # Errors
/// What `clone3` says: `EPERM` where user namespaces are closed to the caller, `ENOSPC` at `max_user_namespaces`.
pub fn fork(flags: CloneFlags) -> io::Result<Fork> {
    clone3(flags, None)
}

/// The same, with a number that the new process is to have in the PID namespace that this one puts its children into.
///
/// # Errors
/// `EPERM` without `CHECKPOINT_RESTORE` in that namespace's user namespace, `EEXIST` if a process has the number.
pub fn fork_as(number: Pid, flags: CloneFlags) -> io::Result<Fork> {
    clone3(flags, Some(number))
}

fn clone3(flags: CloneFlags, number: Option<Pid>) -> io::Result<Fork> {
    let mut pidfd: libc::c_int = -1;
    // With CLONE_PARENT the exit signal is the maker's own and must be given as none.
    let exit_signal = if flags.0 & CloneFlags::SIBLING.0 != 0 { 0 } else { libc::SIGCHLD as u64 };
    // SAFETY: an all-zero clone_args is valid; it is plain integers.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags.0 | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = exit_signal;
    let numbers: [libc::pid_t; 1] = [number.map_or(0, |pid| pid.as_raw_nonzero().get())];
    if number.is_some() {
        args.set_tid = numbers.as_ptr() as u64;
        args.set_tid_size = 1;
    }
    // SAFETY: args and the number it points to live through the call; no stack is given, so the child goes on with a copy of
    // this one (no CLONE_VM), and the kernel writes the pidfd before it returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
            // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent(Child { pid, pidfd }))
        }
    }
}

/// PID of the process behind a pidfd, in this PID namespace; none if it has ended or is in no namespace below.
#[must_use]
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<Pid> {
    // The kernel says -1 of one that has ended, and 0 of one that is elsewhere.
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).and_then(positive_pid)
}

/// A PID that was read from a file or a message. Signals to 0 or a negative number would reach process groups, so those are none.
#[must_use]
pub fn positive_pid(number: i32) -> Option<Pid> {
    Some(number).filter(|number| *number > 0).and_then(Pid::from_raw)
}

/// Replaces this process by `program` (a path, not searched for), with exactly these arguments and environment.
/// Returns only if that fails.
pub fn exec(program: &OsStr, argv: &[CString], envp: &[CString]) -> io::Error {
    let Ok(program) = CString::new(program.as_bytes()) else { return io::ErrorKind::InvalidInput.into() };
    let (argv, envp) = (pointers(argv), pointers(envp));
    // SAFETY: both arrays end in null and point to strings that outlive the call; on success nothing of us is left.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// The same with a program that is open: its path may mean nothing to this process any more.
pub fn exec_open(program: BorrowedFd<'_>, argv: &[CString], envp: &[CString]) -> io::Error {
    let (argv, envp) = (pointers(argv), pointers(envp));
    // SAFETY: the path is an empty C string, and both arrays end in null and point to strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// The strings as C has them, null behind the last.
fn pointers(list: &[CString]) -> Vec<*const libc::c_char> {
    list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Clears close-on-exec, so that the program exec'd next inherits the descriptor under its number.
///
/// # Errors
/// `EBADF` only, which an open descriptor rules out.
pub fn keep_on_exec(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?)
}

/// Moves this process, which must have one thread, into a new user namespace without ids yet.
///
/// # Errors
/// `ENOSPC` beyond `user.max_user_namespaces`, `EPERM` where security modules forbid it.
pub fn unshare_user() -> io::Result<()> {
    // SAFETY: a plain integer; nothing that this process has open or mapped changes.
    let r = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Marks every descriptor from `first` on close-on-exec: what a caller left open reaches no program of ours.
///
/// # Errors
/// `ENOSYS` before Linux 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: plain integers; setting the flag invalidates no descriptor that somebody holds.
    let r = unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int)
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor except the three standard ones and `keep`. For a process that has just been forked to live
/// on alone: whatever it inherited (locks, pipes that somebody waits on) must not live on with it.
pub fn close_all_except(keep: &[BorrowedFd<'_>]) {
    let mut numbers: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    numbers.sort_unstable();
    let mut first = 3;
    for n in numbers.into_iter().chain([u32::MAX]) {
        if n > first {
            // SAFETY: the caller is a new process that gives up all that it does not name; nobody in it uses the others.
            unsafe { libc::syscall(libc::SYS_close_range, first, if n == u32::MAX { n } else { n - 1 }, 0) };
        }
        first = first.max(n.saturating_add(1));
    }
}

/// Closes at once what an exec would close, except `keep`; what a program is meant to inherit stays. `descriptors` is this process's
/// own `/proc/self/fd`.
///
/// # Errors
/// When they cannot be listed or asked about. Some may still be open then.
pub fn close_as_exec_does(descriptors: BorrowedFd<'_>, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut open = vec![];
    for entry in rustix::fs::Dir::read_from(descriptors)? {
        let name = entry?.file_name().to_owned();
        open.extend(name.to_str().ok().and_then(|name| name.parse::<libc::c_int>().ok()));
    }
    for fd in open.into_iter().filter(|fd| keep.iter().all(|kept| kept.as_raw_fd() != *fd)) {
        // SAFETY: fcntl on any number is harmless; what is closed nobody in this new process uses any more.
        unsafe {
            match libc::fcntl(fd, libc::F_GETFD) {
                flags if flags >= 0 && flags & libc::FD_CLOEXEC != 0 => libc::close(fd),
                _ => 0,
            };
        }
    }
    Ok(())
}

/// Closes descriptors that this process has only because it was forked: those who own them are in its maker, and their copies here are
/// never dropped.
pub fn close_inherited(fds: &[BorrowedFd<'_>]) {
    for fd in fds {
        // SAFETY: as above: nobody in this process uses them any more.
        unsafe { libc::close(fd.as_raw_fd()) };
    }
}

/// Takes over a descriptor that this process was started with, by its agreed number.
///
/// # Errors
/// `EBADF` if the number is not open.
pub fn inherited_fd(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on any number is harmless: it asks whether that descriptor is open.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by the protocol between the two programs nobody else in this process has it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// The process group of another process, or of this one; nothing if its leader is outside of our PID namespace, where it
/// has no number. rustix takes the kernel's zero for a number then, which its `Pid` must never be.
///
/// # Errors
/// `ESRCH` if there is no such process.
pub fn group_of(pid: Option<Pid>) -> io::Result<Option<Pid>> {
    // SAFETY: getpgid only asks.
    number(unsafe { libc::getpgid(Pid::as_raw(pid)) })
}

/// The session of another process, or of this one; nothing if its leader is outside of our PID namespace.
///
/// # Errors
/// `ESRCH` if there is no such process.
pub fn session_of(pid: Option<Pid>) -> io::Result<Option<Pid>> {
    // SAFETY: getsid only asks.
    number(unsafe { libc::getsid(Pid::as_raw(pid)) })
}

fn number(answer: libc::pid_t) -> io::Result<Option<Pid>> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(Pid::from_raw(answer)) }
}

/// The permission bits that this process keeps from others on what it makes. They can only be asked for by setting them.
#[must_use]
pub fn own_umask() -> u16 {
    let own = rustix::process::umask(Mode::empty());
    rustix::process::umask(own);
    (own.bits() & 0o777) as u16
}

/// Ends this process at once: no destructors, no flushing of what the maker had buffered before a fork.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit may be called at any time.
    unsafe { libc::_exit(code) }
}
