//! A child process that does something and reports how it went, over a pipe. Every way it can fail has an answer: a report that is a fault,
//! one that is not whole, an end without one, no end at all.

use std::fs::File;
use std::io::{Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, pidfd_send_signal, waitpid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skiff_spec::fault::{Context as _, Fault};
use skiff_sys::IgnoreError;
use skiff_sys::process::{Child, CloneFlags, Fork, close_all_except, exit_now, fork};

/// How long a child that has been killed may take to be gone. A file server that does not answer can hold it up for ever.
const DYING: Duration = Duration::from_secs(1);
/// The longest report of a child that is not waited for without end, in bytes.
const LONGEST: u64 = 1 << 20;

/// The result of a child's work.
type Result<T> = std::result::Result<T, Fault>;

/// Open descriptors that a child keeps.
#[derive(Clone, Copy)]
pub enum Descriptors<'a> {
    /// All that its parent has.
    All,
    /// The three standard ones and these.
    Only(&'a [BorrowedFd<'a>]),
}

/// A child that reports a `T` or a [`Fault`].
pub struct ReportingChild<T> {
    /// What the child is, in front of what is said about it.
    name: &'static str,
    child: Child,
    report: OwnedFd,
    reported: PhantomData<fn() -> T>,
}

/// The child's end of the pipe. It closes when a program is executed.
pub struct Reporter<T> {
    pipe: OwnedFd,
    reported: PhantomData<fn(T)>,
}

impl<T: Serialize> Reporter<T> {
    /// Reports how it went; whether that could be said.
    pub fn tell(self, outcome: &Result<T>) -> bool {
        serde_json::to_vec(outcome).is_ok_and(|text| File::from(self.pipe).write_all(&text).is_ok())
    }
}

impl<T> AsFd for Reporter<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl<T: Serialize + DeserializeOwned> ReportingChild<T> {
    /// Has a child do something, report it, and end. This process must have one thread, see [`fork()`].
    ///
    /// # Errors
    /// When there can be no such process.
    pub fn begin(
        name: &'static str,
        flags: CloneFlags,
        keep: Descriptors<'_>,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<Self> {
        Self::fork(name, flags, |reporter| {
            if let Descriptors::Only(kept) = keep {
                close_all_except(&[kept, &[reporter.as_fd()]].concat());
            }
            i32::from(!reporter.tell(&act()))
        })
    }

    /// Forks a child that runs `act`: it reports when it likes, and may go on after. What `act` returns is its exit code.
    ///
    /// # Errors
    /// When there can be no such process.
    pub fn fork(name: &'static str, flags: CloneFlags, act: impl FnOnce(Reporter<T>) -> i32) -> Result<Self> {
        let (report, pipe) = pipe_with(PipeFlags::CLOEXEC).context(|| name)?;
        match fork(flags).context(|| name)? {
            Fork::Parent(child) => Ok(Self { name, child, report, reported: PhantomData }),
            Fork::Child => {
                drop(report);
                exit_now(act(Reporter { pipe, reported: PhantomData }))
            }
        }
    }

