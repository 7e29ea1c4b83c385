//! The same layers as other programs unpack them: GNU tar for one layer, umoci and podman for several. As root, since both must set owners.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;

use common::is_root;
use common::layers::build::{Entry as Tar, archive};
use common::layers::from_bytes;
use common::mounted::of_directory;
use common::seen::{Seen, assert_same, without_devices};
use common::tools::{has, run, write_oci};

/// What one program unpacks has the time of day where the layer says nothing; and the root is the test's own.
fn without_made_up(mut seen: Seen, made_up: &[&str]) -> Seen {
    seen.remove(&vec![]);
    for path in made_up {
        seen.get_mut(path.as_bytes()).unwrap_or_else(|| panic!("no {path}")).mtime = (0, 0);
    }
    seen
}

/// A directory of everything that GNU tar packs, made with the system's own programs.
fn make_everything(dir: &Path) {
    let script = r#"
        cd "$1" && umask 022
        mkdir -p a/b empty a/long && echo hello >a/f && : >a/none && head -c 4096 /dev/urandom >a/block
        head -c 100001 /dev/urandom >a/odd && ln a/odd a/b/again && ln -s ../f a/b/link && ln -s /no/where dangling && ln dangling dangling2
        touch "$(printf 'a/not-utf8-\377\376')" "a/with
newline"
        long=a/long/$(printf 'x%.0s' $(seq 200)); echo long >"$long"; ln "$long" a/b/long; ln -s "$long" a/b/longlink
        truncate -s 10M a/holes; printf abc | dd of=a/holes bs=1 seek=5000000 conv=notrunc status=none
        truncate -s 1M a/all-hole
        for n in $(seq 0 40); do printf x | dd of=a/many-holes bs=1 seek=$((n * 50000 + n)) conv=notrunc status=none; done
        mkfifo a/fifo; mknod a/null c 1 3; mknod a/disk b 259 7; mknod a/zero c 0 0
        chmod 6755 a/f; chmod 1777 empty; chown 70000:4000000000 a/none; chown -h 5:6 a/b/link
        touch -d @-5 a/block; touch -d '2031-02-03 04:05:06.789012345' a/odd; touch -hd @1000 a/b/link
        setfattr -n user.x -v 0x00ff0a3d a/f 2>/dev/null || python3 -c 'import os,sys; os.setxattr("a/f", "user.x", b"\0\xff\n=")'
        python3 -c 'import os; os.setxattr("a/b", "trusted.t", b"v" * 3000)'
        python3 -c 'import os; os.setxattr("a/odd", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))'
    "#;
    run(Command::new("bash").args(["-ec", script, "bash"]).arg(dir));
}

#[test]
fn what_gnu_tar_packs_comes_back_in_all_its_formats() {
    if !is_root("what_gnu_tar_packs_comes_back_in_all_its_formats") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_everything(dir.path());
    let expected = without_made_up(without_devices(of_directory(dir.path())), &[]);
    let pack = |options: &[&str]| {
        let mut tar = Command::new("tar");
        run(tar
            .args(["-c", "--numeric-owner", "--sort=name"])
            .args(options)
            .arg("-C")
            .arg(dir.path())
            .arg("."))
    };
    let posix: [&[&str]; 4] =
        [&[], &["--sparse"], &["--sparse", "--sparse-version=0.0"], &["--sparse", "--sparse-version=0.1"]];
    for options in posix {
        let image =
            from_bytes(&[pack(&[&["--format=posix", "--xattrs", "--xattrs-include=*"], options].concat())])
                .unwrap();
        assert_same(&without_made_up(image.seen(), &[]), &expected);
    }
    // These two have neither fractions of seconds nor extended attributes.
    let mut coarse = expected;
    for entry in coarse.values_mut() {
        entry.mtime.1 = 0;
        entry.xattrs.clear();
    }
    for options in [&["--format=gnu"][..], &["--format=gnu", "--sparse"]] {
        let image = from_bytes(&[pack(options)]).unwrap();
        assert_same(&without_made_up(image.seen(), &[]), &coarse);
    }
}

fn file(name: &str, data: impl AsRef<[u8]>) -> Tar {
    Tar::file(name, data)
}

fn dir(name: &str) -> Tar {
    Tar::directory(name)
}

fn link(name: &str, target: &str) -> Tar {
    Tar::symlink(name, target)
}

fn hard(name: &str, target: &str) -> Tar {
    Tar::hard_link(name, target)
}

