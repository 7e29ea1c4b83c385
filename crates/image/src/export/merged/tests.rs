use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path;

use rustix::fs::{XattrFlags, setxattr};

use super::*;
use crate::export::root::OtherContent;

const MARKS: [&[u8]; 1] = [b".wh..wh..opq"];

/// A tree of files with these modes and contents; what ends with a slash is a directory.
fn tree(files: &[(&str, u32, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("made");
    for (name, mode, content) in files {
        let path = dir.path().join(name);
        match name.strip_suffix('/') {
            Some(_) => fs::create_dir(&path).expect("made"),
            None => fs::write(&path, content).expect("written"),
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(*mode)).expect("set");
    }
    dir
}

fn open(dir: &path::Path) -> OwnedFd {
    fs::File::open(dir).expect("opened").into()
}

/// All paths with their contents; a directory ends with a slash.
fn shown(upper: &path::Path, host: &path::Path, replaced: &BTreeMap<Vec<u8>, OtherContent>) -> Vec<String> {
    let (upper, host) = (open(upper), open(host));
    let is_opaque = |dir: BorrowedFd<'_>| {
        Ok(rustix::fs::fgetxattr(dir, "user.overlay.opaque", &mut [0u8; 8][..]).is_ok())
    };
    let input = MergedRoot {
        upper: upper.as_fd(),
        host: host.as_fd(),
        name: "dev",
        marks: UpperMarks { is_opaque: &is_opaque, names: &MARKS },
        filter: RootFilter::plain(&|path, _| Ok(path == b"/no"), replaced),
        leave_out_of_host: &|path, _| Ok(path.starts_with(b"/log/")),
    };
    let merged = Merged::new(&input);
    let mut ahead = vec![merged.root().expect("read").file];
    let mut all = vec![];
    while let Some(directory) = ahead.pop() {
        for (_, child) in merged.children(&directory).expect("read") {
            let name = String::from_utf8_lossy(&child.file.path).into_owned();
            match &child.kind {
                ForeignFileType::Directory => all.push(format!("{name}/")),
                ForeignFileType::Symlink(to) => {
                    all.push(format!("{name} to {}", String::from_utf8_lossy(to)))
                }
                _ => {
                    let mut text = vec![];
                    let mut each = |piece: FilePiece<'_>| {
                        if let FilePiece::Data(data) = piece {
                            text.extend_from_slice(data);
                        }
                        Ok(())
                    };
                    merged.pieces(&child.file, &mut each).expect("read");
                    all.push(format!("{name}={}", String::from_utf8_lossy(&text)));
                }
            }
            if matches!(child.kind, ForeignFileType::Directory) {
                ahead.push(child.file);
            }
        }
    }
    all.sort();
    let size = survey(&input).expect("read");
    assert_eq!(size.files as usize, all.len() + 1, "the root counts");
    all
}

#[test]
fn the_upper_hides_what_it_has_and_what_is_removed() {
    let host = tree(&[
        ("etc/", 0o755, ""),
        ("etc/both", 0o644, "host"),
        ("etc/kept", 0o644, "host"),
        ("etc/removed", 0o644, "host"),
        ("etc/file", 0o644, "host"),
        ("etc/dir/", 0o755, ""),
        ("etc/dir/in", 0o644, "host"),
        ("new/", 0o755, ""),
        ("new/host", 0o644, "host"),
        ("new/in/", 0o755, ""),
        ("new/in/host", 0o644, "host"),
        ("marked/", 0o755, ""),
        ("marked/host", 0o644, "host"),
        ("log/", 0o755, ""),
        ("log/host", 0o644, "host"),
        ("no", 0o644, "host"),
    ]);
    symlink("/nowhere", host.path().join("link")).expect("linked");
    let upper = tree(&[
        ("etc/", 0o755, ""),
        ("etc/both", 0o600, "own"),
        ("etc/.wh.removed", 0o600, ""),
        ("etc/file/", 0o755, ""),
        ("etc/file/own", 0o644, "own"),
        ("etc/dir", 0o644, "own"),
        ("new/", 0o755, ""),
        ("new/in/", 0o755, ""),
        ("new/in/own", 0o644, "own"),
        ("marked/", 0o755, ""),
        ("marked/.wh..wh..opq", 0o600, ""),
        ("marked/own", 0o644, "own"),
        ("log/", 0o755, ""),
        ("log/own", 0o644, "own"),
    ]);
    let set = setxattr(upper.path().join("new"), "user.overlay.opaque", b"y", XattrFlags::empty());
    if set.is_err() {
        // Before Linux 6.6 memory has no such attributes.
        fs::write(upper.path().join("new/.wh..wh..opq"), "").expect("written");
    }
    let want = [
        "/etc/",
        "/etc/both=own",
        "/etc/dir=own",
        "/etc/file/",
        "/etc/file/own=own",
        "/etc/kept=host",
        "/link to /nowhere",
        "/log/",
        "/log/own=own",
        "/marked/",
        "/marked/own=own",
        "/new/",
        "/new/in/",
        "/new/in/own=own",
    ];
    assert_eq!(shown(upper.path(), host.path(), &BTreeMap::new()), want);
}

