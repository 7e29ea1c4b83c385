//! Process 1 of an environment: it holds the namespaces open, takes over orphans and buries them. When it ends, the kernel
//! ends everything inside; when whoever supervises it ends, it does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open, wait,
};
use skiff_sys::IgnoreError;
use skiff_sys::fdpass;
use skiff_sys::process::{exit_now, positive_pid};
use skiff_sys::signal::Signals;

/// Said by process 1 when it has no process left to look after.
pub const IDLE: u8 = b'i';
/// The question that process 1 answers with [`IDLE`] if it is so.
pub const STILL: u8 = b'?';
/// Followed by four bytes, a process's number inside: from now on that is the first command. Answered with a handle of it, as
/// [`crate::first::Prepared::go`] tells of one, or with none.
pub(crate) const ADOPT: u8 = b'a';
/// Asks process 1 to end all inside, and itself; answered with [`OVER`] when nobody else is left.
pub(crate) const END: u8 = b'x';
pub(crate) const OVER: u8 = b'o';
/// Said of the first command, followed by a number: it has stopped by this signal.
pub(crate) const STOPPED: u8 = b's';
/// Exit code of the command; process 1 ends with it.
pub(crate) const EXITED: u8 = b'e';
/// The signal that ended it; likewise.
pub(crate) const KILLED: u8 = b'k';

/// The processes that process 1 has made itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wards {
    /// The command that the environment was made for, and ends with.
    pub first: Option<Pid>,
    /// What the root itself needs; the environment cannot go on without it.
    pub server: Option<Pid>,
}

/// Hides from the inside what process 1 has of whoever started the environment: their arguments, which `ps` would show, and their
/// variables, which the command may not be meant to get. Before anything runs there.
pub(crate) fn hide_maker() {
    skiff_sys::title::set_and_clear_variables("skiff-init");
}

/// Serves until killed. `control` is the supervisor's socket: its end is ours; over it goes how the first command fares,
/// or whether any process is left that is not of our own making.
pub(crate) fn serve(control: &OwnedFd, mut wards: Wards) -> ! {
    // Nothing to report to: if even this fails, the environment ends at once and the supervisor sees that.
    let Ok(signals) = Signals::block(&[]) else { exit_now(125) };
    loop {
        if bury(control.as_fd(), wards)
            && wards.first.is_none()
            && children() <= usize::from(wards.server.is_some())
        {
            tell(control.as_fd(), &[IDLE]);
        }
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            continue;
        }
        let asked = !fds[1].revents().is_empty();
        while let Ok(Some(_)) = signals.next() {}
        if asked {
            let mut word = [0];
            match rustix::io::read(control, &mut word) {
                Ok(1) if word == [ADOPT] => wards.first = adopt(control.as_fd()),
                Ok(1) if word == [END] => end(control.as_fd()),
                Ok(1) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                _ => exit_now(0),
            }
        }
    }
}

/// Reads which process it is, and tells of it. It need not be a child yet: it becomes one when who makes it ends.
fn adopt(control: BorrowedFd<'_>) -> Option<Pid> {
    let mut number = [0; 4];
    let n = rustix::io::read(control, &mut number).unwrap_or(0);
    let pid = positive_pid(i32::from_le_bytes(number)).filter(|_| n == number.len())?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
    let told: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    fdpass::send(control, b"c", &told).ignore_error("nobody there: the next look at `control` shows it");
    pidfd.map(|_| pid)
}

/// Takes the exit statuses of all that have ended; whether that went well.
fn bury(control: BorrowedFd<'_>, wards: Wards) -> bool {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if Some(pid) == wards.first => follow(control, status),
            Ok(Some((pid, status))) if Some(pid) == wards.server && !status.stopped() => exit_now(125),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return true,
            Err(_) => return false,
        }
    }
}

/// Tells what has become of the first command, and ends if it has, as the last process inside: who hears of it need not wait
/// for our own end, in which the kernel takes the mounts down.
fn follow(control: BorrowedFd<'_>, status: WaitStatus) {
    let number = |n: Option<i32>| n.and_then(|n| u8::try_from(n).ok());
    if let Some(signal) = number(status.stopping_signal()) {
        return tell(control, &[STOPPED, signal]);
    }
    end_all();
    if let Some(code) = number(status.exit_status()) {
        tell(control, &[EXITED, code]);
    } else if let Some(signal) = number(status.terminating_signal()) {
        tell(control, &[KILLED, signal]);
    }
    exit_now(0)
}

fn end(control: BorrowedFd<'_>) -> ! {
    end_all();
    tell(control, &[OVER]);
    exit_now(0)
}

/// Ends and buries all but ourselves.
fn end_all() {
    let mut options = WaitOptions::NOHANG;
    loop {
        match wait(options) {
            Ok(None) => {
                // The "group" of process 1 is -1, which the kernel takes as all that we see.
                kill_process_group(Pid::INIT, Signal::KILL).ignore_error("they may have ended by now");
                options = WaitOptions::empty();
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            // Nobody left.
            Err(_) => return,
        }
    }
}

/// How many children process 1 has. (`waitpid` tells none from some, but some may be our own.)
fn children() -> usize {
    std::fs::read_to_string("/proc/1/task/1/children")
        .map_or(usize::MAX, |list| list.split_whitespace().count())
}

fn tell(socket: BorrowedFd<'_>, words: &[u8]) {
    use rustix::net::SendFlags;
    rustix::net::send(socket, words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ignore_error(
        "nobody there, or one who does not listen: nothing that could be done about it from here",
    );
}
