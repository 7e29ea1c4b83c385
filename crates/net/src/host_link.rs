//! The host's side of a network: what all members on this node share, and how one more is joined to it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::network::{NetName, Network, NetworkDriver, Reach, Subnet, hardware_address};

use crate::device::{self, BRIDGES, By, Device, Forwarding, InterfaceConfig, Vxlan, WIRES};
use crate::firewall::{self, FROM_PORTS, Guard};
use crate::netlink::Netlink;
use crate::nft::Family;
use crate::site_key;
use crate::tunnel::{self, Tunnel, TunnelSecret};

/// What a datagram of IPv4 around a packet takes; and one of IPv6.
const VXLAN_BYTES: u32 = 50;
const VXLAN_BYTES_IN_TUNNEL: u32 = 70;
/// The UDP port that the Internet's authorities have given to VXLAN.
const VXLAN_PORT: u16 = 4789;

/// How a member is joined.
pub struct HostLink {
    to: To,
    /// The largest packet, if it is not to be what the kernel takes by itself.
    pub mtu: Option<u32>,
}

enum To {
    Parent(u32),
    Bridge(u32),
    Routes,
}

/// Makes what members share, as far as it is not there yet.
pub fn prepare(
    host: &mut Netlink,
    name: &NetName,
    network: &Network,
    node: &str,
    secret: Option<&TunnelSecret>,
) -> Result<HostLink> {
    let about = || format!("network {name}");
    let parent = match &network.parent {
        Some(parent) => Some(parent_device(host, name, parent)?),
        None => None,
    };
    let mut mtu = network.mtu;
    let to = match (network.kind, &parent) {
        (NetworkDriver::MacVlan, Some(parent)) => To::Parent(parent.index),
        (NetworkDriver::Routed, _) => {
            for (_, other) in network.nodes.iter().filter(|(other, _)| *other != node) {
                if let Some(address) = other.address {
                    let said = || format!("network {name}: route to {}", other.range);
                    device::set_route(host, Some(other.range), &By::Host(address)).context(said)?;
                }
            }
            To::Routes
        }
        (NetworkDriver::VxLan, Some(parent)) => {
            let tunnel = own_tunnel(name, network, node, secret)?;
            let guarded = Guarded::make(host, (name, network, node), tunnel.as_ref(), parent)?;
            let fits = mtu.unwrap_or(guarded.fits);
            mtu = Some(fits);
            let bridge = shared_bridge(host, name, network, node, mtu)?;
            shared_vxlan(host, name, network, (node, &guarded, fits, bridge))?;
            To::Bridge(bridge)
        }
        (_, parent) => {
            let bridge = shared_bridge(host, name, network, node, mtu)?;
            if let Some(parent) = parent {
                device::attach(host, parent.index, bridge).context(about)?;
            }
            To::Bridge(bridge)
        }
    };
    Ok(HostLink { to, mtu })
}

fn parent_device(host: &mut Netlink, name: &NetName, parent: &str) -> Result<Device> {
    let found = device::find(host, parent, None).context(|| format!("network {name}: device {parent}"))?;
    found.ok_or_else(|| {
        Fault::new(format!("network {name}: this node has no device {parent}"))
            .hint(format!("administrator: see `parent` in {}/{name}.toml", skiff_spec::network::DIR))
    })
}

fn bridge_name(name: &NetName) -> String {
    format!("{BRIDGES}{name}")
}

fn vxlan_name(name: &NetName) -> String {
    format!("sx-{name}")
}

/// Several may be here at once, and any of them be stopped half-way: whoever finds the bridge not switched on, which is done last, does all of
/// it again. So it is with the parts of the bridge below.
fn shared_bridge(
    host: &mut Netlink,
    name: &NetName,
    network: &Network,
    node: &str,
    mtu: Option<u32>,
) -> Result<u32> {
    let device = bridge_name(name);
    let about = || format!("network {name}: bridge {device}");
    if let Some(found) = device::find(host, &device, None).context(about)?.filter(|found| found.is_up) {
        return Ok(found.index);
    }
    device::unless_there(device::bridge(host, &device, mtu)).context(about)?;
    let index = device::find(host, &device, None).context(about)?.map_or(0, |found| found.index);
    if let Some(gateway) = own_gateway(network, node) {
        let subnet = network.subnet;
        // Others know it by its address, as members.
        device::set_hardware(host, index, hardware_address(gateway)).context(about)?;
        device::set_address(host, index, gateway, subnet.prefix(), Some(subnet.last())).context(about)?;
    }
    device::up(host, index).context(about)?;
    Ok(index)
}

/// The gateway, if it is this host: not where a wire leads out, and not where it is in another node's range.
fn own_gateway(network: &Network, node: &str) -> Option<Ipv4Addr> {
    let ours = match network.nodes.get(node) {
        Some(node) => node.range.contains(network.gateway?),
        None => network.kind == NetworkDriver::Bridge && network.parent.is_none(),
    };
    network.gateway.filter(|_| ours)
}

