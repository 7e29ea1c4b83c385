//! What an environment has changed goes through an image and a layer, and is the same upper again.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::is_root;
use crate::common::layers::blob;
use rustix::fs::{AtFlags, CWD, FileType, Mode, mknodat, statat};
use serde_json::json;
use skiff_image::assemble::{AssemblyJob, AssemblyProgress, ImageLimits, assemble};
use skiff_image::changes::ChangesLabels;
use skiff_image::export::OpenImage;
use skiff_image::export::changes::{CommittedUpper, UpperMarks, WrittenChanges, of_changes, survey};
use skiff_image::spill::new_file;
use skiff_oci::manifest::Compression;

/// What stands for an attribute that hides the base's directory.
const HIDES: &str = ".hides";

/// Where something is mounted.
const MOUNT_POINTS: [&str; 4] = ["/home/alice", "/data/set/file", "/mnt/used", "/srv"];

fn hides(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(statat(dir, HIDES, AtFlags::empty()).is_ok())
}

fn whiteout(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

/// The image of an upper over a base, and what is said of it.
fn image_of(
    upper: &Path,
    base: &Path,
    texts: &BTreeMap<String, String>,
) -> skiff_image::Result<(File, WrittenChanges)> {
    let room = tempfile::tempdir().unwrap();
    let [upper, base, room] = [upper, base, room.path()].map(|path| File::open(path).unwrap());
    let image = new_file(room.as_fd(), "room").unwrap();
    let marks = UpperMarks { is_opaque: &hides, names: &[b".wh..opq"] };
    let (upper, base) = (upper.as_fd(), base.as_fd());
    let is_mount_point = |path: &[u8]| MOUNT_POINTS.iter().any(|point| point.as_bytes().starts_with(path));
    let (is_nobody_root, is_mount_point) = (false, &is_mount_point);
    let input = CommittedUpper { upper, name: "dev", base, marks, is_nobody_root, is_mount_point, texts };
    let looked = survey(&input)?;
    let written = of_changes(&input, image.as_fd(), (room.as_fd(), "room"), &mut |_| true)?;
    assert_eq!(looked, written, "what is looked at is what is written");
    Ok((image, written))
}

fn opened(file: File, labelled: bool) -> OpenImage {
    let mut config = json!({"config": {}});
    if labelled {
        ChangesLabels { environment: "dev".into(), base: BTreeMap::new() }.put(&mut config);
    }
    OpenImage { name: "dev".into(), config, file }
}

/// The image that another store makes of the layer that is pushed.
fn pulled(image: &OpenImage) -> File {
    let mut layer = vec![];
    let made =
        image.make_layer(None, Compression::Gzip, (tempfile::tempfile().unwrap(), "layer")).unwrap().unwrap();
    made.read_from(0).unwrap().read_to_end(&mut layer).unwrap();
    let room = tempfile::tempdir().unwrap();
    let scratch = File::open(room.path()).unwrap();
    let file = new_file(scratch.as_fd(), "room").unwrap();
    let job = AssemblyJob {
        blobs: &[&blob(&layer, "layer")],
        image: file.as_fd(),
        name: "pulled",
        scratch: scratch.as_fd(),
        scratch_name: "room",
        limits: ImageLimits::default(),
        threads: 1,
        room: &|_| true,
        keeps_whiteouts: true,
    };
    assemble(&job, &AssemblyProgress::new(1)).unwrap();
    file
}

#[test]
fn an_upper_comes_back_from_the_layer_that_is_pushed() {
    if !is_root("an_upper_comes_back_from_the_layer_that_is_pushed") {
        return;
    }
    let (upper, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| upper.path().join(name);
    std::fs::create_dir_all(at("usr/bin")).unwrap();
    std::fs::create_dir_all(at("opt/own")).unwrap();
    std::fs::write(at("usr/bin/tool"), "tool").unwrap();
    std::os::unix::fs::chown(at("usr/bin/tool"), Some(12), Some(34)).unwrap();
    std::fs::set_permissions(at("usr/bin/tool"), PermissionsExt::from_mode(0o4750)).unwrap();
    std::fs::hard_link(at("usr/bin/tool"), at("usr/bin/again")).unwrap();
    whiteout(&at("usr/bin/tac"));
    std::fs::hard_link(at("usr/bin/tac"), at("gone")).unwrap();
    std::fs::write(at("opt/own").join(HIDES), "").unwrap();
    std::fs::write(at("opt/own/.wh..opq"), "").unwrap();
    for socket in ["new", "old"] {
        std::os::unix::net::UnixListener::bind(at(socket)).unwrap();
    }
    std::fs::write(base.path().join("old"), "a file of the base's").unwrap();

    let texts = BTreeMap::from([("packages".to_owned(), "a 1\n".to_owned()), ("none".into(), String::new())]);
    let (file, written) = image_of(upper.path(), base.path(), &texts).unwrap();
    assert_eq!(written.skipped, [b"new".to_vec(), b"old".to_vec()]);
    // The root, four directories, two names of a file, two whiteouts, a mark, the file that stands for it, and what hides the base's file.
    assert_eq!(written.files, 12);
    let image = opened(file, true);
    let layer = |image: &OpenImage| {
        image
            .make_layer(None, Compression::Gzip, (tempfile::tempfile().unwrap(), "layer"))
            .unwrap()
            .unwrap()
            .layer
    };
    let pulled = opened(pulled(&image), true);
    assert_eq!(layer(&pulled), layer(&image), "pushed on, it is the same image");
    assert_eq!(pulled.change_texts().unwrap(), texts);

    let again = tempfile::tempdir().unwrap();
    let left_out = pulled.unpack_changes(File::open(again.path()).unwrap().as_fd()).unwrap();
    assert_eq!(left_out, Default::default());
    let at = |name: &str| again.path().join(name);
    for name in ["usr/bin/tac", "gone", "old"] {
        let stat = at(name).symlink_metadata().unwrap();
        assert!(stat.file_type().is_char_device() && stat.rdev() == 0, "{name}");
    }
    let tool = at("usr/bin/tool").metadata().unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.uid(), tool.gid(), tool.nlink()), (0o4750, 12, 34, 2));
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(at("opt/own"), "user.overlay.opaque", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"y");
    let mut names: Vec<_> =
        std::fs::read_dir(again.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["gone", "old", "opt", "usr"], "neither sockets nor texts");
}