/// Layers with all that layers do to each other. Each directory on whose time programs may differ has an entry at its layer's end.
fn odd_layers() -> Vec<Vec<Tar>> {
    vec![
        vec![
            dir("./"),
            dir("./keep/"),
            file("./keep/a", "1").owner(70000, 5),
            file("keep/b", "22"),
            dir("gone"),
            file("gone/x", "3"),
            dir("opaque"),
            file("opaque/old", "4"),
            dir("opaque/sub"),
            file("opaque/sub/old", "5"),
            dir("run"),
            link("var", "run"),
            link("absolute", "/run"),
            file("to-dir", "6"),
            dir("to-file"),
            file("to-file/x", "7"),
            file("linked", "88"),
            hard("link1", "linked"),
            link("symlink", "linked"),
            hard("symlink2", "symlink"),
            Tar::new(b'3', "null").device(1, 3),
            Tar::new(b'6', "fifo"),
            file("setuid", "x").mode(0o4755),
            dir("attrs").mode(0o700),
            file("attrs/x", "9"),
            file("keep/b", "22 again"),
            dir("keep"),
        ],
        vec![
            dir("opaque"),
            file("opaque/.wh..wh..opq", ""),
            file("opaque/new", "n"),
            file(".wh.gone", ""),
            file("keep/.wh.a", ""),
            file("var/through", "t"),
            file("absolute/through2", "u"),
            file(".wh.to-dir", ""),
            dir("to-dir"),
            file("to-dir/y", "z"),
            file("to-file", "now a file"),
            hard("link2", "linked"),
            file(".wh.linked", ""),
            dir("attrs").mode(0o1755).owner(3, 4).pax("SCHILY.xattr.user.k", "v"),
            file("capable", "c").pax(
                "SCHILY.xattr.security.capability",
                &b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..],
            ),
            file("late", "l").mtime(5).pax("mtime", "1234567890.123456789"),
            dir("opaque"),
            dir("keep"),
            dir("run"),
            dir("to-dir"),
        ],
        vec![
            file("linked", "a new one"),
            file("link1", "replaced"),
            file("run/.wh.through", ""),
            dir("keep").mtime(77),
            dir("run"),
            dir("attrs").mtime(99),
        ],
    ]
}

#[test]
fn umoci_unpacks_the_same() {
    if !is_root("umoci_unpacks_the_same") || !has("umoci") {
        return;
    }
    let layers: Vec<Vec<u8>> = odd_layers().iter().map(|entries| archive(entries)).collect();
    let dir = tempfile::tempdir().unwrap();
    write_oci(&dir.path().join("oci"), &layers);
    let bundle = dir.path().join("bundle");
    run(Command::new("umoci")
        .arg("unpack")
        .arg("--image")
        .arg(format!("{}:x", dir.path().join("oci").display()))
        .arg(&bundle));
    let image = from_bytes(&layers).unwrap();
    assert_same(
        &without_made_up(image.seen(), &[]),
        &without_made_up(without_devices(of_directory(&bundle.join("rootfs"))), &[]),
    );
}

/// Of several entries of one path the last: podman refuses layers with more.
fn each_once(entries: Vec<Tar>) -> Vec<Tar> {
    let mut known = std::collections::BTreeSet::new();
    let is_new = |entry: &Tar| {
        let path = entry.short_name();
        let path = path.strip_prefix(b"./").unwrap_or(path);
        known.insert(path.strip_suffix(b"/").unwrap_or(path).to_vec())
    };
    let mut entries: Vec<Tar> = entries.into_iter().rev().filter(is_new).collect();
    entries.reverse();
    entries
}

#[test]
fn podman_unpacks_the_same() {
    if !is_root("podman_unpacks_the_same") || !has("podman") {
        return;
    }
    let layers: Vec<Vec<u8>> = odd_layers().into_iter().map(|entries| archive(&each_once(entries))).collect();
    let dir = tempfile::tempdir().unwrap();
    write_oci(&dir.path().join("oci"), &layers);
    // A store of its own, of which nothing stays.
    let podman = || {
        let mut podman = Command::new("podman");
        podman.args(["--storage-driver", "vfs", "--root"]).arg(dir.path().join("root"));
        podman.arg("--runroot").arg(dir.path().join("run"));
        podman
    };
    // It takes a path for a name, and those are in lower case.
    let pulled = run(podman().current_dir(dir.path()).args(["pull", "--quiet", "oci:oci:x"]));
    let id = String::from_utf8(pulled).unwrap();
    let mounted = run(podman().args(["image", "mount", id.trim()]));
    let place = String::from_utf8(mounted).unwrap();
    let mut theirs = of_directory(Path::new(place.trim()));
    run(podman().args(["image", "unmount", "--all"]));
    // Where podman differs from umoci: it copies each layer for the next one, and symbolic links with several names become several;
    // and a directory that comes again keeps the attributes that it had.
    let ours = from_bytes(&layers).unwrap().seen();
    for (path, entry) in &mut theirs {
        if path.starts_with(b"/symlink") {
            (entry.links, entry.same_as) = (2, b"/symlink".to_vec());
        }
        if path == b"/attrs" {
            entry.xattrs.remove(&b"user.k"[..]).expect("what the second layer gave it");
        }
    }
    assert_same(&without_made_up(ours, &[]), &without_made_up(without_devices(theirs), &[]));
}
