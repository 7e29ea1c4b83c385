//! What the datagrams of an encrypted network go through: a WireGuard device on each node, whose peers are the network's other nodes.
//!
//! Nobody is asked for keys and none are sent: each node computes its own private key, and the others' public keys, from a secret that root
//! has on all nodes. In the tunnel a node has a link-local IPv6 address, which means something on that one device only: there the kernel's VXLAN
//! takes nothing that comes by any other device, and WireGuard nothing from a node's address but what that node's key has sealed.
//!
//! The kernel's WireGuard is used where there is one, else a `wireguard-go` that root has started.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use curve25519_dalek::MontgomeryPoint;
use rustix::io::Errno;
use skiff_spec::fault::{Context, Fault, Result};
use skiff_spec::network::{NetName, Network};
use zeroize::Zeroizing;

use crate::device::{self, Device};
use crate::netlink::Netlink;
use crate::site_key::{KEY, derive_key};
use crate::wireguard::{Peer, WireguardConfig};

/// Where munge's key is.
pub const MUNGE_KEY: &str = "/etc/munge/munge.key";

/// What is put before the secret, so that whatever else the site uses it for gives other keys.
const PURPOSE: &str = "skiff 2026-11 WireGuard keys of a network's nodes";

/// What WireGuard adds to a packet: headers of IPv4, UDP and its own, and a code.
const ADDED_BYTES: u32 = 20 + 8 + 16 + 16;
/// IPv6 needs as much.
const LEAST_MTU: u32 = 1280;
/// The UDP port of a tunnel, if the description names none: below 1024, so that no user can take it first.
const PORT: u16 = 479;

/// What all keys of a site's tunnels come from.
pub struct TunnelSecret(Zeroizing<[u8; 32]>);

impl TunnelSecret {
    /// From the content of a file of root's that all nodes have.
    ///
    /// # Errors
    /// That it is too short.
    pub fn new(content: &[u8]) -> std::result::Result<Self, String> {
        derive_key(PURPOSE, content).map(Self)
    }

    fn private_key(&self, network: &NetName, node: &str) -> Zeroizing<[u8; 32]> {
        // No name has a zero byte.
        let whose = [network.as_str(), node].join("\0");
        Zeroizing::new(*blake3::keyed_hash(&self.0, whose.as_bytes()).as_bytes())
    }
}

fn public_key(private: &[u8; 32]) -> [u8; 32] {
    MontgomeryPoint::mul_base_clamped(*private).to_bytes()
}

/// The address in the tunnel of a node that others reach at `address`.
pub fn inner_address(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
}

/// What the device of a network's tunnel is called.
pub fn device_name(name: &NetName) -> String {
    format!("sw-{name}")
}

/// A network's tunnel, as it is to be on this node.
pub struct Tunnel {
    /// Device of the tunnel.
    pub device: String,
    settings: WireguardConfig,
    address: Ipv6Addr,
}

impl Tunnel {
    /// As a description says.
    ///
    /// # Errors
    /// That this node is none of the network's.
    pub fn new(name: &NetName, network: &Network, node: &str, secret: &TunnelSecret) -> Result<Self> {
        let own = network.nodes.get(node).and_then(|node| node.address);
        let own = own.ok_or_else(|| Fault::new(format!("node {node}: not in `nodes`")))?;
        let port = network.port.unwrap_or(PORT);
        let others = network.nodes.iter().filter(|(other, _)| *other != node);
        let peer = |(other, address): (&String, Ipv4Addr)| Peer {
            key: public_key(&secret.private_key(name, other)),
            endpoint: SocketAddrV4::new(address, port),
            allowed: inner_address(address),
        };
        let peers = others.filter_map(|(other, node)| Some((other, node.address?))).map(peer).collect();
        let settings = WireguardConfig { private_key: secret.private_key(name, node), port, peers };
        Ok(Self { device: device_name(name), settings, address: inner_address(own) })
    }

    /// This node's, which is no secret.
    pub fn public_key(&self) -> [u8; 32] {
        public_key(&self.settings.private_key)
    }

    /// Switches it off, if it is there: it was made from another description.
    pub fn switch_off(&self, host: &mut Netlink) -> std::io::Result<()> {
        device::find(host, &self.device, None)?.map_or(Ok(()), |found| device::down(host, found.index))
    }

    /// Makes it, on a host whose largest packet is `parent_mtu`. Whoever finds it switched on, which is done last, has nothing to do.
    pub fn set_up(&self, host: &mut Netlink, parent_mtu: u32) -> Result<Device> {
        let name = &self.device;
        let about = || format!("device {name}");
        let mtu = parent_mtu.saturating_sub(ADDED_BYTES);
        if mtu < LEAST_MTU {
            let least = LEAST_MTU + ADDED_BYTES;
            return Err(Fault::new(format!("{}: `parent` must carry packets of {least} bytes", about())));
        }
        if let Some(found) = device::find(host, name, None).context(about)?.filter(|found| found.is_up) {
            return Ok(found);
        }
        let device = find_or_make(host, name)?;
        self.settings.apply(name, device.is_wireguard).context(about).map_err(|e| needs_server(e, name))?;
        close_to_peers(name).context(about).map_err(|e| e.hint("administrator: the kernel needs IPv6"))?;
        device::set_mtu(host, device.index, mtu).context(about)?;
        device::set_link_local_address(host, device.index, self.address).context(about)?;
        device::up(host, device.index).context(about)?;
        Ok(Device { mtu, ..device })
    }
}

