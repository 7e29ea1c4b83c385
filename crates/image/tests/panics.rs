//! A layer whose thread panics ends the others, whatever they wait for, with an error that names it.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::fated::{Fate, Fated};
use crate::common::layers::build::{RawEntry as Tar, archive};
use crate::common::layers::{from_blobs, piped};
use skiff_image::Error;
use skiff_image::assemble::ImageLimits;
use skiff_image::blob::Blob;

#[test]
fn a_panic_in_one_layer_ends_all() {
    let small = archive(&[Tar::file("small", [7; 5000])]);
    // It inflates to more than its end says, so it waits for all below to know how much room they take.
    let greedy = archive(&[Tar::file("greedy", vec![0; 4 << 20])]);
    let greedy: Vec<u8> = greedy.chunks(60_000).flat_map(|part| piped("gzip", &["-1"], part)).collect();
    for fate in [Fate::PanicsRunning, Fate::PanicsWaiting, Fate::PanicsWhenRead] {
        for threads in [1, 2, 4] {
            let layers = [(fate, &small), (Fate::Comes, &greedy), (Fate::NeverComes, &small)];
            let layers = layers.map(|(fate, bytes)| Fated::new(fate, bytes));
            let (ended, has_ended) = channel();
            std::thread::spawn(move || {
                let refs: Vec<&dyn Blob> = layers.iter().map(|layer| layer as &dyn Blob).collect();
                ended.send(from_blobs(&refs, ImageLimits::default(), threads).map(drop))
            });
            let outcome = has_ended.recv_timeout(Duration::from_secs(20));
            let error = outcome.unwrap_or_else(|_| panic!("{fate:?}, {threads} threads: hangs")).unwrap_err();
            assert!(matches!(error, Error::Panicked { .. }), "{fate:?}, {threads} threads: {error}");
            assert_eq!(
                error.to_string(),
                format!("cannot unpack layer {fate:?}: the program failed: on purpose")
            );
        }
    }
}
