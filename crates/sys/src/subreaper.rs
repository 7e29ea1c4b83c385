//! Making a process that another is about to make a subreaper (`PR_SET_CHILD_SUBREAPER`), before it does anything.
//!
//! Only a process itself can do that. CRIU has the processes that it restores do it last, when those in between of daemons, which it makes for
//! their sessions, have ended and left them to somebody else. So the process is traced for a moment, and made to call `prctl`.

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

use machine::{AGAIN, CALL, COUNT, INSTRUCTION, NEXT, PRCTL, RESULT};

/// Type of what is asked for, which C libraries do not agree about.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// `NT_PRSTATUS`. Source: `linux/elf.h`.
const GENERAL: usize = 1;
/// The kernel's numbers of what happens to a traced process (`PTRACE_EVENT_FORK`, `VFORK`, `CLONE`).
const MADE: [i32; 3] = [libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_VFORK, libc::PTRACE_EVENT_CLONE];

/// A process that is traced until it makes the one that is waited for. This thread, and no other, may ask for anything of it. When the thread
/// ends, the kernel lets all go on.
pub struct Maker(Pid);

impl Maker {
    /// Begins to trace it. It runs on.
    ///
    /// # Errors
    /// `EPERM` if another traces it, or this process may not.
    pub fn trace(maker: Pid) -> io::Result<Self> {
        let options = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
        ask(libc::PTRACE_SEIZE, maker, 0, options as usize)?;
        Ok(Self(maker))
    }

    /// Waits until it makes the process that is wanted, makes that one a subreaper, and lets both go on.
    ///
    /// # Errors
    /// The process has ended before it made one, or the kernel refuses.
    pub fn make_subreaper(self, is_wanted: impl Fn(Pid) -> bool) -> io::Result<()> {
        loop {
            let status = wait_for(self.0)?;
            if !libc::WIFSTOPPED(status) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let event = status >> 16;
            if !MADE.contains(&event) {
                // A signal goes on its way; a stop of another kind has none.
                let signal = if event == 0 { libc::WSTOPSIG(status) } else { 0 };
                ask(libc::PTRACE_CONT, self.0, 0, signal.unsigned_abs() as usize)?;
                continue;
            }
            let made = self.made()?;
            wait_for(made)?;
            let is_it = is_wanted(made);
            if is_it {
                call(made, [PRCTL, libc::PR_SET_CHILD_SUBREAPER as u64, 1, 0, 0, 0])?;
            }
            ask(libc::PTRACE_DETACH, made, 0, 0)?;
            ask(if is_it { libc::PTRACE_DETACH } else { libc::PTRACE_CONT }, self.0, 0, 0)?;
            if is_it {
                return Ok(());
            }
        }
    }

    /// The process that it has just made.
    fn made(&self) -> io::Result<Pid> {
        let mut number: libc::c_ulong = 0;
        ask(libc::PTRACE_GETEVENTMSG, self.0, 0, (&raw mut number).addr())?;
        let number = i32::try_from(number).ok().and_then(crate::process::positive_pid);
        number.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Has a process that has stopped behind a system call make another. Then its registers are as they were.
fn call(pid: Pid, words: [u64; 6]) -> io::Result<()> {
    let before = registers(pid)?;
    let (instruction, mask, length) = INSTRUCTION;
    let at = before[NEXT].wrapping_sub(length);
    if peek(pid, at)? & mask != instruction {
        return Err(io::ErrorKind::Unsupported.into());
    }
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
        0.. => Ok(()),
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
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 8];
    let memory = std::fs::File::open(format!("/proc/{}/mem", pid.as_raw_nonzero()))?;
    memory.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

fn wait_for(pid: Pid) -> io::Result<i32> {
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

fn ask(what: Request, pid: Pid, at: usize, data: usize) -> io::Result<()> {
    let at = null_mut::<libc::c_void>().with_addr(at);
    // SAFETY: what the kernel writes, if anything, goes where `data` points to: registers or a number of the callers' above, which live through
    // the call.
    match unsafe { libc::ptrace(what, pid.as_raw_nonzero().get(), at, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::AsFd;

    use rustix::pipe::pipe;

    use super::*;
    use crate::process::{CloneFlags, Fork, exit_now, fork};

    /// The number that a process reads.
    fn number(from: impl AsFd) -> i32 {
        let mut bytes = [0; 4];
        rustix::io::read(from, &mut bytes).expect("read");
        i32::from_le_bytes(bytes)
    }

    /// Makes two processes, each of which says its number, and whether it is a subreaper by the sign.
    fn make_two(tell: impl AsFd) -> ! {
        for _ in 0..2 {
            if matches!(fork(CloneFlags::NONE), Ok(Fork::Child)) {
                let own = rustix::process::getpid().as_raw_nonzero().get();
                let mut is_one: libc::c_int = 0;
                // SAFETY: the kernel writes a number, which lives through the call.
                unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_one) };
                let word = if is_one == 1 { own } else { -own };
                exit_now(i32::from(rustix::io::write(&tell, &word.to_le_bytes()).is_err()));
            }
        }
        exit_now(0)
    }

    #[test]
    fn the_process_that_is_waited_for_is_made_a_subreaper() {
        for wanted in [0, 1] {
            let (go, gate) = pipe().expect("a pipe");
            let (said, tell) = pipe().expect("a pipe");
            let Fork::Parent(maker) = fork(CloneFlags::NONE).expect("forked") else {
                drop(gate);
                // Traced from then on.
                let _told = rustix::io::read(&go, &mut [0]);
                make_two(tell)
            };
            let traced = Maker::trace(maker.pid).expect("traced");
            rustix::io::write(&gate, b"g").expect("told");
            let seen = Cell::new(0);
            traced.make_subreaper(|_| seen.replace(seen.get() + 1) == wanted).expect("made");
            let ones = [number(&said), number(&said)].into_iter().filter(|number| *number > 0).count();
            assert_eq!((seen.get(), ones), (wanted + 1, 1));
            wait_for(maker.pid).expect("ended");
        }
    }

    #[test]
    fn one_that_ends_without_is_told() {
        let (go, gate) = pipe().expect("a pipe");
        let Fork::Parent(maker) = fork(CloneFlags::NONE).expect("forked") else {
            drop(gate);
            let _told = rustix::io::read(&go, &mut [0]);
            exit_now(0)
        };
        let traced = Maker::trace(maker.pid).expect("traced");
        rustix::io::write(&gate, b"g").expect("told");
        traced.make_subreaper(|_| true).expect_err("nothing was made");
    }
}
