//! Which files COPY brings. The cases are those of BuildKit's own tests, and what a context of somebody who means ill may have.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use skiff_spec::fault::Result;
use skiff_tar::{EntryKind, TarEntry};

use super::ignore::IgnoreRules;
use super::sink::{EntrySink, Summed};
use super::{CopyOptions, Found, SourceTree};
use crate::dockerfile::DirectoryCopy;

#[derive(Default)]
struct Listed(Vec<String>);

impl EntrySink for Listed {
    fn entry(&mut self, entry: &TarEntry) -> Result<()> {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        self.0.push(match &entry.kind {
            EntryKind::Directory => format!("{path}/"),
            EntryKind::Symlink(target) => format!("{path}->{}", String::from_utf8_lossy(target)),
            _ => path,
        });
        Ok(())
    }

    fn data(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

fn made() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("sub/dir1/dir2")).expect("made");
    fs::create_dir(at("link")).expect("made");
    for file in ["foo.go", "bar.go", "sub/lfile", "sub/baz", "sub/dir1/dir2/foo", "secret"] {
        fs::write(at(file), file).expect("written");
    }
    for (target, link) in [
        ("foo.go", "to-file"),
        ("sub", "to-dir"),
        ("/sub/baz", "absolute"),
        ("../../../../etc/passwd", "out"),
        ("/etc/passwd", "out-absolute"),
        ("../foo.go", "link/up"),
        ("loop", "loop"),
        ("second", "sub/l1"),
        ("baz", "sub/second"),
    ] {
        symlink(target, at(link)).expect("linked");
    }
    dir
}

fn with_tree<T>(dir: &Path, rules: &str, act: impl FnOnce(SourceTree<'_>) -> T) -> T {
    let root = fs::File::open(dir).expect("opened");
    let rules = IgnoreRules::parse(rules);
    let (of, copy) = ("context: ", CopyOptions::default());
    act(SourceTree { root: root.as_fd(), of, rules: Some(&rules), is_roots: true, copy })
}

/// What is copied of sources, with spaces between them, that keep their paths.
fn with_paths(dir: &Path, rules: &str, excluded: &[&str], source: &str) -> Result<Vec<String>> {
    let excluded: Vec<String> = excluded.iter().map(|pattern| (*pattern).to_owned()).collect();
    let excluded = IgnoreRules::of_patterns(&excluded);
    with_tree(dir, rules, |tree| {
        let directories = DirectoryCopy::WithParents;
        let tree =
            SourceTree { copy: CopyOptions { directories, excluded: Some(&excluded), mode: None }, ..tree };
        let (mut listed, mut parents) = (Listed::default(), BTreeSet::new());
        for source in source.split(' ') {
            for found in tree.select(source)? {
                tree.emit_with_path(&found, &mut parents, &mut listed)?;
            }
        }
        Ok(listed.0)
    })
}

/// The facts are those of BuildKit's tests of `--parents`, and of Docker's reference.
#[test]
fn paths_are_kept_from_the_pivot_on() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in ["a/b/c/d/foo", "a/b/c/d/e/bay", "a/b2/c/d/e/bar", "a/b/c2/d/e/baz", "a/b/c2/d/e2/baz"] {
        let file = dir.path().join("test").join(file);
        fs::create_dir_all(file.parent().expect("above")).expect("made");
        fs::write(file, "").expect("written");
    }
    symlink("test/a", dir.path().join("link")).expect("linked");
    symlink("../secret", dir.path().join("test/out")).expect("linked");
    let of_d = ["c/", "c/d/", "c/d/foo", "c/d/e/", "c/d/e/bay"];
    for (source, want) in [
        ("/test/a/b/./c/d", of_d.to_vec()),
        (
            "test/a/b/c/d/e/.",
            vec![
                "test/",
                "test/a/",
                "test/a/b/",
                "test/a/b/c/",
                "test/a/b/c/d/",
                "test/a/b/c/d/e/",
                "test/a/b/c/d/e/bay",
            ],
        ),
        ("/test/a/./b/./c/d/e", vec!["b/", "b/c/", "b/c/d/", "b/c/d/e/", "b/c/d/e/bay"]),
        ("link/b/./c/d", of_d.to_vec()),
        (
            "/test/a/./*/c/d/e/ba*",
            vec![
                "b/",
                "b/c/",
                "b/c/d/",
                "b/c/d/e/",
                "b/c/d/e/bay",
                "b2/",
                "b2/c/",
                "b2/c/d/",
                "b2/c/d/e/",
                "b2/c/d/e/bar",
            ],
        ),
        (
            "/test/a/b*/./c/**/e",
            vec!["c/", "c/d/", "c/d/e/", "c/d/e/bay", "c/", "c/d/", "c/d/e/", "c/d/e/bar"],
        ),
        ("/test/a/b/c*/./d/**/baz", vec!["d/", "d/e/", "d/e/baz", "d/e2/", "d/e2/baz"]),
        ("/test/a/b/c2/./**", vec!["d/", "d/e/", "d/e/baz", "d/e2/", "d/e2/baz"]),
        // A directory of two sources is emitted under each of its names, and once under each.
        (
            "test/a/b/c/d/foo test/a/./b/c/d/foo test/a/b/c/d/e/bay",
            vec![
                "test/",
                "test/a/",
                "test/a/b/",
                "test/a/b/c/",
                "test/a/b/c/d/",
                "test/a/b/c/d/foo",
                "b/",
                "b/c/",
                "b/c/d/",
                "b/c/d/foo",
                "test/a/b/c/d/e/",
                "test/a/b/c/d/e/bay",
            ],
        ),
        ("test/out", vec!["test/", "test/out->../secret"]),
        ("test/nosuch*", vec![]),
        ("test/a/b/c/./d/foo/**", vec![]),
        // Behind the pivot no link is followed.
        ("lin*/b", vec![]),
    ] {
        assert_eq!(with_paths(dir.path(), "", &[], source).expect(source), want, "{source}");
    }
    for (source, part) in [
        ("test/nosuch", "no such file"),
        ("nosuch/./x", "no such file"),
        ("link/b", "no such file"),
        ("test/a/./nosuch", "no such file"),
        ("test/./../../x", "outside the context"),
    ] {
        let fault = with_paths(dir.path(), "", &[], source).expect_err(source);
        assert!(fault.message.contains(part), "{source}: {fault}");
    }
}

