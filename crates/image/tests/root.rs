//! What a root is, the image made of it is.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::mounted::{Mounted, of_directory};
use crate::common::seen::{Seen, assert_same, of_image, without_devices};
use crate::common::{Builder, is_root, of_all_but_huge};
use rustix::fs::{FileType, Mode, mknodat};
use skiff_image::export::root::{LeaveOut, OtherContent, RootFilter, of_filtered_root, of_root};
use skiff_image::spill::new_file;

/// The image of what is at `path`; and how much room its file takes.
fn image_of(path: &Path, leave_out: LeaveOut<'_>) -> (Seen, u64) {
    let room = tempfile::tempdir().unwrap();
    let opened = File::open(room.path()).unwrap();
    let image = new_file(opened.as_fd(), "room").unwrap();
    let root = File::open(path).unwrap();
    of_root((root.as_fd(), "root"), leave_out, image.as_fd(), (opened.as_fd(), "room")).unwrap();
    assert_eq!(std::fs::read_dir(room.path()).unwrap().count(), 0);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap());
    (of_image(Path::new(&format!("/proc/self/fd/{}", image.as_raw_fd()))), blocks * 512)
}

#[test]
fn a_root_of_all_kinds_of_files() {
    if !is_root("a_root_of_all_kinds_of_files") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_all_but_huge(&mut builder);
    let image = builder.finish(dir);
    let mounted = Mounted::new(&image.path).unwrap();
    let mut expected = without_devices(of_directory(&mounted.path()));
    for entry in expected.values_mut() {
        if entry.mode & 0o17_0000 == 0o12_0000 {
            // Links have no permissions of their own.
            entry.mode = 0o12_0777;
        }
        // What overlays keep for themselves means nothing elsewhere.
        entry.xattrs.retain(|name, _| {
            !["user.overlay.", "trusted.overlay."].iter().any(|own| name.starts_with(own.as_bytes()))
        });
    }
    assert_same(&image_of(&mounted.path(), &|_, _| Ok(false)).0, &expected);
}

#[test]
fn a_directory_with_holes_links_and_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("a/b/c")).unwrap();
    std::fs::write(at("a/b/empty"), "").unwrap();
    let hollow = File::create(at("a/hollow")).unwrap();
    hollow.write_all_at(b"first", 0).unwrap();
    hollow.write_all_at(b"last", 1 << 30).unwrap();
    hollow.set_len((1 << 30) + 12345).unwrap();
    std::fs::hard_link(at("a/hollow"), at("a/b/again")).unwrap();
    std::os::unix::fs::symlink("../../etc/passwd", at("a/link")).unwrap();
    std::os::unix::fs::symlink("b", at("a/to-directory")).unwrap();
    let here = File::open(dir.path()).unwrap();
    mknodat(&here, "pipe", FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let (seen, room) = image_of(dir.path(), &|_, _| Ok(false));
    assert_same(&seen, &of_directory(dir.path()));
    assert!(room < 1 << 20, "{room} bytes for a file of holes");
    assert_eq!(image_of(dir.path(), &|_, _| Ok(false)).0, seen, "the same again");
    let some =
        |path: &[u8], target: Option<&[u8]>| Ok(path == b"/a/b" || target == Some(b"../../etc/passwd"));
    let left = image_of(dir.path(), &some).0;
    let gone: Vec<&[u8]> =
        seen.keys().filter(|path| !left.contains_key(*path)).map(|path| &path[..]).collect();
    assert_eq!(gone, [&b"/a/b"[..], b"/a/b/again", b"/a/b/c", b"/a/b/empty", b"/a/link"]);
}

