//! Networks of the site's: a network namespace with a device on one of them, and an address that nobody else has.
//!
//! The namespace belongs to the host, not to the user whose processes are in it: so they can neither change an address nor send
//! under another one, as they could not on the host. All of this needs the rights of root; the helper has them.

mod check;
mod device;
mod filter;
mod firewall;
pub mod gate;
mod host_link;
pub mod lease;
mod lock;
mod netlink;
mod nft;
mod probe;
mod reservations;
pub mod site_key;
pub mod switch;
pub mod tunnel;
mod wire;
mod wireguard;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::network::{Lease, NetName, Network, Reservation, ReservationRequest, hardware_address};

pub use crate::check::wrong_here;
use crate::device::{InterfaceConfig, Space};
use crate::host_link::HostLink;
use crate::lease::{Leases, LockedAddress};
use crate::netlink::Netlink;
use crate::site_key::SiteKey;
use crate::tunnel::TunnelSecret;

/// Moves this thread into a new network namespace that is a member of a network; its address there. An encrypted network needs the `secret`.
///
/// # Errors
/// What could not be made, of which network. This thread may then be in a namespace without devices.
pub fn enter(
    name: &NetName,
    network: &Network,
    node: &str,
    uid: u32,
    secret: Option<&TunnelSecret>,
) -> Result<Ipv4Addr> {
    let Made { host_link, address, host, .. } = make(name, network, (node, uid), secret, None)?;
    let about = || format!("network {name}: address {address}");
    set_up_space().context(about)?;
    firewall::protect_member(network, host).context(about).map_err(host_link::needs_rules)?;
    let mut inside = Netlink::open().context(about)?;
    host_link.configure(&mut inside, network, address).context(about)?;
    Ok(address)
}

/// A network namespace that belongs to the host, with a device on a network.
struct Made {
    space: OwnedFd,
    host_link: HostLink,
    address: Ipv4Addr,
    /// This host, as it is seen there.
    host: Option<Ipv4Addr>,
}

/// Makes one, and moves this thread into it. `again`: with an address that the user had before.
fn make(
    name: &NetName,
    network: &Network,
    (node, uid): (&str, u32),
    secret: Option<&TunnelSecret>,
    reserved: Option<(&ReservationRequest, Option<&SiteKey>)>,
) -> Result<Made> {
    let about = || format!("network {name}");
    let leases = Leases::open(name)?;
    leases.use_devices()?;
    let mut host = Netlink::open().context(about)?;
    // Whatever is wrong with the host's side shows before there is a namespace.
    let host_link = host_link::prepare(&mut host, name, network, node, secret)?;
    skiff_sys::ns::unshare_network().context(|| "a network namespace")?;
    let space = own_space().context(|| "a network namespace")?;
    let number = lease::number_of(&mut host, space.as_fd()).context(about)?;
    let lease = Lease { network: name.clone(), uid, space: number, until: None };
    let travels = reservations::moves_between_nodes(network);
    let mut passed_by = vec![];
    loop {
        let LockedAddress { address, possible_holder, before } = match reserved {
            None => leases.take(&mut host, network, node, &lease, &passed_by)?,
            Some(reserved) => leases.take_reserved(&mut host, network, node, &lease, reserved)?,
        };
        let hardware = hardware_address(address);
        let member = InterfaceConfig { space: Space::Fd(space.as_fd()), hardware, mtu: host_link.mtu };
        let possible_holder = possible_holder.filter(|_| travels);
        let connected = host_link.connect(&mut host, &member, address).map_err(|e| e.about(&about()));
        let had = connected.and_then(|()| match possible_holder {
            Some(other) if probe::is_answered(address).context(about)? => Ok(Some(other)),
            _ => Ok(None),
        });
        let other = match had {
            Ok(None) => {
                let host = host_link.host_seen_from(&mut host, network, address);
                return Ok(Made { space, host_link, address, host });
            }
            Ok(Some(other)) if reserved.is_none() => other,
            refused => {
                // It is not theirs: nothing says that it were.
                leases.restore_lease(address, before.as_ref())?;
                refused?;
                let why = format!("network {name}: address {address}: somebody has it, on another host");
                return Err(Fault::new(why).hint(lease::IN_USE));
            }
        };
        leases.reserve_for(network, address, other)?;
        passed_by.push(address);
        device::remove(&mut Netlink::open().context(about)?, device::INSIDE).context(about)?;
    }
}

