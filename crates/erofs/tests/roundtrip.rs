//! What is written is read again, by our own reader; what cannot be written is refused with the file's name.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common;
use crate::common::seen::{assert_same, of_image, of_tree};
use crate::common::{Builder, bytes, of_everything, plain};
use proptest::prelude::*;
use skiff_erofs::tree::{Attributes, BlockRun, Content, FileKind, InodeId, Sparse, Tree, XattrsId};
use skiff_erofs::{Reader, verify};

fn made(make: impl FnOnce(&mut Builder)) -> (common::Image, common::seen::Seen) {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    make(&mut builder);
    let expected = of_tree(&builder);
    (builder.finish(dir), expected)
}

fn check(make: impl FnOnce(&mut Builder)) {
    let (image, expected) = made(make);
    let reader = Reader::open(File::open(&image.path).unwrap(), "image.erofs").unwrap();
    let verified = verify(&reader).unwrap();
    assert_eq!(verified.names as usize, expected.len());
    assert_eq!((verified.inodes, verified.uuid), (image.summary.inodes, image.summary.uuid));
    assert_same(&of_image(&image.path), &expected);
}

#[test]
fn everything_comes_back() {
    check(of_everything);
}

#[test]
fn an_image_can_be_empty() {
    check(|_| ());
}

#[test]
fn a_hundred_thousand_names_come_back() {
    check(|builder| {
        let directory = builder.directory(Tree::ROOT, "many");
        for number in 0..100_000u32 {
            let name = format!("{:x}", number.wrapping_mul(0x9E37_79B1));
            builder.file(directory, name, plain(), &number.to_le_bytes());
        }
    });
}

/// Whatever the process is like, and wherever the file was before.
#[test]
fn the_same_tree_makes_the_same_bytes() {
    let (one, _) = made(of_everything);
    let (other, _) = made(of_everything);
    let read = |image: &common::Image| std::fs::read(&image.path).unwrap();
    assert!(read(&one) == read(&other));
}

#[test]
fn what_was_behind_the_data_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_everything(&mut builder);
    builder.image_file().write_all_at(&bytes(1 << 20, 1), 20 << 20).unwrap();
    let again = builder.finish(dir);
    let (fresh, _) = made(of_everything);
    assert!(std::fs::read(&again.path).unwrap() == std::fs::read(&fresh.path).unwrap());
}

/// Huge files with holes make neither a huge image nor a slow one.
#[test]
fn holes_cost_next_to_nothing() {
    let (image, _) = made(|builder| {
        builder.sparse(Tree::ROOT, "tib", 1 << 40, &[(200_000_000, bytes(4096, 1))]);
        builder.sparse(
            Tree::ROOT,
            "lastlog",
            292 << 30,
            &[(0, bytes(4096, 2)), (76_000_000, bytes(4096, 3))],
        );
    });
    let size = std::fs::metadata(&image.path).unwrap().len();
    assert!(size < 16 << 20, "{size}");
}

#[test]
fn what_cannot_be_stored_is_named() {
    let refused = |make: &dyn Fn(&mut Builder, InodeId)| {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = Builder::new(&dir);
        let directory = builder.directory(Tree::ROOT, "some");
        make(&mut builder, directory);
        builder.write().unwrap_err().to_string()
    };
    let file = |attributes: Attributes| {
        refused(&|builder, directory| {
            builder.file(directory, "file", attributes, b"x");
        })
    };
    let kind = |kind: FileKind| {
        refused(&|builder, directory| {
            builder.add(directory, "file", plain(), kind.clone());
        })
    };
    let xattr = |name: &[u8], value: &[u8]| {
        refused(&|builder, directory| {
            let xattrs = builder.xattrs(&[(name, value)]);
            builder.file(directory, "file", Attributes { xattrs, ..plain() }, b"x");
        })
    };
    let sparse = |size, runs: &[(u32, u32, u32)]| {
        let runs = runs.iter().map(|&(at, block, blocks)| BlockRun { at, block, blocks }).collect();
        kind(FileKind::File(Content::Sparse(Box::new(Sparse { size, runs }))))
    };
    for (message, why) in [
        (file(Attributes { uid: u32::MAX, ..plain() }), "owner 4294967295:100"),
        (file(Attributes { mtime_nsec: 1_000_000_000, ..plain() }), "nanoseconds"),
        (file(Attributes { mode: 0o10_000, ..plain() }), "mode 10000"),
        (kind(FileKind::CharDevice(4096, 0)), "device number 4096:0"),
        (kind(FileKind::BlockDevice(0, 1 << 20)), "device number 0:1048576"),
        (kind(FileKind::Symlink(vec![b'x'; 4096].into())), "4096 bytes, and 4095"),
        (kind(FileKind::Symlink(Box::from(&b"a\0b"[..]))), "not a path"),
        (kind(FileKind::Symlink(Box::default())), "not a path"),
        (xattr(b"system.nfs4_acl", b"x"), "named 'system.nfs4_acl'"),
        (xattr(b"user.x", &[0; 65_536]), "has 65536 bytes"),
        (kind(FileKind::File(Content::Whole { size: 4096, block: 1, tail: 0 })), "are not those of data"),
        (
            kind(FileKind::File(Content::Whole { size: 4096, block: u32::MAX, tail: 0 })),
            "are not those of data",
        ),
        (sparse(1 << 63, &[]), "possible"),
        (sparse(8192, &[(0, 0, 1)]), "are not those of data"),
        (sparse(4096, &[(1, 1, 0), (0, 1, 1)]), "are not those of data"),
    ] {
        assert!(message.starts_with("cannot store /some/file in an image: "), "{message}");
        assert!(message.contains(why), "{message}");
    }
    for name in [&b"a/b"[..], b"..", b"a\0", &[b'x'; 256]] {
        let message = refused(&|builder, directory| {
            builder.file(directory, name, plain(), b"x");
        });
        assert!(message.starts_with("cannot store /some in an image: "), "{message}");
    }
    let deep = refused(&|builder, directory| {
        (0..4096).fold(directory, |above, _| builder.directory(above, "d"));
    });
    assert!(deep.contains("4096 deep"), "{deep}");
    let many = refused(&|builder, directory| {
        let names: Vec<_> = (0..600u32).map(|number| format!("user.{number}").into_bytes()).collect();
        let value = [1; 511];
        let set: Vec<_> = names.iter().map(|name| (&name[..], &value[..])).collect();
        let xattrs = builder.xattrs(&set);
        builder.file(directory, "file", Attributes { xattrs, ..plain() }, b"x");
    });
    assert!(many.contains("600 extended attributes take"), "{many}");
}

