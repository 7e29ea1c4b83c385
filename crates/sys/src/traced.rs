//! Having other processes make system calls: such as change only the process that makes them.

use std::io;
use std::ptr::null_mut;

use rustix::process::Pid;

/// Registers of a stopped process, as `PTRACE_GETREGSET` has them: `struct user_regs_struct`, of `asm/user_64.h` or `asm/ptrace.h`.
type Registers = [u64; COUNT];

#[cfg(target_arch = "x86_64")]
mod machine {
    pub const COUNT: usize = 27;
    /// Instruction pointer and result.
    pub const NEXT: usize = 16;
    pub const RESULT: usize = 10;
    /// Number of the call, then its arguments.
    pub const CALL: [usize; 6] = [10, 14, 13, 12, 7, 9];
    /// What says to the kernel which call is to be begun again.
    pub const AGAIN: Option<usize> = Some(15);
    /// The instruction of a call, in its lowest bytes.
    pub const INSTRUCTION: (u64, u64, u64) = (0x050f, 0xffff, 2);
    pub const PRCTL: u64 = 157;
}

#[cfg(target_arch = "aarch64")]
mod machine {
    pub const COUNT: usize = 34;
    pub const NEXT: usize = 32;
    pub const RESULT: usize = 0;
    pub const CALL: [usize; 6] = [8, 0, 1, 2, 3, 4];
    pub const AGAIN: Option<usize> = None;
    pub const INSTRUCTION: (u64, u64, u64) = (0xd400_0001, 0xffff_ffff, 4);
    pub const PRCTL: u64 = 167;
}

pub(crate) use machine::PRCTL;
use machine::{AGAIN, CALL, COUNT, INSTRUCTION, NEXT, RESULT};

/// Type of what is asked for, which C libraries do not agree about.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// `NT_PRSTATUS`. Source: `linux/elf.h`.
const GENERAL: usize = 1;
/// The kernel's numbers of a stop that a tracer has asked for, and of what a call says that is to be begun again. Source: `linux/ptrace.h`,
/// `linux/errno.h`.
const STOPPED: i32 = 128;
const BEGIN_AGAIN: [i64; 4] = [-512, -513, -514, -516];

/// A process that this thread, and no other, traces and has stopped. When the thread ends, the kernel lets the process go on.
pub struct Traced(Pid);

impl Traced {
    /// Stops it, wherever it is.
    ///
    /// # Errors
    /// `EPERM` if another traces it, or this process may not.
    pub fn stop(process: Pid) -> io::Result<Self> {
        ask(libc::PTRACE_SEIZE, process, 0, 0)?;
        ask(libc::PTRACE_INTERRUPT, process, 0, 0)?;
        loop {
            let status = wait_for(process)?;
            if !libc::WIFSTOPPED(status) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if status >> 16 == STOPPED {
                return Ok(Self(process));
            }
            // A signal goes on its way; a stop of another kind has none.
            let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
            ask(libc::PTRACE_CONT, process, 0, signal.unsigned_abs() as usize)?;
        }
    }

    /// Has it make a system call, by the call's number and up to five arguments; the result.
    ///
    /// # Errors
    /// That of the call, or `Unsupported` where it did not stop at a call.
    pub fn call(&self, number: libc::c_long, arguments: &[u64]) -> io::Result<u64> {
        let mut words = [0; 6];
        words[0] = number.cast_unsigned();
        words[1..].iter_mut().zip(arguments).for_each(|(word, argument)| *word = *argument);
        call(self.0, words)
    }

    /// Has it attach a System V segment, by its number and its size in whole pages, and have these parts of it in place of what it has there. All
    /// are of one attachment: so they are detached together.
    ///
    /// # Errors
    /// That of a call, `InvalidInput` for a part that is not in the segment.
    pub fn attach(&self, id: i32, segment: u64, parts: &[AttachedPart]) -> io::Result<()> {
        let may_write = parts.iter().any(|part| part.may_write);
        let execute = parts.iter().any(|part| part.rights[2]);
        let mut flags = if may_write { 0 } else { libc::SHM_RDONLY };
        if execute {
            flags |= libc::SHM_EXEC;
        }
        let flag = |flags: libc::c_int| u64::from(flags.unsigned_abs());
        // Whole where there is room; its parts are moved to their places.
        let at = self.call(libc::SYS_shmat, &[u64::from(id.unsigned_abs()), 0, flag(flags)])?;
        for AttachedPart { start, end, offset, rights, locked, advice, .. } in parts {
            let length = end.checked_sub(*start).filter(|length| *length > 0);
            let is_in = |length: &u64| offset.checked_add(*length).is_some_and(|last| last <= segment);
            let length = length.filter(is_in).ok_or(io::ErrorKind::InvalidInput)?;
            let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            self.call(libc::SYS_mremap, &[at + offset, length, length, flag(moved), *start])?;
            if *rights != [true, may_write, execute] {
                let all = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
                let wanted = all.into_iter().zip(rights).filter(|(_, has)| **has);
                let wanted = wanted.fold(0, |all, (one, _)| all | one);
                self.call(libc::SYS_mprotect, &[*start, length, flag(wanted)])?;
            }
            for advice in advice {
                self.call(libc::SYS_madvise, &[*start, length, u64::from(*advice)])?;
            }
            if *locked {
                self.call(libc::SYS_mlock, &[*start, length])?;
            }
        }
        // What is left of it where it was.
        self.call(libc::SYS_munmap, &[at, segment]).map(drop)
    }

