//! squashfs, SIF and EROFS files: each gives the tree that it was made of.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::mounted::of_directory;
use crate::common::seen::{Entry, Seen, assert_same, of_image, without_devices};
use crate::common::stores::TestStore;
use crate::common::tools::{has, run};
use crate::common::{Builder, bytes, is_root, of_all_but_huge};
use skiff_erofs::tree::Tree;
use skiff_image::source::ImageSource;
use skiff_oci::platform::Platform;

/// A directory with all that squashfs keeps in ways of its own.
fn make_tree(root: &Path) {
    std::fs::create_dir(root).unwrap();
    for (name, len) in
        [("one", 1), ("block", 4096), ("odd", 131_073), ("large", 3_000_001), ("whole", 1 << 20)]
    {
        std::fs::write(root.join(name), bytes(len, len as u64)).unwrap();
    }
    // A program, which packs better for its kind of processor.
    std::fs::copy("/bin/bash", root.join("program")).unwrap();
    std::fs::write(root.join("text"), "squeeze me ".repeat(100_000)).unwrap();
    let script = r#"
        cd "$1" && umask 022
        mkdir -p a/b many few empty && echo hello >a/f && ln a/f a/b/again && ln -s ../f a/b/link && : >none
        for n in $(seq 3000); do echo $n >many/a-long-name-of-a-file-$n; done
        for n in $(seq 300); do ln a/f few/$n; done
        truncate -s 5000000 hole && printf x | dd of=hole bs=1 seek=3000000 conv=notrunc status=none
        truncate -s 700000 all-hole && mknod null c 1 3 && mknod disk b 259 70000 && mkfifo fifo
        touch "$(printf 'not-utf8-\377\376')" "with
newline" "$(printf 'n%.0s' $(seq 255))"
        ln -s "$(printf 't%.0s' $(seq 4000))" long-link
        chown 70000:5 a/f && chmod 6755 a/f && chmod 1777 empty && chown -h 1:2 a/b/link
        setfattr -n user.a -v 1 a/f && setfattr -n user.big -v "$(printf 'v%.0s' $(seq 2000))" a/b
        setfattr -n user.big -v "$(printf 'v%.0s' $(seq 2000))" empty && setfattr -n trusted.t -v 2 fifo
        setcap cap_net_raw+ep none
        find . -exec touch -h -d @1700000000 {} + && touch -d @0 a && touch -h -d @4000000000 long-link
    "#;
    run(Command::new("sh").args(["-ec", script, "sh"]).arg(root));
}

fn bench(test: &str, tools: &[&str]) -> Option<(tempfile::TempDir, Seen)> {
    if !is_root(test) || !tools.iter().all(|tool| has(tool)) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("tree"));
    let seen = without_devices(of_directory(&dir.path().join("tree")));
    Some((dir, seen))
}

fn mksquashfs(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let mut command = Command::new("mksquashfs");
    command.arg(dir.join("tree")).arg(&path).args(["-noappend", "-quiet", "-no-progress"]).args(options);
    run(&mut command);
    path
}

#[test]
fn squashfs_of_all_compressors_and_sizes() {
    let Some((dir, expected)) = bench("squashfs_of_all_compressors_and_sizes", &["mksquashfs"]) else {
        return;
    };
    for options in [
        &["-comp", "gzip"][..],
        &["-comp", "zstd"],
        &["-comp", "lz4"],
        &["-comp", "lz4", "-Xhc", "-b", "4096"],
        &["-comp", "xz"],
        &["-comp", "xz", "-Xbcj", "x86"],
        &["-comp", "gzip", "-b", "1M"],
        &["-comp", "zstd", "-no-fragments"],
        &["-comp", "zstd", "-always-use-fragments", "-b", "65536"],
        &["-noI", "-noD", "-noF", "-noX"],
        &["-comp", "gzip", "-no-exports", "-no-duplicates", "-nopad"],
    ] {
        let path = mksquashfs(dir.path(), "image.sqsh", options);
        let store = TestStore::new();
        assert_same(&store.imported(&path.display().to_string()), &expected);
    }
    let path = mksquashfs(dir.path(), "image.squashfs", &["-comp", "lzo"]);
    let error = TestStore::new().refused(&path.display().to_string());
    assert!(error.to_string().contains("lzo") && error.hint().is_some(), "{error}");
}

