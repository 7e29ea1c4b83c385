//! Signs of life between the coordinator of a whole job and its receivers. A host that is lost closes no connection, and neither does a process
//! that is stopped. Without these, the processes of all instances would stand still for as long as the other side might take.

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, pipe_with};
use skiff_launch::frame::Frame;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::IgnoreError;

use crate::peer::ControlChannel;
use crate::talk::{DestinationMessage, SourceMessage};

/// How often each side says that it is there.
pub const BEAT: Duration = Duration::from_secs(5);
/// After so long without a word the other side is lost.
pub const SILENCE: Duration = Duration::from_secs(30);

/// Says that a receiver is there, whatever it does meanwhile, until this is dropped.
pub struct BeatSender {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl BeatSender {
    /// Begins to say so to the coordinator.
    pub fn start(peer: &ControlChannel) -> Result<Self> {
        let about = || "signs of life";
        let socket = peer.as_fd().try_clone_to_owned().context(about)?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let (begun, begins) = pipe_with(PipeFlags::CLOEXEC).context(about)?;
        let mut beat = vec![];
        Frame::message(&DestinationMessage::Beat).encode(&mut beat);
        // The process forks meanwhile, and its child allocates memory: the thread must not be in the middle of that then. So it does so only before
        // it has said that it has begun, and while it is waited for at its end.
        let thread = std::thread::Builder::new().spawn(move || {
            rustix::io::write(&begins, b"!").ignore_error("whoever waits for that has the other end");
            while !is_ready_within(&stopped, BEAT) {
                // In one call, so that it does not get between the parts of another message. A connection that is full or lost needs none.
                send(&socket, &beat, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
                    .ignore_error("whoever reads from it finds out");
            }
        });
        let sender = Self { stop, thread: Some(thread.context(about)?) };
        retry_on_intr(|| rustix::io::read(&begun, &mut [0])).context(about)?;
        Ok(sender)
    }
}

impl Drop for BeatSender {
    fn drop(&mut self) {
        // A process that was forked meanwhile may have a copy of the pipe's end, so that closing it would not be seen.
        rustix::io::write(&self.stop, b"!").ignore_error("the thread has the other end");
        if let Some(thread) = self.thread.take() {
            thread.join().ignore_error("without it the coordinator hears nothing, and gives up");
        }
    }
}

fn is_ready_within(fd: &OwnedFd, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return !matches!(ready, Ok(0)),
        }
    }
}

/// What the coordinator says next. A coordinator that has said nothing for too long, not even that it is there, is lost.
pub fn hear(peer: &mut ControlChannel) -> Result<SourceMessage> {
    loop {
        match peer.hear(Instant::now() + SILENCE)? {
            SourceMessage::Beat => {}
            other => return Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn whoever_says_nothing_but_that_it_is_there_is_heard_further() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let mut coordinator = ControlChannel::over(ours, "the coordinator's end").unwrap();
        let mut receiver = ControlChannel::over(theirs, "the receiver's end").unwrap();
        let beats = BeatSender::start(&receiver).unwrap();
        for message in [SourceMessage::Beat, SourceMessage::Beat, SourceMessage::Stop] {
            coordinator.tell(&message).unwrap();
        }
        assert!(matches!(hear(&mut receiver), Ok(SourceMessage::Stop)));
        let beat: DestinationMessage = coordinator.hear(Instant::now() + 2 * BEAT).unwrap();
        assert!(matches!(beat, DestinationMessage::Beat), "{beat:?}");
        drop(beats);
        drop(coordinator);
        assert!(hear(&mut receiver).unwrap_err().message.contains("lost"));
    }
}
