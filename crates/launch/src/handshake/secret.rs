//! A secret that two sides know. As text it goes through launchers, and lies in the files of a cluster.

use std::fmt;
use std::str::FromStr;

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::HandshakeError;

/// 32 random bytes. They are not shown by `Debug`, which errors and panics print.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SharedSecret([u8; 32]);

impl SharedSecret {
    /// A new one.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn generate() -> Result<Self, HandshakeError> {
        let mut bytes = [0; 32];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map(|()| Self(bytes)).map_err(|_| HandshakeError::NoRandomBytes)
    }

    /// Text of 64 hex digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for SharedSecret {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl FromStr for SharedSecret {
    type Err = HandshakeError;

    fn from_str(text: &str) -> Result<Self, HandshakeError> {
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let pairs: Option<Vec<u8>> = text
            .as_bytes()
            .chunks(2)
            .map(|pair| Some(value(pair[0])? << 4 | value(*pair.get(1)?)?))
            .collect();
        let bytes = pairs.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(HandshakeError::NotASecret)
    }
}

impl TryFrom<String> for SharedSecret {
    type Error = HandshakeError;

    fn try_from(text: String) -> Result<Self, HandshakeError> {
        text.parse()
    }
}

impl From<SharedSecret> for String {
    fn from(secret: SharedSecret) -> Self {
        secret.to_hex()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_one_spelling_and_is_not_shown() {
        let secret = SharedSecret::generate().expect("random bytes");
        let text = secret.to_hex();
        assert_eq!(text.parse(), Ok(secret.clone()));
        assert_ne!(SharedSecret::generate().expect("random bytes"), secret);
        assert!(!format!("{secret:?}").contains(&text[..4]));
        for bad in ["", &text[1..], &text[2..], &format!("{text}00"), &"A0".repeat(32), &"é".repeat(32)] {
            assert_eq!(bad.parse::<SharedSecret>(), Err(HandshakeError::NotASecret), "{bad}");
        }
    }
}
