//! A secret from the head to one agent over a connection that others may read: the two messages of a Noise handshake with fresh keys, of
//! which the second carries it. What proves that the two sides belong together goes into the handshake: whoever stands between and puts
//! keys of their own in the place of theirs cannot open it without that.

use serde::{Deserialize, Serialize};
use skiff_spec::fault::Fault;
use snow::HandshakeState;

use crate::handshake::{SharedSecret, noise};

/// So that nothing said in a handshake is taken for this.
const PURPOSE: &[u8] = b"skiff sealed box\n";

/// No secret is longer, in bytes.
pub const LONGEST: usize = 4096;

/// Bytes of a public key and a tag.
const FRAME: usize = 32 + noise::TAG;

/// What an agent opens one secret by.
pub struct Opener {
    state: HandshakeState,
    request: Vec<u8>,
}

/// A secret that one agent can open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedBox(Vec<u8>);

/// Why a secret cannot be sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealedBoxError {
    /// No keys can be made.
    #[error("a secret of the cluster: the kernel gives no random bytes")]
    NoRandomBytes,
    /// The secret does not fit.
    #[error("a secret of the cluster: it is longer than {LONGEST} bytes")]
    TooLong,
    /// Nobody who knows the proof has made the request.
    #[error("a secret of the cluster: somebody else has asked for it")]
    NotAsked,
    /// The secret was sealed for another request, or by somebody who does not know the proof.
    #[error("a secret of the cluster: it has been sealed by somebody else")]
    NotSealedForThis,
}

impl From<SealedBoxError> for Fault {
    fn from(e: SealedBoxError) -> Self {
        Self::new(e.to_string())
    }
}

/// The result of sealing and opening.
type Result<T> = std::result::Result<T, SealedBoxError>;

/// What is not of the other side's making can fail only so.
fn no_random_bytes(_: snow::Error) -> SealedBoxError {
    SealedBoxError::NoRandomBytes
}

impl Opener {
    /// A new one, given what proves that both belong together; nothing where that is certain.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn generate(proof: Option<&SharedSecret>) -> Result<Self> {
        let mut state = noise::initiator(PURPOSE, proof).map_err(no_random_bytes)?;
        let mut request = [0; FRAME];
        let length = state.write_message(&[], &mut request).map_err(no_random_bytes)?;
        Ok(Self { state, request: request[..length].to_vec() })
    }

    /// What the head needs.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        self.request.clone()
    }

    /// Opens what was sealed for it.
    ///
    /// # Errors
    /// The secret was sealed for another request, or not by the head.
    pub fn open(mut self, sealed: &SealedBox) -> Result<Vec<u8>> {
        self.read(sealed)
    }

    fn read(&mut self, sealed: &SealedBox) -> Result<Vec<u8>> {
        let mut plain = vec![0; sealed.0.len()];
        let opened = self.state.read_message(&sealed.0, &mut plain);
        let length = opened.map_err(|_| SealedBoxError::NotSealedForThis)?;
        plain.truncate(length);
        Ok(plain)
    }
}

/// Seals a secret for the agent with this request.
///
/// # Errors
/// When that is none, or not of an agent with this proof; the secret is too long.
pub fn seal(secret: &[u8], request: &[u8], proof: Option<&SharedSecret>) -> Result<SealedBox> {
    if secret.len() > LONGEST {
        return Err(SealedBoxError::TooLong);
    }
    let mut state = noise::responder(PURPOSE, proof).map_err(no_random_bytes)?;
    // A request carries nothing but its key.
    state.read_message(request, &mut []).map_err(|_| SealedBoxError::NotAsked)?;
    let mut sealed = vec![0; FRAME + secret.len()];
    let length = state.write_message(secret, &mut sealed).map_err(no_random_bytes)?;
    sealed.truncate(length);
    Ok(SealedBox(sealed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::tests::spoilt;

    fn opener(proof: Option<&SharedSecret>) -> Opener {
        Opener::generate(proof).expect("random bytes")
    }

    const BY_ANOTHER: Result<Vec<u8>> = Err(SealedBoxError::NotSealedForThis);

    #[test]
    fn only_whom_it_is_for_opens_it() {
        let proof = SharedSecret::generate().expect("random bytes");
        for proof in [Some(&proof), None] {
            let good = opener(proof);
            let sealed = seal(b"key", &good.request(), proof).expect("sealed");
            assert!(!sealed.0.windows(3).any(|part| part == b"key"));
            assert_eq!(opener(proof).open(&sealed), BY_ANOTHER);
            assert_eq!(good.open(&sealed), Ok(b"key".to_vec()));
            // Sealed for a request that this agent has not made.
            let recorded = opener(proof).request();
            assert_eq!(opener(proof).open(&seal(b"key", &recorded, proof).expect("sealed")), BY_ANOTHER);
        }
    }

    /// Whoever stands between may put keys of their own in the place of both sides'.
    #[test]
    fn who_does_not_know_the_proof_can_neither_ask_nor_seal() {
        let (proof, other) =
            (SharedSecret::generate().expect("random"), SharedSecret::generate().expect("random"));
        for strangers in [Some(&other), None] {
            let refused = seal(b"key", &opener(strangers).request(), Some(&proof));
            assert_eq!(refused, Err(SealedBoxError::NotAsked));
            let forged = seal(b"key", &opener(strangers).request(), strangers).expect("the stranger's own");
            assert_eq!(opener(Some(&proof)).open(&forged), BY_ANOTHER);
        }
    }

    #[test]
    fn what_is_cut_longer_or_changed_is_refused() {
        let proof = SharedSecret::generate().expect("random bytes");
        for bad in spoilt(&opener(Some(&proof)).request()) {
            let refused = seal(b"key", &bad, Some(&proof));
            assert_eq!(refused, Err(SealedBoxError::NotAsked), "{} bytes", bad.len());
        }
        let mut good = opener(Some(&proof));
        let sealed = seal(b"key", &good.request(), Some(&proof)).expect("sealed");
        for bad in spoilt(&sealed.0) {
            assert_eq!(good.read(&SealedBox(bad.clone())), BY_ANOTHER, "{} bytes", bad.len());
        }
        assert_eq!(good.open(&sealed), Ok(b"key".to_vec()));
        let long = seal(&[0; LONGEST + 1], &opener(None).request(), None);
        assert_eq!(long, Err(SealedBoxError::TooLong));
        let fits = opener(None);
        let sealed = seal(&[7; LONGEST], &fits.request(), None).expect("sealed");
        assert_eq!(fits.open(&sealed), Ok(vec![7; LONGEST]));
    }
}
