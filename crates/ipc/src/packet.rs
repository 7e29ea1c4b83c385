//! Messages by a socket that keeps them apart (`SOCK_SEQPACKET`): each is one packet, JSON with its descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use skiff_sys::fdpass;

use crate::error::{Error, Result};
use crate::{Message, check_descriptors, from_json, to_json};

/// Sends one message and its descriptors.
///
/// # Errors
/// [`Error::Closed`] when nobody listens, [`Error::TooLong`] or [`Error::Descriptors`] when the protocol does not allow so much.
pub fn send_packet<M: Message>(
    socket: BorrowedFd<'_>,
    message: &M,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    check_descriptors::<M>(descriptors.len())?;
    Ok(fdpass::send(socket, &to_json(message, 0)?, descriptors)?)
}

/// Receives one message and its descriptors, each close-on-exec.
///
/// # Errors
/// [`Error::Closed`] when the other side is gone, [`Error::TooLong`], [`Error::Invalid`], or [`Error::Descriptors`] when more came
/// than the protocol allows; those that came are closed.
pub fn receive_packet<M: Message>(socket: BorrowedFd<'_>) -> Result<(M, Vec<OwnedFd>)> {
    let (text, descriptors) =
        fdpass::receive(socket, M::LONGEST).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::MSGSIZE) => Error::TooLong { longest: M::LONGEST },
            _ => e.into(),
        })?;
    if text.is_empty() {
        return Err(Error::Closed);
    }
    check_descriptors::<M>(descriptors.len())?;
    Ok((from_json(&text)?, descriptors))
}