#[test]
fn a_file_with_another_content() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["list", "other", "emptied"] {
        std::fs::write(dir.path().join(name), "base\nadded\n").unwrap();
    }
    let room_dir = tempfile::tempdir().unwrap();
    let (root, room) = (File::open(dir.path()).unwrap(), File::open(room_dir.path()).unwrap());
    let image = new_file(room.as_fd(), "room").unwrap();
    let replacement = |content: &str, mtime| OtherContent { content: content.into(), mtime };
    let replaced = [
        (b"/list".to_vec(), replacement("base\n", Some((1000, 5)))),
        (b"/emptied".to_vec(), replacement("", None)),
    ];
    let replaced = replaced.into();
    let filter = RootFilter::plain(&|_, _| Ok(false), &replaced);
    let mut watch = |_| true;
    of_filtered_root((root.as_fd(), "root"), filter, image.as_fd(), (room.as_fd(), "room"), &mut watch)
        .unwrap();
    let seen = of_image(Path::new(&format!("/proc/self/fd/{}", image.as_raw_fd())));
    let mut expected = of_directory(dir.path());
    let list = &seen[&b"/list"[..]];
    assert_eq!((list.size, list.mtime), (5, (1000, 5)));
    let emptied = expected.get_mut(&b"/emptied"[..]).unwrap();
    emptied.size = 0;
    emptied.blocks.clear();
    let changed = expected.insert(b"/list".to_vec(), list.clone()).unwrap();
    assert_ne!(list.blocks, changed.blocks);
    assert_same(&seen, &expected);
}

#[test]
fn what_goes_while_it_is_read_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &[u8]| dir.path().join(std::str::from_utf8(&path[1..]).unwrap());
    for path in [&b"/a/in"[..], b"/full/in", b"/moved/in"] {
        std::fs::create_dir_all(at(path)).unwrap();
    }
    for path in [&b"/file"[..], b"/full/file", b"/replaced", b"/rest"] {
        std::fs::write(at(path), "x").unwrap();
    }
    // Asked when all names of a directory are known, and before anything is read.
    let change = |path: &[u8], _: Option<&[u8]>| {
        match path {
            b"/file" => std::fs::remove_file(at(path)).unwrap(),
            b"/full" => std::fs::remove_dir_all(at(path)).unwrap(),
            b"/replaced" => {
                std::fs::remove_file(at(path)).unwrap();
                std::os::unix::fs::symlink("rest", at(path)).unwrap();
            }
            // Met again where it is later.
            b"/a/in" => std::fs::rename(at(b"/a/in"), at(b"/moved/other")).unwrap(),
            _ => {}
        }
        Ok(false)
    };
    let seen = image_of(dir.path(), &change).0;
    let names: Vec<_> = seen.keys().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(names, ["", "/a", "/a/in", "/full", "/moved", "/moved/in", "/rest"]);
}

#[test]
fn files_that_are_shorter_than_they_say() {
    let dir = Path::new("/sys/kernel/mm/transparent_hugepage");
    if !dir.join("enabled").exists() {
        return;
    }
    let text = std::fs::read(dir.join("enabled")).unwrap();
    let size = dir.join("enabled").metadata().unwrap().len() as usize;
    assert!(text.len() < size);
    let leave = |path: &[u8], _: Option<&[u8]>| Ok(path != b"/enabled");
    let seen = image_of(dir, &leave).0;
    let Some(entry) = seen.get(&b"/enabled"[..]) else { panic!("it is not there") };
    assert_eq!(entry.size, size as u64);
}

#[test]
fn directories_have_the_modes_that_are_asked_for_and_what_cannot_be_judged_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tmp")).unwrap();
    let (room_dir, replaced) = (tempfile::tempdir().unwrap(), Default::default());
    let (root, room) = (File::open(dir.path()).unwrap(), File::open(room_dir.path()).unwrap());
    let written = |leave_out: LeaveOut<'_>| {
        let image = new_file(room.as_fd(), "room").unwrap();
        let filter = RootFilter { modes: &[("/tmp", 0o1777)], ..RootFilter::plain(leave_out, &replaced) };
        let root = (root.as_fd(), "root");
        of_filtered_root(root, filter, image.as_fd(), (room.as_fd(), "room"), &mut |_| true)
            .map(|()| of_image(Path::new(&format!("/proc/self/fd/{}", image.as_raw_fd()))))
    };
    assert_eq!(written(&|_, _| Ok(false)).unwrap()[&b"/tmp"[..]].mode & 0o7777, 0o1777);
    let why = written(&|_, _| Err(rustix::io::Errno::IO)).expect_err("not left out silently");
    assert!(why.to_string().contains("/tmp"), "{why}");
}
