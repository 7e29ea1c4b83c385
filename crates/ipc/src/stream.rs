//! Messages by a stream: each is JSON behind its length, 4 bytes, little endian. Descriptors follow a message, each few with one byte.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_sys::fdpass;

use crate::error::{Error, Result};
use crate::{Message, check_descriptors, from_json, to_json};

/// How many bytes the length takes.
const HEADER: usize = 4;

/// Sends one message.
///
/// # Errors
/// [`Error::Closed`] when nobody listens, [`Error::TooLong`] when it is longer than the protocol allows: nothing is sent then.
pub fn send<M: Message>(to: &mut impl Write, message: &M) -> Result<()> {
    let mut bytes = to_json(message, HEADER)?;
    let length = u32::try_from(bytes.len() - HEADER).map_err(|_| Error::TooLong { longest: M::LONGEST })?;
    bytes[..HEADER].copy_from_slice(&length.to_le_bytes());
    Ok(to.write_all(&bytes)?)
}

/// Receives one message; `None` where the other side has closed the connection behind a whole one. Memory is taken as bytes come, not as
/// many as the sender claims. Descriptors that came with these bytes are closed by the kernel.
///
/// # Errors
/// [`Error::TooLong`] before anything behind the length is read, [`Error::Closed`] when the message is not whole,
/// [`Error::Invalid`] when it is not one of this protocol.
pub fn receive<M: Message>(from: &mut impl Read) -> Result<Option<M>> {
    receive_text(from, M::LONGEST)?.map(|text| from_json(&text)).transpose()
}

/// The bytes of one message of a protocol with this limit.
pub(crate) fn receive_text(from: &mut impl Read, longest: usize) -> Result<Option<Vec<u8>>> {
    let mut length = [0; HEADER];
    match read_some(from, &mut length)? {
        0 => return Ok(None),
        n => from.read_exact(&mut length[n..])?,
    }
    let length = u32::from_le_bytes(length);
    if usize::try_from(length).map_or(true, |length| length > longest) {
        return Err(Error::TooLong { longest });
    }
    let mut text = vec![];
    let read = from.take(u64::from(length)).read_to_end(&mut text)?;
    if read < length as usize {
        return Err(Error::Closed);
    }
    Ok(Some(text))
}

fn read_some(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // A peer that closed with something of ours unread is gone as well, and behind a whole message.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
            read => return read,
        }
    }
}

/// Sends the descriptors that belong to the message just sent.
///
/// # Errors
/// [`Error::Closed`] when nobody listens, [`Error::Descriptors`] when they are more than the protocol allows.
pub fn send_descriptors<M: Message>(to: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    check_descriptors::<M>(descriptors.len())?;
    descriptors.chunks(fdpass::MOST_FDS).try_for_each(|some| Ok(fdpass::send(to.as_fd(), &[0], some)?))
}

/// Receives the descriptors that belong to the message just received, each close-on-exec: exactly as many as the message announces.
///
/// # Errors
/// [`Error::Descriptors`] when they are fewer or more, or more than the protocol allows; those that came are closed.
pub fn receive_descriptors<M: Message>(from: &UnixStream, count: usize) -> Result<Vec<OwnedFd>> {
    descriptors::<M>(from, count, || Ok(()))
}

fn descriptors<M: Message>(
    from: &UnixStream,
    wanted: usize,
    wait: impl Fn() -> io::Result<()>,
) -> Result<Vec<OwnedFd>> {
    check_descriptors::<M>(wanted)?;
    let mut all = vec![];
    while all.len() < wanted {
        wait()?;
        let (bytes, some) = fdpass::receive(from.as_fd(), 1)?;
        let came = all.len() + some.len();
        if bytes.is_empty() || some.is_empty() || came > wanted {
            return Err(Error::Descriptors { wanted, came });
        }
        all.extend(some);
    }
    Ok(all)
}

/// The other side of a socket until a point in time, however slowly it sends: a limit for each read would let a side that sends a byte now
/// and then hold its place for hours.
pub struct Until<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl<'a> Until<'a> {
    /// What comes by this socket until then.
    #[must_use]
    pub fn new(socket: &'a UnixStream, until: Instant) -> Self {
        Self { socket, until }
    }

    /// As [`receive_descriptors`].
    ///
    /// # Errors
    /// The same, and [`Error::TimedOut`].
    pub fn receive_descriptors<M: Message>(&self, count: usize) -> Result<Vec<OwnedFd>> {
        descriptors::<M>(self.socket, count, || self.wait())
    }

    fn wait(&self) -> io::Result<()> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::new(self.socket, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        (&*self.socket).read(buffer)
    }
}
