//! A task's signals. The user's program is the child of the process that Slurm started, and Slurm's ways to signal differ: some
//! reach only that process (`scancel --batch`, steps under cgroups), some its process group, some all its descendants
//! (linuxproc). The program must get each signal once, as it would without us.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{
    Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, set_parent_process_death_signal, waitid,
};
use skiff_sandbox::join::SpawnAttr;
use skiff_sandbox::session::CommandExit;
use skiff_sandbox::start::detach_stdio;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork, session_of};
use skiff_sys::signal::{SignalMask, Signals};

/// How long after us a witness may get the same signal. Usually it is before us: Slurm signals the youngest first.
const GRACE: Duration = Duration::from_millis(2);

/// More signals than this do not wait between two questions.
const MANY: usize = 4096;

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
        let (witness, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(|| "socket")?;
        if let Fork::Child = fork(CloneFlags::NONE).context(|| "witness of signals")? {
            drop(witness);
            bear_witness(&own, &theirs);
        }
        let pty = rustix::termios::isatty(rustix::stdio::stdin())
            && session_of(None).is_ok_and(|leader| leader == Some(rustix::process::getpid()));
        Ok(Self { own, witness, seen: [0; 256], pty })
    }

    /// Where the program shall stand. With a terminal of its own (`srun --pty`) we lead its session, as Slurm has made us; the
    /// program leads its foreground.
    pub fn spawn_attr(&self) -> SpawnAttr {
        SpawnAttr {
            own_group: self.pty,
            foreground: self.pty,
            own_session: false,
            death_signal: Signal::KILL.as_raw(),
        }
    }

    /// What the program must not find blocked.
    pub fn mask(&self) -> SignalMask {
        self.own.before()
    }

    /// Waits for the program's end.
    pub fn wait(mut self, child: &Child) -> Result<CommandExit> {
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
                if number != Signal::CHILD && !self.was_for_all(signal.number) {
                    kill_process(child.pid, number).ignore_error("it may have ended this moment");
                }
            }
        }
    }

    /// How the program ended, if it did.
    fn look(&self, child: &Child) -> Result<Option<CommandExit>> {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        loop {
            let status = match waitid(WaitId::PidFd(child.pidfd.as_fd()), flags) {
                Err(Errno::INTR) => continue,
                other => other.context(|| "waiting for the task")?,
            };
            let Some(status) = status else { return Ok(None) };
            if let Some(code) = status.exit_status() {
                return Ok(Some(CommandExit::Code(code)));
            }
            if let Some(signal) = status.terminating_signal() {
                return Ok(Some(CommandExit::Signal(signal)));
            }
            if self.pty && status.stopping_signal() != Some(Signal::STOP.as_raw()) {
                // No shell is there to continue it; without us its group would be an orphan, which keys do not stop.
                kill_process_group(child.pid, Signal::CONT).ignore_error("it may have ended this moment");
            }
        }
    }

    /// Whether the witness got this signal too.
    fn was_for_all(&mut self, number: i32) -> bool {
        let number = usize::try_from(number).default_on_error("no signal has a negative number");
        for pause in [Duration::ZERO, GRACE] {
            std::thread::sleep(pause);
            self.ask();
            if let Some(seen) = self.seen.get_mut(number).filter(|seen| **seen > 0) {
                *seen -= 1;
                return true;
            }
        }
        false
    }

    /// Asks the witness what it got meanwhile. If it is gone, it got nothing.
    fn ask(&mut self) {
        let mut numbers = [0; MANY];
        if send(&self.witness, &[0], SendFlags::NOSIGNAL).is_ok()
            && let Ok((n, _)) = recv(&self.witness, &mut numbers[..], RecvFlags::empty())
        {
            numbers[..n].iter().for_each(|number| self.seen[usize::from(*number)] += 1);
        }
    }
}

/// Answers each question with the numbers of all signals that came since the last, until its maker is gone. (The first number of
/// an answer is 0, for none is no message.)
fn bear_witness(signals: &Signals, asked: &OwnedFd) -> ! {
    // Nobody shall take it for the task: by what it holds open, the task would seem to live.
    close_all_except(&[signals.as_fd(), asked.as_fd()]);
    detach_stdio();
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        exit_now(125);
    }
    while matches!(recv(asked, &mut [0; 1][..], RecvFlags::empty()), Ok((1, _))) {
        let mut numbers = vec![0];
        while let Ok(Some(signal)) = signals.next() {
            numbers.push(signal.number.to_le_bytes()[0]);
        }
        numbers.truncate(MANY);
        if send(asked, &numbers, SendFlags::NOSIGNAL).is_err() {
            break;
        }
    }
    exit_now(0)
}
