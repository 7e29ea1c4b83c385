//! Who reaches whom: rules that nobody on a network can change, in namespaces that are the host's.
//!
//! Members of a network reach each other. Everybody else, the host's own users included, reaches them only if the network's description
//! says so (`reach`); what members begin themselves gets its answers. That is decided in each member's own network namespace.
//!
//! What comes in a VXLAN's datagrams is believed only of the network's nodes, and of their root: it comes from a port of those that no user can have,
//! and each node speaks for the addresses of its own range only. This is decided on the host, before the kernel looks into the datagram.
//! Of an encrypted network, whose datagrams are IPv6 in a tunnel, nothing else passes through that tunnel.

use std::io;
use std::net::Ipv4Addr;

use skiff_spec::network::{NetName, Network, Reach, Subnet, hardware_address};

use crate::device::{BRIDGES, WIRES};
use crate::nft::{
    self, ACCEPT, DEVICE_IN, DEVICE_OUT, DROP, ESTABLISHED, FIRST, FORWARD, Family, From, Hook, INPUT, Is,
    OUTPUT, PREROUTING, PROTOCOL, RELATED, RuleExpr, SECOND, SENDER, Table, compare, connection_state,
    device_towards_source, jump, load, lookup, mask, meta, untracked, verdict,
};
use crate::tunnel::Tunnel;

/// The ports that VXLAN's datagrams come from: root's (below 1024), and enough of them to tell flows from one another. The second is no more one of them.
pub const FROM_PORTS: (u16, u16) = (600, ROOTS_BELOW);

/// The table of a member, in its own namespace.
const OF_MEMBER: &str = "skiff";

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
/// Ports below this one only root may use on a host.
const ROOTS_BELOW: u16 = 1024;
/// Of ICMP, what says that a packet did not arrive: unreachable, too late, malformed.
const FAILURES: [u8; 3] = [3, 11, 12];

fn source() -> RuleExpr {
    load(From::Network, 12, 4, FIRST)
}

fn destination() -> RuleExpr {
    load(From::Network, 16, 4, FIRST)
}

/// Whether the first register is an address of a block.
fn is_in(block: Subnet) -> Vec<RuleExpr> {
    let bits = u32::MAX << (32 - block.prefix());
    vec![mask(bits.to_be_bytes()), compare(Is::Equal, &block.first().octets())]
}

/// Rules for a new member: in this thread's network namespace, before its device is switched on. `host` is the address under which it is
/// reached from this host.
pub fn protect_member(network: &Network, host: Option<Ipv4Addr>) -> io::Result<()> {
    let mut table = Table::new(OF_MEMBER, Family::Ipv4, "");
    let hook = |number, priority, policy| Hook { kind: "filter", number, priority, policy };
    table.ranges("members", &but_for(&network.ranges(), &network.never_members()));
    let is_member = |address| [address, lookup("members", true)];
    // Among members nothing need be remembered, which would cost time with every packet.
    for (chain, number, device, address) in [
        ("remember-in", PREROUTING, DEVICE_IN, source()),
        ("remember-out", OUTPUT, DEVICE_OUT, destination()),
    ] {
        table.chain(chain, Some(&hook(number, -300, ACCEPT)));
        table.rule(chain, &[&is_loopback(device)[..], &[untracked()]].concat());
        table.rule(chain, &[&is_member(address)[..], &[untracked()]].concat());
    }
    table.chain("in", Some(&hook(INPUT, 0, DROP)));
    table.ranges("reach", &reaching(network, host));
    let accept = |steps: &[RuleExpr]| [steps, &[verdict(ACCEPT)]].concat();
    table.rule("in", &accept(&is_loopback(DEVICE_IN)));
    table.rule("in", &accept(&is_member(source())));
    table.rule("in", &accept(&[source(), lookup("reach", true)]));
    table.rule("in", &accept(&is_known()));
    // Of what is not remembered, too: without them nobody learns how large a packet may be.
    for kind in FAILURES {
        let is_kind = [load(From::Transport, 0, 1, FIRST), compare(Is::Equal, &[kind])];
        table.rule("in", &accept(&[&is_protocol(ICMP)[..], &is_kind].concat()));
    }
    if !network.low_ports {
        forbid_roots_ports(&mut table, &hook(OUTPUT, 0, ACCEPT));
    }
    table.apply()
}

/// From a port that services take for root's (NFS, rsh) members may answer; nobody but members hears from it what was not asked for.
/// (`filter::pass_from` checks this for members whose users can remove these rules.)
fn forbid_roots_ports(table: &mut Table, hook: &Hook) {
    table.chain("out", Some(hook));
    let accept = |steps: &[RuleExpr]| [steps, &[verdict(ACCEPT)]].concat();
    table.rule("out", &accept(&is_loopback(DEVICE_OUT)));
    table.rule("out", &accept(&[destination(), lookup("members", true)]));
    table.rule("out", &accept(&is_known()));
    for protocol in [TCP, UDP, UDP_LITE, SCTP, DCCP] {
        let is_roots = [load(From::Transport, 0, 2, FIRST), compare(Is::Less, &ROOTS_BELOW.to_be_bytes())];
        table.rule("out", &[&is_protocol(protocol)[..], &is_roots, &[verdict(DROP)]].concat());
    }
}