#[test]
fn of_the_host_there_is_what_others_may_read() {
    let host = tree(&[
        ("open/", 0o755, ""),
        ("open/file", 0o604, "host"),
        ("open/secret", 0o660, "secret"),
        ("open/empty", 0o600, ""),
        ("open/locked", 0o600, "secret"),
        ("closed/", 0o750, ""),
        ("closed/file", 0o644, "secret"),
        ("closed/in/", 0o755, ""),
        ("closed/in/file", 0o644, "secret"),
        ("listed/", 0o754, ""),
        ("listed/file", 0o644, "secret"),
    ]);
    let upper = tree(&[("closed/", 0o755, ""), ("closed/in/", 0o755, ""), ("closed/in/own", 0o600, "own")]);
    let other = OtherContent { content: b"nobody".to_vec(), mtime: None };
    let replaced = BTreeMap::from([(b"/open/locked".to_vec(), other)]);
    let want = [
        "/closed/",
        "/closed/in/",
        "/closed/in/own=own",
        "/listed/",
        "/open/",
        "/open/empty=",
        "/open/file=host",
        "/open/locked=nobody",
    ];
    assert_eq!(shown(upper.path(), host.path(), &replaced), want);
}

#[test]
fn two_names_of_one_file_are_one_and_files_of_both_are_two() {
    let (host, upper) = (tree(&[("a", 0o644, "host")]), tree(&[("c", 0o644, "own")]));
    fs::hard_link(host.path().join("a"), host.path().join("b")).expect("linked");
    fs::hard_link(upper.path().join("c"), upper.path().join("d")).expect("linked");
    assert_eq!(fs::metadata(host.path().join("a")).expect("there").nlink(), 2);
    let (upper, host, replaced) = (open(upper.path()), open(host.path()), BTreeMap::new());
    let input = MergedRoot {
        upper: upper.as_fd(),
        host: host.as_fd(),
        name: "dev",
        marks: UpperMarks { is_opaque: &|_| Ok(false), names: &MARKS },
        filter: RootFilter::plain(&|_, _| Ok(false), &replaced),
        leave_out_of_host: &|_, _| Ok(false),
    };
    let merged = Merged::new(&input);
    let children = merged.children(&merged.root().expect("read").file).expect("read");
    let numbers: Vec<u64> = children.iter().map(|(_, child)| child.number).collect();
    let [a, b, c, d] = numbers[..] else { panic!("{numbers:?}") };
    assert!(a == b && c == d && a != c, "{numbers:?}");
}

#[test]
fn what_belongs_to_nobody_becomes_no_program_of_root() {
    for (uid, gid, mode, want) in [
        (1000, NOBODY, 0o2755, (1000, 0, 0o755)),
        (NOBODY, NOBODY, 0o6755, (0, 0, 0o755)),
        (NOBODY, 5, 0o6755, (0, 5, 0o2755)),
        (0, 5, 0o6755, (0, 5, 0o6755)),
        (NOBODY, NOBODY, 0o1777, (0, 0, 0o1777)),
    ] {
        let attributes = Attributes { mode, uid, gid, mtime: 0, mtime_nsec: 0, xattrs: XattrsId(0) };
        let known = with_known_owner(attributes);
        assert_eq!((known.uid, known.gid, known.mode), want, "{uid}:{gid} {mode:o}");
    }
}

#[test]
fn a_place_of_a_mount_is_a_directory_by_the_directory_above() {
    let dir = tree(&[("in/", 0o755, ""), ("file", 0o644, "")]);
    symlink("in", dir.path().join("link")).expect("linked");
    let dir = open(dir.path());
    let found = ["in", "file", "link", "none"].map(|name| is_directory(&dir, name.as_bytes()));
    assert_eq!(found, [true, false, false, false]);
}
