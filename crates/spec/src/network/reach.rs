//! Who besides a network's members may begin a connection to them.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{NetName, Subnet};

/// One of those: the word `host`, the name of a network, or a block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Reach {
    /// Whoever is on the network's hosts.
    Host,
    /// The members of another network.
    Network(NetName),
    /// The same, when it is known what that gives away: but for its host's own address.
    #[serde(skip)]
    Members {
        /// Ranges of addresses.
        blocks: Vec<Subnet>,
        /// Gateway, which is left out of them.
        but_for: Option<Ipv4Addr>,
    },
    /// Who has these addresses.
    Block(Subnet),
}

impl FromStr for Reach {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "host" => Ok(Self::Host),
            block if block.contains('/') => block.parse().map(Self::Block),
            name => name.parse().map(Self::Network).map_err(|_| {
                format!("`reach`: {word:?} is neither `host`, nor a network, nor a block of addresses")
            }),
        }
    }
}

impl TryFrom<String> for Reach {
    type Error = String;
    fn try_from(word: String) -> Result<Self, String> {
        word.parse()
    }
}

impl From<Reach> for String {
    fn from(reach: Reach) -> Self {
        reach.to_string()
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Network(name) => name.fmt(f),
            Self::Block(block) => block.fmt(f),
            Self::Members { blocks, .. } => {
                let blocks: Vec<_> = blocks.iter().map(Subnet::to_string).collect();
                f.write_str(&blocks.join(" "))
            }
        }
    }
}
