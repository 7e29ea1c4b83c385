//! The same file for the same layers, whatever comes when and however it is compressed; and no file from what is wrong.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::common::fated::{Fate, Fated};
use crate::common::layers::build::{RawEntry as Tar, archive};
use crate::common::layers::{Assembled, blob, from_blobs, from_bytes, piped, with_progress};
use crate::common::seen::assert_same;
use proptest::prelude::*;
use skiff_image::assemble::{AssemblyProgress, ImageLimits};
use skiff_image::blob::{Blob, FileBlob};
use skiff_image::{Error, Result};
use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256;

/// Bytes that shrink a little, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 60) as u8
    };
    (0..len).map(step).collect()
}

/// Layers that add, replace and remove files of many sizes.
fn layers() -> Vec<Vec<u8>> {
    let layer = |number: u64| {
        let file = |n: u64| {
            let size = [0, 1, 4095, 4096, 4097, 30_000, 100_000, 400_000][(n % 8) as usize];
            // Half of them in each layer, so that layers replace each other's.
            let name = if n.is_multiple_of(2) { format!("shared/{n}") } else { format!("own{number}/{n}") };
            Tar::file(name, noise(number * 1000 + n, size)).mtime(number)
        };
        let mut entries: Vec<Tar> = (0..16).map(file).collect();
        if number > 0 {
            entries.push(Tar::file(format!("own{}/.wh.5", number - 1), ""));
        }
        archive(&entries)
    };
    (0..5).map(layer).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    piped("gzip", &["-1"], bytes)
}

/// Each file of the archive, or part of one, its own member, as lazily loaded images have it: no trailer tells the size.
fn many_members(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(60_000).flat_map(gzip).collect()
}

/// Compresses a layer.
type Form = fn(&[u8]) -> Vec<u8>;

/// What every form of the layers must give.
fn plain() -> Assembled {
    from_bytes(&layers()).unwrap()
}

#[test]
fn any_compression_gives_the_same_files() {
    let expected = plain().seen();
    let forms: [(&str, Form); 6] = [
        ("gzip", gzip),
        ("gzip of many members", many_members),
        ("gzip padded with zeros", |bytes| [gzip(bytes), vec![0; 700]].concat()),
        ("zstd", |bytes| piped("zstd", &["-q", "--no-check"], bytes)),
        ("zstd without a size", zstd_stream),
        ("zstd of many frames", |bytes| bytes.chunks(60_000).flat_map(zstd_stream).collect()),
    ];
    for (name, form) in forms {
        let image = from_bytes(&layers().iter().map(|layer| form(layer)).collect::<Vec<_>>());
        let image = image.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(&image.seen(), &expected);
    }
}

/// As a program that does not know the size beforehand writes it, after a frame that is to be skipped.
fn zstd_stream(bytes: &[u8]) -> Vec<u8> {
    let skip = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    [&skip[..], &piped("zstd", &["-q"], bytes)].concat()
}

fn refs<B: Blob>(blobs: &[B]) -> Vec<&dyn Blob> {
    blobs.iter().map(|blob| blob as &dyn Blob).collect()
}

#[test]
fn timing_does_not_show_in_the_file() {
    for (name, form) in [("gzip", gzip as Form), ("members", many_members)] {
        let bytes: Vec<Vec<u8>> = layers().iter().map(|layer| form(layer)).collect();
        let expected = from_bytes(&bytes).unwrap().bytes();
        for round in 0..4 {
            let pause = |layer: u64| Duration::from_millis((layer * 7 + round * 3) % 11);
            let slow = |(layer, bytes): (usize, &Vec<u8>)| Fated::new(Fate::Slow(pause(layer as u64)), bytes);
            let blobs: Vec<Fated> = bytes.iter().enumerate().map(slow).collect();
            let image = from_blobs(&refs(&blobs), ImageLimits::default(), 1 + round as usize % 3).unwrap();
            assert!(image.bytes() == expected, "{name}, round {round}");
        }
    }
}

/// The first bytes read are wrong ones, and this is noticed at the end only.
struct Wrong {
    right: FileBlob,
    wrong: FileBlob,
    round: AtomicU32,
}

impl Wrong {
    fn now(&self) -> &FileBlob {
        if self.round.load(Ordering::SeqCst) == 0 { &self.wrong } else { &self.right }
    }
}

impl Blob for Wrong {
    fn name(&self) -> &str {
        "wrong at first"
    }
    fn size(&self) -> u64 {
        self.right.size()
    }
    fn digest(&self) -> Option<Digest> {
        None
    }
    fn has(&self, _end: u64) -> bool {
        true
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.now().read_at(buffer, offset)
    }
    fn settle(&self, _got: Option<Digest>) -> Result<()> {
        match self.round.load(Ordering::SeqCst) {
            0 => Err(Error::Restarted { layer: self.name().into() }),
            _ => Ok(()),
        }
    }
    fn restart(&self) {
        self.round.fetch_add(1, Ordering::SeqCst);
    }
    fn abandon(&self) {}
}

