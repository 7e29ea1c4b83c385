//! What tells another node that an address was a user's: a message authentication code by a key that root has on all nodes, and
//! nobody else.

use skiff_spec::network::{NetName, Reservation};
use zeroize::{Zeroize, Zeroizing};

/// Where the site's key is.
pub const KEY: &str = "/etc/skiff/network.key";

/// What is put before the key, so that whatever else the site uses it for gives other codes.
const PURPOSE: &str = "skiff 2026-11 address of a saved instance";
/// A shorter secret could be guessed.
const LEAST_BYTES: usize = 32;

/// The site's key.
pub struct SiteKey(Zeroizing<[u8; 32]>);

impl SiteKey {
    /// From the content of its file, of which all but white space at its end counts.
    ///
    /// # Errors
    /// That it is too short.
    pub fn new(content: &[u8]) -> Result<Self, String> {
        derive_key(PURPOSE, content).map(Self)
    }

    /// The same reservation, with its proof.
    #[must_use]
    pub fn prove(&self, reservation: &Reservation, uid: u32, network: &NetName) -> Reservation {
        let proof = blake3::keyed_hash(&self.0, &reservation.proved(uid, network));
        Reservation { proof: Some(*proof.as_bytes()), ..reservation.clone() }
    }

    /// Whether a reservation is this user's.
    #[must_use]
    pub fn proves(&self, reservation: &Reservation, uid: u32, network: &NetName) -> bool {
        // blake3's hashes are compared in constant time.
        let wanted = blake3::keyed_hash(&self.0, &reservation.proved(uid, network));
        reservation.proof.is_some_and(|proof| wanted == blake3::Hash::from_bytes(proof))
    }
}

/// A key for one purpose, from the content of a file with a secret of the site's, of which all but white space at its end counts. Of the
/// secret nothing stays in the hash's state.
pub(crate) fn derive_key(purpose: &str, content: &[u8]) -> Result<Zeroizing<[u8; 32]>, String> {
    let secret = content.trim_ascii_end();
    if secret.len() < LEAST_BYTES {
        return Err(format!("key shorter than {LEAST_BYTES} bytes"));
    }
    let mut state = blake3::Hasher::new_derive_key(purpose);
    let mut key = Zeroizing::new([0; 32]);
    let mut output = state.update(secret).finalize_xof();
    output.fill(&mut *key);
    output.zeroize();
    state.zeroize();
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_one_users_of_one_address_until_one_moment() {
        let key = |text: &str| SiteKey::new(text.as_bytes()).unwrap();
        let (ours, other) = (key(&"a".repeat(32)), key(&"b".repeat(32)));
        let lab: NetName = "lab".parse().unwrap();
        let reservation = Reservation { address: [10, 0, 0, 1].into(), until: 100, in_use: 50, proof: None };
        assert!(!ours.proves(&reservation, 7, &lab), "without a proof");
        let proved = ours.prove(&reservation, 7, &lab);
        assert!(ours.proves(&proved, 7, &lab));
        assert!(!other.proves(&proved, 7, &lab), "another key");
        assert!(!ours.proves(&proved, 8, &lab), "another user");
        assert!(!ours.proves(&proved, 7, &"la".parse().unwrap()), "another network");
        for forged in [
            Reservation { until: 101, ..proved.clone() },
            Reservation { in_use: 51, ..proved.clone() },
            Reservation { in_use: 0, ..proved.clone() },
            Reservation { address: [10, 0, 0, 2].into(), ..proved.clone() },
            Reservation { proof: Some([0; 32]), ..proved },
        ] {
            assert!(!ours.proves(&forged, 7, &lab), "{forged:?}");
        }
    }

    #[test]
    fn what_can_be_guessed_is_no_key() {
        for short in ["", &format!("{}\n\n\n", "a".repeat(31))] {
            let refused = SiteKey::new(short.as_bytes()).err();
            assert_eq!(refused.as_deref(), Some("key shorter than 32 bytes"), "{short:?}");
        }
    }
}
