//! A conversation with one CRIU.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::conversation::{CriuEvent, see_through, take_back};
use crate::error::{Error, Result, WithObject as _};
use crate::installation::{CriuExec, Installation, program_of};
use crate::log;
use crate::rpc::{CriuRequest, CriuResponse, Features, Options, RequestType, Version};

/// Bytes of the longest answer that is read; CRIU's own clients read no longer ones.
const LONGEST: usize = 64 << 10;
/// CRIU logs errors and warnings.
const LOG_LEVEL: i32 = 2;

/// A CRIU that serves one dump, restore or check, or a few questions before it.
///
/// Dropping this ends the conversation: CRIU takes back what it has not finished, lets the processes go on, and exits. A CRIU that
/// [`Criu::spawn`] ran has 30 s for that, then it is killed.
pub struct Criu {
    // Dropped before the process is waited for, which ends by that.
    socket: OwnedFd,
    /// The directory of images, as a path that means it where CRIU runs.
    images: Option<String>,
    /// What CRIU writes to its standard error, in memory.
    log: Option<File>,
    process: Option<Reaped>,
}

/// Why [`Criu::carry_out`] failed.
#[derive(Debug, thiserror::Error)]
pub enum CarryOutError<E> {
    /// CRIU failed.
    #[error(transparent)]
    Criu(#[from] Error),
    /// The caller's function failed at a stage, so that CRIU was told to stop.
    #[error("{0}")]
    Refused(E),
}

impl Criu {
    /// Runs CRIU as a child process, in this process's namespaces and with its privileges.
    ///
    /// `images` is the directory where a dump writes images and a restore reads them.
    ///
    /// # Errors
    /// [`Error::Io`] when the program cannot be run, [`Error::NotText`] for a path that is not UTF-8.
    pub fn spawn(installation: &Installation, images: Option<&Path>) -> Result<Self> {
        let images = images.map(absolute).transpose()?;
        let (socket, theirs) = pair()?;
        let log = log_file()?;
        let standard_error = log.try_clone().on("duplicate", "the log's descriptor")?;
        // The socket is its standard input: so no other child of this process gets it.
        let mut command = installation.command(&installation.absolute()?, 0);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::from(standard_error));
        let process = command.spawn().on("run", &program_of(&command))?;
        Ok(Self { socket, images, log: Some(log), process: Some(Reaped(process)) })
    }

    /// Prepares a CRIU that a process of the caller's becomes, by [`CriuExec::exec`]: one in other namespaces, for instance.
    ///
    /// CRIU has `images` and the descriptors of `inherit` under the numbers that they have here. Drop the [`CriuExec`] once the process is
    /// there, else its end is not noticed.
    ///
    /// # Errors
    /// [`Error::Io`] when the program is not there, or descriptors are used up.
    pub fn prepare<'a>(
        installation: &Installation,
        images: Option<BorrowedFd<'a>>,
        inherit: &[BorrowedFd<'a>],
    ) -> Result<(Self, CriuExec<'a>)> {
        let opened = installation.open()?;
        let (ours, socket) = pair()?;
        let log = log_file()?;
        let launch = CriuExec {
            installation: installation.clone(),
            opened,
            socket,
            log: log.try_clone().on("duplicate", "the log's descriptor")?,
            inherited: images.into_iter().chain(inherit.iter().copied()).collect(),
        };
        let images = images.map(|dir| format!("/proc/self/fd/{}", dir.as_raw_fd()));
        Ok((Self { socket: ours, images, log: Some(log), process: None }, launch))
    }