/// Whether a packet comes from oneself, or goes there.
fn is_loopback(device: u32) -> [RuleExpr; 2] {
    is_device(device, Is::Equal, "lo")
}

/// Whether a packet's device (`DEVICE_IN` or `DEVICE_OUT`) is one of this name, or is not.
fn is_device(which: u32, is: Is, name: &str) -> [RuleExpr; 2] {
    // As the kernel has names: with zeros behind, so that no longer name begins like it.
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    [meta(which), compare(is, &bytes)]
}

fn is_protocol(number: u8) -> [RuleExpr; 2] {
    [meta(PROTOCOL), compare(Is::Equal, &[number])]
}

/// Whether a packet belongs to what has begun already.
fn is_known() -> [RuleExpr; 3] {
    let known = (ESTABLISHED | RELATED).to_ne_bytes();
    [connection_state(), mask(known), compare(Is::Not, &[0; 4])]
}

/// Who besides members may begin a connection to them.
fn reaching(network: &Network, host: Option<Ipv4Addr>) -> Vec<(u32, u32)> {
    let mut ranges = vec![];
    for reach in &network.reach {
        match reach {
            Reach::Host => {
                let nodes = network.nodes.values().filter_map(|node| node.address);
                let hosts = nodes.chain(network.gateway).chain(host).map(u32::from);
                ranges.extend(hosts.map(|host| (host, host)));
            }
            Reach::Block(block) => ranges.extend(but_for(&[*block], &[])),
            Reach::Members { blocks, but_for: host } => {
                ranges.extend(but_for(blocks, &host.iter().copied().collect::<Vec<_>>()));
            }
            // Still a name: there is no network that is called so.
            Reach::Network(_) => {}
        }
    }
    merged(ranges)
}

/// The addresses of blocks, without those that are no member's.
fn but_for(blocks: &[Subnet], others: &[Ipv4Addr]) -> Vec<(u32, u32)> {
    let whole = blocks.iter().map(|block| (u32::from(block.first()), u32::from(block.last())));
    let mut ranges: Vec<(u32, u32)> = whole.collect();
    for other in others.iter().copied().map(u32::from) {
        let without = |(first, last): (u32, u32)| match (first..=last).contains(&other) {
            true => [(first < other).then(|| (first, other - 1)), (other < last).then(|| (other + 1, last))],
            false => [Some((first, last)), None],
        };
        ranges = ranges.into_iter().flat_map(without).flatten().collect();
    }
    merged(ranges)
}

/// The same, none of which touch another.
fn merged(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = vec![];
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// What the host has of a VXLAN's rules.
pub struct Guard<'a> {
    pub name: &'a NetName,
    pub network: &'a Network,
    pub node: &'a str,
    pub id: u32,
    pub port: u16,
    /// Whether an address of one node's may be on another one: that of a saved instance.
    pub travels: bool,
    /// What the datagrams go through, if they are encrypted.
    pub tunnel: Option<&'a Tunnel>,
}

/// Where in a datagram what it carries is, from the beginning of the head of UDP: the network's number; in the frame, the sender's hardware address,
/// what it carries, and the sender's address as IPv4 or ARP (for IPv4 over Ethernet) have it.
const ID: u32 = 8 + 4;
const FRAME: u32 = 8 + 8;
const HARDWARE: u32 = FRAME + 6;
const CARRIES: u32 = FRAME + 12;
const IPV4_SOURCE: u32 = FRAME + 14 + 12;
const ARP_SOURCE: u32 = FRAME + 14 + 14;

