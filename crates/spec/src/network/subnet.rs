//! Blocks of IPv4 addresses.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Addresses that share their first bits, written `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    first: u32,
    prefix: u8,
}

impl Subnet {
    /// Subnet of one address.
    #[must_use]
    pub fn single(address: Ipv4Addr) -> Self {
        Self { first: address.into(), prefix: 32 }
    }

    /// Lowest address of the subnet.
    #[must_use]
    pub fn first(self) -> Ipv4Addr {
        self.first.into()
    }

    /// Highest address of the subnet: the one for all its members (broadcast).
    #[must_use]
    pub fn last(self) -> Ipv4Addr {
        (self.first | !self.mask()).into()
    }

    /// How many bits its addresses share.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// How many addresses it has.
    #[must_use]
    pub fn size(self) -> u64 {
        1 << (32 - self.prefix)
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == self.first
    }

    /// Whether all of another is in it.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        other.prefix >= self.prefix && self.contains(other.first())
    }

    /// All of them, in order.
    pub fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        (self.first..=u32::from(self.last())).map(Ipv4Addr::from)
    }

    fn mask(self) -> u32 {
        u32::MAX << (32 - self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("{text:?}: {why}; a block of addresses is written 10.1.0.0/16");
        let (address, prefix) = text.split_once('/').ok_or_else(|| bad("no length"))?;
        let address: Ipv4Addr = address.parse().map_err(|_| bad("no IPv4 address"))?;
        let prefix: u8 = prefix
            .parse()
            .ok()
            .filter(|n| (8..=32).contains(n))
            .ok_or_else(|| bad("its length is 8 to 32"))?;
        let subnet = Self { first: address.into(), prefix };
        if subnet.first & !subnet.mask() != 0 {
            return Err(bad("its first address has bits beyond the length"));
        }
        Ok(subnet)
    }
}

impl TryFrom<String> for Subnet {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.prefix)
    }
}
