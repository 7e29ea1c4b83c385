//! The names of snapshots, layers and packs: BLAKE3 digests, written as 64 lower-case hex digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Text that is not 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest (64 lower-case hex digits): {0:?}")]
pub struct BadDigest(pub String);

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub [u8; 32]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = BadDigest;
            fn from_str(text: &str) -> Result<Self, BadDigest> {
                parse(text).map($name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadDigest;
            fn try_from(text: String) -> Result<Self, BadDigest> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(digest: $name) -> String {
                digest.to_string()
            }
        }
    };
}

digest! {
    /// A snapshot: the digest of its manifest's bytes.
    SnapshotId
}
digest! {
    /// A layer: the digest of its records, which hold the digest of each file's content.
    LayerId
}

digest! {
    /// A pack: the digest of its file's bytes.
    PackId
}

fn parse(text: &str) -> Result<[u8; 32], BadDigest> {
    let bad = || BadDigest(text.chars().take(80).collect());
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(bad());
    }
    let value = |digit: u8| if digit <= b'9' { digit - b'0' } else { digit - b'a' + 10 };
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0]) << 4 | value(pair[1]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_spelling_of_a_digest_is_taken() {
        let good = "00ff".repeat(16);
        assert_eq!(good.parse::<LayerId>().map(|id| id.to_string()), Ok(good.clone()));
        for bad in ["", "../..", &good[1..], &good.to_uppercase(), &format!("{good}0"), &"é".repeat(32)] {
            assert_eq!(bad.parse::<LayerId>(), Err(BadDigest(bad.into())));
        }
    }
}
