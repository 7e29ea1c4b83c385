//! Networks of the site's: what `/etc/skiff/networks.d/NAME.toml` may say, and which addresses a node may give away.

mod lease;
mod reach;
mod subnet;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use lease::{Lease, Reservation, ReservationRequest};
pub use reach::Reach;
pub use subnet::Subnet;

/// Where networks are described.
pub const DIR: &str = "/etc/skiff/networks.d";

/// The name of a network: 1 to 12 of `a-z 0-9 _ -`, beginning with a letter, as devices are called after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetName(String);

impl NetName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NetName {
    type Err = NotANetwork;
    fn from_str(name: &str) -> Result<Self, NotANetwork> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
        let is_name = (1..=12).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.bytes().all(plain);
        if is_name && !["host", "none", "private"].contains(&name) {
            return Ok(Self(name.into()));
        }
        Err(NotANetwork(name.into()))
    }
}

impl TryFrom<String> for NetName {
    type Error = NotANetwork;
    fn try_from(name: String) -> Result<Self, NotANetwork> {
        name.parse()
    }
}

impl From<NetName> for String {
    fn from(name: NetName) -> Self {
        name.0
    }
}

impl fmt::Display for NetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a name was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("network {0:?}: a name has 1 to 12 of a-z, 0-9, '_' and '-', and begins with a letter")]
pub struct NotANetwork(String);

/// The network an environment is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Net {
    /// The host's own.
    #[default]
    Host,
    /// None but the loopback device.
    None,
    /// One of its own that reaches out by way of the user's own connections.
    Private,
    /// One of the site's.
    Named(NetName),
}

impl Net {
    /// Whether there is nothing to make.
    #[must_use]
    pub fn is_host(&self) -> bool {
        *self == Self::Host
    }

    /// The network of the site's that it is.
    #[must_use]
    pub fn of_site(&self) -> Option<&NetName> {
        match self {
            Self::Named(name) => Some(name),
            Self::Host | Self::None | Self::Private => None,
        }
    }

    /// Whether the network namespace belongs to the environment's own user namespace. One on a network of the site's belongs to the
    /// host, unless it is of those whose connections are to be saved, which takes power over it.
    #[must_use]
    pub fn is_own(&self, dumpable: bool) -> bool {
        match self {
            Self::Host => false,
            Self::None | Self::Private => true,
            Self::Named(_) => dumpable,
        }
    }
}

impl FromStr for Net {
    type Err = NotANetwork;
    fn from_str(word: &str) -> Result<Self, NotANetwork> {
        Ok(match word {
            "host" => Self::Host,
            "none" => Self::None,
            "private" => Self::Private,
            name => Self::Named(name.parse()?),
        })
    }
}

impl TryFrom<String> for Net {
    type Error = NotANetwork;
    fn try_from(word: String) -> Result<Self, NotANetwork> {
        word.parse()
    }
}

impl From<Net> for String {
    fn from(net: Net) -> Self {
        net.to_string()
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::None => "none",
            Self::Private => "private",
            Self::Named(name) => name.as_str(),
        })
    }
}

/// How the members of a network are joined to each other and to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkDriver {
    /// Each has a device of its own on the parent's wire.
    MacVlan,
    /// A bridge of this node's, perhaps with a parent on it.
    Bridge,
    /// A bridge on each node, joined through the parent by VXLAN.
    VxLan,
    /// Each has a route on the host, without any bridge.
    Routed,
}

impl fmt::Display for NetworkDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MacVlan => "macvlan",
            Self::Bridge => "bridge",
            Self::VxLan => "vxlan",
            Self::Routed => "routed",
        })
    }
}

/// A user or a group, by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum UserOrGroup {
    /// Numeric id.
    Id(u32),
    /// Name, as in `/etc/passwd` or `/etc/group`.
    Name(String),
}

/// What is one node's own of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The addresses it gives away.
    pub range: Subnet,
    /// Where other nodes reach it.
    pub address: Option<Ipv4Addr>,
}

