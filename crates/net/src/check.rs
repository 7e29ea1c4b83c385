//! What would keep a network from working on this node, as far as anybody may see it.

use std::io;

use skiff_ipc::{Descriptors, ReportingChild};
use skiff_spec::fault::Context as _;
use skiff_spec::network::{NetName, Network, NetworkDriver};
use skiff_sys::process::CloneFlags;

use crate::firewall::{self, Guard};
use crate::netlink::Netlink;
use crate::tunnel::{self, Tunnel, TunnelSecret};
use crate::{device, host_link, wireguard};

/// All that is found.
#[must_use]
pub fn wrong_here(name: &NetName, network: &Network, node: &str) -> Vec<String> {
    let mut wrong = vec![];
    wrong.extend(network.addresses(node).err());
    if let Some(parent) = &network.parent {
        match device_exists(parent) {
            Ok(true) => {}
            Ok(false) => wrong.push(format!("this node has no device {parent}")),
            Err(e) => wrong.push(format!("device {parent}: {e}")),
        }
    }
    if network.kind == NetworkDriver::Routed && !host_link::forwards() {
        wrong.push("the host passes no packets on: sysctl net.ipv4.ip_forward=1".into());
    }
    wrong.extend(without_wireguard(name, network));
    wrong.extend(without_rules(name, network, node));
    wrong
}

fn device_exists(name: &str) -> io::Result<bool> {
    Ok(device::find(&mut Netlink::open()?, name, None)?.is_some())
}

fn without_wireguard(name: &NetName, network: &Network) -> Option<String> {
    let device = tunnel::device_name(name);
    let is_served = || wireguard::family().is_ok() || device_exists(&device).unwrap_or(false);
    (network.encrypt && !is_served())
        .then(|| format!("`encrypt`: {}: {}", tunnel::missing(&device), tunnel::mend(&device)))
}

/// Has the kernel make the rules that a start on the network makes, where they are nobody's: in a network namespace of this process's own.
fn without_rules(name: &NetName, network: &Network, node: &str) -> Option<String> {
    let own = if rustix::process::geteuid().is_root() {
        CloneFlags::NETWORK
    } else {
        CloneFlags::USER.and(CloneFlags::NETWORK)
    };
    // Where users may have no namespaces, this cannot be found out without a start.
    let child = ReportingChild::begin("nftables", own, Descriptors::All, || {
        make_rules(name, network, node).context(|| "nftables")
    });
    let why = child.ok()?.end().err()?;
    Some(format!("{why}: {}", host_link::NEEDS_RULES))
}

fn make_rules(name: &NetName, network: &Network, node: &str) -> io::Result<()> {
    firewall::protect_member(network, None)?;
    if network.kind != NetworkDriver::VxLan {
        return Ok(());
    }
    // With keys that nobody has: only the device's name is in the rules.
    let tunnel = TunnelSecret::new(&[0; 32]).ok().filter(|_| network.encrypt);
    let tunnel = tunnel.and_then(|secret| Tunnel::new(name, network, node, &secret).ok());
    let (id, port) = (network.id.unwrap_or_default(), 1);
    Guard { name, network, node, id, port, travels: false, tunnel: tunnel.as_ref() }.apply()
}
