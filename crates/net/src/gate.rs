//! Members whose network namespace is their user's, who has all power over it: what saving and resuming their connections takes.
//!
//! The network's device is not in there, but in a namespace between that belongs to the host. From it a wire leads to the one inside,
//! and filters let nothing of the user's out but what comes from their own address, and from low ports to members only. In the namespace between nobody is; it lasts as
//! long as somebody has a descriptor of it, with which nobody but the host's root can do anything.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::network::{NetName, Network, NetworkDriver, ReservationRequest, hardware_address};

use crate::device::{self, By, GOES_WITHIN, INSIDE, InterfaceConfig, ROUTER, Space};
use crate::host_link::{host_hardware, needs_rules, odd_hardware};
use crate::lease::Leases;
use crate::netlink::Netlink;
use crate::site_key::SiteKey;
use crate::tunnel::TunnelSecret;
use crate::{Made, filter, firewall, make, set_up_space};

/// The end of the wire in the namespace between.
const WIRE: &str = "wire";

/// Joins the network namespace `inside` to a network; its address there, and the namespace between. With a reservation it gets that address
/// again, and is shut out of the network until [`open`]: who is not there yet must not answer. This thread is in `inside` then.
///
/// # Errors
/// What could not be made, of which network. This thread may then be in any of them.
pub fn connect(
    name: &NetName,
    network: &Network,
    (node, uid): (&str, u32),
    inside: BorrowedFd<'_>,
    secret: Option<&TunnelSecret>,
    reserved: Option<(&ReservationRequest, Option<&SiteKey>)>,
) -> Result<(Ipv4Addr, OwnedFd)> {
    let about = || format!("network {name}");
    if let Some((reserved, _)) = reserved {
        wait_until_gone(name, reserved.reservation.address)?;
    }
    let Made { space, host_link, address, host } = make(name, network, (node, uid), secret, reserved)?;
    let between = || format!("network {name}: the way to {address}");
    let mut netlink = Netlink::open().context(between)?;
    shut_space().context(between)?;
    let outer = found(&mut netlink, INSIDE).context(between)?;
    let hardware = if reserved.is_some() { odd_hardware(address) } else { hardware_address(address) };
    let member = InterfaceConfig { space: Space::Fd(inside), hardware, mtu: Some(outer.mtu) };
    member.veth(&mut netlink, WIRE, host_hardware(address)).context(between)?;
    let wire = found(&mut netlink, WIRE).context(between)?.index;
    let hardware = hardware_address(address);
    filter::pass_to(&mut netlink, (outer.index, wire), hardware).context(between).map_err(needs_filters)?;
    filter::pass_from(&mut netlink, (wire, outer.index), hardware, address, network).context(between)?;
    for index in [outer.index, wire] {
        device::up(&mut netlink, index).context(between)?;
    }
    move_into_link_name_space(inside, Some(LinkNameSpaceType::Network)).context(about)?;
    set_up_space().context(between)?;
    // They are her own to change, whose processes alone they keep others from.
    firewall::protect_member(network, host).context(between).map_err(needs_rules)?;
    let mut own = Netlink::open().context(about)?;
    // With its own hardware address it says where it is now.
    fs::write(format!("/proc/sys/net/ipv4/conf/{INSIDE}/arp_notify"), "1").context(between)?;
    host_link.configure(&mut own, network, address).context(between)?;
    Ok((address, space))
}

/// What has an address may have ended this moment, and its namespace not yet be gone.
fn wait_until_gone(name: &NetName, address: Ipv4Addr) -> Result<()> {
    let begun = Instant::now();
    let mut host = Netlink::open().context(|| format!("network {name}"))?;
    let leases = Leases::open(name)?;
    while leases.is_taken(&mut host, address)? && begun.elapsed() < GOES_WITHIN {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(())
}

/// The namespace between takes nothing for itself, and sends nothing by itself.
fn shut_space() -> io::Result<()> {
    set_up_space()?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "0")
}

fn found(netlink: &mut Netlink, name: &str) -> io::Result<device::Device> {
    device::find(netlink, name, None)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn needs_filters(e: Fault) -> Fault {
    e.hint("administrator: the kernel needs CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_U32 and CONFIG_NET_ACT_MIRRED")
}

/// In such a member, with power over its network namespace: from now on it hears and is heard. Before that it had a hardware address that the
/// filters know nothing of, and nobody sends to.
///
/// # Errors
/// What the kernel says.
pub fn open(address: Ipv4Addr, kind: NetworkDriver) -> io::Result<()> {
    turn(address, kind, hardware_address(address))
}

/// Shuts an address out: from now on nobody gets an answer from a member that is about to end.
///
/// # Errors
/// What the kernel says.
pub fn shut(address: Ipv4Addr, kind: NetworkDriver) -> io::Result<()> {
    turn(address, kind, odd_hardware(address))
}

fn turn(address: Ipv4Addr, kind: NetworkDriver, hardware: [u8; 6]) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = found(&mut netlink, INSIDE)?.index;
    device::set_hardware(&mut netlink, index, hardware)?;
    if kind == NetworkDriver::Routed {
        // With the old hardware address the kernel has forgotten its neighbours.
        device::set_neighbour(&mut netlink, index, ROUTER, host_hardware(address))?;
        device::set_route(&mut netlink, None, &By::Gateway(ROUTER, index))?;
    }
    Ok(())
}