/// A network as the administrator describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// How it is made.
    pub kind: NetworkDriver,
    /// The host's device that leads out.
    pub parent: Option<String>,
    /// All addresses of the network.
    pub subnet: Subnet,
    /// Where what is not in the subnet goes; for `bridge` the host takes this address.
    pub gateway: Option<Ipv4Addr>,
    /// The largest packet, in bytes; the parent's if not given.
    pub mtu: Option<u32>,
    /// The addresses this node gives away, if there are no `nodes`; the whole subnet if not given.
    pub range: Option<Subnet>,
    /// The nodes, each with its own range, by host name.
    #[serde(default)]
    pub nodes: BTreeMap<String, Node>,
    /// The number that tells a VXLAN from others.
    pub id: Option<u32>,
    /// The UDP port of a VXLAN; if that is encrypted, of what its datagrams go through.
    pub port: Option<u16>,
    /// Whether what a VXLAN sends from node to node is encrypted, and taken from the network's nodes only.
    #[serde(default)]
    pub encrypt: bool,
    /// Who may use it, besides those of `groups`; everybody, if neither is given.
    pub users: Option<Vec<UserOrGroup>>,
    /// Whose members may use it.
    pub groups: Option<Vec<UserOrGroup>>,
    /// How many addresses one user may have on one node, with those that are kept for them; a quarter of what the node gives away, if not given.
    pub most_each: Option<u32>,
    /// How many stay kept for one user on one node when another needs an address; half of `most_each`, if not given.
    pub most_kept_each: Option<u32>,
    /// Who besides its members may begin a connection to them.
    #[serde(default)]
    pub reach: Vec<Reach>,
    /// Whether members may begin connections to others from ports below 1024, which some services take for root's (NFS).
    #[serde(default)]
    pub low_ports: bool,
    /// How many hours an address is kept for a saved instance that had it.
    #[serde(default = "a_week")]
    pub kept_hours: u64,
}

/// In hours.
const A_YEAR: u64 = 366 * 24;

fn a_week() -> u64 {
    7 * 24
}

impl Network {
    /// Reads a description.
    ///
    /// # Errors
    /// What in it makes no sense.
    pub fn parse(text: &str) -> Result<Self, String> {
        let network: Self = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        network.check()?;
        Ok(network)
    }

    fn check(&self) -> Result<(), String> {
        if matches!(self.kind, NetworkDriver::MacVlan | NetworkDriver::VxLan) && self.parent.is_none() {
            return Err(format!("a network of kind {} needs `parent`", self.kind));
        }
        if self.kind == NetworkDriver::VxLan && self.id.is_none_or(|id| id == 0 || id >= 1 << 24) {
            return Err("a network of kind vxlan needs an `id` from 1 to 16777215".into());
        }
        if self.kind != NetworkDriver::VxLan && (self.id.is_some() || self.port.is_some() || self.encrypt) {
            return Err("`id`, `port` and `encrypt` are for networks of kind vxlan".into());
        }
        if self.encrypt && self.port.is_some_and(|port| !(1..1024).contains(&port)) {
            return Err("`port` of an encrypted network is from 1 to 1023, which no user can take".into());
        }
        // What Linux takes for a device's name.
        if self.parent.as_ref().is_some_and(|p| p.is_empty() || p.len() > 15 || p.contains(['/', ' ', ':'])) {
            return Err("`parent` is not the name of a device".into());
        }
        if self.gateway.is_some_and(|gateway| !self.subnet.contains(gateway)) {
            return Err(format!("`gateway` is not in {}", self.subnet));
        }
        if self.mtu.is_some_and(|mtu| !(576..=65535).contains(&mtu)) {
            return Err("`mtu` is from 576 to 65535".into());
        }
        if self.kept_hours > A_YEAR {
            return Err(format!("`kept_hours` is at most {A_YEAR}"));
        }
        if self.kind == NetworkDriver::VxLan
            && (self.nodes.is_empty() || self.nodes.values().any(|n| n.address.is_none()))
        {
            return Err("a network of kind vxlan needs `nodes`, each with its `address`".into());
        }
        self.check_ranges()
    }

    fn check_ranges(&self) -> Result<(), String> {
        if self.range.is_some() && !self.nodes.is_empty() {
            return Err("either `range` or `nodes`".into());
        }
        let ranges: Vec<Subnet> =
            self.range.into_iter().chain(self.nodes.values().map(|n| n.range)).collect();
        if let Some(range) = ranges.iter().find(|range| !self.subnet.holds(**range)) {
            return Err(format!("range {range} is not in {}", self.subnet));
        }
        let mut sorted = ranges;
        sorted.sort();
        match sorted.windows(2).find(|pair| pair[0].contains(pair[1].first())) {
            Some(pair) => Err(format!("ranges {} and {} overlap", pair[0], pair[1])),
            None => Ok(()),
        }
    }