impl Guard<'_> {
    /// The table's name. A network's has no dot.
    pub fn table_of(name: &NetName) -> String {
        format!("skiff.{}", name.as_str().replace('-', "."))
    }

    /// What the rules were made from: when this changes, they do. With the site's key, the nodes' keys change.
    pub fn comment(&self) -> String {
        let key = self.tunnel.map(Tunnel::public_key);
        let made_from =
            format!("{:?}", (self.network, self.node, self.id, self.port, self.travels, FROM_PORTS, key));
        format!("skiff 3 {}", &blake3::hash(made_from.as_bytes()).to_hex()[..32])
    }

    /// Whether they are there.
    pub fn is_there(&self) -> io::Result<bool> {
        let noted = nft::comment(&Self::table_of(self.name), self.family())?;
        Ok(noted.is_some_and(|noted| noted == self.comment()))
    }

    fn family(&self) -> Family {
        if self.tunnel.is_some() { Family::Ipv6 } else { Family::Ipv4 }
    }

    /// The node that a datagram comes from. In a tunnel its address is at the end of the one that it has there ([`inner_address`](crate::tunnel::inner_address)).
    fn sending_node(&self) -> RuleExpr {
        const IPV6_SOURCE: u32 = 8;
        if self.tunnel.is_some() { load(From::Network, IPV6_SOURCE + 12, 4, FIRST) } else { source() }
    }

    /// Which addresses each other node speaks for.
    fn speakers(&self) -> Vec<([u8; 4], [u8; 4], [u8; 4])> {
        let others = self.network.nodes.iter().filter(|(other, _)| *other != self.node);
        let one = others.filter_map(|(_, other)| {
            let range = if self.travels { self.network.subnet } else { other.range };
            Some((other.address?.octets(), range.first().octets(), range.last().octets()))
        });
        one.collect()
    }

    /// The other nodes' own addresses.
    fn others(&self) -> Vec<(u32, u32)> {
        let others = self.network.nodes.iter().filter(|(other, _)| *other != self.node);
        merged(others.filter_map(|(_, other)| other.address.map(u32::from)).map(|at| (at, at)).collect())
    }

    /// Makes them, in this thread's network namespace.
    pub fn apply(&self) -> io::Result<()> {
        let mut table = Table::replacing(&Self::table_of(self.name), self.family(), &self.comment());
        table.pairs("speakers", &self.speakers());
        let before_others = |number| Hook { kind: "filter", number, priority: -10, policy: ACCEPT };
        for (chain, hook) in [("in", INPUT), ("out", OUTPUT), ("through", FORWARD)] {
            table.chain(chain, Some(&before_others(hook)));
        }
        for chain in ["arriving", "leaving"] {
            table.chain(chain, None);
        }
        table.rule("in", &[self.ours(), vec![jump("arriving")]].concat());
        table.rule("out", &[self.ours(), vec![jump("leaving")]].concat());
        let from_users =
            [load(From::Transport, 0, 2, FIRST), compare(Is::AtLeast, &FROM_PORTS.1.to_be_bytes())];
        for chain in ["arriving", "leaving"] {
            table.rule(chain, &dropping(&from_users));
        }
        // The kernel's own have no sender, and so no user.
        table.rule("leaving", &dropping(&[meta(SENDER), compare(Is::Not, &[0; 4])]));
        for steps in self.not_believed() {
            table.rule("arriving", &dropping(&steps));
        }
        match self.tunnel {
            Some(tunnel) => close_tunnel(&mut table, tunnel),
            None => self.judge_passing(&mut table),
        }
        table.apply()
    }

    /// What this host passes on between nodes, by a route or a bridge (with br_netfilter), it judges no more than any other host on their way;
    /// but it must come by the device by which this host reaches the node that it says it is from, and not from a member of another network:
    /// it may come under this host's address later.
    fn judge_passing(&self, table: &mut Table) {
        table.ranges("nodes", &self.others());
        let from_elsewhere = [source(), lookup("nodes", false)];
        let by_another_way = [device_towards_source(), compare(Is::Equal, &[0; 4])];
        let from_member = |prefix: &str| [meta(DEVICE_IN), compare(Is::Equal, prefix.as_bytes())];
        for steps in [from_elsewhere, by_another_way, from_member(BRIDGES), from_member(WIRES)] {
            table.rule("through", &dropping(&[self.ours(), steps.to_vec()].concat()));
        }
    }

    /// Whether a packet is of this VXLAN.
    fn ours(&self) -> Vec<RuleExpr> {
        vec![
            meta(PROTOCOL),
            compare(Is::Equal, &[UDP]),
            load(From::Transport, 2, 2, FIRST),
            compare(Is::Equal, &self.port.to_be_bytes()),
            load(From::Transport, ID, 3, FIRST),
            compare(Is::Equal, &self.id.to_be_bytes()[1..]),
        ]
    }

    /// What a datagram must not carry.
    fn not_believed(&self) -> Vec<Vec<RuleExpr>> {
        const IPV4: [u8; 2] = [8, 0];
        const ARP: [u8; 2] = [8, 6];
        // With that of `odd_hardware` somebody asks who has an address.
        let [a, b, ..] = hardware_address(Ipv4Addr::UNSPECIFIED);
        let prefix = || load(From::Transport, HARDWARE, 2, FIRST);
        let carries = |what: [u8; 2]| [load(From::Transport, CARRIES, 2, FIRST), compare(Is::Equal, &what)];
        let speaks_for =
            |at| [self.sending_node(), load(From::Transport, at, 4, SECOND), lookup("speakers", false)];
        let sender = |at| load(From::Transport, at, 4, FIRST);
        vec![
            vec![prefix(), compare(Is::Less, &[a, b])],
            vec![prefix(), compare(Is::Greater, &[a, b + 2])],
            speaks_for(HARDWARE + 2).to_vec(),
            vec![load(From::Transport, CARRIES, 2, FIRST), compare(Is::Less, &IPV4)],
            vec![load(From::Transport, CARRIES, 2, FIRST), compare(Is::Greater, &ARP)],
            // (The few numbers between the two are of protocols that are no more.)
            [&carries(ARP)[..], &[sender(ARP_SOURCE), compare(Is::Not, &[0; 4])], &speaks_for(ARP_SOURCE)]
                .concat(),
            // A gateway passes on what is from outside of the network.
            [
                &carries(IPV4)[..],
                &[sender(IPV4_SOURCE)],
                &is_in(self.network.subnet),
                &speaks_for(IPV4_SOURCE),
            ]
            .concat(),
        ]
    }
}