    /// Talks to a CRIU on the other end of a connected `SOCK_SEQPACKET` socket, such as the one of `criu service`.
    ///
    /// [`Options::images_dir_fd`] or [`Options::images_dir`] say where images are. CRIU's log goes where that CRIU writes it.
    #[must_use]
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket, images: None, log: None, process: None }
    }

    /// Asks for the version. More requests may follow.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn version(&self) -> Result<Version> {
        self.send(&CriuRequest {
            kind: RequestType::Version.into(),
            keep_open: Some(true),
            ..CriuRequest::default()
        })?;
        self.receive()?.version.ok_or(Error::Incomplete("version"))
    }

    /// Asks what the kernel offers CRIU. More requests may follow.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn features(&self) -> Result<Features> {
        let all = Features { mem_track: Some(true), lazy_pages: Some(true), pidfd_store: Some(true) };
        self.send(&CriuRequest {
            kind: RequestType::FeatureCheck.into(),
            features: Some(all),
            keep_open: Some(true),
            ..CriuRequest::default()
        })?;
        let answer = self.receive()?;
        if answer.success {
            answer.features.ok_or(Error::Incomplete("features"))
        } else {
            Err(self.failed(&answer))
        }
    }

    /// Asks for a dump, restore or check; [`Criu::next_event`] tells how it goes.
    ///
    /// The directory of images and the log are set as this conversation was begun with.
    ///
    /// # Errors
    /// [`Error::Io`] when CRIU has exited.
    pub fn ask(&self, kind: RequestType, options: Options) -> Result<()> {
        let mut options = options;
        if let Some(images) = &self.images {
            options.images_dir_fd = -1;
            options.images_dir = Some(images.clone());
        }
        if self.log.is_some() {
            options.log_level = options.log_level.or(Some(LOG_LEVEL));
            options.log_to_stderr = Some(true);
        }
        self.send(&CriuRequest { kind: kind.into(), options: Some(options), ..CriuRequest::default() })
    }

    /// Waits for the next event of what was asked for.
    ///
    /// # Errors
    /// [`Error::Failed`] when CRIU failed; see [`Error`] for the others.
    pub fn next_event(&self) -> Result<CriuEvent> {
        let answer = self.receive()?;
        if answer.kind() == RequestType::Notify {
            return Ok(CriuEvent::Stage(answer.notify.and_then(|notify| notify.stage).unwrap_or_default()));
        }
        if answer.success { Ok(CriuEvent::Done(answer)) } else { Err(self.failed(&answer)) }
    }

    /// Has CRIU proceed from a stage; or, if `well` is false, take back what it did and fail.
    ///
    /// # Errors
    /// [`Error::Io`] when CRIU has exited.
    pub fn proceed(&self, well: bool) -> Result<()> {
        self.send(&CriuRequest {
            kind: RequestType::Notify.into(),
            notify_success: Some(well),
            ..CriuRequest::default()
        })
    }

    /// Asks for a dump, restore or check, and sees it through. `at` is called with the name of each stage, if [`Options::notify_scripts`] is set:
    /// the processes are stopped then. If it fails, CRIU takes everything back.
    ///
    /// # Errors
    /// The error of `at` in [`CarryOutError::Refused`], or CRIU's own.
    pub fn carry_out<E>(
        &self,
        kind: RequestType,
        options: Options,
        mut at: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<CriuResponse, CarryOutError<E>> {
        self.ask(kind, options)?;
        see_through(
            || self.next_event().map_err(CarryOutError::Criu),
            |well| self.proceed(well).map_err(CarryOutError::Criu),
            |stage| at(stage).map_err(CarryOutError::Refused),
        )
    }

    /// Has CRIU take back what it did, and waits until that is done. CRIU may be waiting at a stage.
    pub fn take_back(&self) {
        take_back(|| self.next_event(), |well| self.proceed(well));
    }

    /// A descriptor to poll: readable once [`Criu::next_event`] would not wait.
    #[must_use]
    pub fn news(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// PID of CRIU, if [`Criu::spawn`] ran it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.0.id())
    }

    /// The errors in CRIU's log so far, without those that are harmless.
    #[must_use]
    pub fn log_errors(&self) -> Option<String> {
        self.log.as_ref().and_then(log::errors_in)
    }

    fn send(&self, request: &CriuRequest) -> Result<()> {
        match retry_on_intr(|| send(&self.socket, &request.encode_to_vec(), SendFlags::NOSIGNAL)) {
            // It may have said before why it ended.
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Err(self.exited()),
            sent => sent.map(drop).on("write to", "CRIU's socket"),
        }
    }

    fn receive(&self) -> Result<CriuResponse> {
        let mut bytes = vec![0; LONGEST];
        match retry_on_intr(|| recv(&self.socket, &mut bytes[..], RecvFlags::empty())) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Err(self.exited()),
            received => {
                let (length, _) = received.on("read from", "CRIU's socket")?;
                Ok(CriuResponse::decode(&bytes[..length])?)
            }
        }
    }

    fn exited(&self) -> Error {
        Error::Exited { log: self.log_errors() }
    }

    fn failed(&self, answer: &CriuResponse) -> Error {
        let said = answer.message.as_deref().map(log::message).filter(|why| !why.is_empty());
        let errno = answer.errno.filter(|errno| *errno != 0);
        let of_system = || errno.map(|errno| std::io::Error::from_raw_os_error(errno).to_string());
        let why = self.log_errors().or(said.map(str::to_owned)).or_else(of_system);
        Error::Failed { why: why.unwrap_or_else(|| "it does not say why".into()), errno }
    }
}

/// A child that leaves no zombie.
struct Reaped(Child);

/// How long CRIU may take to let the processes go and exit, once nobody talks to it any more.
const EXIT: Duration = Duration::from_secs(30);

impl Drop for Reaped {
    fn drop(&mut self) {
        // How it ended says nothing: what counts is its answer.
        if !ends_within(&self.0, EXIT) {
            let (Ok(()) | Err(_)) = self.0.kill();
        }
        let (Ok(_) | Err(_)) = self.0.wait();
    }
}

fn ends_within(child: &Child, limit: Duration) -> bool {
    // Without a pidfd there is nothing to wait by with a limit: then the wait has none.
    let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return true };
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return !matches!(ready, Ok(0)),
        }
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .on("make", "a socket for CRIU")
}

fn log_file() -> Result<File> {
    memfd_create("criu.log", MemfdFlags::CLOEXEC).map(File::from).on("make", "a log for CRIU")
}

/// CRIU changes into the directory of images, from where a relative path would mean another.
fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path).on("find", &path.display().to_string())?;
    path.into_os_string().into_string().map_err(|path| Error::NotText(path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_not_waited_for_without_a_limit() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        assert!(!ends_within(&child, Duration::from_millis(20)));
        child.kill().expect("it can be killed");
        assert!(ends_within(&child, Duration::from_secs(10)));
        child.wait().expect("it has ended");
    }
}
