//! The parser of what the store's two processes say to each other, for fuzzing: it takes any bytes, tells whether they were taken, and
//! panics where what must hold of what was taken does not.

use rustix::fs::MemfdFlags;
use skiff_oci::digest::Digest;
use skiff_registry::Growing;

use crate::fetcher::{FetcherAnswer, FetcherQuestion};

/// What the two processes of the store say to each other, and what events do to a layer that the other one fetches.
pub fn fetcher(bytes: &[u8]) -> bool {
    const SIZE: u64 = 40 << 20;
    let layer = Growing::remote(Digest::Sha256([0; 32]), SIZE);
    let open = || Ok(rustix::fs::memfd_create("layer", MemfdFlags::CLOEXEC).expect("a file in memory"));
    let (mut taken, mut rest) = (0, bytes);
    while let Ok(Some(answer)) = skiff_ipc::receive::<FetcherAnswer>(&mut rest) {
        taken += 1;
        if let FetcherAnswer::Event { event, .. } = answer {
            let before = layer.progress();
            let is_taken = matches!(layer.apply(event, open), Ok(true));
            let after = layer.progress();
            assert!(
                after.0 <= SIZE && (is_taken || after == before),
                "what is refused has changed something"
            );
        }
    }
    taken > 0 || matches!(skiff_ipc::receive::<FetcherQuestion>(&mut &bytes[..]), Ok(Some(_)))
}