#[test]
fn what_is_there_only_for_mounts_is_not_in_the_image() {
    let (upper, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| upper.path().join(name);
    for dir in ["home/alice", "data/set", "mnt/used", "srv", "opt/empty"] {
        std::fs::create_dir_all(at(dir)).unwrap();
    }
    for file in ["data/set/file", "mnt/used/own", "data-set"] {
        std::fs::write(at(file), "").unwrap();
    }
    std::fs::create_dir(base.path().join("srv")).unwrap();
    let paths = || {
        let (file, written) = image_of(upper.path(), base.path(), &BTreeMap::new()).unwrap();
        let reader = skiff_erofs::Reader::open(file, "dev").unwrap();
        let paths = reader.files().map(|file| String::from_utf8(file.unwrap().path.to_vec()).unwrap());
        let paths: Vec<String> = paths.filter(|path| !path.is_empty()).collect();
        assert_eq!(written.files, paths.len() as u64 + 1);
        paths
    };
    let shown = ["data-set", "mnt", "mnt/used", "mnt/used/own", "opt", "opt/empty", "srv"];
    assert_eq!(paths(), shown);
    // What the user has put there, beside it or under it, is theirs.
    std::fs::write(at("data/set/other"), "").unwrap();
    std::fs::write(at("home/alice/before"), "text").unwrap();
    let more = paths();
    for path in ["data/set/other", "data/set", "home/alice/before"] {
        assert!(more.iter().any(|one| one == path), "{path}: {more:?}");
    }
}

#[test]
fn a_strangers_texts_take_no_more_memory_than_a_list_of_packages_does() {
    let none = BTreeMap::new();
    let refused = |make: &dyn Fn(&Path)| {
        let (upper, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let texts = upper.path().join(".skiff/base");
        std::fs::create_dir_all(&texts).unwrap();
        make(&texts);
        let (file, _) = image_of(upper.path(), base.path(), &none).unwrap();
        opened(file, true).change_texts().map(|texts| texts.len()).map_err(|e| e.to_string())
    };
    let hole = |path: std::path::PathBuf, length| File::create(path).unwrap().set_len(length).unwrap();
    assert_eq!(refused(&|dir| hole(dir.join("packages"), 1 << 20)), Ok(1));
    let too_long = [
        refused(&|dir| hole(dir.join("packages"), 129 << 20)),
        refused(&|dir| hole(dir.join("packages"), 1 << 40)),
        refused(&|dir| (0..3).for_each(|number| hole(dir.join(format!("{number}")), 60 << 20))),
        refused(&|dir| {
            (0..33_000).for_each(|number| std::fs::write(dir.join(format!("{number}")), "").unwrap())
        }),
    ];
    for error in too_long {
        let error = error.unwrap_err();
        assert!(error.contains("/.skiff/base/") && error.contains("not so long, or so many"), "{error}");
    }
}

#[test]
fn names_that_a_layer_takes_for_something_else_are_refused() {
    let none = BTreeMap::new();
    let texts = BTreeMap::from([("packages".to_owned(), String::new())]);
    for (name, texts, refused) in [
        (".wh.file", &none, true),
        (".skiff", &texts, true),
        (".skiff", &none, false),
        (".wh..opq", &none, false),
    ] {
        let (upper, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(upper.path().join(name), "").unwrap();
        let made = image_of(upper.path(), base.path(), texts);
        assert_eq!(matches!(made, Err(skiff_image::Error::Unstorable { .. })), refused, "{name}: {made:?}");
    }
}

#[test]
fn only_an_image_of_changes_has_whiteouts() {
    if !is_root("only_an_image_of_changes_has_whiteouts") {
        return;
    }
    let (upper, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    whiteout(&upper.path().join("gone"));
    let (file, _) = image_of(upper.path(), base.path(), &BTreeMap::new()).unwrap();
    let layer = |image: OpenImage| {
        image
            .make_layer(None, Compression::Gzip, (tempfile::tempfile().unwrap(), "layer"))
            .map(|made| made.unwrap().layer)
    };
    layer(opened(file.try_clone().unwrap(), true)).unwrap();
    let refused = layer(opened(file, false)).unwrap_err();
    assert!(matches!(refused, skiff_image::Error::Unstorable { .. }), "{refused}");
}
