//! The digests that registries use, by the crypto library that TLS needs anyway; it uses the processor's SHA instructions.

use crate::digest::Digest;
use ring::digest::{Context, SHA256, SHA512};

/// Computes a digest piece by piece.
#[derive(Clone)]
pub struct Hasher(Context);

impl Hasher {
    /// One that will give a digest of the same kind as `digest`.
    pub fn like(digest: &Digest) -> Hasher {
        Hasher(Context::new(match digest {
            Digest::Sha256(_) => &SHA256,
            Digest::Sha512(_) => &SHA512,
        }))
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all that was taken.
    pub fn finish(self) -> Digest {
        let value = self.0.finish();
        match value.as_ref().try_into() {
            Ok(bytes) => Digest::Sha256(bytes),
            Err(_) => {
                let mut bytes = [0; 64];
                bytes.copy_from_slice(value.as_ref());
                Digest::Sha512(bytes)
            }
        }
    }
}

/// The digest of `bytes`, of the same kind as `digest`.
pub fn digest_like(digest: &Digest, bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::like(digest);
    hasher.update(bytes);
    hasher.finish()
}

/// The SHA-256 digest of `bytes`.
pub fn sha256(bytes: &[u8]) -> Digest {
    Digest::Sha256(sha256_bytes(bytes))
}

/// The bare SHA-256 of `bytes`.
pub fn sha256_bytes(bytes: &[u8]) -> [u8; 32] {
    let mut value = [0; 32];
    value.copy_from_slice(ring::digest::digest(&SHA256, bytes).as_ref());
    value
}

/// The SHA-256 digest of `bytes` as 64 lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    sha256(bytes).to_string().split_off("sha256:".len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendices B.1 and C.1.
    #[test]
    fn the_standards_examples() {
        let short = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").to_string(), short);
        let long = "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                    2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        assert_eq!(digest_like(&Digest::Sha512([0; 64]), b"abc").to_string(), long);
    }
}
