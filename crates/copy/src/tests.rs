use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use skiff_tar::build::{RawEntry, archive};
use tempfile::{TempDir, tempdir, tempfile};

use super::*;

fn packed(path: &Path, name: &str, follow: bool) -> Result<(File, NotCopied)> {
    let mut file = tempfile().unwrap();
    let packed = Packed { path, follow, name: name.as_bytes(), of: "web:", holes: true };
    let left_out = pack(packed, file.try_clone().unwrap())?;
    file.rewind().unwrap();
    Ok((file, left_out))
}

fn copied(from: &Path, to: &Path, base: Option<&str>) -> Result<NotCopied> {
    let (stream, left_out) = packed(from, ".", false)?;
    let destination =
        Destination { path: to, base: base.map(AsRef::as_ref), of: "", umask: 0, rights: Rights::Plain };
    Ok(unpack(destination, stream)?.and(left_out))
}

fn stream(bytes: &[u8]) -> File {
    let mut file = tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// A destination with a file beside it that nothing may change.
fn guarded() -> TempDir {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("to")).unwrap();
    fs::write(dir.path().join("outside"), "mine").unwrap();
    dir
}

fn is_unharmed(dir: &TempDir) -> bool {
    let outside = dir.path().join("outside");
    fs::read(&outside).unwrap() == b"mine" && fs::metadata(&outside).unwrap().mode() & 0o7777 == 0o644
}

