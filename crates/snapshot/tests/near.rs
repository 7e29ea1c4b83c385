//! A layer of which a node has most in another one.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skiff_snapshot::{Depot, LayerRef, LayerStream, NearLayer};

use crate::common::{World, noise};
use crate::pieces;

const LARGE: usize = 3 << 20;

/// A layer's stream, in memory.
struct Memory(Vec<u8>);

impl LayerStream for Memory {
    fn read_at(&mut self, into: &mut [u8], at: u64) -> bool {
        let found = self.0.get(at as usize..).and_then(|rest| rest.get(..into.len()));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }
}

struct Moved {
    world: World,
    old: LayerRef,
    new: LayerRef,
}

impl Moved {
    /// A snapshot with a large file, and another one after that was moved.
    fn new() -> Self {
        let world = World::new();
        std::fs::write(world.upper().join("noise"), noise(1, LARGE)).unwrap();
        let layers = |world: &World| {
            let id = world.push().id;
            Depot::open_existing(&world.path("depot")).unwrap().manifest(&id).unwrap().layers
        };
        let old = layers(&world)[0];
        std::fs::rename(world.upper().join("noise"), world.upper().join("moved")).unwrap();
        let new = *layers(&world).last().unwrap();
        assert_ne!(old, new);
        Self { world, old, new }
    }

    fn depot(&self) -> Depot {
        Depot::open_existing(&self.world.path("depot")).unwrap()
    }

    fn stream(&self, layer: &LayerRef) -> Vec<u8> {
        let mut stream = vec![];
        self.depot().open_layer(layer).unwrap().send(&mut stream).unwrap();
        stream
    }

    fn keep_list(&self) {
        let list = self.depot().open_layer(&self.old).unwrap().list().unwrap();
        self.world.cache.keep_list(&self.old.digest, &list).unwrap();
    }

    /// The old layer, as these bytes.
    fn near(&self, bytes: Vec<u8>, taken: &Arc<AtomicU64>) -> Vec<NearLayer> {
        let depot = self.depot();
        let opened = depot.open_layer(&self.new).unwrap();
        let mut found = self.world.cache.layers_like(&opened, |id| *id == self.old.digest).unwrap();
        let shared = found.pop().unwrap();
        assert!(found.is_empty() && shared.layer() == self.old.digest);
        assert!(shared.bytes() > (LARGE * 9 / 10) as u64 && shared.length() == self.old.size);
        vec![shared.read_by(Box::new(Memory(bytes)), Arc::clone(taken))]
    }

    /// Sends the new layer; what came, and how much of it from the old one.
    fn send(&self, depot: &Depot, old: Vec<u8>) -> skiff_snapshot::Result<(Vec<u8>, u64)> {
        let (taken, mut stream) = (Arc::default(), vec![]);
        let near = self.near(old, &taken);
        let mut opened = depot.open_layer(&self.new)?;
        opened.take_from(near);
        opened.send(&mut stream)?;
        Ok((stream, taken.load(Ordering::Relaxed)))
    }

    fn remove_largest_pack(&self) {
        let packs = std::fs::read_dir(self.world.path("depot/packs")).unwrap();
        let largest = packs.map(|pack| pack.unwrap()).max_by_key(|pack| pack.metadata().unwrap().len());
        std::fs::remove_file(largest.unwrap().path()).unwrap();
    }
}

#[test]
fn what_another_layer_here_has_is_not_read_of_the_depot() {
    let moved = Moved::new();
    let [old, new] = [moved.stream(&moved.old), moved.stream(&moved.new)];
    moved.keep_list();
    moved.remove_largest_pack();
    let (stream, taken) = moved.send(&moved.depot(), old).unwrap();
    assert!(stream == new);
    assert!(taken > (LARGE * 9 / 10) as u64, "{taken}");
    assert!(moved.send(&moved.depot(), vec![]).is_err(), "the rest is gone");
}

#[test]
fn a_damaged_layer_here_is_noticed_whoever_reads_the_depot() {
    let moved = Moved::new();
    let [old, new] = [moved.stream(&moved.old), moved.stream(&moved.new)];
    moved.keep_list();
    let mut damaged = old.clone();
    damaged[LARGE / 2] ^= 1;
    // The reader insists on being asked for what it was told of, and nothing else.
    let read_by_other = pieces::depot(&moved.world, |_, bytes| Some(bytes));
    for depot in [&moved.depot(), &read_by_other] {
        for (bytes, least, most) in [
            // With what stands behind the data: its digest is the same.
            (old.clone(), LARGE * 9 / 10, old.len()),
            (damaged.clone(), LARGE * 8 / 10, old.len() - 8192),
            (old[..LARGE / 2].to_vec(), LARGE / 3, LARGE / 2),
            (vec![], 0, 0),
        ] {
            let (stream, taken) = moved.send(depot, bytes).unwrap();
            assert!(stream == new);
            assert!((least as u64..=most as u64).contains(&taken), "{taken}");
        }
    }
    let all = read_by_other.piece_counts().relayed;
    assert!(all < LARGE as u64, "{all} bytes were asked for of what was here");
}

#[test]
fn lists_of_layers_that_are_gone_or_damaged_are_removed() {
    let moved = Moved::new();
    let depot = moved.depot();
    let lists = moved.world.path("cache/lists");
    for damage in [false, true] {
        moved.keep_list();
        assert_eq!(std::fs::read_dir(&lists).unwrap().count(), 1);
        if damage {
            std::fs::write(lists.join(moved.old.digest.to_string()), "damaged").unwrap();
        }
        let opened = depot.open_layer(&moved.new).unwrap();
        assert!(moved.world.cache.layers_like(&opened, |_| damage).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(&lists).unwrap().count(), 0);
    }
}
