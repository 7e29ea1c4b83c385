//! Which address others reach this host by.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use skiff_spec::fault::{Context, Fault, Result};

/// Any port will do to ask the kernel for a route: nothing is sent.
const ANY_PORT: u16 = 9;

/// The address that this host has towards another one; nothing goes over the network but the question for its name.
///
/// # Errors
/// When its name means nothing here, or there is no way to it.
pub fn towards(host: &str) -> Result<IpAddr> {
    let about = || format!("host {host}");
    let found = (host, ANY_PORT).to_socket_addrs().context(about);
    let found = found.map_err(|e| e.hint("its name must be known on every host (/etc/hosts, DNS)"))?;
    let mut last = Fault::new(format!("{}: its name has no address", about()));
    for address in found {
        let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let route = UdpSocket::bind(local).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        match route.context(about) {
            Ok(local) => return Ok(local.ip()),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The address that all these others reach this host by; with no others, that of the loopback device.
///
/// # Errors
/// As [`towards`], and when another host's name means this one.
pub fn among(others: &[&str]) -> Result<IpAddr> {
    let mut last = None;
    for other in others {
        match towards(other) {
            Ok(address) if address.is_loopback() => {
                return Err(Fault::new(format!("host {other}: that name means this very host here"))
                    .hint("each host is to be listed once, by a name that means the same everywhere"));
            }
            Ok(address) => return Ok(address),
            Err(e) => last = Some(e),
        }
    }
    last.map_or(Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)), Err)
}

/// A port of this address, held: this one, or any that is free. (A socket that is bound but does not listen leaves the port to another of
/// ours, if both allow that; the kernel gives it to nobody by itself.)
///
/// # Errors
/// When somebody else has it.
pub fn hold_port(address: IpAddr, port: Option<u16>) -> Result<(OwnedFd, u16)> {
    let about =
        || port.map_or_else(|| format!("a port of {address}"), |port| format!("port {port} of {address}"));
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).context(about)?;
    sockopt::set_socket_reuseaddr(&socket, true).context(about)?;
    bind(&socket, &SocketAddr::new(address, port.unwrap_or(0))).context(about)?;
    let bound = getsockname(&socket).context(about)?;
    let bound = SocketAddr::try_from(bound).context(about)?;
    Ok((socket, bound.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oneself_by_loopback_and_nobody_by_no_name() {
        assert!(towards("127.0.0.1").expect("there is always a way").is_loopback());
        assert_eq!(among(&[]).ok(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(among(&["127.0.0.1"]).expect_err("itself").message.contains("this very host"));
        let unknown = towards("no such name").expect_err("no name");
        assert!(unknown.hint.starts_with("its name must be known"), "{unknown}");
    }
}
