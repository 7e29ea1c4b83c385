//! One message with descriptors over a Unix socket: how the parts of Skiff hand each other mounts and processes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Most descriptors one message may carry: a snapshot's layers, and what else a root is made of.
pub const MOST_FDS: usize = 40;

/// Sends one message.
///
/// # Errors
/// `EPIPE` when the other side is gone (no signal is raised), `E2BIG` for more than [`MOST_FDS`] descriptors.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message of at most `most` bytes. An empty one means that the other side is gone.
///
/// # Errors
/// `EMSGSIZE` if the message was longer than `most` (on sockets that keep messages apart), `E2BIG` if more than [`MOST_FDS`] descriptors
/// came with it, or more than this process may have open; those that came are closed.
pub fn receive(socket: BorrowedFd<'_>, most: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let fds = ancillary
        .drain()
        .filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None })
        .flatten()
        .collect();
    if message.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    // The kernel has closed those that there was no room for; what is left is not what the sender meant.
    if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    bytes.truncate(message.bytes);
    Ok((bytes, fds))
}