#[test]
fn nothing_is_left_of_bytes_that_were_wrong() {
    let bytes: Vec<Vec<u8>> = layers().iter().map(|layer| many_members(layer)).collect();
    let expected = from_bytes(&bytes).unwrap().bytes();
    let damage: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[0] ^= 0xff,
        |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 100].fill(7);
        },
        // Where the trailer says how long the layer's region must be.
        |bytes| {
            let end = bytes.len() - 4;
            bytes[end..].copy_from_slice(&3_000_000u32.to_le_bytes());
        },
        |bytes| *bytes = noise(9, bytes.len()),
    ];
    for (number, damage) in damage.into_iter().enumerate() {
        let wrong = |bytes: &Vec<u8>| {
            let mut damaged = bytes.clone();
            damage(&mut damaged);
            Wrong { right: blob(bytes, "right"), wrong: blob(&damaged, "wrong"), round: AtomicU32::new(0) }
        };
        let blobs: Vec<Wrong> = bytes.iter().map(wrong).collect();
        let image = from_blobs(&refs(&blobs), ImageLimits::default(), 2).unwrap();
        assert!(image.bytes() == expected, "damage {number}");
    }
}

#[test]
fn room_that_a_layer_does_not_need_is_free_again() {
    use std::os::unix::fs::MetadataExt;
    // Their headers take as much room in the layer as the one file does, and none in the image.
    let small = |n: u64| Tar::file(format!("small/{n}"), "x");
    let layer = |number: u64| {
        let mut entries = vec![Tar::file(format!("large{number}"), noise(number, 3_000_000))];
        entries.extend((0..3000).map(small));
        gzip(&archive(&entries))
    };
    let image = from_bytes(&[layer(0), layer(1)]).unwrap();
    let file = std::fs::metadata(&image.path).unwrap();
    let stored = file.blocks() * 512;
    assert!(stored > 6_000_000 && stored + 2_500_000 < file.len(), "{stored} of {} bytes", file.len());
}

#[test]
fn digests_are_checked() {
    let bytes = gzip(&layers()[0]);
    let make = |digest| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let blob = FileBlob::new(file, "layer", Some(digest)).unwrap();
        from_blobs(&[&blob], ImageLimits::default(), 1).map(drop)
    };
    make(sha256(&bytes)).unwrap();
    let error = make(sha256(b"other")).unwrap_err();
    assert!(matches!(error, Error::WrongDigest { .. }), "{error}");
}

#[track_caller]
fn refused(bytes: &[u8], because: &str) {
    let why = from_bytes(&[bytes.to_vec()]).err().expect("must be refused").to_string();
    assert!(why.contains(because), "{why:?} does not say {because:?}");
}

#[test]
fn damaged_streams_are_refused() {
    let layer = archive(&[Tar::file("a", noise(1, 200_000))]);
    let zstd = piped("zstd", &["-q"], &layer);
    for compressed in [gzip(&layer), zstd] {
        for cut in [compressed.len() / 2, compressed.len() - 1] {
            refused(&compressed[..cut], "cut off");
        }
    }
    let mut flipped = gzip(&layer);
    let middle = flipped.len() / 2;
    flipped[middle..middle + 8].fill(0x55);
    refused(&flipped, "layer 0 is damaged or hostile");
    refused(&[gzip(&layer), b"garbage".to_vec()].concat(), "behind the end of its gzip stream");
    refused(b"<html><title>404</title></html>", "within a header");
    refused(&layer[..100_000], "before its file does");
}

#[test]
fn bombs_are_refused() {
    let limits = |bytes, entries| ImageLimits { bytes, entries, texts: 100_000 };
    let too_large = |layer: &[u8], limits| {
        let error = from_blobs(&[&blob(layer, "bomb")], limits, 1).err().expect("must be refused");
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        assert!(error.hint().is_some());
        error.to_string()
    };
    let zeros = archive(&[Tar::file("a", vec![0; 12_000_000])]);
    for bomb in [gzip(&zeros), piped("zstd", &["-q"], &zeros), zeros] {
        assert!(too_large(&bomb, limits(10_000_000, 100)).contains("more than 10000000 bytes"));
    }
    let gib = |bytes| ImageLimits::of(bytes).bytes >> 30;
    assert_eq!([gib(0), gib(1 << 20), gib(1 << 30), gib(10 << 30)], [16, 16, 200, 1024]);
    let many = archive(&(0..101).map(|n| Tar::file(n.to_string(), "")).collect::<Vec<_>>());
    assert!(too_large(&many, limits(1 << 30, 100)).contains("entries"));
    // What is kept in memory of each entry, and the directories that none mentions.
    let (long, value) = (["d"; 1000].join("/"), "x".repeat(60_000));
    for entries in [
        vec![
            Tar::file("a", "").pax("SCHILY.xattr.user.a", &*value),
            Tar::file("b", "").pax("SCHILY.xattr.user.b", &*value),
        ],
        (0..30)
            .map(|n| Tar::file(n.to_string(), "").pax("path", format!("{n}/{}", ["e"; 2000].join("/"))))
            .collect(),
        (0..30).map(|n| Tar::symlink(n.to_string(), "").pax("linkpath", "t".repeat(4000))).collect(),
    ] {
        assert!(too_large(&archive(&entries), limits(1 << 30, 100)).contains("names, links and attributes"));
    }
    let deep: Vec<_> = (0..3).map(|n| Tar::file("f", "").pax("path", format!("{n}/{long}/f"))).collect();
    let error = from_blobs(&[&blob(&archive(&deep), "deep")], limits(1 << 30, 2000), 1).err().unwrap();
    assert!(error.to_string().contains("more than 2000 files"), "{error}");
    assert!(from_blobs(&[&blob(&archive(&deep[..1]), "deep")], limits(1 << 30, 2000), 1).is_ok());
    // A byte in each block of a file that is mostly holes.
    let map: Vec<String> = (0..5000).map(|n| format!("{},1", n * 8192)).collect();
    let sparse =
        Tar::file("a", [b'x'; 5000]).pax("GNU.sparse.size", "100000000").pax("GNU.sparse.map", map.join(","));
    assert!(too_large(&archive(&[sparse]), limits(10_000_000, 100)).contains("bytes of files"));
    refused(
        &archive(&[Tar::file("a", "x").pax("size", "99999999999999999")]),
        "more than 1099511627776 bytes",
    );
}