    /// PID of the child.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.child.pid
    }

    /// Readable once the child has reported or ended.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// Waits for the child's end; what it reported.
    ///
    /// # Errors
    /// The child's own, or that it ended without a report.
    pub fn end(self) -> Result<T> {
        let report = read_all(self.report);
        let status = wait(self.child.pid);
        understand(self.name, &report.context(|| self.name)?, status)
    }

    /// The same; meanwhile `waiting` is called each time that so much time has gone by.
    ///
    /// # Errors
    /// As [`ReportingChild::end`].
    pub fn end_watched(self, step: Duration, mut waiting: impl FnMut()) -> Result<T> {
        let step = Timespec {
            tv_sec: step.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: step.subsec_nanos().into(),
        };
        loop {
            match poll(&mut [PollFd::new(&self.report, PollFlags::IN)], Some(&step)) {
                Ok(0) => waiting(),
                Err(Errno::INTR) => {}
                // Where it cannot be watched it is waited for.
                Ok(_) | Err(_) => return self.end(),
            }
        }
    }

    /// Waits for the child's end, but not beyond a point in time: `None` where it had to be killed. A child that cannot die, as it waits for
    /// a file server, is left behind.
    ///
    /// # Errors
    /// As [`ReportingChild::end`], and that the report is too long.
    pub fn end_by(self, until: Instant) -> Result<Option<T>> {
        let Self { name, child, report, .. } = self;
        let read = read_until(&report, until).context(|| name);
        if !matches!(read, Ok(Some(_))) {
            kill(&child);
        }
        let status = is_ready(child.pidfd.as_fd(), Instant::now() + DYING).then(|| wait(child.pid)).flatten();
        read?.map(|report| understand(name, &report, status)).transpose()
    }

    /// Waits until a child that serves on has reported that it has begun; ends it if it reports a fault.
    ///
    /// # Errors
    /// As [`ReportingChild::end`].
    pub fn begun(self) -> Result<(Child, T)> {
        let report = read_all(self.report).context(|| self.name);
        match report.and_then(|report| understand(self.name, &report, None)) {
            Ok(reported) => Ok((self.child, reported)),
            Err(why) => {
                kill(&self.child);
                wait(self.child.pid);
                Err(why)
            }
        }
    }

    /// Waits until a child has become a program: the pipe closes then, without a report.
    ///
    /// # Errors
    /// The fault that the child reported instead.
    pub fn started(self) -> Result<Child> {
        let report = read_all(self.report).context(|| self.name)?;
        if report.is_empty() {
            return Ok(self.child);
        }
        let status = wait(self.child.pid);
        understand::<T>(self.name, &report, status)
            .and_then(|_| Err(Fault::new(format!("{}: reported before it became a program", self.name))))
    }
}

/// Reads a report. One that is missing or not whole says less than how the child ended.
fn understand<T: DeserializeOwned>(name: &str, report: &[u8], status: Option<WaitStatus>) -> Result<T> {
    serde_json::from_slice::<Result<T>>(report).unwrap_or_else(|e| {
        let signal = status.and_then(WaitStatus::terminating_signal);
        let code = status.and_then(WaitStatus::exit_status).filter(|code| *code != 0);
        Err(Fault::new(match (signal, code) {
            (Some(signal), _) => format!("{name}: ended by signal {signal}"),
            (None, _) if !report.is_empty() => format!("{name}: invalid report: {e}"),
            (None, Some(code)) => format!("{name}: exited with code {code} without a report"),
            (None, None) => format!("{name}: exited without a report"),
        }))
    })
}

fn read_all(pipe: OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut all = vec![];
    File::from(pipe).read_to_end(&mut all)?;
    Ok(all)
}

/// All that comes through a pipe; nothing if its other end is still open then.
fn read_until(pipe: &OwnedFd, until: Instant) -> std::io::Result<Option<Vec<u8>>> {
    let (mut all, mut buffer) = (vec![], [0; 4096]);
    while is_ready(pipe.as_fd(), until) {
        match retry_on_intr(|| rustix::io::read(pipe, &mut buffer))? {
            0 => return Ok(Some(all)),
            n => all.extend(&buffer[..n]),
        }
        if all.len() as u64 > LONGEST {
            return Err(Errno::MSGSIZE.into());
        }
    }
    Ok(None)
}

/// Whether there is something to read, or an end, by then.
fn is_ready(fd: BorrowedFd<'_>, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}

fn kill(child: &Child) {
    pidfd_send_signal(&child.pidfd, Signal::KILL).ignore_error("it may have ended by itself");
}

/// Takes the exit status of a child that has ended or is about to.
fn wait(pid: Pid) -> Option<WaitStatus> {
    retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty())).ok().flatten().map(|(_, status)| status)
}