/// Keeps an address that a user has for when they come back to it: their reservation.
///
/// # Errors
/// That they do not have it.
pub fn keep(
    name: &NetName,
    network: &Network,
    node: &str,
    (uid, address): (u32, Ipv4Addr),
    key: Option<&SiteKey>,
) -> Result<Reservation> {
    let about = || format!("network {name}");
    let mut host = Netlink::open().context(about)?;
    let reservation = Leases::open(name)?.keep(&mut host, network, node, (uid, address))?;
    Ok(key.map_or_else(|| reservation.clone(), |key| key.prove(&reservation, uid, name)))
}

/// Moves this thread into the host's network namespace, whatever it was in.
///
/// # Errors
/// `EPERM` without the rights of root.
pub fn enter_hosts() -> Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let path = "/proc/1/ns/net";
    let host = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).context(|| path)?;
    move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network)).context(|| path)
}

/// Frees an address that is kept for a saved instance of this user's; for root, of anybody's.
///
/// # Errors
/// That it is not, or in use.
pub fn free(name: &NetName, network: &Network, address: Ipv4Addr, uid: u32) -> Result<()> {
    let mut host = Netlink::open().context(|| format!("network {name}"))?;
    Leases::open(name)?
        .free(&mut host, network, address, uid)
        .map_err(|e| e.about(&format!("network {name}")))
}

/// What a network has on this node that nobody uses.
pub enum Left {
    /// The lease of a namespace that has gone.
    Lease(String),
    /// A device of a network that nobody is on.
    Device(String),
    /// An address that is kept for a saved instance, and so stays.
    Kept(Ipv4Addr, Lease),
}

/// Finds what networks have left behind, and removes it, if it is to be removed.
///
/// # Errors
/// What could not be looked at or removed.
pub fn sweep(remove: bool) -> Result<Vec<Left>> {
    let mut left = vec![];
    let entries = match fs::read_dir(lease::DIR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(left),
        other => other.context(|| lease::DIR)?,
    };
    let mut host = Netlink::open().context(|| "networks")?;
    for entry in entries {
        let entry = entry.context(|| lease::DIR)?;
        let Some(name) = entry.file_name().to_str().and_then(|name| name.parse::<NetName>().ok()) else {
            continue;
        };
        let leases = Leases::open(&name)?;
        let swept = leases.sweep(&mut host, remove)?;
        left.extend(swept.gone.iter().map(|address| Left::Lease(format!("{name}/{address}"))));
        left.extend(swept.kept.into_iter().map(|(address, lease)| Left::Kept(address, lease)));
        if !swept.in_use {
            let devices =
                host_link::take_down(&mut host, &name, remove).context(|| format!("network {name}"))?;
            left.extend(devices.into_iter().map(Left::Device));
        }
    }
    Ok(left)
}

/// This node, as networks' descriptions call it.
///
/// # Errors
/// That its name is no text.
pub fn node() -> Result<String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_str().map_err(|_| Fault::new("this host's name is not valid UTF-8"))?;
    Ok(name.split('.').next().unwrap_or(name).to_owned())
}

fn own_space() -> io::Result<OwnedFd> {
    Ok(openat(CWD, "/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// What a namespace of one's own allows: to listen on every port, and to ask who is there. IPv6 has no leases, and so none of it is used.
fn set_up_space() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
    fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")?;
    for which in ["all", "default"] {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1") {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}
