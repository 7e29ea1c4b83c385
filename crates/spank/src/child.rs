//! Running `skiff` from a hook: no descriptor of Slurm's leaks into it, it cannot take for ever, and what it said is kept.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use std::io::Error;

/// What is longer than this was not meant to be read.
const MAX_OUTPUT: u64 = 1 << 20;

/// One run of `skiff slurm ...`.
pub struct Run {
    command: Command,
    output: File,
    limit: Option<Duration>,
}

/// How a run ended.
pub struct Outcome {
    pub status: ExitStatus,
    /// Standard output for [`Run::as_caller`], standard error for the others.
    pub output: Vec<u8>,
}

impl Run {
    /// In srun, sbatch and salloc: with the caller's own environment; errors go to his terminal.
    pub fn as_caller(program: &Path, arguments: &[&str]) -> Result<Self, Error> {
        let mut run = Self::new(program, arguments)?;
        run.command.stdout(run.output.try_clone()?).stderr(Stdio::inherit());
        Ok(run)
    }

    /// On a node, where this process is root's: with no more variables than those given, within `limit`.
    pub fn on_node(
        program: &Path,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let mut run = Self::new(program, arguments)?;
        run.command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        run.command.envs(variables).stdout(Stdio::null()).stderr(run.output.try_clone()?);
        run.limit = Some(limit);
        Ok(run)
    }

    fn new(program: &Path, arguments: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(|| unblock_signals().and_then(|()| close_on_exec_from(3))) };
        // Not a pipe: the process that `step-begin` leaves behind would keep it open, and reading would not end.
        Ok(Self { command, output: memory_file()?, limit: None })
    }

    /// Gives all rights of root up for good before exec. Slurm has set effective ids and groups already.
    pub fn for_user(mut self, uid: u32, gid: u32) -> Self {
        // SAFETY: between fork and exec only system calls are made.
        unsafe { self.command.pre_exec(move || become_user(uid, gid)) };
        self
    }

    /// Takes the rights of root up wholly: in slurmstepd only the effective ids are the user's.
    pub fn for_root(mut self) -> Self {
        // SAFETY: between fork and exec only system calls are made.
        unsafe { self.command.pre_exec(become_root) };
        self
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Result<Outcome, Error> {
        let mut child = self.command.spawn()?;
        let status = match self.limit {
            None => child.wait()?,
            Some(limit) => wait_no_longer(&mut child, limit)?,
        };
        let mut output = Vec::new();
        self.output.seek(SeekFrom::Start(0))?;
        self.output.take(MAX_OUTPUT).read_to_end(&mut output)?;
        Ok(Outcome { status, output })
    }
}

fn wait_no_longer(child: &mut Child, limit: Duration) -> Result<ExitStatus, Error> {
    // SAFETY: the child has not been waited for, so its process id is still its own.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    let descriptor = i32::try_from(descriptor).map_err(Error::other)?;
    if descriptor < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let end = std::time::Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let milliseconds = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one valid element.
        match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
            1 => return child.wait(),
            0 => {
                child.kill()?;
                child.wait()?;
                return Err(Error::new(
                    std::io::ErrorKind::TimedOut,
                    format!("not done after {} s", limit.as_secs()),
                ));
            }
            _ if Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return Err(Error::last_os_error()),
        }
    }
}

fn memory_file() -> Result<File, Error> {
    // SAFETY: a constant name and a flag.
    let descriptor = unsafe { libc::memfd_create(c"skiff-output".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

fn close_on_exec_from(first: u32) -> Result<(), Error> {
    // SAFETY: only marks descriptors; nothing is closed before exec.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
}

/// slurmstepd blocks most signals in all of its threads.
fn unblock_signals() -> Result<(), Error> {
    let none = 0u64;
    let size = std::mem::size_of_val(&none);
    // SAFETY: the kernel's signal set is one word of 64 bits.
    check(unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0usize, size)
    })
}

fn become_root() -> Result<(), Error> {
    // SAFETY: plain integers and a null list of length 0.
    let done = unsafe {
        libc::setresuid(0, 0, 0) == 0
            && libc::setresgid(0, 0, 0) == 0
            && libc::setgroups(0, std::ptr::null()) == 0
    };
    if done { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Raw system calls: libc's own functions would signal threads that do not exist after a fork.
fn become_user(uid: u32, gid: u32) -> Result<(), Error> {
    // SAFETY: plain numbers.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
    }
}

fn check(answer: i64) -> Result<(), Error> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
