//! Options of sockets by their numbers, of any kind: most have no function in any library. And what waits at a socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Options are numbers, or structures of at most so many bytes.
const LARGEST: usize = 32;

/// What an option is set to, by its level and number.
///
/// # Errors
/// `ENOPROTOOPT` where the kernel or the kind of socket does not have it.
pub fn get(socket: BorrowedFd<'_>, level: i32, number: i32) -> io::Result<Vec<u8>> {
    let mut value = [0_u8; LARGEST];
    let mut length = LARGEST as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, and how many those are.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, number, value.as_mut_ptr().cast(), &raw mut length)
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value[..(length as usize).min(LARGEST)].to_vec())
}

/// An option that is a number.
///
/// # Errors
/// As [`get`].
pub fn number(socket: BorrowedFd<'_>, level: i32, number: i32) -> io::Result<i32> {
    let value = get(socket, level, number)?;
    value.try_into().map(i32::from_ne_bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Sets an option.
///
/// # Errors
/// That of setsockopt(2).
pub fn set(socket: BorrowedFd<'_>, level: i32, number: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, number, value.as_ptr().cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kind of a socket: its domain, its type and its protocol.
///
/// # Errors
/// `ENOTSOCK`.
pub fn kind(socket: BorrowedFd<'_>) -> io::Result<[i32; 3]> {
    let of = |which| number(socket, libc::SOL_SOCKET, which);
    Ok([of(libc::SO_DOMAIN)?, of(libc::SO_TYPE)?, of(libc::SO_PROTOCOL)?])
}

/// A new socket of a kind.
///
/// # Errors
/// When the kernel does not give one to this process.
pub fn new_of([domain, kind, protocol]: [i32; 3]) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    match unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor is new, and nobody else has it.
        new => Ok(unsafe { OwnedFd::from_raw_fd(new) }),
    }
}

/// Bytes that wait to be read.
///
/// # Errors
/// Where the socket does not say, as one that listens.
pub fn waiting(socket: BorrowedFd<'_>) -> io::Result<u64> {
    rustix::io::ioctl_fionread(socket).map_err(Into::into)
}

/// Whether it has urgent data that has not been read, or has been told that some is to come.
#[must_use]
pub fn has_urgent(socket: BorrowedFd<'_>) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most one byte.
    match unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) } {
        -1 => io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN),
        count => count == 1,
    }
}

/// Whether an error waits of which whoever has the socket has not been told, or the other end of a terminal is gone.
#[must_use]
pub fn poll_events(of: BorrowedFd<'_>) -> rustix::event::PollFlags {
    let mut all = [rustix::event::PollFd::from_borrowed_fd(of, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut all, Some(&now)) {
        Ok(1) => all[0].revents(),
        _ => rustix::event::PollFlags::empty(),
    }
}

/// What names a group on a network interface (`struct group_req`): the interface's number, and an address of either kind.
#[must_use]
pub fn group(interface: u32, address: IpAddr) -> Vec<u8> {
    // The length of `struct group_req`, and of what `struct group_filter` has besides.
    let mut bytes = vec![0; 136];
    bytes[..4].copy_from_slice(&interface.to_ne_bytes());
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes[8..10].copy_from_slice(&(family as u16).to_ne_bytes());
    match address {
        IpAddr::V4(address) => bytes[12..16].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes[16..32].copy_from_slice(&address.octets()),
    }
    bytes
}

/// Whether a socket is in a group.
#[must_use]
pub fn is_member(socket: BorrowedFd<'_>, level: i32, group: &[u8]) -> bool {
    // `struct group_filter` with room for no source.
    let mut filter = group.to_vec();
    filter.resize(144, 0);
    let mut length = 144 as libc::socklen_t;
    // SAFETY: the kernel reads and writes at most `length` bytes.
    let got = unsafe {
        let at = filter.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, MCAST_MSFILTER, at, &raw mut length)
    };
    got == 0
}

/// Source: `linux/in.h`.
const MCAST_MSFILTER: libc::c_int = 48;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn options_are_read_and_set() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let kind = kind(listener.as_fd()).expect("asked");
        assert_eq!(kind, [libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP]);
        let like = new_of(kind).expect("made");
        let ask = || number(like.as_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).expect("asked");
        assert_eq!(ask(), 0);
        set(like.as_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &7000_i32.to_ne_bytes()).expect("set");
        assert_eq!(ask(), 7000);
        assert!(get(like.as_fd(), 4711, 1).is_err());
    }

    #[test]
    fn what_waits_is_seen_and_stays() {
        let (mut one, other) = UnixStream::pair().expect("sockets");
        assert_eq!(waiting(other.as_fd()).expect("asked"), 0);
        std::io::Write::write_all(&mut one, b"waits").expect("written");
        assert_eq!(waiting(other.as_fd()).expect("asked"), 5);
        assert!(!has_urgent(other.as_fd()));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let client = TcpStream::connect(listener.local_addr().expect("its name")).expect("connected");
        let (taken, _) = listener.accept().expect("accepted");
        // SAFETY: the kernel reads one byte.
        assert_eq!(unsafe { libc::send(client.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        let came = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            has_urgent(taken.as_fd())
        });
        assert!(came && has_urgent(taken.as_fd()));
    }
}
