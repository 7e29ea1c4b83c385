//! Which address others reach this host by.

use skiff_sys::kernel::host_name;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

use crate::error::{Error, OfSystem as _, Result};
use crate::hosts::Host;

/// Any port will do to ask the kernel for a route: nothing is sent.
const ANY_PORT: u16 = 9;

/// The address that this host has towards another one; nothing goes over the network but the question for its name.
///
/// # Errors
/// When its name means nothing here, or there is no way to it.
pub fn towards(host: &str) -> Result<IpAddr> {
    let about = || format!("host {host}");
    let unknown = |why| Error::UnknownHost { host: host.into(), why };
    let found = (host, ANY_PORT).to_socket_addrs().map_err(unknown)?;
    let mut last = unknown(std::io::Error::other("its name has no address"));
    for address in found {
        let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let route = UdpSocket::bind(local).and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        });
        match route.of(about) {
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
                return Err(Error::OwnHost((*other).into()));
            }
            Ok(address) => return Ok(address),
            Err(e) => last = Some(e),
        }
    }
    last.map_or(Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)), Err)
}

/// The addresses and names by which these hosts may reach this one: those that it has towards the first that are known here, and its name.
#[must_use]
pub fn of_this_host(hosts: &[Host]) -> Vec<String> {
    let found = hosts.iter().filter_map(|host| towards(&host.name).ok());
    let mut all: Vec<String> = found.take(2).map(|address| address.to_string()).collect();
    all.push(host_name());
    all.dedup();
    all
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
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).of(about)?;
    sockopt::set_socket_reuseaddr(&socket, true).of(about)?;
    bind(&socket, &SocketAddr::new(address, port.unwrap_or(0))).of(about)?;
    let bound = getsockname(&socket).of(about)?;
    let bound = SocketAddr::try_from(bound).of(about)?;
    Ok((socket, bound.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oneself_by_loopback_and_nobody_by_no_name() {
        assert!(towards("127.0.0.1").expect("there is always a way").is_loopback());
        assert_eq!(among(&[]).ok(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(matches!(among(&["127.0.0.1"]), Err(Error::OwnHost(host)) if host == "127.0.0.1"));
        assert!(
            matches!(towards("no such name"), Err(Error::UnknownHost { host, .. }) if host == "no such name")
        );
    }
}
