//! Making a process that another is about to make a subreaper (`PR_SET_CHILD_SUBREAPER`), before it does anything.
//!
//! Only a process itself can do that. CRIU has the processes that it restores do it last, when those in between of daemons, which it makes for
//! their sessions, have ended and left them to somebody else. So the process is traced for a moment, and made to call `prctl`.

use std::io;

use rustix::process::Pid;

use crate::traced::{PRCTL, ask, call, wait_for};

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
