//! Images that were damaged, or forged: none of them may do harm, and what is verified the kernel shows as we do.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common;
use crate::common::mounted::{Mounted, of_directory};
use crate::common::seen::{assert_same, of_image};
use crate::common::{Builder, bytes, is_root, plain};
use skiff_erofs::tree::{Attributes, FileKind, Tree};
use skiff_erofs::{Reader, fuzz, verify};

/// A small image with something of each kind, all of whose bytes count.
fn small() -> (Vec<u8>, common::Image) {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    let a = builder.directory(Tree::ROOT, "a");
    let b = builder.directory(a, "b");
    let many = builder.directory(b, "many");
    let named = builder.file(many, "0", plain(), b"has many names");
    for number in 1..40 {
        builder.name(many, format!("{number:0200}"), named);
    }
    let [one, both] =
        [&[(&b"user.one"[..], &b"1"[..])][..], &[(b"user.one", b"1"), (b"user.long", &[7; 600])]]
            .map(|xattrs| builder.xattrs(xattrs));
    for size in [0, 10, 4000, 4090, 9000, 8192] {
        builder.file(a, format!("plain-{size}"), plain(), &bytes(size, 3));
        builder.file(b, format!("xattr-{size}"), Attributes { xattrs: both, ..plain() }, &bytes(size, 4));
    }
    builder.file(a, "inline", Attributes { xattrs: one, ..plain() }, b"alone");
    builder.sparse(a, "sparse", 100 * 4096, &[(3, bytes(8192, 5)), (50, bytes(4096, 6))]);
    builder.add(a, "link", plain(), FileKind::Symlink(Box::from(&b"target"[..])));
    builder.add(a, "long-link", plain(), FileKind::Symlink(vec![b'l'; 4090].into()));
    builder.add(a, "device", plain(), FileKind::CharDevice(5, 1));
    builder.add(a, "fifo", plain(), FileKind::Fifo);
    let image = builder.finish(dir);
    (std::fs::read(&image.path).unwrap(), image)
}

/// The smallest generator that is good enough; always the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

fn metadata_start(image: &common::Image) -> usize {
    (image.summary.blocks - image.summary.metadata_blocks) as usize * 4096
}

#[test]
fn every_damage_to_metadata_is_found() {
    let (good, image) = small();
    assert!(fuzz::read(&good));
    let mut random = Random(1);
    let start = metadata_start(&image);
    for _ in 0..1500 {
        let mut damaged = good.clone();
        let at =
            if random.below(8) == 0 { random.below(4096) } else { start + random.below(good.len() - start) };
        damaged[at] ^= 1 << random.below(8);
        assert!(!fuzz::read(&damaged), "byte {at}");
    }
    for length in [0, 100, 4095, 4096, good.len() - 4096, good.len() - 1] {
        assert!(!fuzz::read(&good[..length]));
    }
    assert!(!fuzz::read(&[&good[..], &[0; 4096]].concat()));
}

