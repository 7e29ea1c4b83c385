//! Devices as messages to the kernel: what is made, and how it is set up.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoMacVlan, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    MacVlanMode,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::process::Pid;
use skiff_spec::network::Subnet;

use crate::netlink::Netlink;

/// What the device of a member is called inside.
pub const INSIDE: &str = "eth0";
/// What the names of the bridges begin with, and those of the host's ends of members' wires.
pub const BRIDGES: &str = "sk-";
pub const WIRES: &str = "sv";
/// How the host is reached from a routed device: an address that is good only on that one wire.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// How long a namespace that nobody has any more may take to go.
pub const GOES_WITHIN: Duration = Duration::from_secs(2);

/// A device's number and what is known of it.
#[derive(Clone, Debug)]
pub struct Device {
    /// Index of the device.
    pub index: u32,
    /// Largest packet that the device takes.
    pub mtu: u32,
    /// Hardware address.
    pub hardware: Vec<u8>,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether it is one of the kernel's WireGuard.
    pub is_wireguard: bool,
}

/// The device of this name in the namespace of `netlink`, or in that with the number `space` there.
pub fn find(netlink: &mut Netlink, name: &str, space: Option<i32>) -> io::Result<Option<Device>> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.into()));
    message.attributes.extend(space.map(LinkAttribute::IfNetnsId));
    let answer = match netlink.ask(RouteNetlinkMessage::GetLink(message), 0) {
        // Of a number that no namespace has, the kernel says that it is invalid.
        Err(e)
            if [Errno::NODEV, Errno::INVAL, Errno::NOENT]
                .iter()
                .any(|no| e.raw_os_error() == Some(no.raw_os_error())) =>
        {
            return Ok(None);
        }
        other => other?,
    };
    let Some(RouteNetlinkMessage::NewLink(link)) = answer else { return Ok(None) };
    let is_up = link.header.flags.contains(LinkFlags::Up);
    let mut device =
        Device { index: link.header.index, mtu: 0, hardware: vec![], is_up, is_wireguard: false };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            LinkAttribute::Address(hardware) => device.hardware = hardware,
            LinkAttribute::LinkInfo(infos) => {
                device.is_wireguard = infos.contains(&LinkInfo::Kind(InfoKind::Wireguard));
            }
            _ => {}
        }
    }
    Ok(Some(device))
}

/// A network namespace.
#[derive(Clone, Copy)]
pub enum Space<'a> {
    /// This one.
    Fd(BorrowedFd<'a>),
    /// Namespace of a process.
    Of(Pid),
}

/// A member's device, in the namespace `space`.
pub struct InterfaceConfig<'a> {
    pub space: Space<'a>,
    pub hardware: [u8; 6],
    pub mtu: Option<u32>,
}

impl InterfaceConfig<'_> {
    fn message(&self) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(INSIDE.into()));
        message.attributes.push(match self.space {
            Space::Fd(fd) => LinkAttribute::NetNsFd(fd.as_raw_fd()),
            Space::Of(pid) => LinkAttribute::NetNsPid(pid.as_raw_nonzero().get().unsigned_abs()),
        });
        message.attributes.push(LinkAttribute::Address(self.hardware.to_vec()));
        message.attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        message
    }

    /// On the wire of `parent`.
    pub fn macvlan(&self, host: &mut Netlink, parent: u32) -> io::Result<()> {
        let mut message = self.message();
        message.attributes.push(LinkAttribute::Link(parent));
        let data = InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Bridge)]);
        make(host, message, InfoKind::MacVlan, Some(data))
    }

    /// At the other end of a wire to the host, where the device is called `name`.
    pub fn veth(&self, host: &mut Netlink, name: &str, hardware: [u8; 6]) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::Address(hardware.to_vec()));
        message.attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        make(host, message, InfoKind::Veth, Some(InfoData::Veth(InfoVeth::Peer(self.message()))))
    }
}

/// Makes a bridge.
pub fn bridge(host: &mut Netlink, name: &str, mtu: Option<u32>) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.into()));
    message.attributes.extend(mtu.map(LinkAttribute::Mtu));
    make(host, message, InfoKind::Bridge, None)
}

/// Makes a WireGuard device, which has neither keys nor peers yet.
pub fn wireguard(host: &mut Netlink, name: &str) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.into()));
    make(host, message, InfoKind::Wireguard, None)
}

/// A device that carries packets to other hosts inside of datagrams that leave by `parent`.
pub struct Vxlan {
    pub parent: u32,
    pub id: u32,
    pub port: u16,
    /// The ports of this host that datagrams leave from, but for the last.
    pub from_ports: (u16, u16),
    pub local: IpAddr,
    pub mtu: u32,
    /// Whether what arrives tells where its sender is.
    pub learns: bool,
}

impl Vxlan {
    /// Makes it.
    pub fn make(&self, host: &mut Netlink, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::Mtu(self.mtu));
        let data = vec![
            InfoVxlan::Id(self.id),
            InfoVxlan::Link(self.parent),
            match self.local {
                IpAddr::V4(local) => InfoVxlan::Local(local),
                IpAddr::V6(local) => InfoVxlan::Local6(local),
            },
            InfoVxlan::Port(self.port),
            InfoVxlan::PortRange(self.from_ports),
            InfoVxlan::Learning(self.learns),
        ];
        make(host, message, InfoKind::Vxlan, Some(InfoData::Vxlan(data)))
    }
}