/// One step in making a random tree.
#[derive(Debug, Clone)]
enum Step {
    Directory(String),
    File(String, usize, usize),
    Sparse(String, Vec<(u32, u32)>, u64),
    Symlink(String, usize),
    Device(String, u32, u32),
    Name(String),
    Up,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || prop_oneof![3 => "[!-.a-c]{1,4}", 1 => "[a-z]{200,255}"];
    prop_oneof![
        2 => name().prop_map(Step::Directory),
        6 => (name(), 0..20_000usize, 0..6usize).prop_map(|(name, size, set)| Step::File(name, size, set)),
        2 => (name(), 0..12_300usize, 0..6usize).prop_map(|(name, size, set)| Step::File(name, size / 4096 * 4096 + 4095 - size % 40, set)),
        1 => (name(), prop::collection::vec((0..200u32, 1..5u32), 0..8), 0..1u64 << 33)
            .prop_map(|(name, runs, more)| Step::Sparse(name, runs, more)),
        2 => (name(), 1..4096usize).prop_map(|(name, length)| Step::Symlink(name, length)),
        1 => (name(), 0..4096u32, 0..1u32 << 20).prop_map(|(name, major, minor)| Step::Device(name, major, minor)),
        1 => name().prop_map(Step::Name),
        1 => Just(Step::Up),
    ]
}

fn carry_out(builder: &mut Builder, steps: &[Step]) {
    let sets = random_sets(builder);
    let mut path = vec![Tree::ROOT];
    let mut last_file = None;
    for step in steps {
        let here = *path.last().unwrap();
        let name = match step {
            Step::Directory(name)
            | Step::File(name, ..)
            | Step::Sparse(name, ..)
            | Step::Symlink(name, _)
            | Step::Device(name, ..)
            | Step::Name(name) => name,
            Step::Up => {
                path.truncate(path.len().saturating_sub(1).max(1));
                continue;
            }
        };
        let FileKind::Directory(children) = &builder.tree.inode(here).kind else { unreachable!() };
        if children.contains_key(name.as_bytes()) || matches!(&name[..], "." | "..") {
            continue;
        }
        match step {
            Step::Directory(_) => path.push(builder.directory(here, name)),
            Step::File(_, size, set) => {
                let attributes = Attributes { xattrs: sets[*set], ..plain() };
                last_file = Some(builder.file(here, name, attributes, &bytes(*size, *size as u64)));
            }
            Step::Sparse(_, gaps, more) => {
                let mut at = 0;
                let mut runs = vec![];
                for (hole, blocks) in gaps {
                    at += hole + 1;
                    runs.push((at, bytes(*blocks as usize * 4096, u64::from(at))));
                    at += blocks;
                }
                builder.sparse(here, name, u64::from(at) * 4096 + more, &runs);
            }
            Step::Symlink(_, length) => {
                builder.add(here, name, plain(), FileKind::Symlink(vec![b't'; *length].into()));
            }
            Step::Device(_, major, minor) => {
                builder.add(here, name, plain(), FileKind::BlockDevice(*major, *minor));
            }
            Step::Name(_) => {
                if let Some(id) = last_file {
                    builder.name(here, name, id);
                }
            }
            Step::Up => unreachable!(),
        }
    }
}

fn random_sets(builder: &mut Builder) -> [XattrsId; 6] {
    [
        XattrsId(0),
        builder.xattrs(&[(b"user.a", b"1")]),
        builder.xattrs(&[(b"user.a", b"12"), (b"user.bcd", b"")]),
        builder.xattrs(&[(b"security.capability", common::CAPABILITY), (b"user.a", b"1")]),
        builder.xattrs(&[(b"user.long", &bytes(3000, 1))]),
        builder.xattrs(&[(b"user.longer", &bytes(9000, 2)), (b"trusted.x", &bytes(500, 3))]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back(steps in prop::collection::vec(step(), 0..120)) {
        check(|builder| carry_out(builder, &steps));
    }
}