/// More hardware addresses than this are not told to a VXLAN beforehand: it learns where they are from what the rules let arrive.
const MOST_TOLD: u64 = 1 << 14;

/// The tunnel that an encrypted network's datagrams go through.
fn own_tunnel(
    name: &NetName,
    network: &Network,
    node: &str,
    secret: Option<&TunnelSecret>,
) -> Result<Option<Tunnel>> {
    let about = |e: Fault| e.about(&format!("network {name}"));
    match (network.encrypt, secret) {
        (false, _) => Ok(None),
        (true, None) => Err(about(tunnel::needs_secret())),
        (true, Some(secret)) => Tunnel::new(name, network, node, secret).map(Some).map_err(about),
    }
}

/// What a VXLAN's datagrams leave by, where the rules for them are in place.
struct Guarded {
    /// The device's number.
    parent: u32,
    /// Under which address this node is known to the others there.
    local: IpAddr,
    /// The largest packet that fits into a datagram.
    fits: u32,
    id: u32,
    port: u16,
    /// Whether an address of one node's may be on another one.
    travels: bool,
    is_tunnel: bool,
}

impl Guarded {
    fn make(
        host: &mut Netlink,
        (name, network, node): (&NetName, &Network, &str),
        tunnel: Option<&Tunnel>,
        parent: &Device,
    ) -> Result<Self> {
        let device = vxlan_name(name);
        let about = || format!("network {name}: device {device}");
        // That of an encrypted network is its tunnel's.
        let port = network.port.filter(|_| !network.encrypt).unwrap_or(VXLAN_PORT);
        let id = network.id.unwrap_or_default();
        let travels = Path::new(site_key::KEY).exists();
        let guard = Guard { name, network, node, id, port, travels, tunnel };
        let is_new = !guard.is_there().context(about).map_err(needs_rules)?;
        if is_new {
            // Made from another description, or before there were rules. The device goes first: with the rules there, others take it for right.
            device::remove(host, &device).context(about)?;
            let other = match tunnel {
                Some(tunnel) => tunnel.switch_off(host).context(about).map(|()| Family::Ipv4)?,
                None => {
                    // Before its rules, which are what says that it is one of ours.
                    if firewall::has_guard(name, Family::Ipv6) {
                        device::remove(host, &tunnel::device_name(name)).context(about)?;
                    }
                    Family::Ipv6
                }
            };
            firewall::remove_guard(name, other).context(about)?;
            guard.apply().context(about).map_err(needs_rules)?;
        }
        let local = network.nodes.get(node).and_then(|node| node.address).unwrap_or(Ipv4Addr::UNSPECIFIED);
        let (device, bytes) = match tunnel {
            Some(tunnel) => {
                let made = tunnel.set_up(host, parent.mtu);
                (made.map_err(|e| e.about(&format!("network {name}")))?, VXLAN_BYTES_IN_TUNNEL)
            }
            None => (parent.clone(), VXLAN_BYTES),
        };
        let is_tunnel = tunnel.is_some();
        let fits = device.mtu.saturating_sub(bytes);
        let local = address_of_node(local, is_tunnel);
        Ok(Self { parent: device.index, local, fits, id, port, travels, is_tunnel })
    }
}

/// Where a node is reached, in a tunnel or not.
fn address_of_node(address: Ipv4Addr, is_tunnel: bool) -> IpAddr {
    if is_tunnel { tunnel::inner_address(address).into() } else { address.into() }
}

fn shared_vxlan(
    host: &mut Netlink,
    name: &NetName,
    network: &Network,
    (node, guarded, mtu, bridge): (&str, &Guarded, u32, u32),
) -> Result<()> {
    let device = vxlan_name(name);
    let about = || format!("network {name}: device {device}");
    if device::find(host, &device, None).context(about)?.is_some_and(|found| found.is_up) {
        return Ok(());
    }
    let others = || network.nodes.iter().filter(|(other, _)| *other != node);
    let Guarded { parent, local, id, port, travels, is_tunnel, .. } = *guarded;
    let learns = travels || others().map(|(other, _)| network.capacity(other)).sum::<u64>() > MOST_TOLD;
    let vxlan = Vxlan { parent, id, port, from_ports: FROM_PORTS, local, mtu, learns };
    device::unless_there(vxlan.make(host, &device)).context(about)?;
    let index = device::find(host, &device, None).context(about)?.map_or(0, |found| found.index);
    let forwarding = Forwarding { vxlan: index, parent };
    for (other, address) in others().filter_map(|(other, described)| Some((other, described.address?))) {
        let peer = address_of_node(address, is_tunnel);
        forwarding.add_peer(host, peer).context(about)?;
        let told = network.addresses(other).ok().filter(|_| !learns);
        // The gateway is no member, and yet there.
        let gateway = network.gateway.filter(|_| own_gateway(network, other).is_some() && !learns);
        for address in told.into_iter().flatten().chain(gateway) {
            forwarding.set(host, hardware_address(address), peer).context(about)?;
        }
    }
    device::attach(host, index, bridge).context(about)?;
    device::up(host, index).context(about)
}