/// A file as Apptainer writes it: header, table of contents, and what that names.
fn sif(squashfs: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    const TABLE: usize = 4096;
    const DATA: usize = 32_768;
    let mut sif = vec![0; DATA];
    let mut put = |at: usize, bytes: &[u8]| sif[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0002\0");
    for (number, value) in [(3, 48 - 2), (4, 48), (5, TABLE), (6, 2 * 585), (7, DATA), (8, squashfs.len())] {
        put(56 + number * 8, &(value as u64).to_le_bytes()[..]);
    }
    let mut descriptor = |number: usize, kind: u32, offset: usize, size: usize, extra: &[u8]| {
        let at = TABLE + number * 585;
        put(at, &kind.to_le_bytes());
        put(at + 4, &[1]);
        put(at + 17, &(offset as u64).to_le_bytes());
        put(at + 25, &(size as u64).to_le_bytes());
        put(at + 201, extra);
    };
    descriptor(0, 0x4001, DATA, 0, b"");
    descriptor(1, 0x4004, DATA, squashfs.len(), b"\x01\0\0\0\x02\0\0\x0002\0");
    sif.extend(squashfs);
    change(&mut sif);
    sif
}

#[test]
fn sif_with_a_squashfs_in_it() {
    let Some((dir, expected)) = bench("sif_with_a_squashfs_in_it", &["mksquashfs"]) else { return };
    let squashfs = std::fs::read(mksquashfs(dir.path(), "image.sqsh", &["-comp", "gzip"])).unwrap();
    let path = dir.path().join("image.sif");
    let name = path.display().to_string();
    std::fs::write(&path, sif(&squashfs, |_| ())).unwrap();
    assert_same(&TestStore::new().imported(&name), &expected);

    let primary = 4096 + 585;
    for (at, bytes, because) in [
        (32, &b"SIFMAGIC"[..], "no SIF header"),
        (42, b"02", "version"),
        (88, b"\xff\xff\xff\xff", "descriptors"),
        (96, b"\xff\xff\xff\xff\xff\xff\xff\xff", "table of contents"),
        (primary + 4, b"\0", "no primary"),
        (primary + 201, b"\x02", "ext3"),
        (primary + 201, b"\x05", "encrypted"),
        (primary + 209, b"04", "linux/arm64"),
        (primary + 17, b"\xff\xff\xff\xff\xff\xff\xff\xff", "does not lie in it"),
        (primary + 25, b"\xff\xff\xff\xff", "does not lie in it"),
        (32_768, b"hsqx", "not a squashfs"),
    ] {
        let forged = sif(&squashfs, |sif| sif[at..at + bytes.len()].copy_from_slice(bytes));
        std::fs::write(&path, forged).unwrap();
        let error = TestStore::new().refused(&name);
        assert!(error.to_string().contains(because), "{error} does not say {because:?}");
    }
}

#[test]
fn erofs_of_our_own_and_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    of_all_but_huge(&mut builder);
    let expected = without_devices(common::seen::of_tree(&builder));
    let image = builder.finish(dir);
    let store = TestStore::new();
    let path = image.path.display().to_string();
    let not_kept = |name: &[u8]| name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.");
    let without = |(path, mut entry): (Vec<u8>, Entry)| {
        entry.xattrs.retain(|name, _| !not_kept(name));
        if entry.mode & 0o17_0000 == 0o12_0000 {
            entry.mode = 0o12_0777;
        }
        (path, entry)
    };
    assert_same(&store.imported(&path), &expected.into_iter().map(without).collect());

    image.file.write_all_at(b"forged", 4096 + 100).unwrap();
    let size = image.file.metadata().unwrap().len();
    image.file.set_len(size - 4096).unwrap();
    let error = store.refused(&path);
    assert!(error.to_string().contains("length") && error.hint().is_some(), "{error}");
    if has("mkfs.erofs") {
        let source = tempfile::tempdir().unwrap();
        std::fs::write(source.path().join("file"), "text").unwrap();
        let other = source.path().join("other.erofs");
        run(Command::new("mkfs.erofs").arg(&other).arg(source.path()));
        let error = store.refused(&other.display().to_string());
        assert!(error.hint().is_some_and(|hint| hint.contains("tar archive or squashfs")), "{error}");
    }
}

/// A file that does not say for which machine it is: whoever imports it first does not say so for all others.
#[test]
fn what_one_user_says_of_a_file_is_told_to_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    builder.file(Tree::ROOT, "program", common::plain(), b"of some machine");
    let image = builder.finish(dir);
    let store = TestStore::new();
    let source = || ImageSource::open(&image.path.display().to_string().parse().unwrap()).unwrap();
    let import = |uid, architecture| {
        let pulled = store.import_on(uid, &source(), &Platform::linux(architecture, None)).unwrap();
        (pulled.id, pulled.record.config["architecture"].clone())
    };
    let (id, first) = import(1001, "arm64");
    assert_eq!(first, "arm64", "it is what this user wants");
    assert_eq!(import(1002, "amd64"), (id, "amd64".into()));
    let record = store.store.find(id).unwrap().unwrap();
    assert_eq!(record.config.get("architecture"), None, "{}", record.config);
}

/// Bytes are changed in what everything else hangs on, and here and there in the rest. `seeds.rs` has more of this.
#[test]
fn damaged_squashfs_files_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    if !has("mksquashfs") {
        return;
    }
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("d/e")).unwrap();
    for number in 0..20 {
        std::fs::write(tree.join(format!("d/{number}")), bytes(number * 700, 5)).unwrap();
    }
    std::fs::hard_link(tree.join("d/3"), tree.join("d/e/3")).unwrap();
    let path = mksquashfs(dir.path(), "image.sqsh", &["-noI", "-noX", "-b", "4096"]);
    let sound = std::fs::read(&path).unwrap();
    let store = TestStore::new();
    let name = path.display().to_string();
    let mut refused = 0;
    for number in 0..200usize {
        let mut bytes = sound.clone();
        let at = if number < 96 { number } else { bytes.len() - 1 - number * 7919 % (bytes.len() / 4) };
        bytes[at] = [0, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(64)][number % 4];
        std::fs::write(&path, &bytes).unwrap();
        refused += usize::from(store.import(&name).is_err());
    }
    assert!(refused > 30, "{refused}");
    std::fs::write(&path, &sound[..sound.len() / 2]).unwrap();
    assert!(store.refused(&name).to_string().contains("cut off"));
}

#[test]
fn zeros_take_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&dir);
    builder.hollow(Tree::ROOT, "zeros", 64 << 20, &[(5, bytes(4096, 1))]);
    let image = builder.finish(dir);
    let store = TestStore::new();
    let pulled = store.import(&image.path.display().to_string()).unwrap();
    assert_same(&store.seen(&pulled), &of_image(&image.path));
    let on_disk = store.store.open_image(pulled.id).unwrap().metadata().unwrap().blocks() * 512;
    assert!(on_disk < 4 << 20, "{on_disk} bytes");
}