    /// Lets it go on where it was. The kernel begins an interrupted call again only where it stopped the process, not where a call of ours
    /// ended: so that is done here.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn release(self) -> io::Result<()> {
        let mut all = registers(self.0)?;
        if let Some(again) = AGAIN
            && all[again].cast_signed() >= 0
            && BEGIN_AGAIN.contains(&all[RESULT].cast_signed())
        {
            all[RESULT] = all[again];
            all[NEXT] = all[NEXT].wrapping_sub(INSTRUCTION.2);
            set_registers(self.0, all)?;
        }
        ask(libc::PTRACE_DETACH, self.0, 0, 0)
    }
}

/// A part of a System V segment in a process.
#[derive(Clone, Debug)]
pub struct AttachedPart {
    /// Where the part begins and ends in the process, and where it begins in the segment.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    /// See `start`.
    pub offset: u64,
    /// Whether it may be read, written, executed.
    pub rights: [bool; 3],
    /// Whether it could be made writable.
    pub may_write: bool,
    /// Whether it is locked in memory.
    pub locked: bool,
    /// What the kernel is to be advised of it, as `madvise` numbers that.
    pub advice: Vec<u32>,
}

/// Has a process that has stopped before or behind a system call make another, and gives its result. Then its registers are as they were.
pub(crate) fn call(pid: Pid, words: [u64; 6]) -> io::Result<u64> {
    let before = registers(pid)?;
    let (instruction, mask, length) = INSTRUCTION;
    // 64-bit ARM goes back to a call that it is to begin again before anybody sees the process.
    let places = [before[NEXT].wrapping_sub(length), before[NEXT]];
    let is_call = |at: &&u64| peek(pid, **at).is_ok_and(|bytes| bytes & mask == instruction);
    let at = *places.iter().find(is_call).ok_or(io::ErrorKind::Unsupported)?;
    let mut changed = before;
    changed[NEXT] = at;
    AGAIN.into_iter().for_each(|again| changed[again] = u64::MAX);
    CALL.iter().zip(words).for_each(|(register, word)| changed[*register] = word);
    set_registers(pid, changed)?;
    // It stops as it begins the call, and as it ends it.
    for _ in 0..2 {
        ask(libc::PTRACE_SYSCALL, pid, 0, 0)?;
        wait_for(pid)?;
    }
    let result = registers(pid)?[RESULT];
    set_registers(pid, before)?;
    match result.cast_signed() {
        0.. => Ok(result),
        refused => Err(io::Error::from_raw_os_error(i32::try_from(-refused).unwrap_or(libc::EINVAL))),
    }
}

fn registers(pid: Pid) -> io::Result<Registers> {
    let mut all = [0; COUNT];
    let mut part = libc::iovec { iov_base: all.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
    ask(libc::PTRACE_GETREGSET, pid, GENERAL, (&raw mut part).addr())?;
    Ok(all)
}

fn set_registers(pid: Pid, mut all: Registers) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: all.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
    ask(libc::PTRACE_SETREGSET, pid, GENERAL, (&raw mut part).addr())
}

/// Eight bytes of its memory.
fn peek(pid: Pid, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match crate::memory::read_of(pid.as_raw_nonzero().get(), at, &mut bytes)? {
        8 => Ok(u64::from_le_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

pub(crate) fn wait_for(pid: Pid) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the status lives through the call.
        if unsafe { libc::waitpid(pid.as_raw_nonzero().get(), &raw mut status, libc::__WALL) } >= 0 {
            return Ok(status);
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

pub(crate) fn ask(what: Request, pid: Pid, at: usize, data: usize) -> io::Result<()> {
    let at = null_mut::<libc::c_void>().with_addr(at);
    // SAFETY: what the kernel writes, if anything, goes where `data` points to: registers or a number of the callers', which live through the
    // call.
    match unsafe { libc::ptrace(what, pid.as_raw_nonzero().get(), at, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::positive_pid;

    /// Waits until a process sleeps in one of these system calls, whose first argument is 0. Its loader makes others.
    fn sleeps_in(pid: Pid, calls: &[libc::c_long]) -> bool {
        let is_there = || {
            let said = std::fs::read_to_string(format!("/proc/{}/syscall", pid.as_raw_nonzero()));
            said.is_ok_and(|said| calls.iter().any(|call| said.starts_with(&format!("{call} 0x0 "))))
        };
        (0..3000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            is_there()
        })
    }

    #[test]
    fn a_sleeping_process_makes_a_call_and_sleeps_on() {
        // A call that is begun again with its arguments, and one that the kernel begins again with what is left of its time.
        for (program, word, call) in
            [("cat", "-", libc::SYS_read), ("sleep", "60", libc::SYS_clock_nanosleep)]
        {
            let mut child = Command::new(program)
                .arg(word)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            let pid = positive_pid(child.id().cast_signed()).expect("a number");
            assert!(sleeps_in(pid, &[call]), "{program}");
            let traced = Traced::stop(pid).expect("stopped");
            let given = traced.call(libc::SYS_getpid, &[]).expect("called");
            assert_eq!(given, u64::from(child.id()));
            let e = traced.call(libc::SYS_close, &[u64::from(u32::MAX)]).expect_err("no such descriptor");
            assert_eq!(e.raw_os_error(), Some(libc::EBADF));
            traced.release().expect("released");
            assert!(sleeps_in(pid, &[call, libc::SYS_restart_syscall]), "{program}");
            let mut input = child.stdin.take().expect("a pipe");
            if program == "cat" {
                std::io::Write::write_all(&mut input, b"read").expect("written");
            } else {
                child.kill().expect("killed");
            }
            drop(input);
            let output = child.wait_with_output().expect("ended");
            let wanted = if program == "cat" { (true, &b"read"[..]) } else { (false, &b""[..]) };
            assert_eq!((output.status.success(), &*output.stdout), wanted, "{program}");
        }
    }
}
