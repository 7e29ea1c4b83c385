//! The other side of a move, by the connection for words.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use skiff_ipc::Message;
use skiff_launch::channel::{Channel, Incoming};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

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
        loop {
            if let Some(word) = self.heard()? {
                return Ok(word);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || wait(&[(self.channel.input(), PollFlags::IN)], Some(left))?[0].is_empty() {
                return Err(Error::new(format!("{}: it does not answer", self.name)));
            }
            self.read()?;
        }
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