/// Changes one thing that a forger might: a bit, a number, or one inode or entry in the place of another.
fn forge(image: &mut [u8], start: usize, random: &mut Random) {
    let length = image.len() - start;
    let at = start + random.below(length / 4 - 16) * 4;
    match random.below(6) {
        0 => image[at + random.below(4)] ^= 1 << random.below(8),
        1 => {
            let number = [0, 1, 2, 31, 255, 4095, 4096, 0x7FFF_FFFF, 0xFFFF_FFFF][random.below(9)];
            image[at..at + 4].copy_from_slice(&u32::to_le_bytes(number));
        }
        2 => {
            let number = u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
            let number = number.wrapping_add(random.below(9) as u32).wrapping_sub(4);
            image[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        3 => {
            let (from, to) =
                (start + random.below(length / 32 - 2) * 32, start + random.below(length / 32 - 2) * 32);
            image.copy_within(from..from + 64, to);
        }
        4 => {
            let from = start + random.below(length / 4 - 16) * 4;
            image.copy_within(from..from + 12, at);
        }
        // Where the superblock's numbers are.
        _ => image[1024 + 12 + random.below(92)] ^= 1 << random.below(8),
    }
}

#[test]
fn forged_images_do_no_harm() {
    let (good, image) = small();
    let start = metadata_start(&image);
    let mut random = Random(2);
    let mut accepted = 0;
    for _ in 0..6000 {
        let mut forged = good.clone();
        for _ in 0..1 + random.below(3) {
            forge(&mut forged, start, &mut random);
        }
        fuzz::reseal(&mut forged);
        accepted += usize::from(fuzz::read(&forged));
    }
    // Times, owners, modes, file contents and gaps can be changed to other sound ones.
    assert!((500..5500).contains(&accepted), "{accepted}");
}

#[test]
fn the_kernel_shows_what_was_verified() {
    if !is_root("the_kernel_shows_what_was_verified") {
        return;
    }
    let (good, image) = small();
    let start = metadata_start(&image);
    let mut random = Random(3);
    let mut mounted = 0;
    while mounted < 60 {
        let mut forged = good.clone();
        for _ in 0..1 + random.below(3) {
            forge(&mut forged, start, &mut random);
        }
        fuzz::reseal(&mut forged);
        if fuzz::read(&forged) {
            let path = image.path.with_file_name(format!("forged-{mounted}"));
            std::fs::write(&path, &forged).unwrap();
            let kernel = Mounted::new(&path).unwrap();
            assert_same(&of_directory(&kernel.path()), &of_image(&path));
            mounted += 1;
        }
    }
}

/// Forgeries with a purpose, and what they are refused for.
#[test]
fn what_is_wrong_is_said() {
    let (good, image) = small();
    let start = metadata_start(&image);
    let reader = Reader::open(&good[..], "good.erofs").unwrap();
    let inode = |path: &[u8]| {
        let file = reader.files().map(Result::unwrap).find(|file| file.path == path).unwrap();
        start + file.inode.number as usize * 32
    };
    // The nine entries of a/b, before their names.
    let b = good.windows(12).position(|window| window == b"...manyxattr").unwrap() - 9 * 12;
    let number = |entry: usize| good[b + entry * 12..b + entry * 12 + 8].to_vec();
    let shared = u32::from_le_bytes(good[1024 + 44..1024 + 48].try_into().unwrap()) as usize * 4096;
    let chunks = inode(b"a/sparse") + 64;
    let root = 1u64.to_le_bytes().to_vec();
    let cases: [(usize, &[u8], &str); 27] = [
        (1024 + 80, &[1], "superblock is not"),
        (1024 + 127, &[1], "superblock is not"),
        (1024 + 16, &[9], "as many files as its superblock says"),
        (1024 + 36, &[9], "length is not"),
        (1024 + 40, &[0xFF, 0xFF], "areas are out of order"),
        (1024 + 40, &[0], "areas are out of order"),
        (1024 + 14, &[0xFF, 0xFF], "lies outside the image"),
        (
            1024 + 14,
            &inode(b"a/fifo").wrapping_sub(start).wrapping_div(32).to_le_bytes()[..2],
            "is the root, and no",
        ),
        (b + 9 * 12 + 7, b"a", "not sorted"),
        (b + 9 * 12 + 3, b"/", "entries that are not"),
        (b + 9 * 12 + 3, b"\0", "entries that are not"),
        (b + 8, &[0], "entries that are not"),
        (b + 8, &[13], "entries that are not"),
        (b, &root, "wrong '.' or '..'"),
        (b + 12, &root, "wrong '.' or '..'"),
        (b + 2 * 12, &root, "wrong '.' or '..'"),
        (b + 2 * 12 + 10, &[1], "something that it is not"),
        (b + 4 * 12, &number(5), "more names than it says"),
        (b + 4 * 12, &[0xFF; 8], "lies outside the image"),
        (inode(b"a/b") + 44, &[4], "as many directories in it"),
        (inode(b"a/b/many/0") + 44, &[39], "more names than it says"),
        (inode(b"a/b/many/0") + 44, &[41], "fewer names than it says"),
        (inode(b"a/plain-8192") + 16, &(start as u32 / 4096 - 1).to_le_bytes(), "does not lie where it must"),
        (inode(b"a/plain-8192"), &[0b0111], "of a form that we do not write"),
        (inode(b"a/plain-8192") + 24, &[0xFF; 4], "has no owner"),
        (chunks, &(start as u32 / 4096).to_le_bytes(), "does not lie among the data"),
        (shared + 1, &[9], "not among the shared ones"),
    ];
    for (at, bytes, why) in cases {
        let mut forged = good.clone();
        forged[at..at + bytes.len()].copy_from_slice(bytes);
        fuzz::reseal(&mut forged);
        let message = match Reader::open(&forged[..], "forged.erofs") {
            Ok(reader) => verify(&reader).map(|_| ()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let message = message.expect_err(why);
        assert!(
            message.starts_with("image file forged.erofs is damaged: ") && message.contains(why),
            "{why}: {message}"
        );
        assert!(!fuzz::read(&forged));
    }
}

/// The fuzz target's seed is this image: if it becomes another one, then so does every image in the stores of users.
#[test]
fn the_format_is_what_it_was() {
    let (now, image) = small();
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/erofs/all-kinds");
    if std::fs::read(&seed).unwrap() != now {
        let new = std::env::temp_dir().join("all-kinds");
        std::fs::copy(&image.path, &new).unwrap();
        panic!("images are other than before; if that is meant: cp {} {}", new.display(), seed.display());
    }
}