fn tree() -> TempDir {
    let dir = tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("tree/closed")).unwrap();
    fs::write(at("tree/file"), "one").unwrap();
    fs::set_permissions(at("tree/file"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::hard_link(at("tree/file"), at("tree/closed/same")).unwrap();
    symlink("/etc/passwd", at("tree/link")).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    File::options().write(true).open(at("tree/file")).unwrap().set_modified(old).unwrap();
    let sparse = File::create(at("tree/sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("tree/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    fs::set_permissions(at("tree/closed"), fs::Permissions::from_mode(0o2555)).unwrap();
    dir
}

#[test]
fn a_tree_is_the_same_but_for_what_is_left_out() {
    let from = tree();
    let to = tempdir().unwrap();
    let left_out = copied(&from.path().join("tree"), &to.path().join("new"), Some("tree")).unwrap();
    assert_eq!(left_out, NotCopied { special: 1, setuid: 1, ..NotCopied::default() });
    let at = |path: &str| to.path().join("new").join(path);
    let file = fs::metadata(at("file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.mtime(), file.mtime_nsec()), (0o751, 1_000_000_000, 5));
    assert_eq!(fs::metadata(at("closed/same")).unwrap().ino(), file.ino());
    assert_eq!(fs::metadata(at("closed")).unwrap().mode() & 0o7777, 0o555);
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("/etc/passwd"));
    let sparse = fs::metadata(at("sparse")).unwrap();
    assert!(sparse.len() == 64 << 20 && sparse.blocks() < 100, "{} blocks", sparse.blocks());
    assert!(!at("pipe").exists());
    let names = fs::read_dir(to.path().join("new")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn destinations_are_docker_s() {
    let from = tree();
    let (tree, file) = (from.path().join("tree"), from.path().join("tree/file"));
    let to = tempdir().unwrap();
    let at = |path: &str| to.path().join(path);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("old"), "old").unwrap();
    symlink("old", at("alias")).unwrap();
    symlink("dir", at("shelf")).unwrap();
    for (source, base, target, want) in [
        (&file, Some("file"), "new", Ok("new")),
        (&file, Some("file"), "old", Ok("old")),
        (&file, Some("file"), "dir", Ok("dir/file")),
        (&file, Some("file"), "nosuch/", Err("no such directory")),
        (&file, Some("file"), "nosuch/x", Err("no such directory")),
        (&tree, Some("tree"), "old", Err("a directory cannot replace it")),
        (&tree, Some("tree"), "dir", Ok("dir/tree/file")),
        (&tree, Some("tree"), "fresh", Ok("fresh/file")),
        (&tree, None, "shelf/", Ok("dir/closed/same")),
        (&tree, None, "contents", Ok("contents/file")),
    ] {
        let done = copied(source, &at(target), base);
        match (done, want) {
            (Ok(_), Ok(path)) => assert_eq!(fs::read(at(path)).unwrap(), b"one", "{target}"),
            (Err(e), Err(part)) => {
                let fault = e.into_fault();
                assert!(fault.message.contains(part) && !fault.hint.is_empty(), "{target}: {fault:?}");
            }
            (done, want) => panic!("{target}: {done:?}, not {want:?}"),
        }
    }
    // A link is replaced by a file, and what it leads to stays.
    fs::write(at("old"), "old").unwrap();
    copied(&file, &at("alias"), Some("file")).unwrap();
    assert_eq!(
        (fs::read(at("old")).unwrap(), fs::read(at("alias")).unwrap()),
        (b"old".into(), b"one".into())
    );
    // A directory is not replaced by a file, and nothing half made is left.
    fs::create_dir_all(at("full/file/x")).unwrap();
    let fault = copied(&file, &at("full"), Some("file")).unwrap_err().into_fault();
    assert!(fault.message.contains("is a directory; a file cannot replace it"), "{fault:?}");
    assert_eq!(fs::read_dir(at("full")).unwrap().count(), 1);
}

#[test]
fn sources_are_links_files_or_trees() {
    let dir = tree();
    let at = |path: &str| dir.path().join("tree").join(path);
    let to = tempdir().unwrap();
    copied(&at("link"), to.path(), Some("link")).unwrap();
    assert_eq!(fs::read_link(to.path().join("link")).unwrap(), Path::new("/etc/passwd"));
    symlink("file", at("near")).unwrap();
    let (followed, _) = packed(&at("near"), ".", true).unwrap();
    let destination =
        Destination { path: to.path(), base: Some("near".as_ref()), of: "", umask: 0, rights: Rights::Plain };
    unpack(destination, followed).unwrap();
    assert_eq!(fs::read(to.path().join("near")).unwrap(), b"one");
    for (path, part) in
        [(at("pipe"), "a device, pipe"), (at("nosuch"), "No such file"), ("/proc".into(), "the kernel")]
    {
        let fault = packed(&path, ".", false).unwrap_err().into_fault();
        assert!(fault.message.contains(part) && fault.message.contains("web:"), "{fault:?}");
    }
    let mut text = vec![];
    packed(&at("closed"), "closed", false).unwrap().0.read_to_end(&mut text).unwrap();
    assert!(text.windows(12).any(|part| part == b"closed/same\0"));
}

#[test]
fn nothing_leads_out_of_the_destination() {
    let dir = guarded();
    let outside = dir.path().join("outside");
    let up = dir.path().to_str().unwrap();
    let mode = |entry: RawEntry| entry.mode(0o6777);
    let hostile: Vec<(&str, Vec<RawEntry>)> = vec![
        ("upwards", vec![RawEntry::file("../outside", "evil")]),
        ("upwards from below", vec![RawEntry::file("a/../../outside", "evil")]),
        ("a link, then through it", vec![RawEntry::symlink("a", up), RawEntry::file("a/outside", "evil")]),
        ("a link upwards", vec![RawEntry::symlink("a", ".."), RawEntry::file("a/outside", "evil")]),
        ("a directory that is a link", vec![RawEntry::symlink("a", ".."), RawEntry::directory("a")]),
        (
            "a link, then a file in its place",
            vec![RawEntry::symlink("a", outside.to_str().unwrap()), mode(RawEntry::file("a", "evil"))],
        ),
        ("a hard link upwards", vec![RawEntry::hard_link("a", "../outside"), RawEntry::file("a", "evil")]),
        (
            "a hard link by a link",
            vec![
                RawEntry::symlink("a", ".."),
                RawEntry::hard_link("b", "a/outside"),
                mode(RawEntry::file("b", "evil")),
            ],
        ),
        (
            "a hard link to a link",
            vec![
                RawEntry::symlink("a", outside.to_str().unwrap()),
                RawEntry::hard_link("b", "a"),
                mode(RawEntry::file("b", "evil")),
            ],
        ),
        ("an absolute path", vec![RawEntry::file(outside.to_str().unwrap(), "evil")]),
        ("a device", vec![RawEntry::new(b'3', "null").device(1, 3), RawEntry::new(b'6', "pipe")]),
        ("setuid", vec![mode(RawEntry::file("shell", "evil"))]),
    ];
    for (what, entries) in hostile {
        let to = dir.path().join("to");
        for is_tree in [false, true] {
            fs::remove_dir_all(&to).unwrap();
            fs::create_dir(&to).unwrap();
            let destination = Destination { path: &to, base: None, of: "", umask: 0, rights: Rights::Plain };
            let done = if is_tree {
                let tree = [&[RawEntry::directory(".")][..], &entries].concat();
                unpack(destination, stream(&archive(&tree)))
            } else {
                unpack_archive(destination, stream(&archive(&entries)))
            };
            assert!(is_unharmed(&dir), "{what}: {done:?}");
            for entry in fs::read_dir(&to).unwrap() {
                let found = entry.unwrap().metadata().unwrap();
                let kind = found.file_type();
                assert!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "{what}");
                assert!(kind.is_symlink() || found.mode() & 0o6000 == 0, "{what}: {:o}", found.mode());
            }
        }
    }
}

#[test]
fn files_have_the_owner_and_the_bits_that_the_caller_says() {
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    for (rights, want) in
        [(Rights::Plain, 0o755), (Rights::OwnedBy(own.0, own.1), 0o4755), (Rights::AsPacked, 0o4755)]
    {
        let dir = tempdir().unwrap();
        let entry = RawEntry::file("tool", "x")
            .mode(0o4755)
            .pax("uid", own.0.to_string())
            .pax("gid", own.1.to_string());
        let destination = Destination { path: dir.path(), base: None, of: "", umask: 0, rights };
        unpack_archive(destination, stream(&archive(&[entry]))).unwrap();
        let found = fs::metadata(dir.path().join("tool")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (want, own.0, own.1), "{rights:?}");
    }
}

#[test]
fn a_link_that_is_there_already_is_not_followed() {
    let dir = guarded();
    let to = dir.path().join("to");
    symlink("..", to.join("sub")).unwrap();
    symlink("../outside", to.join("file")).unwrap();
    let entries =
        [RawEntry::directory("."), RawEntry::file("file", "new"), RawEntry::file("sub/outside", "evil")];
    let fault = unpack(
        Destination { path: &to, base: None, of: "", umask: 0, rights: Rights::Plain },
        stream(&archive(&entries)),
    )
    .unwrap_err()
    .into_fault();
    assert!(is_unharmed(&dir) && fault.message.contains("is a link or a file, not a directory"), "{fault:?}");
    assert_eq!(fs::read(to.join("file")).unwrap(), b"new");
}

#[test]
fn streams_that_break_off_say_so() {
    let dir = guarded();
    let to = dir.path().join("to");
    let whole = archive(&[RawEntry::directory("."), RawEntry::file("file", "some bytes")]);
    let other = archive(&[RawEntry::file("file", "x")]);
    let two = archive(&[RawEntry::file(".", "x"), RawEntry::file("./y", "x")]);
    for (number, bytes) in [&whole[..1030], &whole[..100], b"", &other, &two].into_iter().enumerate() {
        let name = format!("x{number}");
        let destination =
            Destination { path: &to, base: Some(name.as_ref()), of: "", umask: 0, rights: Rights::Plain };
        assert!(
            matches!(unpack(destination, stream(bytes)), Err(CopyError::Stream(_))),
            "{} bytes",
            bytes.len()
        );
    }
    assert!(!to.join("x0/file").exists());
}
