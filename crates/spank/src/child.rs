//! Running `skiff` from a hook: no descriptor of Slurm's leaks into it, it cannot take for ever, and what it said is kept.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use std::io::Error;

/// What is longer than this was not meant to be read.
const MAX_OUTPUT: usize = 1 << 20;
/// What a pipe holds at most, unless somebody has widened it.
const LONGEST_PIPE: usize = 1 << 20;
/// How long it may take to be gone once it is killed.
const DYING: Duration = Duration::from_secs(1);
/// How often it is asked whether a run is still wanted: most are over before the first time.
const QUESTIONS: Duration = Duration::from_secs(15);
/// All nodes of a job begin at once, and need not ask at once.
const SPREAD: u32 = 4000;

/// One run of `skiff slurm ...`.
pub struct SkiffCommand {
    command: Command,
    output: Output,
    limit: Option<Duration>,
    /// Whether it is still to go on, asked from time to time.
    is_wanted: Option<Box<dyn Fn() -> bool>>,
}

/// How a run ended.
pub struct CommandResult {
    pub status: ExitStatus,
    /// Standard output for [`SkiffCommand::as_caller`], standard error for the others.
    pub output: Vec<u8>,
}

impl SkiffCommand {
    /// In srun, sbatch and salloc: with the caller's own environment; errors go to their terminal.
    pub fn as_caller(program: &Path, arguments: &[&str]) -> Result<Self, Error> {
        let (mut run, output) = Self::new(program, arguments)?;
        run.command.stdout(output).stderr(Stdio::inherit());
        Ok(run)
    }

    /// On a node, where this process is root's: with no more variables than those given, within `limit`.
    pub fn on_node(
        program: &Path,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (&'static str, OsString)>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let (mut run, output) = Self::new(program, arguments)?;
        run.command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        run.command.envs(variables).stdout(Stdio::null()).stderr(output);
        run.limit = Some(limit);
        Ok(run)
    }

    fn new(program: &Path, arguments: &[&str]) -> Result<(Self, OwnedFd), Error> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(|| unblock_signals().and_then(|()| close_on_exec_from(3))) };
        let (output, end) = Output::pipe()?;
        Ok((Self { command, output, limit: None, is_wanted: None }, end))
    }

    /// Keeps standard output in the place of standard error.
    pub fn with_answer(mut self) -> Result<Self, Error> {
        let (output, end) = Output::pipe()?;
        self.output = output;
        self.command.stdout(end).stderr(Stdio::null());
        Ok(self)
    }

    /// Gives all rights of root up for good before exec. Slurm has set effective ids and groups already.
    pub fn for_user(mut self, uid: u32, gid: u32) -> Self {
        // SAFETY: between fork and exec only system calls are made.
        unsafe { self.command.pre_exec(move || stay_out_of_reach().and_then(|()| become_user(uid, gid))) };
        self
    }

    /// Takes the rights of root up wholly: in slurmstepd only the effective ids are the user's.
    pub fn for_root(mut self) -> Self {
        // SAFETY: between fork and exec only system calls are made.
        unsafe { self.command.pre_exec(become_root) };
        self
    }

    /// Ends it as soon as it is not wanted any more, which may take some seconds to find out; with all of its process group, which is its own.
    pub fn while_wanted(mut self, is_wanted: impl Fn() -> bool + 'static) -> Self {
        self.command.process_group(0);
        self.is_wanted = Some(Box::new(is_wanted));
        self
    }

    /// Runs it to its end.
    pub fn run(self) -> Result<CommandResult, Error> {
        let Self { mut command, mut output, limit, is_wanted } = self;
        let mut child = command.spawn()?;
        let until = limit.map(|limit| Instant::now() + limit);
        let mut asked = Instant::now() + Duration::from_millis((std::process::id() % SPREAD).into());
        let process = descriptor_of(&child)?;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let pause = is_wanted.as_ref().map(|_| QUESTIONS.saturating_sub(asked.elapsed()));
            let first = left.into_iter().chain(pause).min();
            let [ended, said] = wait([process.as_raw_fd(), output.polled()], first)?;
            if ended || said {
                output.read()?;
            }
            if ended {
                return Ok(CommandResult { status: child.wait()?, output: output.bytes });
            }
            if left.is_some_and(|left| left.is_zero()) {
                end(&mut child, &process, is_wanted.is_some())?;
                let limit = limit.unwrap_or_default().as_secs();
                return Err(Error::new(ErrorKind::TimedOut, format!("not done after {limit} s")));
            }
            if let Some(is_wanted) = is_wanted.as_ref().filter(|_| asked.elapsed() >= QUESTIONS) {
                if !is_wanted() {
                    end(&mut child, &process, true)?;
                    return Err(Error::other("the job ends"));
                }
                asked = Instant::now();
            }
        }
    }
}

