//! Process 1 of an environment: it holds the namespaces open, takes over orphans and buries them. When it ends, the kernel
//! ends everything inside; when whoever supervises it ends, it does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitOptions, wait};
use skiff_sys::signal::Signals;

/// Said by process 1 when it has no process left to look after.
pub const IDLE: u8 = b'i';
/// The question that process 1 answers with [`IDLE`] if it is so.
pub const STILL: u8 = b'?';

/// Serves until killed. `control` is the supervisor's socket: its end is ours; over it goes whether any process is left but
/// the `background` ones of our own.
pub fn serve(control: &OwnedFd, background: usize) -> ! {
    // Nothing to report to: if even this fails, the environment ends at once and the supervisor sees that.
    let Ok(signals) = Signals::block(&[]) else { skiff_sys::process::exit_now(125) };
    loop {
        if !bury() && children() <= background {
            tell(control.as_fd());
        }
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            continue;
        }
        let asked = !fds[1].revents().is_empty();
        while let Ok(Some(_)) = signals.next() {}
        if asked {
            match rustix::io::read(control, &mut [0]) {
                Ok(1) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                _ => skiff_sys::process::exit_now(0),
            }
        }
    }
}

/// Takes the exit statuses of all that have ended; whether there was any failure to look.
fn bury() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return false,
            Err(_) => return true,
        }
    }
}

/// How many children process 1 has. (`waitpid` tells none from some, but some may be our own.)
fn children() -> usize {
    std::fs::read_to_string("/proc/1/task/1/children")
        .map_or(usize::MAX, |list| list.split_whitespace().count())
}

fn tell(socket: BorrowedFd<'_>) {
    use rustix::net::SendFlags;
    match rustix::net::send(socket, &[IDLE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) | Err(_) => {}
    }
}
