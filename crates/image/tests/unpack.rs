//! An image unpacked for a user who may not have it mounted: everything is there that may be.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::AsFd;

use crate::common::mounted::of_directory;
use crate::common::seen::{Seen, assert_same, libc_mode, of_tree};
use crate::common::{Builder, is_root, of_all_but_huge};
use skiff_erofs::Reader;
use skiff_image::unpack::unpack;

/// Attributes that any file system keeps, of files that may have them; no devices, no sockets.
fn comparable(mut seen: Seen) -> Seen {
    let type_of = |mode: u32| mode & 0o17_0000;
    // ext4 does not know every time, and has one block for the attributes of a file.
    seen.retain(|path, _| !path.starts_with(b"/time-") && !path.starts_with(b"/xattrs/many"));
    seen.retain(|_, entry| {
        ![libc_mode::CHAR, libc_mode::BLOCK, libc_mode::SOCKET].contains(&type_of(entry.mode))
    });
    for entry in seen.values_mut() {
        let holds = [libc_mode::REGULAR, libc_mode::DIRECTORY].contains(&type_of(entry.mode));
        entry.xattrs.retain(|name, value| holds && name.starts_with(b"user.") && value.len() < 1000);
        if type_of(entry.mode) == libc_mode::SYMLINK {
            // No file system of a disk keeps these.
            entry.mode = libc_mode::SYMLINK;
        }
        if type_of(entry.mode) == libc_mode::DIRECTORY {
            entry.size = 0;
        }
    }
    seen
}

#[test]
fn what_is_in_the_image_is_in_the_directory() {
    if !is_root("what_is_in_the_image_is_in_the_directory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_all_but_huge(&mut builder);
    let expected = of_tree(&builder);
    let image = builder.finish(dir);
    let reader = Reader::open(image.file, "test").unwrap();
    let target = tempfile::tempdir().unwrap();
    let left_out = unpack(&reader, File::open(target.path()).unwrap().as_fd()).unwrap();
    assert!(left_out.devices > 0 && left_out.sockets > 0 && left_out.owners == 0, "{left_out:?}");
    let notes = left_out.notes();
    assert!(
        notes.iter().any(|n| n.contains("device")) && notes.iter().any(|n| n.contains("socket")),
        "{notes:?}"
    );
    assert_same(&comparable(of_directory(target.path())), &comparable(expected));
}