/// Ends a command on a node, with its process group if it has one of its own.
fn end(child: &mut Child, process: &OwnedFd, has_group: bool) -> Result<(), Error> {
    let pid = i32::try_from(child.id()).map_err(Error::other)?;
    // SAFETY: plain numbers; the child has not been waited for, so the number is still its own, and its group's.
    check(unsafe { libc::kill(if has_group { -pid } else { pid }, libc::SIGKILL) }.into())?;
    // A file system that does not answer can hold up even that, and with it slurmd.
    if wait([process.as_raw_fd()], Some(DYING))? == [true] {
        child.wait()?;
    }
    Ok(())
}

/// What the program says. By a pipe, of which it has an end to write to: a file would be root's memory, which a user whose process it is
/// could fill. What it leaves behind may keep that end open; only its own end is waited for.
struct Output {
    pipe: File,
    is_open: bool,
    bytes: Vec<u8>,
}

impl Output {
    fn pipe() -> Result<(Self, OwnedFd), Error> {
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors.
        check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
        // SAFETY: the kernel has just made them for us.
        let (pipe, end) = unsafe { (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        // SAFETY: plain numbers; the other end is not concerned.
        check(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }.into())?;
        Ok((Self { pipe, is_open: true, bytes: vec![] }, end))
    }

    /// What there is to wait for; poll(2) passes over negative numbers.
    fn polled(&self) -> RawFd {
        if self.is_open { self.pipe.as_raw_fd() } else { -1 }
    }

    /// Reads what is there, no more than a pipe holds, and keeps no more than is of use.
    fn read(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 4096];
        for _ in 0..LONGEST_PIPE / buffer.len() {
            match self.pipe.read(&mut buffer) {
                Ok(0) => {
                    self.is_open = false;
                    return Ok(());
                }
                Ok(length) => {
                    let room = MAX_OUTPUT - self.bytes.len();
                    self.bytes.extend_from_slice(&buffer[..length.min(room)]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// By which to wait for the process's end.
fn descriptor_of(child: &Child) -> Result<OwnedFd, Error> {
    // SAFETY: the child has not been waited for, so its process id is still its own.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    check(descriptor)?;
    let descriptor = i32::try_from(descriptor).map_err(Error::other)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Which of them are ready, within that time.
fn wait<const N: usize>(descriptors: [RawFd; N], limit: Option<Duration>) -> Result<[bool; N], Error> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // Rounded up, so that nothing is left when it is over.
    let milliseconds = limit.map_or(-1, |limit| i32::try_from(limit.as_millis() + 1).unwrap_or(i32::MAX));
    // SAFETY: so many valid elements.
    match unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, milliseconds) } {
        ready if ready >= 0 => {}
        _ if Error::last_os_error().kind() == ErrorKind::Interrupted => return Ok([false; N]),
        _ => return Err(Error::last_os_error()),
    }
    Ok(polled.map(|polled| polled.revents != 0))
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

/// Until exec this is a copy of slurmstepd, with its memory and descriptors. slurmstepd lets itself be dumped, and the copy is about to be the
/// user's, who could trace it. Exec lifts this.
fn stay_out_of_reach() -> Result<(), Error> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into())
}

/// The kernel never ends slurmstepd for want of memory, and goes by the same for what it starts: Slurm's own tasks give that up, too. For good
/// only as root. Where it cannot be given up, the step's limit of memory remains.
///
/// # Safety
/// Only for a process that is about to give up root's rights, between fork and exec.
unsafe fn leave_exemption_from_oom_killer() {
    let file = c"/proc/self/oom_score_adj".as_ptr();
    let mut first = 0u8;
    // SAFETY: plain numbers, a file's name and room for a byte; descriptors are closed again.
    unsafe {
        libc::syscall(libc::SYS_setresuid, u32::MAX, 0, u32::MAX);
        let fd = libc::open(file, libc::O_RDWR | libc::O_CLOEXEC);
        if fd >= 0 {
            if libc::read(fd, (&raw mut first).cast(), 1) == 1 && first == b'-' {
                libc::pwrite(fd, c"0".as_ptr().cast(), 1, 0);
            }
            libc::close(fd);
        }
    }
}

/// Raw system calls: libc's own functions would signal threads that do not exist after a fork.
fn become_user(uid: u32, gid: u32) -> Result<(), Error> {
    // SAFETY: plain numbers.
    unsafe {
        leave_exemption_from_oom_killer();
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
    }
}

fn check(answer: i64) -> Result<(), Error> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