/// A blob that never comes.
#[derive(Default)]
struct Never {
    abandoned: Mutex<bool>,
    changed: Condvar,
}

impl Blob for Never {
    fn name(&self) -> &str {
        "never"
    }
    fn size(&self) -> u64 {
        1 << 20
    }
    fn digest(&self) -> Option<Digest> {
        None
    }
    fn has(&self, _end: u64) -> bool {
        false
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        if buffer.len() < 100 && offset == 0 {
            // The look at its beginning.
            buffer.fill(0);
            return Ok(());
        }
        let abandoned = self.abandoned.lock().unwrap();
        drop(self.changed.wait_while(abandoned, |abandoned| !*abandoned).unwrap());
        Err(Error::Cancelled)
    }
    fn settle(&self, _got: Option<Digest>) -> Result<()> {
        Ok(())
    }
    fn restart(&self) {}
    fn abandon(&self) {
        *self.abandoned.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

#[test]
fn one_failure_ends_all_and_is_the_one_that_is_told() {
    let broken = blob(&gzip(b"no tar at all")[..], "broken");
    let (first, last) = (Never::default(), Never::default());
    let error = from_blobs(&[&first, &broken, &last], ImageLimits::default(), 1).err().unwrap();
    assert!(error.to_string().contains("layer broken"), "{error}");
}

#[test]
fn it_can_be_cancelled() {
    let bytes: Vec<Vec<u8>> = layers();
    let slow = |bytes: &Vec<u8>| Fated::new(Fate::Slow(Duration::from_millis(20)), bytes);
    let blobs: Vec<Fated> = bytes.iter().map(slow).collect();
    let progress = AssemblyProgress::new(blobs.len());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            progress.cancel();
        });
        let error = with_progress(&refs(&blobs), ImageLimits::default(), 2, &progress)
            .err()
            .expect("must be cancelled");
        assert!(matches!(error, Error::Cancelled), "{error}");
    });
}

#[test]
fn progress_counts_what_is_read_and_what_comes_of_it() {
    let layer = &layers()[0];
    let compressed = gzip(layer);
    let progress = AssemblyProgress::new(2);
    let blobs = [blob(&compressed, "gzip"), blob(layer, "plain")];
    with_progress(&refs(&blobs), ImageLimits::default(), 2, &progress).unwrap();
    let size = layer.len() as u64;
    assert_eq!(progress.layers().collect::<Vec<_>>(), [(compressed.len() as u64, size), (size, size)]);
}

/// Replaced files' blocks take no room in the file, nor do regions that were larger than needed.
#[test]
fn what_no_file_has_is_not_stored() {
    use std::os::unix::fs::MetadataExt;
    let big = |layer| archive(&[Tar::file("big", noise(layer, 4 << 20))]);
    let image = from_bytes(&[big(1), big(2), big(3)]).unwrap();
    let stored = std::fs::metadata(&image.path).unwrap().blocks() * 512;
    assert!(stored < 5 << 20, "{stored} bytes stored");
    image.seen();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever bytes come: an error, or an image that our own verifier accepts.
    #[test]
    fn hostile_layers_never_make_a_bad_image(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut layers: Vec<Vec<u8>> = vec![
            archive(&[Tar::directory("d"), Tar::file("d/f", noise(1, 9000)), Tar::symlink("l", "d"), Tar::hard_link("h", "d/f")]),
            archive(&[Tar::file("l/.wh.f", ""), Tar::file("l/g", "x").pax("SCHILY.xattr.user.a", "b"), Tar::new(b'3', "c")]),
        ];
        for (at, value) in flips {
            let layer = at.index(2);
            let at = at.index(layers[layer].len().min(6000));
            layers[layer][at] = value;
        }
        if let Ok(image) = from_bytes(&layers) {
            image.seen();
        }
    }
}