    /// Puts in the place of other networks' names in `reach` what these have, as `read` says: all but what is a host's.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn resolve_reach<E>(&mut self, read: impl Fn(&NetName) -> Result<Option<Self>, E>) -> Result<(), E> {
        for reach in &mut self.reach {
            if let Reach::Network(name) = reach
                && let Some(other) = read(name)?
            {
                *reach = Reach::Members { blocks: other.ranges(), but_for: other.gateway };
            }
        }
        Ok(())
    }

    /// The addresses that the node of this name may give away, in order.
    ///
    /// # Errors
    /// That it has none.
    pub fn addresses(&self, node: &str) -> Result<impl Iterator<Item = Ipv4Addr> + use<'_>, String> {
        let range = self.range_of(node).ok_or_else(|| format!("node {node}: no range of it in `nodes`"))?;
        Ok(range.addresses().filter(|a| self.has_member(*a)))
    }

    /// How many addresses the node of this name may give away.
    #[must_use]
    pub fn capacity(&self, node: &str) -> u64 {
        let Some(range) = self.range_of(node) else { return 0 };
        let mut never = self.never_members();
        never.sort();
        never.dedup();
        let never = never.iter().filter(|address| range.contains(**address)).count();
        range.size() - u64::try_from(never).unwrap_or(u64::MAX)
    }

    /// How many addresses one user may have on the node of this name, with those that are kept for them.
    #[must_use]
    pub fn most_each(&self, node: &str) -> u32 {
        let quarter = u32::try_from(self.capacity(node) / 4).unwrap_or(u32::MAX);
        self.most_each.unwrap_or(quarter.max(1))
    }

    /// How many stay kept for one user there when another needs an address.
    #[must_use]
    pub fn most_kept_each(&self, node: &str) -> u32 {
        self.most_kept_each.unwrap_or_else(|| (self.most_each(node) / 2).max(1))
    }

    /// Whether an address of it is the same one on every node: not where its members are joined on one node only, nor where
    /// other nodes look for it by the node's range.
    #[must_use]
    pub fn spans_nodes(&self) -> bool {
        match self.kind {
            NetworkDriver::MacVlan | NetworkDriver::VxLan => true,
            NetworkDriver::Bridge => self.parent.is_some(),
            NetworkDriver::Routed => false,
        }
    }

    /// Whether an address may be a member's, on whatever node.
    #[must_use]
    pub fn has_member(&self, address: Ipv4Addr) -> bool {
        self.subnet.contains(address) && !self.never_members().contains(&address)
    }

    /// The addresses that are no member's, though they may be in a node's range: the network's own, that for all, and the gateway's.
    #[must_use]
    pub fn never_members(&self) -> Vec<Ipv4Addr> {
        [self.subnet.first(), self.subnet.last()].into_iter().chain(self.gateway).collect()
    }

    /// Whether an address is one that the node of this name gives away.
    #[must_use]
    pub fn gives_away(&self, node: &str, address: Ipv4Addr) -> bool {
        self.range_of(node).is_some_and(|range| range.contains(address)) && self.has_member(address)
    }

    /// What all nodes together give away: who has another address of the subnet is no member.
    #[must_use]
    pub fn ranges(&self) -> Vec<Subnet> {
        match self.nodes.is_empty() {
            true => vec![self.range.unwrap_or(self.subnet)],
            false => self.nodes.values().map(|node| node.range).collect(),
        }
    }

    fn range_of(&self, node: &str) -> Option<Subnet> {
        match self.nodes.get(node) {
            Some(node) => Some(node.range),
            None => self.nodes.is_empty().then(|| self.range.unwrap_or(self.subnet)),
        }
    }

    /// Whether a user may use it: `id` says which uid or gid a name stands for.
    pub fn allows(
        &self,
        uid: u32,
        gids: &[u32],
        user_id: impl Fn(&str) -> Option<u32>,
        group_id: impl Fn(&str) -> Option<u32>,
    ) -> bool {
        let is = |who: &UserOrGroup, id: &dyn Fn(&str) -> Option<u32>, one: u32| match who {
            UserOrGroup::Id(number) => *number == one,
            UserOrGroup::Name(name) => id(name) == Some(one),
        };
        let (users, groups) = (self.users.iter().flatten(), self.groups.iter().flatten());
        (self.users.is_none() && self.groups.is_none())
            || users.into_iter().any(|who| is(who, &user_id, uid))
            || groups.into_iter().any(|who| gids.iter().any(|gid| is(who, &group_id, *gid)))
    }
}

/// The hardware address that goes with an address: nobody else's, as no two members have one address.
#[must_use]
pub fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    // Locally administered, unicast.
    [0x0a, 0x53, a, b, c, d]
}

#[cfg(test)]
mod tests;
