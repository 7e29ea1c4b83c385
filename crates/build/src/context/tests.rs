//! Which files COPY brings. The cases are those of BuildKit's own tests, and what a context of somebody who means ill may have.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use skiff_spec::fault::Result;
use skiff_tar::{EntryKind, TarEntry};

use super::ignore::IgnoreRules;
use super::sink::{EntrySink, Summed};
use super::{Found, SourceTree};

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
    act(SourceTree { root: root.as_fd(), of: "context: ", rules: Some(&rules), is_roots: true, mode: None })
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
