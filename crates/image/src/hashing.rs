//! Digests that are computed in a thread of their own, for whoever has no time for them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_sys::IgnoreError;

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
                give_back
                    .try_send(piece)
                    .ignore_error("a buffer that is not given back is only not used again");
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
            Some(_) => self.used.try_recv().default_on_error("without a used piece a new one is made"),
            None => return self.here.update(bytes),
        };
        piece.clear();
        piece.extend_from_slice(bytes);
        self.pieces.send(piece).ignore_error("it ends with this only: `finish` tells if it has panicked");
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

#[cfg(test)]
mod tests {
    use super::*;
    use skiff_oci::hash::sha256;

    #[test]
    fn what_is_hashed_aside_has_the_same_digest() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let mut hashing = Hashing::like(&sha256(b""));
        bytes.chunks(777).for_each(|piece| hashing.update(piece));
        assert_eq!(hashing.finish(), sha256(&bytes));
    }
}