/// Closes a tunnel to all but the network's datagrams, which no rule before has dropped.
fn close_tunnel(table: &mut Table, tunnel: &Tunnel) {
    for chain in ["arriving", "leaving"] {
        table.rule(chain, &[verdict(ACCEPT)]);
    }
    for (chain, which) in [("in", DEVICE_IN), ("out", DEVICE_OUT), ("through", DEVICE_IN)] {
        table.rule(chain, &dropping(&is_device(which, Is::Equal, &tunnel.device)));
    }
}

fn dropping(steps: &[RuleExpr]) -> Vec<RuleExpr> {
    [steps, &[verdict(DROP)]].concat()
}

/// Whether there are a network's rules for datagrams of one family.
pub fn has_guard(name: &NetName, family: Family) -> bool {
    // A kernel without nftables has no rules of ours.
    nft::comment(&Guard::table_of(name), family).is_ok_and(|comment| comment.is_some())
}

/// Removes a network's rules for datagrams of one family, if there are any.
pub fn remove_guard(name: &NetName, family: Family) -> io::Result<()> {
    if has_guard(name, family) { nft::remove(&Guard::table_of(name), family) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_whom_a_node_gave_an_address() {
        let block = |text: &str| text.parse::<Subnet>().unwrap();
        let range = |first: [u8; 4], last: [u8; 4]| (u32::from_be_bytes(first), u32::from_be_bytes(last));
        let blocks = [block("10.0.2.0/24"), block("10.0.1.0/24"), block("10.9.0.0/30")];
        let all = [range([10, 0, 1, 0], [10, 0, 2, 255]), range([10, 9, 0, 0], [10, 9, 0, 3])];
        assert_eq!(but_for(&blocks, &[]), all, "those side by side are one");
        let [a, b] = [range([10, 9, 0, 0], [10, 9, 0, 0]), range([10, 9, 0, 2], [10, 9, 0, 3])];
        assert_eq!(but_for(&blocks, &[[10, 9, 0, 1].into()]), [all[0], a, b], "not a host's");
        assert_eq!(but_for(&[block("10.0.0.1/32")], &[[10, 0, 0, 1].into()]), []);
        assert_eq!(merged(vec![(5, u32::MAX), (0, 9)]), [(0, u32::MAX)]);
    }

    #[test]
    fn rules_are_made_anew_when_the_description_changes() {
        let text = "kind = \"vxlan\"\nparent = \"e\"\nid = 1\nsubnet = \"10.0.0.0/16\"\n[nodes]\n";
        let network = |range: &str| {
            let n1 = format!("{text}n1 = {{ range = \"{range}\", address = \"192.0.2.1\" }}\n");
            Network::parse(&format!("{n1}n2 = {{ range = \"10.0.2.0/24\", address = \"192.0.2.2\" }}"))
                .unwrap()
        };
        let name: NetName = "a-b_c".parse().unwrap();
        let (one, same, other) = (network("10.0.1.0/24"), network("10.0.1.0/24"), network("10.0.3.0/24"));
        let guard = |network, node, travels| Guard {
            name: &name,
            network,
            node,
            id: 1,
            port: 4789,
            travels,
            tunnel: None,
        };
        let first = guard(&one, "n1", false);
        assert_eq!(Guard::table_of(&name), "skiff.a.b_c");
        assert_eq!(first.comment(), guard(&same, "n1", false).comment());
        assert_ne!(first.comment(), guard(&one, "n1", true).comment());
        assert_ne!(first.comment(), guard(&other, "n1", false).comment());
        assert_eq!(first.speakers(), [([192, 0, 2, 2], [10, 0, 2, 0], [10, 0, 2, 255])], "not for our own");
        assert_eq!(guard(&one, "n2", true).speakers(), [([192, 0, 2, 1], [10, 0, 0, 0], [10, 0, 255, 255])]);
    }
}
