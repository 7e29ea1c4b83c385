//! Talking to the kernel about devices, addresses and routes: one question, its answers.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// More than any single answer.
const MOST_BYTES: usize = 64 << 10;

/// A socket to the network namespace that the thread was in when it was opened.
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// To this thread's namespace.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open() -> io::Result<Self> {
        // The first of netlink's protocols, number 0, is that of routes.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Has something done.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn tell(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, flags | NLM_F_ACK).map(drop)
    }

    /// Asks about one thing; what the kernel answered, if it was more than a yes.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, message.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty())?;
        loop {
            let mut answer = vec![0; MOST_BYTES];
            let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..length])
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::Error(e) if e.code.is_some() => Err(e.to_io()),
                NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
                _ => Ok(None),
            };
        }
    }
}