#[test]
fn what_is_excluded_is_not_copied() {
    let dir = made();
    let whole = [
        "sub/",
        "sub/baz",
        "sub/l1->second",
        "sub/lfile",
        "sub/second->baz",
        "sub/dir1/",
        "sub/dir1/dir2/",
        "sub/dir1/dir2/foo",
    ];
    for (excluded, rules, want) in [
        (vec![], "", whole.to_vec()),
        (vec!["foo"], "", whole.to_vec()),
        (vec!["sub/dir1", "sub/l*"], "", vec!["sub/", "sub/baz", "sub/second->baz"]),
        (vec!["**/dir2"], "sub/l*", vec!["sub/", "sub/baz", "sub/second->baz", "sub/dir1/"]),
        (vec!["sub/*", "!sub/dir1/dir2/foo"], "", vec!["sub/", "sub/dir1/dir2/foo"]),
        (vec!["sub"], "", vec![]),
        (vec!["*"], "", vec![]),
    ] {
        assert_eq!(with_paths(dir.path(), rules, &excluded, "sub").expect("read"), want, "{excluded:?}");
    }
    // Of a source without its path: below a directory, or the file's own name.
    let excluded = IgnoreRules::of_patterns(&["*.go".into(), "dir1/dir2".into(), "l*".into()]);
    with_tree(dir.path(), "", |tree| {
        let tree = SourceTree { copy: CopyOptions { excluded: Some(&excluded), ..tree.copy }, ..tree };
        let mut listed = Listed::default();
        for found in ["sub", "*.go", "secret"].map(|source| tree.select(source).expect(source)).concat() {
            let name = if found.is_directory { vec![] } else { found.name.clone() };
            tree.emit(&found, &name, &mut listed).expect("read");
        }
        assert_eq!(listed.0, ["baz", "second->baz", "dir1/", "secret"]);
    });
}

