//! System calls in a process that another one traces: only the tracer may ask for them, so it is traced itself and made to ask.

use std::io;

use rustix::process::Pid;

use super::{Own, PR_GET_MDWE};
use super::{Request, Room, SemaphoreStep, StoppedProcess, Traced, call_in, operate, words};
use crate::process::Shared;

/// Of arch_prctl(2), and the feature that tiles are. Source: `asm/prctl.h`, `asm/fpu/types.h`.
#[cfg(target_arch = "x86_64")]
const ARCH_GET_XCOMP_SUPP: u64 = 0x1021;
#[cfg(target_arch = "x86_64")]
const ARCH_GET_XCOMP_PERM: u64 = 0x1022;
#[cfg(target_arch = "x86_64")]
const TILES: u64 = 1 << 18;

/// A process that another, which we trace, has stopped.
pub struct TracedThrough<'a> {
    tracer: &'a Traced,
    process: Pid,
}

impl<'a> TracedThrough<'a> {
    /// A process that `tracer` has stopped.
    #[must_use]
    pub fn new(tracer: &'a Traced, process: Pid) -> Self {
        Self { tracer, process }
    }

    /// Has it use a System V set of semaphores, as [`Traced::operate`].
    ///
    /// # Errors
    /// Likewise, and that of a call of the tracer's.
    pub fn operate(&self, id: i32, steps: &[SemaphoreStep]) -> io::Result<()> {
        operate(self, id, steps)
    }

    /// Has it make a system call, as [`Traced::call`].
    ///
    /// # Errors
    /// Likewise, and that of a call of the tracer's.
    pub fn call(&self, number: libc::c_long, arguments: &[u64]) -> io::Result<u64> {
        call_in(self, words(number, arguments))
    }

    /// Whether it may never run memory that it has written (`PR_SET_MDWE`).
    ///
    /// # Errors
    /// As [`Traced::call`], and that of a call of the tracer's.
    pub fn denies_write_and_execute(&self) -> io::Result<bool> {
        match call_in(self, words(libc::SYS_prctl, &[PR_GET_MDWE, 0, 0, 0, 0])) {
            // A kernel without.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            denies => denies.map(|flags| flags != 0),
        }
    }

    /// Whether it has asked for tiles (AMX), which a process may use only then (`ARCH_GET_XCOMP_PERM`).
    ///
    /// # Errors
    /// As [`Traced::call`], that of a call of the tracer's, or that its stack cannot be written.
    #[cfg(target_arch = "x86_64")]
    pub fn may_use_tiles(&self) -> io::Result<bool> {
        let mut features = [0; 8];
        // SAFETY: the kernel writes eight bytes, which live through the call.
        let known =
            unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, features.as_mut_ptr()) };
        if known != 0 || u64::from_ne_bytes(features) & TILES == 0 {
            return Ok(false);
        }
        let room = Room::of(self)?;
        let done = call_in(self, words(libc::SYS_arch_prctl, &[ARCH_GET_XCOMP_PERM, room.at]));
        let read = crate::memory::read_of(room.pid, room.at, &mut features);
        room.clear()?;
        done?;
        match read? {
            8 => Ok(u64::from_ne_bytes(features) & TILES != 0),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// No other machine has them.
    #[cfg(not(target_arch = "x86_64"))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as where there are tiles")]
    pub fn may_use_tiles(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Whether others of its user may look into it (`PR_GET_DUMPABLE`).
    ///
    /// # Errors
    /// As [`Traced::call`], and that of a call of the tracer's.
    pub fn is_dumpable(&self) -> io::Result<bool> {
        let option = libc::PR_GET_DUMPABLE.unsigned_abs().into();
        Ok(call_in(self, words(libc::SYS_prctl, &[option, 0, 0, 0, 0]))? == 1)
    }

    /// Has it compare what it has with what another process has, as [`compare_shared`](crate::process::compare_shared).
    ///
    /// # Errors
    /// `EPERM` if it may not look into that process.
    pub fn compare_shared(&self, other: Pid, what: Shared) -> io::Result<()> {
        let other = u64::from(other.as_raw_nonzero().get().unsigned_abs());
        call_in(self, words(libc::SYS_kcmp, &[self.number(), other, what as u64, 0, 0])).map(drop)
    }

    fn number(&self) -> u64 {
        u64::from(self.process.as_raw_nonzero().get().unsigned_abs())
    }

    /// Does something by memory of the tracer's, which begins with these bytes; the bytes that are then there.
    fn with_room(&self, bytes: &mut [u8], act: impl FnOnce(u64) -> io::Result<u64>) -> io::Result<()> {
        let room = Room::of(&Own(self.tracer.0))?;
        room.fill(bytes)?;
        let done = act(room.at);
        let read = crate::memory::read_of(room.pid, room.at, bytes);
        room.clear()?;
        done?;
        match read? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn trace(&self, what: Request, at: u64, data: u64) -> io::Result<u64> {
        // A type of either sign, by the C library.
        let what = u64::from(u32::from_ne_bytes(what.to_ne_bytes()));
        call_in(&Own(self.tracer.0), words(libc::SYS_ptrace, &[what, self.number(), at, data]))
    }
}

impl StoppedProcess for TracedThrough<'_> {
    fn pid(&self) -> Pid {
        self.process
    }

    fn ask(&self, what: Request, at: usize, data: usize) -> io::Result<()> {
        self.trace(what, at as u64, data as u64).map(drop)
    }

    fn exchange(&self, what: Request, at: usize, bytes: &mut [u8], is_vector: bool) -> io::Result<()> {
        let head = size_of::<libc::iovec>();
        let mut all = vec![0; head];
        all.extend_from_slice(bytes);
        let length = (bytes.len() as u64).to_ne_bytes();
        self.with_room_at(&mut all, head, length, |vector, data| {
            self.trace(what, at as u64, if is_vector { vector } else { data })
        })?;
        bytes.copy_from_slice(&all[head..]);
        Ok(())
    }

    fn wait(&self) -> io::Result<i32> {
        let mut status = [0; 4];
        self.with_room(&mut status, |at| {
            let all = u64::from(libc::__WALL.cast_unsigned());
            call_in(&Own(self.tracer.0), words(libc::SYS_wait4, &[self.number(), at, all, 0]))
        })?;
        Ok(i32::from_ne_bytes(status))
    }
}

impl TracedThrough<'_> {
    /// As [`Self::with_room`], where the bytes begin with a structure that says where those behind it are.
    fn with_room_at(
        &self,
        all: &mut [u8],
        head: usize,
        length: [u8; 8],
        act: impl FnOnce(u64, u64) -> io::Result<u64>,
    ) -> io::Result<()> {
        let at = Room::of(&Own(self.tracer.0))?.at;
        let data = at + head as u64;
        all[..8].copy_from_slice(&data.to_ne_bytes());
        all[8..head].copy_from_slice(&length);
        self.with_room(all, |vector| act(vector, data))
    }
}
