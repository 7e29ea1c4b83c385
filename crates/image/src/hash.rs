//! The digests that registries use, by the crypto library that TLS needs anyway; it uses the processor's SHA instructions.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ring::digest::{Context, SHA256, SHA512};
use skiff_spec::digest::Digest;

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

/// Computes a digest beside whoever has the bytes, who goes on meanwhile: what unpacks a layer is busy enough.
pub(crate) struct Hashing {
    pieces: SyncSender<Vec<u8>>,
    /// Buffers that have been taken in, to be used again.
    used: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<Digest>>,
    here: Hasher,
}

impl Hashing {
    /// So many pieces may wait.
    const AHEAD: usize = 4;

    /// One that will give a digest of the same kind as `digest`.
    pub(crate) fn like(digest: &Digest) -> Hashing {
        let (pieces, to_hash) = sync_channel::<Vec<u8>>(Self::AHEAD);
        let (give_back, used) = sync_channel(Self::AHEAD + 2);
        let mut hasher = Hasher::like(digest);
        let here = hasher.clone();
        let hash = move || {
            for piece in to_hash {
                hasher.update(&piece);
                // Nobody may want it any more.
                give_back.try_send(piece).ok();
            }
            hasher.finish()
        };
        // Without a thread it is done here.
        let thread = std::thread::Builder::new().name("hash".into()).stack_size(64 << 10).spawn(hash).ok();
        Hashing { pieces, used, thread, here }
    }

    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let mut piece = match &self.thread {
            Some(_) => self.used.try_recv().unwrap_or_default(),
            None => return self.here.update(bytes),
        };
        piece.clear();
        piece.extend_from_slice(bytes);
        // It ends with this only: `finish` tells if it has panicked.
        self.pieces.send(piece).ok();
    }

    /// The digest of all that was taken.
    pub(crate) fn finish(self) -> Digest {
        drop(self.pieces);
        match self.thread.map(JoinHandle::join) {
            Some(Ok(digest)) => digest,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => self.here.finish(),
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
    digest_like(&Digest::Sha256([0; 32]), bytes)
}

/// The SHA-256 digest of `bytes` as 64 lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    sha256(bytes).to_string().split_off("sha256:".len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hashed_aside_has_the_same_digest() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let mut hashing = Hashing::like(&sha256(b""));
        bytes.chunks(777).for_each(|piece| hashing.update(piece));
        assert_eq!(hashing.finish(), sha256(&bytes));
    }

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
