//! A task's signals. The user's program is the child of the process that Slurm started, and Slurm's ways to signal differ: some
//! reach only that process (`scancel --batch`, steps under cgroups), some its process group, some all its descendants
//! (linuxproc). The program must get each signal once, as it would without us.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, set_parent_process_death_signal, waitid,
};
use skiff_sandbox::join::Place;
use skiff_sandbox::session::Ended;
use skiff_sandbox::{Context as _, Result};
use skiff_sys::process::{Child, CloneFlags, Fork, exit_now, fork};
use skiff_sys::signal::{Mask, Signals};

/// How long after us a witness may get the same signal: Slurm sends them in one go, but it may lose the processor in between.
const GRACE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// This process's signals, for a program that is to be started.
pub struct TaskSignals {
    own: Signals,
    witness: OwnedFd,
    /// Signals that the witness had and we did not yet, by their number.
    seen: [u32; 256],
    pty: bool,
}

impl TaskSignals {
    /// Takes this process's signals over, and starts a witness: another child of ours, in our process group like the program.
    /// What it gets, the program gets from whoever sent it; what it does not get was for us alone, and is for us to pass on.
    pub fn take() -> Result<Self> {
        let own = Signals::block(&[]).context(|| "signals")?;
        let (witness, told) = pipe_with(PipeFlags::CLOEXEC).context(|| "pipe")?;
        if let Fork::Child = fork(CloneFlags::NONE).context(|| "witness of signals")? {
            drop(witness);
            bear_witness(&own, &told);
        }
        let pty = rustix::termios::isatty(rustix::stdio::stdin())
            && rustix::process::getsid(None).is_ok_and(|leader| leader == rustix::process::getpid());
        Ok(Self { own, witness, seen: [0; 256], pty })
    }

    /// Where the program shall stand. With a terminal of its own (`srun --pty`) we lead its session, as Slurm has made us; the
    /// program leads its foreground.
    pub fn place(&self) -> Place {
        Place {
            own_group: self.pty,
            foreground: self.pty,
            own_session: false,
            death_signal: Signal::KILL.as_raw(),
        }
    }

    /// What the program must not find blocked.
    pub fn mask(&self) -> Mask {
        self.own.before()
    }

    /// Waits for the program's end.
    pub fn wait(mut self, child: &Child) -> Result<Ended> {
        loop {
            if let Some(ended) = self.look(child)? {
                return Ok(ended);
            }
            let mut fds = [PollFd::new(&self.own, PollFlags::IN), PollFd::new(&child.pidfd, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context(|| "waiting for the task"),
            }
            while let Ok(Some(signal)) = self.own.next() {
                let Some(number) = Signal::from_named_raw(signal.number) else { continue };
                if number != Signal::CHILD && !self.was_for_all(signal.number, child) {
                    // It may have ended this moment.
                    kill_process(child.pid, number).unwrap_or_default();
                }
            }
        }
    }

    /// How the program ended, if it did.
    fn look(&self, child: &Child) -> Result<Option<Ended>> {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        loop {
            let status = match waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&child.pidfd)), flags) {
                Err(Errno::INTR) => continue,
                other => other.context(|| "waiting for the task")?,
            };
            let Some(status) = status else { return Ok(None) };
            if let Some(code) = status.exit_status() {
                return Ok(Some(Ended::Code(code)));
            }
            if let Some(signal) = status.terminating_signal() {
                return Ok(Some(Ended::Signal(signal)));
            }
            if self.pty && status.stopping_signal() != Some(Signal::STOP.as_raw()) {
                // No shell is there to continue it; without us its group would be an orphan, which keys do not stop.
                kill_process_group(child.pid, Signal::CONT).unwrap_or_default();
            }
        }
    }

    /// Whether the witness got this signal too.
    fn was_for_all(&mut self, number: i32, child: &Child) -> bool {
        let number = usize::try_from(number).unwrap_or_default();
        loop {
            if let Some(seen) = self.seen.get_mut(number).filter(|seen| **seen > 0) {
                *seen -= 1;
                return true;
            }
            let mut fds =
                [PollFd::new(&self.witness, PollFlags::IN), PollFd::new(&child.pidfd, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&GRACE)).unwrap_or(0);
            let (spoke, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            let mut numbers = [0; 64];
            match if spoke { read(&self.witness, &mut numbers) } else { Ok(0) } {
                Ok(n) if n > 0 => numbers[..n].iter().for_each(|n| self.seen[usize::from(*n)] += 1),
                // It said nothing, or is gone; or there is nobody left to signal.
                _ => return ready > 0 && ended,
            }
        }
    }
}

/// Tells the numbers of all signals that come, until its maker is gone.
fn bear_witness(signals: &Signals, told: &OwnedFd) -> ! {
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        exit_now(125);
    }
    loop {
        // A reader who is gone is the end.
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(told, PollFlags::empty())];
        poll(&mut fds, None).unwrap_or_default();
        if !fds[1].revents().is_empty() {
            exit_now(0);
        }
        while let Ok(Some(signal)) = signals.next() {
            write(told, &[signal.number.to_le_bytes()[0]]).unwrap_or_default();
        }
    }
}
