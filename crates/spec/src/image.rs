//! How images are named where they are kept and used: by the digest of their manifest.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The trusted store: images that only its owner, a system user, can write. Its place can be changed in `helper.conf`.
pub const STORE: &str = "/var/lib/skiff/store";

/// An image: the SHA-256 of its manifest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageId(pub [u8; 32]);

/// Text that is no such digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no image id (64 lower-case hex digits): {0:?}")]
pub struct BadImageId(pub String);

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageId({self})")
    }
}

impl FromStr for ImageId {
    type Err = BadImageId;

    fn from_str(text: &str) -> Result<Self, BadImageId> {
        let bad = || BadImageId(text.chars().take(80).collect());
        let hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 64 || !text.bytes().all(hex) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for ImageId {
    type Error = BadImageId;

    fn try_from(text: String) -> Result<Self, BadImageId> {
        text.parse()
    }
}

impl From<ImageId> for String {
    fn from(id: ImageId) -> Self {
        id.to_string()
    }
}

/// Where things are in a store, below its directory.
pub mod store {
    use super::ImageId;

    /// An image's file.
    #[must_use]
    pub fn image(id: ImageId) -> String {
        format!("images/{id}.erofs")
    }

    /// The same, which is a squashfs as well, for kernels without EROFS.
    #[must_use]
    pub fn squashfs(id: ImageId) -> String {
        format!("images/{id}.sqsh")
    }

    /// The digest that fs-verity holds one of these files to: 32 bytes.
    #[must_use]
    pub fn verity(name: &str) -> String {
        format!("{name}.verity")
    }

    /// What says that a user may use an image: they have shown that they can pull it.
    #[must_use]
    pub fn permit(uid: u32, id: ImageId) -> String {
        format!("users/{uid}/{id}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_spelling_of_an_id_is_taken() {
        let good = "0f".repeat(32);
        assert_eq!(good.parse::<ImageId>().map(|id| id.to_string()), Ok(good.clone()));
        for bad in ["", "../..", &good[1..], &good.to_uppercase(), &format!("{good}0"), &"\u{e9}".repeat(32)]
        {
            assert_eq!(bad.parse::<ImageId>(), Err(BadImageId(bad.into())));
        }
    }
}
