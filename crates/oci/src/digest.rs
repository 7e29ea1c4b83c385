//! Digests by which registries name what they hold: `sha256:` and 64 hex digits, rarely `sha512:` and 128.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The digest of a manifest, a configuration or a layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Digest {
    /// What everybody uses.
    Sha256([u8; 32]),
    /// Allowed by the OCI image specification.
    Sha512([u8; 64]),
}

/// Why a text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("digest {text:?} {reason}")]
pub struct DigestError {
    text: String,
    reason: &'static str,
}

impl DigestError {
    fn new(text: &str, reason: &'static str) -> Self {
        Self { text: text.chars().take(160).collect(), reason }
    }

    /// What is wrong with it, as the end of a sentence that begins with the text.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

impl Digest {
    /// Bytes of the digest.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Digest::Sha256(bytes) => bytes,
            Digest::Sha512(bytes) => bytes,
        }
    }

    /// "sha256" or "sha512".
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self {
            Digest::Sha256(_) => "sha256",
            Digest::Sha512(_) => "sha512",
        }
    }

    /// Bytes of the digest as lower-case hex digits, without the algorithm: fit for a file name.
    #[must_use]
    pub fn hex(&self) -> String {
        use fmt::Write;
        let bytes = self.as_bytes();
        let mut hex = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            // Writing to a string cannot fail.
            let (Ok(()) | Err(_)) = write!(hex, "{byte:02x}");
        }
        hex
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm(), self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let refuse = |reason| DigestError::new(text, reason);
        let (algorithm, hex) =
            text.split_once(':').ok_or_else(|| refuse("has no algorithm: sha256:... is expected"))?;
        match algorithm {
            "sha256" => {
                decode(hex).map(Digest::Sha256).ok_or_else(|| refuse("must have 64 lower-case hex digits"))
            }
            "sha512" => {
                decode(hex).map(Digest::Sha512).ok_or_else(|| refuse("must have 128 lower-case hex digits"))
            }
            _ => Err(refuse("is of an unknown algorithm: sha256 and sha512 are known")),
        }
    }
}

/// Exactly as many bytes as asked for, in one spelling only.
fn decode<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let digits = hex.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

impl TryFrom<String> for Digest {
    type Error = DigestError;
    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_spelling_of_a_digest_is_taken() {
        let (short, long) = ("0f".repeat(32), "a0".repeat(64));
        for good in [format!("sha256:{short}"), format!("sha512:{long}")] {
            assert_eq!(good.parse::<Digest>().map(|digest| digest.to_string()), Ok(good));
        }
        let upper = short.to_uppercase();
        let (none, unknown) = ("has no algorithm", "is of an unknown algorithm");
        for (bad, reason) in [
            ("", none),
            (&short, none),
            ("sha256:", "must have 64"),
            (&format!("sha256:{upper}"), "must have 64"),
            (&format!("sha256:{short}0"), "must have 64"),
            (&format!("sha256:{}", "é".repeat(32)), "must have 64"),
            (&format!("sha256:../../{}", &short[6..]), "must have 64"),
            (&format!("sha512:{short}"), "must have 128"),
            (&format!("md5:{short}"), unknown),
            (&format!("SHA256:{short}"), unknown),
        ] {
            let refused = bad.parse::<Digest>().expect_err(bad);
            assert!(refused.reason().starts_with(reason), "{refused}");
        }
    }
}