/// What several make at once, only the first makes: the others find it.
pub fn unless_there(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(e) if e.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn make(
    host: &mut Netlink,
    mut message: LinkMessage,
    kind: InfoKind,
    data: Option<InfoData>,
) -> io::Result<()> {
    let mut info = vec![LinkInfo::Kind(kind)];
    info.extend(data.map(LinkInfo::Data));
    message.attributes.push(LinkAttribute::LinkInfo(info));
    host.tell(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Removes a device; one that is not there is.
pub fn remove(netlink: &mut Netlink, name: &str) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.into()));
    match netlink.tell(RouteNetlinkMessage::DelLink(message), 0) {
        Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(()),
        other => other,
    }
}

/// Switches a device on.
pub fn up(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    switch(netlink, index, LinkFlags::Up)
}

/// Switches a device off.
pub fn down(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    switch(netlink, index, LinkFlags::empty())
}

fn switch(netlink: &mut Netlink, index: u32, flags: LinkFlags) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = flags;
    message.header.change_mask = LinkFlags::Up;
    set(netlink, &message)
}

/// Gives a device another hardware address.
pub fn set_hardware(netlink: &mut Netlink, index: u32, hardware: [u8; 6]) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::Address(hardware.to_vec()));
    set(netlink, &message)
}

/// Sets a device's largest packet.
pub fn set_mtu(netlink: &mut Netlink, index: u32, mtu: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::Mtu(mtu));
    netlink.tell(RouteNetlinkMessage::SetLink(message), 0)
}

/// A namespace that has just gone takes its macvlan, and so the hardware address that only one may have, along a moment later.
fn set(netlink: &mut Netlink, message: &LinkMessage) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match netlink.tell(RouteNetlinkMessage::SetLink(message.clone()), 0) {
            Err(e)
                if e.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error())
                    && begun.elapsed() < GOES_WITHIN =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

/// Puts a device on a bridge.
pub fn attach(host: &mut Netlink, index: u32, bridge: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::Controller(bridge));
    host.tell(RouteNetlinkMessage::SetLink(message), 0)
}

/// Gives a device an address. One that it has already it keeps.
pub fn set_address(
    netlink: &mut Netlink,
    index: u32,
    address: Ipv4Addr,
    prefix: u8,
    all: Option<Ipv4Addr>,
) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = prefix;
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(IpAddr::V4(address)));
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(address)));
    message.attributes.extend(all.map(AddressAttribute::Broadcast));
    netlink.tell(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Gives a device an IPv6 address that is good on its link only, and at once.
pub fn set_link_local_address(netlink: &mut Netlink, index: u32, address: Ipv6Addr) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.prefix_len = 64;
    message.header.scope = AddressScope::Link;
    message.header.flags = AddressHeaderFlags::Nodad | AddressHeaderFlags::Permanent;
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(IpAddr::V6(address)));
    message.attributes.push(AddressAttribute::Address(IpAddr::V6(address)));
    netlink.tell(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Where packets go.
pub enum By {
    /// Straight to the device.
    Device(u32),
    /// To a host that is reached by the device.
    Gateway(Ipv4Addr, u32),
    /// To a host, wherever that is reached.
    Host(Ipv4Addr),
}

/// Sends what is for `to` (everything, if not given) by a way; in the place of one that was there.
pub fn set_route(netlink: &mut Netlink, to: Option<Subnet>, by: &By) -> io::Result<()> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Unicast;
    message.header.scope = if matches!(by, By::Device(_)) { RouteScope::Link } else { RouteScope::Universe };
    if let Some(to) = to {
        message.header.destination_prefix_length = to.prefix();
        message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(to.first())));
    }
    match by {
        By::Device(index) => message.attributes.push(RouteAttribute::Oif(*index)),
        By::Gateway(gateway, index) => {
            message.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(*gateway)));
            message.attributes.push(RouteAttribute::Oif(*index));
        }
        By::Host(host) => message.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(*host))),
    }
    netlink.tell(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Says whose hardware address is whose, so that nobody need ask.
pub fn set_neighbour(
    netlink: &mut Netlink,
    index: u32,
    address: Ipv4Addr,
    hardware: [u8; 6],
) -> io::Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
    netlink.tell(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// A VXLAN that knows where others are.
#[derive(Clone, Copy)]
pub struct Forwarding {
    /// VXLAN network identifier.
    pub vxlan: u32,
    /// The device that its datagrams leave by.
    pub parent: u32,
}

impl Forwarding {
    /// Lets it send to another host what is for all, or for those it knows nothing of.
    pub fn add_peer(self, host: &mut Netlink, peer: IpAddr) -> io::Result<()> {
        let message = self.entry([0; 6], peer);
        host.tell(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_APPEND)
    }

    /// Tells it on which host a hardware address is.
    pub fn set(self, host: &mut Netlink, hardware: [u8; 6], peer: IpAddr) -> io::Result<()> {
        let message = self.entry(hardware, peer);
        host.tell(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    fn entry(self, hardware: [u8; 6], peer: IpAddr) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = self.vxlan;
        message.header.state = NeighbourState::Permanent;
        message.header.flags = NeighbourFlags::Own;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware.to_vec()));
        message.attributes.push(NeighbourAttribute::Destination(match peer {
            IpAddr::V4(peer) => NeighbourAddress::Inet(peer),
            IpAddr::V6(peer) => NeighbourAddress::Inet6(peer),
        }));
        // An address of a link is one of this device's only.
        message.attributes.extend(peer.is_ipv6().then_some(NeighbourAttribute::IfIndex(self.parent)));
        message
    }
}

/// The address of this host that what is for `to` would come from.
pub fn own_address_towards(netlink: &mut Netlink, to: Ipv4Addr) -> io::Result<Option<Ipv4Addr>> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = 32;
    message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(to)));
    let Some(RouteNetlinkMessage::NewRoute(route)) =
        netlink.ask(RouteNetlinkMessage::GetRoute(message), 0)?
    else {
        return Ok(None);
    };
    Ok(route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(address)) => Some(*address),
        _ => None,
    }))
}