fn find_or_make(host: &mut Netlink, name: &str) -> Result<Device> {
    let about = || format!("device {name}");
    if let Some(found) = device::find(host, name, None).context(about)? {
        return Ok(found);
    }
    match device::unless_there(device::wireguard(host, name)) {
        Err(e) if e.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
            Err(Fault::new(format!("`encrypt`: {}", missing(name))).hint(mend(name)))
        }
        made => made.context(about),
    }?;
    let found = device::find(host, name, None).context(about)?;
    found.ok_or_else(|| Fault::new(format!("{}: gone as soon as it was made", about())))
}

/// Why there is no tunnel.
pub fn missing(device: &str) -> String {
    format!("the kernel has no WireGuard, and no wireguard-go runs for device {device}")
}

/// What to do about that.
pub fn mend(device: &str) -> String {
    format!(
        "administrator: `modprobe wireguard` (Linux 5.6 or later); or package wireguard-go and, as root, `wireguard-go {device}`"
    )
}

fn needs_server(e: Fault, device: &str) -> Fault {
    match e.hint.is_empty() {
        true => e.hint(mend(device)),
        false => e,
    }
}

/// What the host takes from other nodes through the tunnel are datagrams, and no routes.
fn close_to_peers(device: &str) -> io::Result<()> {
    let set =
        |setting: &str, value: &str| fs::write(format!("/proc/sys/net/ipv6/conf/{device}/{setting}"), value);
    for setting in ["accept_ra", "accept_redirects", "autoconf"] {
        set(setting, "0")?;
    }
    set("disable_ipv6", "0")
}

/// What to do where there is no secret.
pub fn needs_secret() -> Fault {
    Fault::new("`encrypt`: there is no key that all nodes have")
        .hint(format!("administrator: the same {KEY} (docs/networks.md) or {MUNGE_KEY} on all nodes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        let nodes = "n1 = { range = \"10.0.1.0/24\", address = \"192.0.2.1\" }\n\
                     n2 = { range = \"10.0.2.0/24\", address = \"192.0.2.2\" }";
        let head = "kind = \"vxlan\"\nencrypt = true\nparent = \"e\"\nid = 1\nsubnet = \"10.0.0.0/16\"";
        Network::parse(&format!("{head}\n[nodes]\n{nodes}\n")).unwrap()
    }

    #[test]
    fn each_node_knows_the_others_keys_and_its_own() {
        let (lab, network) = ("lab".parse().unwrap(), network());
        let secret = TunnelSecret::new(&[7; 40]).unwrap();
        let tunnel = |node| Tunnel::new(&lab, &network, node, &secret).unwrap();
        let (n1, n2) = (tunnel("n1"), tunnel("n2"));
        assert_eq!(n1.settings.peers.len(), 1);
        let peer = &n1.settings.peers[0];
        assert_eq!(peer.key, n2.public_key());
        assert_eq!(peer.endpoint.to_string(), "192.0.2.2:479");
        assert_eq!(peer.allowed.to_string(), "fe80::c000:202");
        assert_eq!((n1.device.as_str(), n1.address.to_string()), ("sw-lab", "fe80::c000:201".into()));
        let undescribed = Tunnel::new(&lab, &network, "n3", &secret).err().map(|e| e.message);
        assert_eq!(undescribed.as_deref(), Some("node n3: not in `nodes`"));
    }

    #[test]
    fn keys_are_one_nodes_of_one_network_of_one_site() {
        let (lab, la): (NetName, NetName) = ("lab".parse().unwrap(), "la".parse().unwrap());
        let secret = TunnelSecret::new(&[7; 40]).unwrap();
        let key = secret.private_key(&lab, "n1");
        assert_eq!(key, TunnelSecret::new(&[7; 40]).unwrap().private_key(&lab, "n1"));
        assert_ne!(key, secret.private_key(&lab, "n2"));
        assert_ne!(key, secret.private_key(&la, "bn1"));
        assert_ne!(key, TunnelSecret::new(&[8; 40]).unwrap().private_key(&lab, "n1"));
        for short in [&[7; 31][..], b"short                            \n"] {
            assert_eq!(
                TunnelSecret::new(short).err().as_deref(),
                Some("key shorter than 32 bytes"),
                "{short:?}"
            );
        }
    }

    /// RFC 7748, section 5.2: after one iteration.
    #[test]
    fn public_keys_are_curve25519s() {
        let mut private = [0; 32];
        private[0] = 9;
        let public: String = public_key(&private).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(public, "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079");
    }
}
