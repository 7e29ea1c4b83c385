//! A layer whose thread panics ends the others, whatever they wait for, with an error that names it.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use common::layers::build::{RawEntry as Tar, archive};
use common::layers::{blob, from_blobs, piped};
use skiff_image::assemble::ImageLimits;
use skiff_image::blob::{Blob, FileBlob};
use skiff_image::{Error, Result};
use skiff_oci::digest::Digest;

/// So long the others have to come to where they wait.
const HEAD_START: Duration = Duration::from_millis(100);

/// What becomes of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Comes,
    /// The layer's thread has the right to run, and panics.
    PanicsRunning,
    /// The layer's thread lets others run meanwhile, and panics.
    PanicsWaiting,
    PanicsWhenRead,
    /// The layer's bytes never come, unless it is abandoned.
    NeverComes,
}

struct Fated {
    file: FileBlob,
    fate: Fate,
    abandoned: Mutex<bool>,
    changed: Condvar,
}

impl Fated {
    fn new(fate: Fate, bytes: &[u8]) -> Fated {
        let file = blob(bytes, &format!("{fate:?}"));
        Fated { file, fate, abandoned: Mutex::default(), changed: Condvar::new() }
    }
}

impl Blob for Fated {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn size(&self) -> u64 {
        self.file.size()
    }
    fn digest(&self) -> Option<Digest> {
        None
    }
    fn has(&self, _end: u64) -> bool {
        !matches!(self.fate, Fate::PanicsWaiting | Fate::NeverComes)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        // Else it is the look at its beginning or its end, before there are threads.
        if buffer.len() > 100 {
            match self.fate {
                Fate::PanicsRunning | Fate::PanicsWaiting => {
                    std::thread::sleep(HEAD_START);
                    panic!("on purpose");
                }
                Fate::NeverComes => {
                    let abandoned = self.abandoned.lock().unwrap();
                    drop(self.changed.wait_while(abandoned, |abandoned| !*abandoned).unwrap());
                    return Err(Error::Blob("it is not fetched any more".into()));
                }
                Fate::Comes | Fate::PanicsWhenRead => {}
            }
        }
        self.file.read_at(buffer, offset)
    }
    fn settle(&self, _got: Option<Digest>) -> Result<()> {
        if self.fate == Fate::PanicsWhenRead {
            std::thread::sleep(HEAD_START);
            panic!("on purpose");
        }
        Ok(())
    }
    fn restart(&self) {}
    fn abandon(&self) {
        *self.abandoned.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

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
