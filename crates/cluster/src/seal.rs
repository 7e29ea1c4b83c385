//! A secret from the head to one agent over a connection that others may read: X25519 (RFC 7748) between a fresh key on each side,
//! HKDF (RFC 5869) over what both then know, AES-256-GCM. What proves that the two sides belong together goes into the derivation:
//! whoever stands between and has put keys of his own in the place of theirs cannot open it without that.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, PublicKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::SystemRandom;
use serde::{Deserialize, Serialize};
use skiff_sandbox::{Error, Result};

/// What an agent opens one secret by.
pub struct Opener {
    private: EphemeralPrivateKey,
    public: PublicKey,
}

/// A secret that one agent can open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The head's half.
    public: Vec<u8>,
    bytes: Vec<u8>,
}

/// Each key seals once.
const ONLY_NONCE: [u8; 12] = [0; 12];

fn failed(what: &str) -> Error {
    Error::new(format!("a secret of the cluster: {what}"))
}

impl Opener {
    /// A new one.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn generate() -> Result<Self> {
        let none = |_| failed("the kernel gives no random bytes");
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(none)?;
        let public = private.compute_public_key().map_err(none)?;
        Ok(Self { private, public })
    }

    /// Public half of the key, for the head.
    #[must_use]
    pub fn public(&self) -> Vec<u8> {
        self.public.as_ref().to_vec()
    }

    /// Opens what was sealed for it, given what proves that both belong together.
    ///
    /// # Errors
    /// That it was not, or not by the head.
    pub fn open(self, sealed: Sealed, proof: &str) -> Result<Vec<u8>> {
        let key = derive(self.private, self.public.as_ref(), &sealed.public, &sealed.public, proof)?;
        let mut bytes = sealed.bytes;
        let nonce = Nonce::assume_unique_for_key(ONLY_NONCE);
        let opened = key.open_in_place(nonce, Aad::empty(), &mut bytes);
        opened.map(|bytes| bytes.to_vec()).map_err(|_| failed("it has been sealed by somebody else"))
    }
}

/// Seals a secret for the agent with this public half.
///
/// # Errors
/// When that is none.
pub fn seal(secret: &[u8], agents: &[u8], proof: &str) -> Result<Sealed> {
    let Opener { private, public } = Opener::generate()?;
    let key = derive(private, agents, public.as_ref(), agents, proof)?;
    let mut bytes = secret.to_vec();
    let nonce = Nonce::assume_unique_for_key(ONLY_NONCE);
    key.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).map_err(|_| failed("it is too long"))?;
    Ok(Sealed { public: public.as_ref().to_vec(), bytes })
}

/// The key that both sides come to, of the agent's public half, the head's, and the other side's of the two.
fn derive(
    own: EphemeralPrivateKey,
    agents: &[u8],
    heads: &[u8],
    others: &[u8],
    proof: &str,
) -> Result<LessSafeKey> {
    let other = UnparsedPublicKey::new(&X25519, others);
    let info = [b"skiff cluster".as_slice(), agents, heads];
    let key = agree_ephemeral(own, &other, |shared| {
        let prk = Salt::new(HKDF_SHA256, proof.as_bytes()).extract(shared);
        prk.expand(&info, &AES_256_GCM).map(UnboundKey::from)
    });
    let key = key.and_then(|key| key).map_err(|_| failed("the other side's key is none"))?;
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whom_it_is_for_opens_it_and_only_with_the_proof() {
        let opener = || Opener::generate().expect("random bytes");
        let good = opener();
        let sealed = seal(b"key", &good.public(), "proof").expect("a key");
        assert!(!sealed.bytes.windows(3).any(|part| part == b"key"));
        assert_eq!(good.open(sealed.clone(), "proof").ok().as_deref(), Some(&b"key"[..]));
        assert!(opener().open(sealed.clone(), "proof").is_err());
        let other = opener();
        let sealed = seal(b"key", &other.public(), "another").expect("a key");
        assert!(other.open(sealed, "proof").is_err());
        let changed = opener();
        let mut sealed = seal(b"key", &changed.public(), "proof").expect("a key");
        sealed.bytes[0] ^= 1;
        assert!(changed.open(sealed, "proof").is_err());
        assert!(seal(b"key", b"no key", "proof").is_err());
    }
}
