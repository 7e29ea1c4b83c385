//! Having other processes make system calls: such as change only the process that makes them.

use std::io;
use std::ptr::null_mut;

use rustix::process::Pid;

mod descendants;
mod through;

pub use descendants::{Followed, TracedDescendants};
pub use through::TracedThrough;

/// Registers of a stopped process, as `PTRACE_GETREGSET` has them: `struct user_regs_struct`, of `asm/user_64.h` or `asm/ptrace.h`.
type Registers = [u64; COUNT];

#[cfg(target_arch = "x86_64")]
mod machine {
    pub const COUNT: usize = 27;
    /// Instruction pointer and result.
    pub const NEXT: usize = 16;
    pub const RESULT: usize = 10;
    /// Stack pointer.
    pub const STACK: usize = 19;
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
    pub const STACK: usize = 31;
    pub const CALL: [usize; 6] = [8, 0, 1, 2, 3, 4];
    pub const AGAIN: Option<usize> = None;
    pub const INSTRUCTION: (u64, u64, u64) = (0xd400_0001, 0xffff_ffff, 4);
    pub const PRCTL: u64 = 167;
}

pub(crate) use machine::PRCTL;
use machine::{AGAIN, CALL, COUNT, INSTRUCTION, NEXT, RESULT, STACK};

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
/// `PTRACE_GETSIGMASK` and `PTRACE_SETSIGMASK`, with the size of a mask. Source: `linux/ptrace.h`.
const GET_MASK: Request = 0x420a;
const SET_MASK: Request = 0x420b;
const MASK: usize = 8;
/// Below a stack pointer so many bytes belong to the function that runs, and behind them so many are ours while it stands still.
const RED_ZONE: u64 = 128;
const ROOM: u64 = 512;
/// So many bytes of the kernel's code in each process are searched for a system call.
const KERNEL_CODE: usize = 4 * 4096;

/// Numbers of prctl(2), which not every C library declares. Source: `linux/prctl.h`.
const PR_SET_SPECULATION_CTRL: u64 = 53;
const PR_GET_MDWE: u64 = 66;

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
        call_in(&Own(self.0), words(number, arguments))
    }

    /// Sets its personality.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_personality(&self, personality: u32) -> io::Result<()> {
        self.call(libc::SYS_personality, &[personality.into()]).map(drop)
    }

    /// Sets one of its ways of speculation, by the kernel's numbers of the way and of what it is set to.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn set_speculation(&self, which: u32, to: u32) -> io::Result<()> {
        let option = PR_SET_SPECULATION_CTRL;
        self.call(libc::SYS_prctl, &[option, which.into(), to.into(), 0, 0]).map(drop)
    }

    /// Has it use a System V set of semaphores (`semop`).
    ///
    /// # Errors
    /// That of the call, or that its stack cannot be written.
    pub fn operate(&self, id: i32, steps: &[SemaphoreStep]) -> io::Result<()> {
        operate(&Own(self.0), id, steps)
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
        let mut all = registers_of(&Own(self.0))?;
        if let Some(again) = AGAIN
            && all[again].cast_signed() >= 0
            && BEGIN_AGAIN.contains(&all[RESULT].cast_signed())
        {
            all[RESULT] = all[again];
            all[NEXT] = all[NEXT].wrapping_sub(INSTRUCTION.2);
            set_registers_of(&Own(self.0), all)?;
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

/// A step of an operation on a set of semaphores: which, by how much, and how (`SEM_UNDO`, `IPC_NOWAIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemaphoreStep {
    /// Number in the set.
    pub number: u16,
    /// What is added; 0 waits until it is zero.
    pub by: i16,
    /// Whether it is set back when the process ends.
    pub undone: bool,
}

impl SemaphoreStep {
    /// As the kernel reads it: it never waits.
    fn bytes(self) -> [u8; 6] {
        let flags = libc::IPC_NOWAIT | if self.undone { UNDO } else { 0 };
        let flags = (flags as i16).to_ne_bytes();
        let (number, by) = (self.number.to_ne_bytes(), self.by.to_ne_bytes());
        [number[0], number[1], by[0], by[1], flags[0], flags[1]]
    }
}

/// `SEM_UNDO`. Source: `linux/sem.h`.
const UNDO: libc::c_int = 0x1000;

/// A stopped process, and who may ask for anything of it.
trait StoppedProcess {
    fn pid(&self) -> Pid;
    /// Asks for what takes a number.
    fn ask(&self, what: Request, at: usize, data: usize) -> io::Result<()>;
    /// Asks for what reads or writes these bytes; by a structure that says where they are, or as they are.
    fn exchange(&self, what: Request, at: usize, bytes: &mut [u8], is_vector: bool) -> io::Result<()>;
    fn wait(&self) -> io::Result<i32>;
}

struct Own(Pid);

impl StoppedProcess for Own {
    fn pid(&self) -> Pid {
        self.0
    }
    fn ask(&self, what: Request, at: usize, data: usize) -> io::Result<()> {
        ask(what, self.0, at, data)
    }
    fn exchange(&self, what: Request, at: usize, bytes: &mut [u8], is_vector: bool) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let data = if is_vector { (&raw mut part).addr() } else { bytes.as_mut_ptr().addr() };
        ask(what, self.0, at, data)
    }
    fn wait(&self) -> io::Result<i32> {
        wait_for(self.0)
    }
}

fn words(number: libc::c_long, arguments: &[u64]) -> [u64; 6] {
    let mut words = [0; 6];
    words[0] = number.cast_unsigned();
    words[1..].iter_mut().zip(arguments).for_each(|(word, argument)| *word = *argument);
    words
}

