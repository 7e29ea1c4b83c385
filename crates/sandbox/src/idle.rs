//! Whether a process still works, and the end of one that nobody uses any more.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use skiff_sys::IgnoreError;
use skiff_sys::process::Child;

/// How often it is looked.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// How long a process may do nothing after nobody uses it any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures how long a process has done nothing: it has had no time on a processor.
pub struct IdleTime {
    pid: Pid,
    work: Option<String>,
    looked: Instant,
    idle: Duration,
}

impl IdleTime {
    /// Begins to measure.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        Self { pid, work: work_of(pid), looked: Instant::now(), idle: Duration::ZERO }
    }

    /// How long it has done nothing by now, as far as this process was there to see it: where both were stopped, that time does not count.
    pub fn look(&mut self) -> Duration {
        let work = work_of(self.pid);
        // Of whom nothing is known that is not said.
        let is_idle = work.is_some() && work == self.work;
        self.idle =
            if is_idle { self.idle + self.looked.elapsed().min(2 * INTERVAL) } else { Duration::ZERO };
        (self.work, self.looked) = (work, Instant::now());
        self.idle
    }
}

/// What changes whenever a process has time on a processor; nothing of one that a signal has stopped: so CRIU is kept from letting processes go on
/// that may run on another host.
fn work_of(pid: Pid) -> Option<String> {
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    // Only where the kernel counts it. Nanoseconds, and how often.
    let exact = fs::read_to_string(format!("{dir}/schedstat")).default_on_error("there is the other file");
    let all = fs::read_to_string(format!("{dir}/stat")).ok()?;
    // Behind the name, which may be any.
    let mut words = all.rsplit_once(')')?.1.split_whitespace();
    if words.next() == Some("T") {
        return None;
    }
    // Faults of pages, and ticks of processor time.
    let counts: Vec<&str> = words.skip(6).take(8).collect();
    Some(format!("{} {exact}", counts.join(" ")))
}

/// Returns once a child has ended, or has been killed as its owner said so or is gone. An owner that is gone leaves it time to put back what it has in
/// hand, as long as it works.
pub(crate) fn end_with_owner(child: &Child, owner: BorrowedFd<'_>) {
    let mut idle = None;
    loop {
        let mut ready = [
            PollFd::from_borrowed_fd(child.pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(owner, PollFlags::IN),
        ];
        let is_owned = idle.is_none();
        let interval = Timespec { tv_sec: INTERVAL.as_secs().cast_signed(), tv_nsec: 0 };
        let (watched, limit) = if is_owned { (2, None) } else { (1, Some(&interval)) };
        match poll(&mut ready[..watched], limit) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !ready[0].revents().is_empty() {
            return;
        }
        let is_told = ready[1].revents().contains(PollFlags::IN);
        let time = idle.as_mut().map_or(Duration::ZERO, IdleTime::look);
        if is_told || time >= PATIENCE {
            pidfd_send_signal(&child.pidfd, Signal::KILL).ignore_error("it may have ended by itself");
            return;
        }
        if !ready[1].revents().is_empty() {
            idle = Some(IdleTime::of(child.pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn only_one_that_does_nothing_is_idle() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let pid = Pid::from_child(&child);
        // Until it sleeps.
        let mut idle = IdleTime::of(pid);
        let sleeps = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            idle.look() > Duration::from_millis(50)
        });
        assert!(sleeps);
        child.kill().expect("it can be killed");
        child.wait().expect("it has ended");
        assert_eq!(idle.look(), Duration::ZERO);
        // This process works.
        let mut own = IdleTime::of(getpid());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {}
        assert_eq!(own.look(), Duration::ZERO);
    }
}
