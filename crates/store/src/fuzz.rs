//! The parsers of what processes of the store are asked and say, for fuzzing: each takes any bytes, tells whether they were taken, and
//! panics where what must hold of what was taken does not.

use rustix::fs::MemfdFlags;
use skiff_oci::digest::Digest;
use skiff_registry::Growing;

use crate::fetcher::{FetcherAnswer, FetcherQuestion};
use crate::file::{name_for, parse};
use crate::protocol::{Ask, Say};

/// What the user's `skiff` asks the store's writer, or what that answers, one message behind the other.
pub fn writer(bytes: &[u8]) -> bool {
    let mut unread = bytes;
    while let Ok(Some(ask)) = skiff_ipc::receive::<Ask>(&mut unread) {
        if let Ask::Pull { reference, .. } = ask
            && let (Ok(image), Ok(name)) = (parse(&reference), name_for(&reference))
        {
            assert_eq!(name_for(&name).ok(), Some(name), "{image}: its full name has another one");
        }
    }
    let is_asked = unread.is_empty();
    let mut unread = bytes;
    while let Ok(Some(_)) = skiff_ipc::receive::<Say>(&mut unread) {}
    is_asked || unread.is_empty()
}

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
