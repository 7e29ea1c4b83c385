//! The processes that start programs on other hosts.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use skiff_sys::IgnoreError;
use skiff_sys::signal::{SignalMask, start_with};

use crate::channel::Channel;
use crate::error::{Error, OfSystem as _, Result};
use crate::handshake::Call;
use crate::manager::{ConnectMethod, Launch};

/// So much of what a launcher says is kept for the case that it fails.
const KEPT: usize = 4096;

/// What launchers say that is no reason for anything.
const NOISE: [&str; 1] = ["lacks support for cpu binding"];

/// A process that starts agents.
pub struct Launcher {
    /// Program of the launcher.
    pub program: String,
    child: std::process::Child,
    /// A handle of it.
    pub pidfd: OwnedFd,
    /// What it and its agents say; nothing when they have closed it.
    pub errors: Option<OwnedFd>,
    /// The last of that.
    pub said: Vec<u8>,
    /// For which hosts it is.
    pub hosts: Vec<usize>,
    /// Whether it has ended.
    pub ended: bool,
}

impl Launcher {
    /// Starts it. The second is the talk with the agent, where that goes by pipes.
    ///
    /// # Errors
    /// When there is no such program, above all.
    pub fn start(launch: &Launch, call: &Call) -> Result<(Self, Option<Channel>)> {
        let (program, words) = launch.argv.split_first().ok_or(Error::NothingToStart)?;
        let about = || program.display().to_string();
        let mut command = Command::new(program);
        command.args(words).stderr(Stdio::piped());
        // A key on the terminal is for the script; what it does to us is for us to decide.
        command.process_group(0);
        // It must hear when it is told to end.
        start_with(&mut command, SignalMask::from_bits(0));
        for name in &launch.without {
            command.env_remove(name);
        }
        match launch.way {
            ConnectMethod::Pipes => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
            ConnectMethod::CallBack => command.stdin(Stdio::piped()).stdout(Stdio::null()),
            ConnectMethod::CallBackByFile => command.stdin(Stdio::null()).stdout(Stdio::null()),
        };
        let mut child = command.spawn().map_err(|why| Error::NoLauncher { program: about(), why })?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(rustix::io::Errno::SRCH).of(about)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).of(about)?;
        let channel = match (launch.way, child.stdin.take(), child.stdout.take()) {
            (ConnectMethod::Pipes, Some(to), Some(from)) => {
                Some(Channel::new(from.into(), to.into()).of(about)?)
            }
            (ConnectMethod::CallBack, Some(mut to), _) => {
                let text = serde_json::to_string(call).of(about)?;
                writeln!(to, "{text}").ignore_error("if it does not read it, it has ended, which shows soon");
                None
            }
            _ => None,
        };
        let errors = child.stderr.take().map(OwnedFd::from);
        let hosts = launch.hosts.clone();
        let program = about();
        Ok((Self { program, child, pidfd, errors, said: vec![], hosts, ended: false }, channel))
    }

    /// To wait for its end, if that has not come.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        (!self.ended).then_some(self.pidfd.as_fd())
    }

    /// To wait until it says something.
    pub fn words(&self) -> Option<BorrowedFd<'_>> {
        self.errors.as_ref().map(AsFd::as_fd)
    }

    /// What it has said before matters no more.
    pub fn forget(&mut self) {
        self.said.clear();
    }

    /// Reads what it says, when there is something.
    pub fn hear(&mut self) -> Vec<u8> {
        let Some(errors) = &self.errors else { return vec![] };
        let mut buffer = [0; 4096];
        match rustix::io::read(errors, &mut buffer) {
            Ok(0) | Err(_) => {
                self.errors = None;
                vec![]
            }
            Ok(n) => {
                self.said.extend(&buffer[..n]);
                let old = self.said.len().saturating_sub(KEPT);
                self.said.drain(..old);
                buffer[..n].to_vec()
            }
        }
    }

    /// Takes its exit status; what of that is worth saying.
    pub fn bury(&mut self) -> String {
        self.ended = true;
        self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }

    /// Tells it to end.
    pub fn terminate(&self) {
        if !self.ended {
            pidfd_send_signal(&self.pidfd, Signal::TERM).ignore_error("it may have ended by itself");
        }
    }

    /// Waits for its end, but no longer than that.
    pub fn wait_until(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&limit))
            .ignore_error("interrupted or late, it is ended by force");
    }

    /// Ends it by force.
    pub fn kill(&mut self) {
        if !self.ended {
            self.child.kill().ignore_error("it may have ended by itself");
            self.bury();
        }
    }

    /// Lets it go on by itself.
    pub fn leave(mut self) {
        self.ended = true;
    }

    /// The last that it said, as one line.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.said);
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !NOISE.iter().any(|noise| line.contains(noise)));
        let lines: Vec<&str> = lines.collect();
        lines[lines.len().saturating_sub(6)..].join("; ")
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.kill();
    }
}
