//! Messages to the kernel as bytes, for the parts of netlink that no crate with a licence of ours covers: nf_tables and WireGuard.

use std::io;

use rustix::net::Protocol;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// More than any transaction of ours takes.
const MOST_BYTES: usize = 16 << 20;

/// Flags of a message, besides that it is a request.
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;
pub const ACK: u16 = 4;

/// The lengths of the kernel's header (`nlmsghdr`) and of what stands between that and the attributes: two bytes and a 16-bit number, both of
/// netfilter (`nfgenmsg`: address family, version, resource) and of generic netlink (`genlmsghdr`: command, version, reserved).
pub const HEAD: usize = 16 + 4;

/// A message of this type.
pub fn message(kind: u16, flags: u16, [first, second]: [u8; 2], number: u16, body: &[u8]) -> Vec<u8> {
    const REQUEST: u16 = 1;
    let length = u32::try_from(HEAD + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    // The sequence number and the sender: there is one question at a time.
    bytes.extend([0; 8]);
    bytes.extend([first, second]);
    bytes.extend(number.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// An attribute (`nlattr`).
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute that consists of attributes.
pub fn nest(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    const NESTED: u16 = 0x8000;
    attribute(kind | NESTED, &parts.concat())
}

/// An attribute that is a string.
pub fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

/// The value of the first attribute of this kind in an answer.
pub fn value_of(answer: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = answer.get(HEAD..)?;
    while let Some(([low, high, kind_low, kind_high], _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let kind = u16::from_ne_bytes([*kind_low, *kind_high]);
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Sends messages to a part of the kernel in this thread's network namespace. The first answer: of a transaction, either what was refused first,
/// or that the last message was not.
pub fn ask(part: Protocol, messages: &[u8]) -> io::Result<Vec<u8>> {
    const ERROR: u16 = 2;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(part))?;
    set_socket_send_buffer_size_force(&socket, MOST_BYTES)
        // Without power over the host's network namespace; what is asked there is short.
        .or_else(|e| if e == rustix::io::Errno::PERM { Ok(()) } else { Err(e) })?;
    send(&socket, messages, SendFlags::empty())?;
    let mut answer = vec![0; 64 << 10];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    answer.truncate(length);
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let code = answer.get(16..20).map(|code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]]));
    match (kind, code) {
        (Some(ERROR), Some(code)) if code != 0 => Err(io::Error::from_raw_os_error(-code)),
        (Some(_), Some(_)) => Ok(answer),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_as_the_kernel_takes_them() {
        assert_eq!(
            attribute(3, b"abcde"),
            [&9_u16.to_ne_bytes()[..], &3_u16.to_ne_bytes(), b"abcde\0\0\0"].concat()
        );
        assert_eq!(u16::from_ne_bytes([nest(2, &[])[2], nest(2, &[])[3]]), 0x8002);
    }

    #[test]
    fn a_value_is_found_in_an_answer() {
        let answer = [vec![0; HEAD], text(7, "lab"), attribute(2, &[1, 2])].concat();
        assert_eq!(value_of(&answer, 2), Some(&[1, 2][..]));
        assert_eq!(value_of(&answer, 7), Some(&b"lab\0"[..]));
        assert_eq!(value_of(&answer, 3), None);
        assert_eq!(value_of(&[], 3), None);
        for cut in HEAD..answer.len() {
            // Whatever is cut off, nothing is read beyond the end.
            value_of(&answer[..cut], 2);
        }
        let lies = [vec![0; HEAD], vec![0; 4]].concat();
        assert_eq!(value_of(&lies, 3), None, "a length of nothing ends the search");
    }
}
