//! Commands of ours that run on a cluster's controller; among them the one that waits until the cluster takes jobs.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_spec::members::Member;
use skiff_spec::plan::inside::PROGRAM;
use skiff_sys::IgnoreError;

use crate::local::known::{not_up, refuse_lost};
use crate::local::record::ClusterDir;
use crate::local::wire::{SupervisorRequest, ask};

/// A command of ours that runs on the controller. It is killed when this is dropped before it has ended.
pub struct Errand {
    child: Child,
    end: OwnedFd,
    said: File,
}

impl Errand {
    /// Starts one: what it writes is kept.
    pub fn start(record: &ClusterDir, words: &[&str]) -> Result<Self> {
        let about = || "process for the controller";
        let (said, theirs) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        // To join a node is for good, and so is to get into its network; so another process of this program does it.
        let mut command = std::process::Command::new(std::env::current_exe().context(|| "own program")?);
        command.args(["cluster", "tell", record.name.as_str()]).args(words).stdin(Stdio::null());
        command.stdout(theirs.try_clone().context(about)?).stderr(theirs);
        let child = command.spawn().context(about)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let end = pid.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        Ok(Self { child, end: end.context(about)?, said: said.into() })
    }

    /// To wait for its end.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Waits for its end, at most so long; nothing if it has not ended, else its exit code and what it has written.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<(i32, String)>> {
        let limit = Timespec::try_from(limit).map_err(|e| Error::new(format!("time limit: {e}")))?;
        let ended = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&limit));
        if ended.context(|| "waiting for a command on a node")? == 0 {
            return Ok(None);
        }
        let status = self.child.wait().context(|| "waiting for a command on a node")?;
        let mut text = String::new();
        self.said.read_to_string(&mut text).context(|| "output of a command on a node")?;
        Ok(Some((status.code().unwrap_or(-1), text)))
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        self.child.kill().ignore_error("one that has ended and was waited for is left alone");
        self.child.wait().ignore_error("it is gone in any case");
    }
}

/// Why waiting was no use: because the controller is gone, as a rule.
fn not_ready(record: &ClusterDir, said: Error) -> Error {
    // The supervisor may be about to notice.
    for _ in 0..100 {
        if !matches!(ask(&record.dir, &SupervisorRequest::Status), Ok(Some(_))) {
            return not_up(record);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    said.about(&format!("cluster {}", record.name))
}

/// Waits until these workers take jobs. If the controller, or one of them, is gone meanwhile, that is the error.
pub fn wait_until_ready(record: &ClusterDir, workers: &[Member], limit: Duration) -> Result<()> {
    let names: Vec<String> = workers.iter().map(Member::to_string).collect();
    let words: Vec<&str> =
        [PROGRAM, "cluster", "daemon", "ready"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut errand = Errand::start(record, &words).map_err(|e| not_ready(record, e))?;
    let end = std::time::Instant::now() + limit;
    loop {
        match errand.wait(Duration::from_millis(200))? {
            Some((0, _)) => return Ok(()),
            Some((_, said)) => {
                let (message, hint) = said.split_once("hint: ").unwrap_or((&said, ""));
                let message = message.trim().trim_start_matches("skiff: ");
                return Err(not_ready(record, Error::new(message).hint(hint.trim())));
            }
            None => refuse_lost(record, workers)?,
        }
        if std::time::Instant::now() > end {
            return Err(Error::new(format!("cluster {}: not all nodes take jobs yet", record.name))
                .hint(format!("what they have written is in {}", record.dir.join("logs").display())));
        }
    }
}
