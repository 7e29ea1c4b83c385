//! Both halves of a connection, encrypted between nodes, plain on one node.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use skiff_ipc::Codec;
use skiff_launch::secure::{SecureReader, SecureWriter, read_first};
use skiff_sys::IgnoreError;

use crate::wire::PieceAnswer;

/// What a connection to this node is for: several may be on one host, and a node that asked itself would wait for ever.
pub(crate) fn word(node: usize) -> String {
    format!("relay 2 {node}")
}

/// The half that sends.
pub(crate) enum LinkWriter {
    Node(SecureWriter),
    Local(UnixStream),
}

/// The half that receives.
pub(crate) enum LinkReader {
    Node(SecureReader),
    /// With the last message, as memory for large ones takes long to get.
    Local(UnixStream, Vec<u8>),
}

impl LinkWriter {
    pub(crate) fn send<C: Codec>(&mut self, message: &C) -> Result<()> {
        let bytes = message.to_bytes().ok_or(ErrorKind::InvalidData)?;
        self.send_parts(&bytes, &[])
    }

    /// Sends an answer without its bytes being copied.
    pub(crate) fn send_answer(&mut self, answer: &PieceAnswer) -> Result<()> {
        let (head, bytes) = answer.to_parts().ok_or(ErrorKind::InvalidData)?;
        self.send_parts(&head, bytes)
    }

    fn send_parts(&mut self, head: &[u8], bytes: &[u8]) -> Result<()> {
        match self {
            Self::Node(writer) => writer.send_parts([head, bytes]),
            Self::Local(socket) => {
                let length = u32::try_from(head.len() + bytes.len()).map_err(Error::other)?;
                socket.write_all(&[&length.to_le_bytes()[..], head].concat())?;
                socket.write_all(bytes)
            }
        }
    }

    /// Ends the connection, also for who waits to receive.
    pub(crate) fn close(&self) {
        let closed = match self {
            Self::Node(writer) => writer.socket().shutdown(Shutdown::Both),
            Self::Local(socket) => socket.shutdown(Shutdown::Both),
        };
        closed.ignore_error("the other side has done so before");
    }
}

impl LinkReader {
    /// The next message; nothing where the other side has hung up.
    pub(crate) fn receive<C: Codec>(&mut self) -> Result<Option<C>> {
        let bytes = match self {
            Self::Node(reader) => reader.receive(C::LONGEST)?,
            Self::Local(socket, bytes) => receive_local(socket, bytes, C::LONGEST)?.then_some(&bytes[..]),
        };
        bytes.map(|bytes| C::from_bytes(bytes).ok_or_else(|| ErrorKind::InvalidData.into())).transpose()
    }
}

/// Whether there was a message.
fn receive_local(socket: &mut UnixStream, into: &mut Vec<u8>, longest: usize) -> Result<bool> {
    let mut header = [0; 4];
    if !read_first(socket, &mut header[..1])? {
        return Ok(false);
    }
    socket.read_exact(&mut header[1..])?;
    let length = u32::from_le_bytes(header) as usize;
    if length > longest {
        return Err(ErrorKind::InvalidData.into());
    }
    into.resize(length, 0);
    socket.read_exact(into)?;
    Ok(true)
}
