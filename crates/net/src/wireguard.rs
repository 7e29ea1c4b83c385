//! A WireGuard device's keys and peers, told to the kernel (linux/wireguard.h) or to a `wireguard-go` that root has started
//! (<https://www.wireguard.com/xplatform/>).

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::netlink::GENERIC;
use rustix::net::sockopt::socket_peercred;
use skiff_sys::IgnoreError;
use zeroize::Zeroizing;

use crate::wire::{ACK, ask, attribute, message, nest, text, value_of};

/// How long the program may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than what `wireguard-go` is told of one peer, and of all the rest.
const MOST_TEXT: usize = 256;
/// An attribute's length has 16 bits.
const PEERS_AT_ONCE: usize = 256;

/// Another node.
pub struct Peer {
    /// Public key of the peer.
    pub key: [u8; 32],
    /// Where it is reached.
    pub endpoint: SocketAddrV4,
    /// The only address that is believed of it.
    pub allowed: Ipv6Addr,
}

/// What a device is to have; all that it had before goes.
pub struct WireguardConfig {
    /// Private key of the device.
    pub private_key: Zeroizing<[u8; 32]>,
    /// The UDP port that its datagrams come from and go to.
    pub port: u16,
    /// The only ones that it hears.
    pub peers: Vec<Peer>,
}

impl WireguardConfig {
    /// Has the device of this name have them: the kernel's, or a program's.
    pub fn apply(&self, device: &str, is_kernels: bool) -> io::Result<()> {
        if is_kernels { self.tell_kernel(device) } else { self.tell_program(device) }
    }

    fn tell_kernel(&self, device: &str) -> io::Result<()> {
        const SET_DEVICE: u8 = 1;
        const VERSION: u8 = 1;
        let family = family()?;
        for body in self.messages(device).iter() {
            let message = Zeroizing::new(message(family, ACK, [SET_DEVICE, VERSION], 0, body));
            ask(GENERIC, &message)?;
        }
        Ok(())
    }

    /// The attributes of each message; the first has the old peers removed.
    fn messages(&self, device: &str) -> Zeroizing<Vec<Vec<u8>>> {
        const IFNAME: u16 = 2;
        const PRIVATE_KEY: u16 = 3;
        const FLAGS: u16 = 5;
        const LISTEN_PORT: u16 = 6;
        const PEERS: u16 = 8;
        const REPLACE_PEERS: u32 = 1;
        let mut messages = Zeroizing::new(vec![]);
        let mut parts = Zeroizing::new(vec![
            text(IFNAME, device),
            attribute(PRIVATE_KEY, &*self.private_key),
            attribute(LISTEN_PORT, &self.port.to_ne_bytes()),
            attribute(FLAGS, &REPLACE_PEERS.to_ne_bytes()),
        ]);
        for some in self.peers.chunks(PEERS_AT_ONCE) {
            parts.push(nest(PEERS, &some.iter().map(Peer::attribute).collect::<Vec<_>>()));
            messages.push(parts.concat());
            parts = Zeroizing::new(vec![text(IFNAME, device)]);
        }
        if messages.is_empty() {
            messages.push(parts.concat());
        }
        messages
    }