fn paths(found: &[Found]) -> Vec<String> {
    found.iter().map(|found| String::from_utf8_lossy(&found.path).into_owned()).collect()
}

#[test]
fn sources_are_found_below_the_context_only() {
    let dir = made();
    with_tree(dir.path(), "secret", |tree| {
        for (source, want) in [
            ("foo.go", vec!["foo.go"]),
            ("/foo.go", vec!["foo.go"]),
            ("./sub/../foo.go", vec!["foo.go"]),
            (".", vec![""]),
            ("*.go", vec!["bar.go", "foo.go"]),
            ("f*.go", vec!["foo.go"]),
            ("sub/*/dir2/foo", vec!["sub/dir1/dir2/foo"]),
            ("sub/dir?", vec!["sub/dir1"]),
            ("no*", vec![]),
            ("se*", vec![]),
            ("to-file", vec!["foo.go"]),
            ("to-dir/baz", vec!["sub/baz"]),
            ("to-dir/l*", vec!["sub/baz", "sub/lfile"]),
            ("absolute", vec!["sub/baz"]),
            ("link/up", vec!["foo.go"]),
        ] {
            assert_eq!(paths(&tree.select(source).expect(source)), want, "{source}");
        }
        for source in ["../x", "sub/../../x", "nosuch", "secret", "out", "out-absolute", "loop", "foo.go/x"] {
            let fault = tree.select(source).expect_err(source);
            assert!(fault.message.starts_with("context: "), "{source}: {}", fault.message);
        }
    });
}

#[test]
fn directories_are_emitted_whole_and_links_in_them_stay_links() {
    let dir = made();
    let listed = |rules: &str, source: &str| {
        with_tree(dir.path(), rules, |tree| {
            let mut listed = Listed::default();
            tree.select(source)
                .expect("found")
                .iter()
                .for_each(|found| tree.emit(found, b"", &mut listed).expect("emitted"));
            listed.0
        })
    };
    assert_eq!(
        listed("", "sub"),
        ["baz", "l1->second", "lfile", "second->baz", "dir1/", "dir1/dir2/", "dir1/dir2/foo"]
    );
    assert_eq!(listed("*\n!sub/dir1/dir2/foo\n!*.go", "."), ["bar.go", "foo.go", "sub/dir1/dir2/foo"]);
    assert_eq!(listed("sub\nout*\nlink\nloop\nto-*\nabsolute", "."), ["bar.go", "foo.go", "secret"]);
}

#[test]
fn the_sum_is_of_content_and_mode_and_not_of_times() {
    let dir = made();
    let sum = || {
        with_tree(dir.path(), "", |tree| {
            let mut sum = Summed::default();
            tree.select("sub")
                .expect("found")
                .iter()
                .for_each(|found| tree.emit(found, b"", &mut sum).expect("emitted"));
            sum.finish()
        })
    };
    let (first, file) = (sum(), dir.path().join("sub/lfile"));
    fs::File::options()
        .write(true)
        .open(&file)
        .expect("opened")
        .set_modified(std::time::UNIX_EPOCH)
        .expect("set");
    assert_eq!(sum(), first, "times");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
    let with_mode = sum();
    assert_ne!(with_mode, first, "mode");
    fs::write(&file, "sub/lfilf").expect("written");
    assert_ne!(sum(), with_mode, "content");
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = made();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("made");
    let emitted = |rules: &str, source: &str| {
        with_tree(dir.path(), rules, |tree| {
            tree.select(source)
                .expect("found")
                .iter()
                .try_for_each(|found| tree.emit(found, b"x", &mut Listed::default()))
        })
    };
    assert!(emitted("", ".").expect_err("a pipe").message.contains("pipe: a device, pipe or socket"));
    assert!(emitted("", "pipe").is_err());
    assert!(emitted("pipe", ".").is_ok());
}