/// What to do where there are no rules.
pub const NEEDS_RULES: &str = "administrator: the kernel needs nftables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4, CONFIG_NFT_CT; for vxlan CONFIG_NFT_FIB_IPV4, with `encrypt` CONFIG_NF_TABLES_IPV6)";

pub fn needs_rules(e: Fault) -> Fault {
    e.hint(NEEDS_RULES)
}

impl HostLink {
    /// Makes the member's device, and the host's end of it.
    pub fn connect(&self, host: &mut Netlink, member: &InterfaceConfig<'_>, address: Ipv4Addr) -> Result<()> {
        let about = || format!("device of {address}");
        if let To::Parent(parent) = self.to {
            return member.macvlan(host, parent).context(about);
        }
        let name = host_end(address);
        // A namespace that has just gone takes its wires along a moment later.
        device::remove(host, &name).context(about)?;
        member.veth(host, &name, host_hardware(address)).context(about)?;
        let index = device::find(host, &name, None).context(about)?.map_or(0, |found| found.index);
        match self.to {
            To::Bridge(bridge) => device::attach(host, index, bridge).context(about)?,
            _ => {
                let one = Subnet::single(address);
                device::up(host, index).context(about)?;
                device::set_route(host, Some(one), &By::Device(index)).context(about)?;
                device::set_neighbour(host, index, address, hardware_address(address)).context(about)?;
                return Ok(());
            }
        }
        device::up(host, index).context(about)
    }

    /// Under which address of this host a member sees it, if the host may reach members.
    pub fn host_seen_from(
        &self,
        host: &mut Netlink,
        network: &Network,
        address: Ipv4Addr,
    ) -> Option<Ipv4Addr> {
        // Without a way there is nothing that could come.
        let known = || device::own_address_towards(host, address).ok().flatten();
        network.reach.contains(&Reach::Host).then(known).flatten()
    }

    /// Sets up the namespace of a member.
    pub fn configure(&self, inside: &mut Netlink, network: &Network, address: Ipv4Addr) -> io::Result<()> {
        let index = |inside: &mut Netlink, name| {
            Ok::<_, io::Error>(device::find(inside, name, None)?.map_or(0, |found| found.index))
        };
        let loopback = index(inside, "lo")?;
        device::up(inside, loopback)?;
        let eth0 = index(inside, device::INSIDE)?;
        if let To::Routes = self.to {
            device::set_address(inside, eth0, address, 32, None)?;
            device::up(inside, eth0)?;
            device::set_neighbour(inside, eth0, device::ROUTER, host_hardware(address))?;
            device::set_route(inside, Some(Subnet::single(device::ROUTER)), &By::Device(eth0))?;
            return device::set_route(inside, None, &By::Gateway(device::ROUTER, eth0));
        }
        let subnet = network.subnet;
        device::set_address(inside, eth0, address, subnet.prefix(), Some(subnet.last()))?;
        device::up(inside, eth0)?;
        match network.gateway {
            Some(gateway) => device::set_route(inside, None, &By::Gateway(gateway, eth0)),
            None => Ok(()),
        }
    }
}

/// What the host calls the other end of a member's wire.
fn host_end(address: Ipv4Addr) -> String {
    format!("{WIRES}{:08x}", u32::from(address))
}

/// The hardware address of that end.
pub fn host_hardware(address: Ipv4Addr) -> [u8; 6] {
    let mut hardware = hardware_address(address);
    hardware[1] += 1;
    hardware
}

/// A hardware address with which nobody is on the network, for who must not be there with their own.
pub fn odd_hardware(address: Ipv4Addr) -> [u8; 6] {
    let mut hardware = hardware_address(address);
    hardware[1] += 2;
    hardware
}

/// What the members of a network have shared, by the devices' names; removed, if it is to be.
pub fn take_down(host: &mut Netlink, name: &NetName, remove: bool) -> io::Result<Vec<String>> {
    let mut found = vec![];
    for device in [vxlan_name(name), tunnel::device_name(name), bridge_name(name)] {
        if device::find(host, &device, None)?.is_some() {
            if remove {
                device::remove(host, &device)?;
            }
            found.push(device);
        }
    }
    if remove {
        for family in [Family::Ipv4, Family::Ipv6] {
            firewall::remove_guard(name, family)?;
        }
    }
    Ok(found)
}

/// Whether the host passes packets on, without which routes lead nowhere.
pub fn forwards() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1")
}
