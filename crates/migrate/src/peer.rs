//! The other side of a move, by the connection for words.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use skiff_checkpoint::tries::{CheckpointAction, refuse_interrupted};
use skiff_ipc::Message;
use skiff_launch::channel::{Channel, Incoming};
use skiff_sandbox::idle::INTERVAL;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::IgnoreError;

use crate::talk::DestinationMessage;

/// Connection to the other side.
pub struct ControlChannel {
    channel: Channel,
    name: String,
}

impl ControlChannel {
    /// By a channel.
    pub fn new(channel: Channel, name: &str) -> Self {
        Self { channel, name: name.into() }
    }

    /// By a socket.
    pub fn over(socket: OwnedFd, name: &str) -> Result<Self> {
        let output = socket.try_clone().context(|| name.to_owned())?;
        Ok(Self::new(Channel::new(socket, output).context(|| name.to_owned())?, name))
    }

    /// Says something, and waits until that has gone.
    pub fn tell<M: Message>(&mut self, word: &M) -> Result<()> {
        self.channel.tell(word);
        while let Some(output) = self.channel.output() {
            wait(&[(output, PollFlags::OUT)], None)?;
            self.channel.flush();
        }
        Ok(())
    }

    /// What it says next, until then.
    pub fn hear<M: Message>(&mut self, until: Instant) -> Result<M> {
        self.hear_while(until, || Ok(()))
    }

    /// The same, unless the user asks this process to end.
    pub fn hear_unless_interrupted<M: Message>(&mut self, until: Instant) -> Result<M> {
        self.hear_while(until, || refuse_interrupted(CheckpointAction::Move))
    }

    fn hear_while<M: Message>(&mut self, until: Instant, go_on: impl Fn() -> Result<()>) -> Result<M> {
        loop {
            go_on()?;
            if let Some(word) = self.heard()? {
                return Ok(word);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(format!("{}: it does not answer", self.name)));
            }
            let ready = wait(&[(self.channel.input(), PollFlags::IN)], Some(left.min(INTERVAL)))?;
            if !ready[0].is_empty() {
                self.read()?;
            }
        }
    }

    /// Says that nothing more comes, and waits until the other side has hung up, but no longer than that: it has then taken back what it had made.
    pub fn hang_up(mut self, patience: Duration) {
        shutdown(self.channel.input(), Shutdown::Write)
            .ignore_error("a connection that is lost has ended already");
        let until = Instant::now() + patience;
        while self.hear::<DestinationMessage>(until).is_ok() {}
    }

    /// What has been read of what it says, without waiting.
    pub fn heard<M: Message>(&mut self) -> Result<Option<M>> {
        match self.channel.take().map_err(|e| Error::from(e).about(&self.name))? {
            Some(Incoming::Message(word)) => Ok(Some(word)),
            Some(Incoming::Data(..)) => {
                Err(Error::new(format!("{}: it says what is not understood", self.name)))
            }
            None => Ok(None),
        }
    }

    /// Reads what it says.
    pub fn read(&mut self) -> Result<()> {
        if self.channel.receive() {
            return Ok(());
        }
        Err(Error::new(format!("{}: the connection to it is lost", self.name)))
    }
}

impl AsFd for ControlChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.input()
    }
}

/// Waits for one of them; what each is ready for.
pub fn wait(fds: &[(BorrowedFd<'_>, PollFlags)], limit: Option<Duration>) -> Result<Vec<PollFlags>> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, what)| PollFd::from_borrowed_fd(*fd, *what)).collect();
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(fds.iter().map(PollFd::revents).collect()),
        Err(e) => Err(e).context(|| "waiting"),
    }
}
