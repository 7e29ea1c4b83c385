//! Whether anybody on a network answers for an address: asked by a device that has none itself (RFC 5227).

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rustix::io::Errno;
use skiff_spec::network::hardware_address;

use crate::device::{self, INSIDE};
use crate::host_link::odd_hardware;
use crate::netlink::Netlink;

/// How often the kernel asks, and how long it waits each time.
const TIMES: u32 = 3;
const EACH: Duration = Duration::from_millis(50);

/// Whether somebody else has the address of the device [`INSIDE`] of this thread's namespace, which is not up yet.
pub fn is_answered(address: Ipv4Addr) -> io::Result<bool> {
    let mut netlink = Netlink::open()?;
    let index = device::find(&mut netlink, INSIDE, None)?.map_or(0, |found| found.index);
    // A namespace of this node's that is about to go answers for as long as it has its device. Nobody else is given the hardware address of
    // that until then; so after the first question, there is only an answer from another node.
    Ok(ask(&mut netlink, index, address)? && ask(&mut netlink, index, address)?)
}

/// Asks once. Leaves the device with its own hardware address; waits for who had that on this node to go.
fn ask(netlink: &mut Netlink, index: u32, address: Ipv4Addr) -> io::Result<bool> {
    // Who has the address has that hardware address, too: their answer would stay where they are.
    device::set_hardware(netlink, index, odd_hardware(address))?;
    device::up(netlink, index)?;
    let answered = answers(netlink, index, address)?;
    device::set_hardware(netlink, index, hardware_address(address))?;
    Ok(answered)
}

fn answers(netlink: &mut Netlink, index: u32, address: Ipv4Addr) -> io::Result<bool> {
    // Without an address anywhere, not even on the loopback device, the kernel takes every other for one of all.
    let loopback = device::find(netlink, "lo", None)?.map_or(0, |found| found.index);
    device::up(netlink, loopback)?;
    let settings = format!("/proc/sys/net/ipv4/neigh/{INSIDE}");
    fs::write(format!("{settings}/retrans_time_ms"), EACH.as_millis().to_string())?;
    fs::write(format!("{settings}/mcast_solicit"), TIMES.to_string())?;
    // The kernel then looks for the neighbour as if there were a packet for it.
    let mut message = neighbour(index, address);
    message.header.flags = NeighbourFlags::Use;
    netlink.tell(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)?;
    let limit = Instant::now() + EACH * (TIMES + 1);
    while Instant::now() < limit {
        match state(netlink, index, address)? {
            Some(NeighbourState::Incomplete) => std::thread::sleep(Duration::from_millis(2)),
            Some(NeighbourState::Failed | NeighbourState::None) | None => return Ok(false),
            Some(_) => return Ok(true),
        }
    }
    Ok(false)
}

fn neighbour(index: u32, address: Ipv4Addr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = index;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    message
}

fn state(netlink: &mut Netlink, index: u32, address: Ipv4Addr) -> io::Result<Option<NeighbourState>> {
    match netlink.ask(RouteNetlinkMessage::GetNeighbour(neighbour(index, address)), 0) {
        Ok(Some(RouteNetlinkMessage::NewNeighbour(found))) => Ok(Some(found.header.state)),
        Ok(_) => Ok(None),
        Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(None),
        Err(e) => Err(e),
    }
}
