//! Everything a tree may hold comes back from the depot as it was.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use crate::common;
use crate::common::{World, assert_same, dump, is_root, opaque, set_xattr, whiteout};
use skiff_snapshot::How;

fn run(program: &str, args: &[&OsStr]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}");
}

fn set_time(path: &Path, seconds: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).unwrap();
}

#[test]
fn everything_comes_back() {
    if !is_root("everything_comes_back") {
        return;
    }
    let world = World::new();
    let upper = world.upper();
    let dir = upper.join("dir");
    std::fs::create_dir(&dir).unwrap();
    let odd = dir.join(OsStr::from_bytes(b"not utf-8 \xff\xfe\n \\ \"'"));
    std::fs::write(&odd, "odd name").unwrap();
    set_time(&odd, -86_400);
    let long = dir.join("n".repeat(255));
    std::fs::write(&long, "").unwrap();
    let program = dir.join("program");
    std::fs::write(&program, vec![7; 3_000_000]).unwrap();
    chown(&program, Some(1234), Some(5678)).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o6751)).unwrap();
    let capable = dir.join("capable");
    std::fs::write(&capable, "ping").unwrap();
    chown(&capable, Some(33), Some(33)).unwrap();
    run("setcap", &["cap_net_raw+ep".as_ref(), capable.as_ref()]);
    let listed = dir.join("listed");
    std::fs::create_dir(&listed).unwrap();
    run("setfacl", &["-m".as_ref(), "u:1234:rwx,d:g:5678:r-x".as_ref(), listed.as_ref()]);
    std::fs::write(listed.join("inherits"), "acl").unwrap();
    set_xattr(&program, "user.note", b"\0binary\xff");
    set_xattr(&listed, "user.big", &vec![b'x'; 3000]);
    symlink(OsStr::from_bytes(b"../\xff/../../etc/shadow"), dir.join("link")).unwrap();
    chown_link(&dir.join("link"), 42, 43);
    set_time(&dir.join("link"), 5);
    std::fs::hard_link(&program, upper.join("a-first-name")).unwrap();
    std::fs::hard_link(&program, upper.join("zz-last-name")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o622),
        0,
    )
    .unwrap();
    let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_at(b"middle", 20 << 20).unwrap();
    sparse.write_at(b"later", (40 << 20) + 5).unwrap();
    std::fs::File::create(dir.join("only a hole")).unwrap().set_len(1 << 40).unwrap();
    std::fs::remove_file(dir.join("only a hole")).unwrap();
    std::fs::File::create(dir.join("hole")).unwrap().set_len(9 << 20).unwrap();
    whiteout(&dir.join("gone"));
    let hides = upper.join("hides");
    std::fs::create_dir(&hides).unwrap();
    opaque(&hides);
    std::fs::set_permissions(&hides, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let closed = upper.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(closed.join("in"), "x").unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o0)).unwrap();
    std::fs::set_permissions(&upper, std::fs::Permissions::from_mode(0o755)).unwrap();
    for path in [&listed, &hides, &closed, &dir, &upper] {
        set_time(path, 1_000_000_000);
    }

    let pushed = world.push_as(How::Full);
    let layers = world.fetch(&pushed.id);
    assert_eq!(layers.len(), 1);
    assert_same(&dump(&upper), &dump(&layers[0].path));
    assert!(pushed.bytes < 4_000_000, "holes were shipped: {} bytes", pushed.bytes);
}

fn chown_link(path: &Path, uid: u32, gid: u32) {
    std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
}

#[test]
fn the_overlays_own_attributes_stay_here() {
    if !is_root("the_overlays_own_attributes_stay_here") {
        return;
    }
    let world = World::new();
    let dir = world.upper().join("dir");
    std::fs::create_dir(&dir).unwrap();
    for name in ["origin", "impure", "uuid", "nlink"] {
        set_xattr(&dir, &format!("user.overlay.{name}"), b"here");
    }
    set_xattr(&dir, "user.overlay.overlay.opaque", b"a nested overlay's");
    if common::userns::is_inside() {
        eprintln!("SKIPPED the part with trusted.overlay.opaque: only root of the host can set it");
        opaque(&dir);
    } else {
        // An upper made by an overlay without `userxattr`.
        set_xattr(&dir, "trusted.overlay.opaque", b"y");
    }
    let layers = world.fetch(&world.push().id);
    let names: Vec<_> = common::xattrs(&layers[0].path.join("dir")).into_keys().collect();
    assert_eq!(names, [&b"user.overlay.opaque"[..], b"user.overlay.overlay.opaque"]);
}

