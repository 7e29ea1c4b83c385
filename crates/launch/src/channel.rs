//! The talk between two sides, over whatever lies between them, without ever waiting: who serves several waits for all at once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use skiff_ipc::{Message, from_json};

use crate::error::{Error, Result};
use crate::frame::{Frame, Stream};

/// One end of it.
pub struct Channel {
    input: OwnedFd,
    output: OwnedFd,
    received: Vec<u8>,
    /// How much of that has been taken.
    taken: usize,
    to_send: VecDeque<u8>,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<T> {
    /// A message.
    Message(T),
    /// Bytes of the program's.
    Data(Stream, Vec<u8>),
}

impl Channel {
    /// Over two descriptors, which may be one and the same file.
    ///
    /// # Errors
    /// What the kernel says of them.
    pub fn new(input: OwnedFd, output: OwnedFd) -> rustix::io::Result<Self> {
        for fd in [&input, &output] {
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { input, output, received: vec![], taken: 0, to_send: VecDeque::new() })
    }

    /// To wait for what comes.
    #[must_use]
    pub fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// To wait until more can go; nothing if all has gone.
    #[must_use]
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        (!self.to_send.is_empty()).then(|| self.output.as_fd())
    }

    /// The connection itself, for those who wait and talk in other ways; nothing may have been read from it yet.
    ///
    /// # Errors
    /// What the kernel says of it.
    pub fn into_connection(self) -> rustix::io::Result<OwnedFd> {
        fcntl_setfl(&self.input, fcntl_getfl(&self.input)? - OFlags::NONBLOCK)?;
        Ok(self.input)
    }

    /// How many bytes have not gone yet.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.to_send.len()
    }

    /// Sends a message, as far as that goes without waiting.
    pub fn tell<M: Message>(&mut self, message: &M) {
        self.send(&Frame::message(message));
    }

    /// Sends bytes likewise.
    pub fn pass(&mut self, stream: Stream, bytes: &[u8]) {
        self.send(&Frame::Data(stream, bytes.to_vec()));
    }

    fn send(&mut self, frame: &Frame) {
        let mut bytes = vec![];
        frame.encode(&mut bytes);
        self.to_send.extend(bytes);
        self.flush();
    }

    /// Sends what can go now. If the other side is gone, the next [`Channel::receive`] says so.
    pub fn flush(&mut self) {
        while !self.to_send.is_empty() {
            match rustix::io::write(&self.output, self.to_send.as_slices().0) {
                Ok(n) => drop(self.to_send.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.to_send.clear(),
            }
        }
    }

    /// Reads what is there; whether the other side is, too.
    pub fn receive(&mut self) -> bool {
        self.received.drain(..std::mem::take(&mut self.taken));
        let mut buffer = [0; 65536];
        match rustix::io::read(&self.input, &mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.received.extend(&buffer[..n]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// The next of what has been read.
    ///
    /// # Errors
    /// When the other side does not talk as we do.
    pub fn take<M: Message>(&mut self) -> Result<Option<Incoming<M>>> {
        let received = &self.received[self.taken..];
        let strange = || {
            let said = String::from_utf8_lossy(&received[..received.len().min(200)]);
            let said = said.split(char::is_control).find(|line| !line.trim().is_empty()).unwrap_or_default();
            Error::OtherTalk(said.into())
        };
        match Frame::decode(received).map_err(|_| strange())? {
            None => Ok(None),
            Some((frame, length)) => {
                self.taken += length;
                Ok(Some(match frame {
                    Frame::Data(stream, bytes) => Incoming::Data(stream, bytes),
                    Frame::Message(text) => {
                        Incoming::Message(from_json(&text).map_err(Error::UnknownMessage)?)
                    }
                }))
            }
        }
    }
}
