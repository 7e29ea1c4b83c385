//! Who is in a cluster: names and addresses, which are the same as long as it lives, so that lists of them need never be written anew.

use std::fmt::Write;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// How many workers there can be.
pub const MOST: u16 = 256;
/// How long the part of an address is that all have in common.
pub const PREFIX: u8 = 16;
/// The controller's name.
pub const CONTROLLER: &str = "ctl";

/// One of its nodes, the controller among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Member {
    /// Where one enters, and the controller runs.
    Controller,
    /// The worker of this number, from 1 on.
    Worker(u16),
}

impl Member {
    /// Address of a member. Nothing but the cluster's own nodes can be reached there, so any will do.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::Controller => Ipv4Addr::new(10, 77, 0, 1),
            Self::Worker(n) => {
                let [high, low] = n.to_be_bytes();
                Ipv4Addr::new(10, 77, high + 1, low)
            }
        }
    }

    /// All workers that there can be.
    pub fn workers() -> impl Iterator<Item = Self> {
        (1..=MOST).map(Self::Worker)
    }
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Controller => f.write_str(CONTROLLER),
            Self::Worker(n) => write!(f, "n{n}"),
        }
    }
}

impl From<Member> for String {
    fn from(member: Member) -> Self {
        member.to_string()
    }
}

impl std::str::FromStr for Member {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let number = name.strip_prefix('n').and_then(|n| n.parse().ok()).filter(|n| (1..=MOST).contains(n));
        match number {
            Some(n) if name == format!("n{n}") => Ok(Self::Worker(n)),
            _ if name == CONTROLLER => Ok(Self::Controller),
            _ => Err(format!("node {name:?}: nodes are called {CONTROLLER} and n1 to n{MOST}")),
        }
    }
}

impl TryFrom<String> for Member {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

/// The text of `/etc/hosts`.
#[must_use]
pub fn hosts() -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    for member in std::iter::once(Member::Controller).chain(Member::workers()) {
        // Writing to a string does not fail.
        let (Ok(()) | Err(_)) = writeln!(text, "{} {member}", member.address());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn everybody_has_a_name_and_an_address_of_his_own() {
        let all: Vec<Member> = std::iter::once(Member::Controller).chain(Member::workers()).collect();
        let addresses: BTreeSet<Ipv4Addr> = all.iter().map(|member| member.address()).collect();
        assert_eq!(addresses.len(), usize::from(MOST) + 1);
        assert!(addresses.iter().all(|a| a.octets()[..2] == [10, 77]));
        for member in all {
            assert_eq!(member.to_string().parse(), Ok(member));
        }
        for bad in ["", "n", "n0", "n01", "n257", "n-1", "ctl2", "login"] {
            let says = format!("node {bad:?}: nodes are called ctl and n1 to n256");
            assert_eq!(bad.parse::<Member>(), Err(says));
        }
    }
}
