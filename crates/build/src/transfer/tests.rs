//! The sum of sources, by which the cache knows them; and the directories that are made for them.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::context::CopyOptions;

fn with_tree<T>(dir: &Path, act: impl FnOnce(SourceTree<'_>) -> T) -> T {
    let root = File::open(dir).expect("opened");
    let (of, copy) = ("context: ", CopyOptions::default());
    act(SourceTree { root: root.as_fd(), of, rules: None, is_roots: true, copy })
}

fn path(path: &str) -> PlannedSource {
    PlannedSource::Path(path.into())
}

fn text(name: &str) -> PlannedSource {
    PlannedSource::Text { name: name.into(), content: "text".into() }
}

#[test]
fn a_file_and_a_directory_with_such_a_file_have_different_sums() {
    let (file, directory) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    fs::write(file.path().join("app"), "x").expect("written");
    fs::create_dir(directory.path().join("app")).expect("made");
    fs::write(directory.path().join("app/app"), "x").expect("written");
    let sum = |dir: &tempfile::TempDir, source| with_tree(dir.path(), |tree| sum(tree, &[source]));
    for source in ["app", "a*"] {
        let [file, directory] = [&file, &directory].map(|dir| sum(dir, path(source)).expect("summed"));
        assert_ne!(file, directory, "{source}");
    }
}

#[test]
fn what_is_packed_has_the_sum_of_the_plan_in_any_order_of_sources() {
    let dir = tempfile::tempdir().expect("made");
    fs::write(dir.path().join("file"), "x").expect("written");
    fs::create_dir(dir.path().join("sub")).expect("made");
    fs::write(dir.path().join("sub/a"), "y").expect("written");
    for sources in [
        vec![text("doc"), path("file")],
        vec![path("file"), text("doc")],
        vec![path("sub"), text("one"), path("fi*"), text("two")],
    ] {
        with_tree(dir.path(), |tree| {
            let chosen = choose(&sources, |path| tree.select(path)).expect("chosen");
            let packed =
                pack(tree, &chosen, &Naming::Own, tempfile::tempfile().expect("made")).expect("packed");
            assert_eq!(packed, sum(tree, &sources).expect("summed"), "{sources:?}");
        });
    }
}

#[test]
fn at_least_one_source_must_match() {
    let dir = tempfile::tempdir().expect("made");
    fs::write(dir.path().join("file"), "x").expect("written");
    with_tree(dir.path(), |tree| {
        assert!(sum(tree, &[path("no*"), path("file")]).is_ok());
        assert_eq!(sum(tree, &[path("no*")]).expect_err("none").message, "no file matches");
        assert_eq!(sum(tree, &[path("../x")]).expect_err("out").message, "context: ../x: outside the tree");
    });
}

#[test]
fn directories_that_are_made_have_no_mode_of_files() {
    let dir = tempfile::tempdir().expect("made");
    let mode = |path: &str| fs::metadata(dir.path().join(path)).expect("there").permissions().mode() & 0o7777;
    fs::create_dir(dir.path().join("old")).expect("made");
    fs::set_permissions(dir.path().join("old"), fs::Permissions::from_mode(0o700)).expect("set");
    for (destination, shape, made) in [
        ("old/etc/app/", Shape::File, &["old/etc", "old/etc/app"][..]),
        ("bin/tools/run", Shape::File, &["bin", "bin/tools"]),
        ("sub/copied", Shape::Directory, &["sub", "sub/copied"]),
    ] {
        let action = CopyAction {
            unpacks: false,
            from: crate::plan::CopyFrom::Context,
            directories: DirectoryCopy::Contents,
            sources: vec![],
            excludes: vec![],
            sum: String::new(),
            destination: dir.path().join(destination).display().to_string(),
            is_directory: destination.ends_with('/'),
            chown: None,
            mode: Some(ModeChange::Bits(0o644)),
        };
        make_place(&action, shape).expect("made");
        for path in made {
            assert_eq!(mode(path), 0o755, "{destination}: {path}");
        }
    }
    assert_eq!(mode("old"), 0o700, "what was there stays as it was");
    assert!(!dir.path().join("bin/tools/run").exists());
}

#[test]
fn directories_that_are_made_are_told_with_those_above_them() {
    let dir = tempfile::tempdir().expect("made");
    let [first, second] = ["a", "a/b"].map(|name| dir.path().join(name));
    assert_eq!(make_directories(&second).expect("made"), [first, second.clone()]);
    assert!(make_directories(&second).expect("there").is_empty());
    fs::write(second.join("file"), "").expect("written");
    assert!(make_directories(&second.join("file/c")).is_err());
    // Links to what is not there are followed.
    for (target, link) in [("../b/new/deep", "a/link"), ("loop", "a/loop")] {
        std::os::unix::fs::symlink(target, dir.path().join(link)).expect("linked");
    }
    fs::create_dir(dir.path().join("b")).expect("made");
    make_directories(&dir.path().join("a/link/below")).expect("made");
    assert!(dir.path().join("b/new/deep/below").is_dir());
    assert!(make_directories(&dir.path().join("a/loop/x")).is_err());
}