/// Has a process of ours that has stopped make a system call, and gives its result. Then its registers are as they were.
pub(crate) fn call(pid: Pid, words: [u64; 6]) -> io::Result<u64> {
    call_in(&Own(pid), words)
}

fn call_in(process: &impl StoppedProcess, words: [u64; 6]) -> io::Result<u64> {
    let before = registers_of(process)?;
    let at = call_instruction(process.pid(), &before)?;
    let mut changed = before;
    changed[NEXT] = at;
    AGAIN.into_iter().for_each(|again| changed[again] = u64::MAX);
    CALL.iter().zip(words).for_each(|(register, word)| changed[*register] = word);
    // A signal that came in between would be taken from the process.
    let (mut mask, mut all) = ([0; MASK], [0xff; MASK]);
    process.exchange(GET_MASK, MASK, &mut mask, false)?;
    process.exchange(SET_MASK, MASK, &mut all, false)?;
    let result = set_registers_of(process, changed).and_then(|()| {
        // It stops as it begins the call, and as it ends it.
        step(process)?;
        step(process)?;
        registers_of(process).map(|all| all[RESULT])
    });
    set_registers_of(process, before)?;
    process.exchange(SET_MASK, MASK, &mut mask, false)?;
    let result = result?;
    match result.cast_signed() {
        0.. => Ok(result),
        refused => Err(io::Error::from_raw_os_error(i32::try_from(-refused).unwrap_or(libc::EINVAL))),
    }
}

/// Runs it up to where a system call begins or ends.
fn step(process: &impl StoppedProcess) -> io::Result<()> {
    loop {
        process.ask(libc::PTRACE_SYSCALL, 0, 0)?;
        let status = process.wait()?;
        if !libc::WIFSTOPPED(status) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // One that somebody has stopped says so before it goes on.
        if status >> 16 != STOPPED {
            return Ok(());
        }
    }
}

/// Where a process has an instruction for a system call: where it stands, before or behind one, else in what the kernel has put into it.
fn call_instruction(pid: Pid, at: &Registers) -> io::Result<u64> {
    let (instruction, mask, length) = INSTRUCTION;
    // 64-bit ARM goes back to a call that it is to begin again before anybody sees the process.
    let places = [at[NEXT].wrapping_sub(length), at[NEXT]];
    let is_call = |at: &&u64| peek(pid, **at).is_ok_and(|bytes| bytes & mask == instruction);
    if let Some(place) = places.iter().find(is_call) {
        return Ok(*place);
    }
    let number = pid.as_raw_nonzero().get();
    let maps = std::fs::read(format!("/proc/{number}/maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let start = line.and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
    let start = start.ok_or(io::ErrorKind::Unsupported)?;
    let mut code = vec![0; KERNEL_CODE];
    let read = read_all(pid, start, &mut code);
    let wanted = instruction.to_le_bytes();
    let wanted = &wanted[..length as usize];
    let found = code[..read].windows(wanted.len()).position(|bytes| bytes == wanted);
    found.map(|place| start + place as u64).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Reads as much as there is, page by page.
fn read_all(pid: Pid, start: u64, into: &mut [u8]) -> usize {
    let mut read = 0;
    for page in into.chunks_mut(4096) {
        match crate::memory::read_of(pid.as_raw_nonzero().get(), start + read as u64, page) {
            Ok(count) if count == page.len() => read += count,
            _ => break,
        }
    }
    read
}

fn operate(process: &impl StoppedProcess, id: i32, steps: &[SemaphoreStep]) -> io::Result<()> {
    let bytes = steps.iter().flat_map(|step| step.bytes()).collect::<Vec<u8>>();
    let room = Room::of(process)?;
    room.fill(&bytes)?;
    let arguments = [u64::from(id.unsigned_abs()), room.at, steps.len() as u64, 0];
    // `semtimedop` without a time is `semop`.
    let done = call_in(process, words(libc::SYS_semtimedop, &arguments));
    room.clear()?;
    done.map(drop)
}

/// Memory of a stopped process, below its stack, for what its calls read and write.
struct Room {
    pid: i32,
    at: u64,
    before: [u8; ROOM as usize],
}

impl Room {
    fn of(process: &impl StoppedProcess) -> io::Result<Self> {
        let stack = registers_of(process)?[STACK];
        let at = stack.checked_sub(RED_ZONE + ROOM).ok_or(io::ErrorKind::Unsupported)? & !15;
        let mut room = Self { pid: process.pid().as_raw_nonzero().get(), at, before: [0; ROOM as usize] };
        match crate::memory::read_of(room.pid, at, &mut room.before)? {
            count if count == room.before.len() => Ok(room),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn fill(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.before.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        match crate::memory::write_of(self.pid, self.at, bytes)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn clear(&self) -> io::Result<()> {
        self.fill(&self.before)
    }
}

fn registers_of(process: &impl StoppedProcess) -> io::Result<Registers> {
    let mut bytes = [0; size_of::<Registers>()];
    process.exchange(libc::PTRACE_GETREGSET, GENERAL, &mut bytes, true)?;
    let mut all = [0; COUNT];
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    all.iter_mut().zip(words).for_each(|(register, word)| *register = word);
    Ok(all)
}

fn set_registers_of(process: &impl StoppedProcess, all: Registers) -> io::Result<()> {
    let mut bytes = all.map(u64::to_ne_bytes).concat();
    process.exchange(libc::PTRACE_SETREGSET, GENERAL, &mut bytes, true)
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
