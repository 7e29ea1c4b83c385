//! Layers as GNU tar packs them, in all its formats. (What umoci and podman make of several layers: tests/image-conformance.) As root, who
//! may set owners.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use crate::common::is_root;
use crate::common::layers::from_bytes;
use crate::common::mounted::{Mounted, of_directory};
use crate::common::seen::{Seen, assert_same, without_devices};
use crate::common::tools::run;

/// The root is the test's own.
fn without_root(mut seen: Seen) -> Seen {
    seen.remove(&vec![]);
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

/// What GNU tar makes of it.
fn pack(dir: &Path, options: &[&str]) -> Vec<u8> {
    let mut tar = Command::new("tar");
    run(tar.args(["-c", "--numeric-owner", "--sort=name"]).args(options).arg("-C").arg(dir).arg("."))
}

#[test]
fn what_gnu_tar_packs_comes_back_in_all_its_formats() {
    if !is_root("what_gnu_tar_packs_comes_back_in_all_its_formats") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_everything(dir.path());
    let expected = without_root(without_devices(of_directory(dir.path())));
    let pack = |options: &[&str]| pack(dir.path(), options);
    let posix: [&[&str]; 4] =
        [&[], &["--sparse"], &["--sparse", "--sparse-version=0.0"], &["--sparse", "--sparse-version=0.1"]];
    for options in posix {
        let image =
            from_bytes(&[pack(&[&["--format=posix", "--xattrs", "--xattrs-include=*"], options].concat())])
                .unwrap();
        assert_same(&without_root(image.seen()), &expected);
    }
    // These two have neither fractions of seconds nor extended attributes.
    let mut coarse = expected;
    for entry in coarse.values_mut() {
        entry.mtime.1 = 0;
        entry.xattrs.clear();
    }
    for options in [&["--format=gnu"][..], &["--format=gnu", "--sparse"]] {
        let image = from_bytes(&[pack(options)]).unwrap();
        assert_same(&without_root(image.seen()), &coarse);
    }
}

/// Numbers for which octal ones have no room, and blocks beyond those that 32 bits count in bytes.
#[test]
fn holes_of_more_than_8_gib_come_back() {
    if !is_root("holes_of_more_than_8_gib_come_back") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("holes")).unwrap();
    file.set_len((9 << 30) + 5).unwrap();
    for (at, text) in [(0, "first"), ((5 << 30) + 4090, "across two blocks"), (9 << 30, "end")] {
        file.write_all_at(text.as_bytes(), at).unwrap();
    }
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let expected = without_root(of_directory(dir.path()));
    for format in [
        &["--format=gnu"][..],
        &["--format=posix"],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
    ] {
        let tar = pack(dir.path(), &[&["--sparse"], format].concat());
        assert!(tar.len() < 1 << 20, "{} bytes", tar.len());
        let image = from_bytes(&[tar]).unwrap();
        assert_same(&without_root(image.seen()), &expected);
        let mounted = Mounted::new(&image.path).unwrap();
        assert_same(&without_root(of_directory(&mounted.path())), &expected);
    }
}
