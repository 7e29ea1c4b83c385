//! What the kernel and the format's own tools say of the images that we write.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::common::mounted::{Mounted, of_directory};
use crate::common::seen::{Entry, Seen, assert_same, of_tree};
use crate::common::{Builder, Image, bytes, is_root, of_all_but_huge, of_everything, plain, skipped};
use skiff_erofs::Reader;
use skiff_erofs::tree::Tree;

/// An image of all kinds of files, and what it should look like.
fn image(make: impl FnOnce(&mut Builder)) -> (Image, Seen) {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    make(&mut builder);
    let expected = of_tree(&builder);
    (builder.finish(dir), expected)
}

#[test]
fn the_kernel_shows_what_the_tree_says() {
    if !is_root("the_kernel_shows_what_the_tree_says") {
        return;
    }
    let (image, expected) = image(of_everything);
    let mounted = Mounted::new(&image.path).unwrap();
    assert_same(&of_directory(&mounted.path()), &expected);
}

#[test]
fn so_it_does_from_a_loop_device() {
    if !is_root("so_it_does_from_a_loop_device") {
        return;
    }
    let (image, expected) = image(of_everything);
    let mounted = Mounted::from_loop_device("erofs", &image.path).unwrap();
    assert_same(&of_directory(&mounted.path()), &expected);
}

#[test]
fn large_directories_are_found_and_listed() {
    if !is_root("large_directories_are_found_and_listed") {
        return;
    }
    let name = |number: u32| format!("{:x}", number.wrapping_mul(0x9E37_79B1));
    let (image, _) = image(|builder| {
        let directory = builder.directory(Tree::ROOT, "many");
        for number in 0..100_000u32 {
            builder.file(directory, name(number), plain(), &number.to_le_bytes());
        }
    });
    let mounted = Mounted::new(&image.path).unwrap();
    let directory = mounted.path().join("many");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 100_000);
    for number in (0..100_000).step_by(37) {
        assert_eq!(std::fs::read(directory.join(name(number))).unwrap(), number.to_le_bytes());
        assert!(!directory.join(name(number) + "x").exists());
    }
}

#[test]
fn files_over_4_gib_are_read_to_their_end() {
    if !is_root("files_over_4_gib_are_read_to_their_end") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    let size = (9 << 30) + 4095;
    builder.hollow(Tree::ROOT, "large", size, &[(0, bytes(4096, 1)), ((9 << 18) - 1, bytes(4096, 2))]);
    builder.file(Tree::ROOT, "behind", plain(), &bytes(8192, 3));
    let image = builder.finish(dir);
    let mounted = Mounted::new(&image.path).unwrap();
    let file = File::open(mounted.path().join("large")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size);
    let reader = Reader::open(File::open(&image.path).unwrap(), "image.erofs").unwrap();
    let inode = reader.files().map(Result::unwrap).find(|file| file.path == b"large").unwrap().inode;
    assert_eq!(inode.size, size);
    for (at, expected) in [
        (0, bytes(4096, 1)),
        (5 << 30, vec![0; 4096]),
        ((9 << 30) - 4096, bytes(4096, 2)),
        (9 << 30, bytes(4095, size)),
    ] {
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, at).unwrap();
        assert!(found == expected, "at {at}");
        found.fill(0xAA);
        assert_eq!(reader.read_at(&inode, &mut found, at).unwrap(), expected.len());
        assert!(found == expected, "by our own reader at {at}");
    }
    assert_eq!(std::fs::read(mounted.path().join("behind")).unwrap(), bytes(8192, 3));
}

/// Debian 12 has no such program; where there is one, it must agree.
#[test]
fn erofsfuse_shows_the_same() {
    if !is_root("erofsfuse_shows_the_same") {
        return;
    }
    let (image, expected) = image(of_all_but_huge);
    let dir = tempfile::tempdir().unwrap();
    let Ok(status) =
        Command::new("erofsfuse").arg(&image.path).arg(dir.path()).stderr(Stdio::null()).status()
    else {
        skipped("erofsfuse_shows_the_same", "there is no erofsfuse");
        return;
    };
    assert!(status.success());
    let seen = std::panic::catch_unwind(|| of_directory(dir.path()));
    assert!(Command::new("umount").arg(dir.path()).status().unwrap().success());
    // It gives whole seconds only.
    let whole = |(path, entry): (Vec<u8>, Entry)| (path, Entry { mtime: (entry.mtime.0, 0), ..entry });
    let [seen, expected] = [seen.unwrap(), expected].map(|seen| seen.into_iter().map(whole).collect());
    assert_same(&seen, &expected);
}

#[test]
fn fsck_accepts() {
    let (image, _) = image(of_everything);
    let output = Command::new("fsck.erofs").arg("-d3").arg(&image.path).output();
    let output = output.expect("fsck.erofs of the package erofs-utils is needed");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("No errors found"), "{}: {text}", output.status);
}