#[test]
fn an_upper_of_fuse_overlayfs_is_understood() {
    let world = World::new();
    let dir = world.upper().join("dir");
    std::fs::create_dir(&dir).unwrap();
    // As seen after `rm -r dir; mkdir dir; touch dir/new`.
    set_xattr(&dir, "user.fuseoverlayfs.opaque", b"y");
    std::fs::write(dir.join(".wh..wh..opq"), "").unwrap();
    std::fs::write(dir.join("new"), "").unwrap();
    set_xattr(&dir.join("new"), "user.fuseoverlayfs.origin", b"y");
    let layers = world.fetch(&world.push().id);
    let tree = dump(&layers[0].path);
    assert_eq!(tree.keys().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(), ["", "dir", "dir/new"]);
    assert!(tree[Path::new("dir")].xattrs.keys().eq([b"user.overlay.opaque"]));
    assert!(tree[Path::new("dir/new")].xattrs.is_empty());
}

#[test]
fn an_upper_whose_content_lies_elsewhere_is_refused() {
    let world = World::new();
    let dir = world.upper().join("renamed");
    std::fs::create_dir(&dir).unwrap();
    set_xattr(&dir, "user.overlay.redirect", b"/before");
    let error = world.try_push().unwrap_err().to_string();
    assert!(error.contains("renamed") && error.contains("redirect"), "{error}");
    assert_eq!(std::fs::read_dir(world.path("depot/layers")).unwrap().count(), 0);
}

#[test]
fn sockets_are_told_and_left_out() {
    let world = World::new();
    let _socket = std::os::unix::net::UnixListener::bind(world.upper().join("s")).unwrap();
    std::fs::write(world.upper().join("t"), "").unwrap();
    let pushed = world.push();
    assert_eq!(pushed.skipped, [b"s".to_vec()]);
    assert!(!world.fetch(&pushed.id)[0].path.join("s").exists());
    assert_eq!(world.push_as(How::Unchanged).skipped, [b"s".to_vec()]);
}

#[test]
fn the_longest_path_comes_back_and_one_byte_more_is_told() {
    // 4,095 bytes: the kernel's PATH_MAX without its NUL.
    for (last, is_taken) in [(75, true), (76, false)] {
        let world = World::new();
        let mut dir: std::os::fd::OwnedFd = world.open("upper").into();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        for _ in 0..20 {
            let name = "d".repeat(200);
            rustix::fs::mkdirat(&dir, &name, rustix::fs::Mode::RWXU).unwrap();
            dir = rustix::fs::openat(&dir, &name, flags, rustix::fs::Mode::empty()).unwrap();
        }
        rustix::fs::mkdirat(&dir, "l".repeat(last), rustix::fs::Mode::RWXU).unwrap();
        match is_taken {
            true => {
                let pushed = world.push();
                assert_eq!(pushed.entries, 1 + 20 + 1);
                let layers = world.fetch(&pushed.id);
                assert_eq!(layers.len(), 1);
                assert!(matches!(world.push_as(How::Unchanged).entries, 0));
            }
            false => {
                let error = world.try_push().unwrap_err().to_string();
                assert!(error.contains("File name too long"), "{error}");
            }
        }
    }
}

#[test]
fn a_path_too_deep_for_the_system_is_told() {
    let world = World::new();
    let mut dir: std::os::fd::OwnedFd = world.open("upper").into();
    let name = "d".repeat(200);
    for _ in 0..22 {
        rustix::fs::mkdirat(&dir, &name, rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        dir = rustix::fs::openat(&dir, &name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    let error = world.try_push().unwrap_err().to_string();
    assert!(error.contains("File name too long"), "{error}");
}

#[test]
fn deep_trees_come_back() {
    let world = World::new();
    let mut path = world.upper();
    for level in 0..400 {
        path.push(format!("{}", level % 10));
    }
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("bottom"), "x").unwrap();
    std::fs::write(world.upper().join("0/1/top"), "x").unwrap();
    let layers = world.fetch(&world.push().id);
    assert_same(&dump(&world.upper()), &dump(&layers[0].path));
}