    fn tell_program(&self, device: &str) -> io::Result<()> {
        let mut program = UnixStream::connect(format!("/var/run/wireguard/{device}.sock"))?;
        if !socket_peercred(&program)?.uid.is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        program.set_read_timeout(Some(PATIENCE))?;
        program.set_write_timeout(Some(PATIENCE))?;
        program.write_all(self.to_text().as_bytes())?;
        let mut answer = [0; 64];
        let mut length = 0;
        while !answer[..length].ends_with(b"\n\n") {
            match program.read(&mut answer[length..])? {
                0 => break,
                more => length += more,
            }
        }
        let answer = String::from_utf8_lossy(&answer[..length]);
        match answer.trim_end().strip_prefix("errno=").map(str::parse::<i32>) {
            Some(Ok(0)) => Ok(()),
            Some(Ok(number)) => Err(io::Error::from_raw_os_error(i32::abs(number))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// As the program wants them.
    fn to_text(&self) -> Zeroizing<String> {
        // With room for all: of a text that moves as it grows a copy would stay.
        let mut text = Zeroizing::new(String::with_capacity(MOST_TEXT * (1 + self.peers.len())));
        text.push_str("set=1\n");
        let mut line = |key: &str, value: &str| {
            writeln!(text, "{key}={value}").ignore_error("to a string nothing fails");
        };
        line("private_key", &hex(&self.private_key));
        line("listen_port", &self.port.to_string());
        line("replace_peers", "true");
        for peer in &self.peers {
            line("public_key", &hex(&peer.key));
            line("endpoint", &peer.endpoint.to_string());
            line("replace_allowed_ips", "true");
            line("allowed_ip", &format!("{}/128", peer.allowed));
        }
        text.push('\n');
        text
    }
}

impl Peer {
    fn attribute(&self) -> Vec<u8> {
        const PUBLIC_KEY: u16 = 1;
        const FLAGS: u16 = 3;
        const ENDPOINT: u16 = 4;
        const ALLOWEDIPS: u16 = 9;
        const REPLACE_ALLOWEDIPS: u32 = 2;
        const ALLOWEDIP_FAMILY: u16 = 1;
        const ALLOWEDIP_IPADDR: u16 = 2;
        const ALLOWEDIP_CIDR_MASK: u16 = 3;
        const AF_INET: u16 = 2;
        const AF_INET6: u16 = 10;
        // Members of lists have no number.
        const NO_NUMBER: u16 = 0;
        let port = self.endpoint.port().to_be_bytes();
        let endpoint = [&AF_INET.to_ne_bytes()[..], &port, &self.endpoint.ip().octets(), &[0; 8]].concat();
        let allowed = [
            attribute(ALLOWEDIP_FAMILY, &AF_INET6.to_ne_bytes()),
            attribute(ALLOWEDIP_IPADDR, &self.allowed.octets()),
            attribute(ALLOWEDIP_CIDR_MASK, &[128]),
        ];
        let parts = [
            attribute(PUBLIC_KEY, &self.key),
            attribute(FLAGS, &REPLACE_ALLOWEDIPS.to_ne_bytes()),
            attribute(ENDPOINT, &endpoint),
            nest(ALLOWEDIPS, &[nest(NO_NUMBER, &allowed)]),
        ];
        nest(NO_NUMBER, &parts)
    }
}

/// The number under which the kernel takes WireGuard's messages. Anybody may ask; the kernel loads the module for that, if it has one.
///
/// # Errors
/// `ENOENT` if the kernel has no WireGuard.
pub fn family() -> io::Result<u16> {
    const CONTROLLER: u16 = 0x10;
    const GETFAMILY: u8 = 3;
    const VERSION: u8 = 2;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    let asked = message(CONTROLLER, 0, [GETFAMILY, VERSION], 0, &text(FAMILY_NAME, "wireguard"));
    let answer = ask(GENERIC, &asked)?;
    let number = value_of(&answer, FAMILY_ID).and_then(|value| value.first_chunk());
    number.map(|number| u16::from_ne_bytes(*number)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn hex(bytes: &[u8; 32]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        write!(text, "{byte:02x}").ignore_error("to a string nothing fails");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(peers: u8) -> WireguardConfig {
        let peer = |last| Peer {
            key: [last; 32],
            endpoint: SocketAddrV4::new([192, 0, 2, last].into(), 479),
            allowed: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last.into()),
        };
        WireguardConfig {
            private_key: Zeroizing::new([0xff; 32]),
            port: 479,
            peers: (1..=peers).map(peer).collect(),
        }
    }

    #[test]
    fn a_program_is_told_in_words() {
        let text = settings(1).to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], format!("private_key={}", "ff".repeat(32)));
        assert_eq!(lines[2..4], ["listen_port=479", "replace_peers=true"]);
        assert_eq!(lines[4], format!("public_key={}", "01".repeat(32)));
        assert_eq!(
            lines[5..],
            ["endpoint=192.0.2.1:479", "replace_allowed_ips=true", "allowed_ip=fe80::1/128", ""]
        );
        assert!(text.ends_with("\n\n"));
    }

    #[test]
    fn the_kernel_is_told_in_messages_none_too_long() {
        let mut many = settings(250);
        many.peers.extend(settings(250).peers.into_iter().chain(settings(250).peers));
        let messages = many.messages("sw-lab");
        assert_eq!(messages.len(), 3);
        assert!(messages.iter().all(|body| body.len() < usize::from(u16::MAX)));
        let private = |body: &[u8]| body.windows(32).any(|bytes| bytes == [0xff; 32]);
        assert_eq!(messages.iter().map(|body| private(body)).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(settings(0).messages("sw-lab").len(), 1, "the only node of a network");
    }
}
