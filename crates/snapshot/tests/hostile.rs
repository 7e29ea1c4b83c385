//! A depot can be written by its user: whatever lies there, nothing is made outside the layer's directory, and what is not whole
//! is not used.

#![allow(clippy::unwrap_used)]

use crate::common;
use crate::common::World;
use crate::common::craft::{Craft, FILE, ship};
use skiff_snapshot::fetch;

/// Fetches it and gives the error. Nothing of it may be left, and nothing may have been made beside it.
#[track_caller]
fn refused(world: &World, id: &skiff_snapshot::SnapshotId) -> String {
    let before = common::dump(&world.path("base"));
    let error = fetch(&world.depot, id, &world.cache).unwrap_err();
    for part in ["layers", "tmp"] {
        let left: Vec<_> = std::fs::read_dir(world.path("cache").join(part)).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    common::assert_same(&before, &common::dump(&world.path("base")));
    assert!(!world.path("escaped").exists());
    assert!(error.hint().is_some(), "{error}");
    error.to_string()
}

#[test]
fn a_layer_written_by_hand_is_taken() {
    let world = World::new();
    let id = Craft::new()
        .file(b"a", true, b"content")
        .dir(b"d")
        .link(b"l", 0)
        .up()
        .symlink(b"s", b"/target")
        .end()
        .ship(&world.depot);
    let tree = common::dump(&fetch(&world.depot, &id, &world.cache).unwrap()[0].path);
    let kinds: Vec<_> =
        tree.iter().map(|(path, entry)| (path.to_str().unwrap(), entry.kind.as_str())).collect();
    assert_eq!(kinds, [("", "dir"), ("a", "file"), ("d", "dir"), ("d/l", "file"), ("s", "symlink")]);
    assert_eq!(tree[std::path::Path::new("d/l")].links, std::path::Path::new("a"));
}

#[test]
fn names_that_lead_elsewhere() {
    for name in [&b".."[..], b".", b"", b"/", b"/etc/escaped", b"../escaped", b"a/b", b"a\0b", &[b'n'; 256]] {
        let layers = [
            Craft::new().file(name, false, b"x"),
            Craft::new().dir(name).up(),
            Craft::new().symlink(name, b"x"),
            Craft::new().fifo(name),
            Craft::new().whiteout(name),
            Craft::new().file(b"\x01", true, b"x").link(name, 0),
        ];
        for layer in layers {
            let world = World::new();
            let error = refused(&world, &layer.end().ship(&world.depot));
            assert!(error.contains("is not a name") || error.contains("bytes, where"), "{error}");
        }
    }
}

#[test]
fn records_that_do_not_fit_together() {
    let base = |craft: Craft| craft.end();
    let cases: Vec<(&str, Craft)> = vec![
        ("comes twice", base(Craft::new().file(b"a", false, b"1").file(b"a", false, b"2"))),
        // A link first, then a directory of its name, then what should land behind the link.
        (
            "comes twice",
            base(Craft::new().symlink(b"a", b"../../..").dir(b"a").file(b"escaped", false, b"").up()),
        ),
        ("comes twice", base(Craft::new().dir(b"a").up().dir(b"a").up())),
        ("out of order", base(Craft::new().file(b"b", false, b"").file(b"a", false, b""))),
        ("outside the root", Craft::new().up().file(b"late", false, b"").end()),
        ("something follows its end", Craft::new().end().file(b"late", false, b"").end()),
        ("outside the root", Craft::bare().file(b"a", false, b"").end()),
        ("outside the root", Craft::new().up().up().end()),
        ("outside the root", Craft::new().up().dir(b"").end()),
        ("where 0 are allowed", Craft::bare().dir(b"root").end()),
        ("did not come before", base(Craft::new().link(b"a", 0))),
        ("did not come before", base(Craft::new().file(b"a", false, b"").link(b"b", 0))),
        ("ends too early", Craft::new().dir(b"d").end()),
        ("a record of unknown kind 9", base(Craft::new().head(9, b"x"))),
        ("something follows its end", Craft::new().end().meta(b"x")),
        ("not a layer file", Craft::bare().meta(b"").end_with_magic()),
        ("target is empty", base(Craft::new().symlink(b"a", b""))),
        ("holds a NUL", base(Craft::new().symlink(b"a", b"x\0y"))),
        ("where 4095 are allowed", base(Craft::new().symlink(b"a", &[b'x'; 4096]))),
    ];
    for (why, layer) in cases {
        let world = World::new();
        let error = refused(&world, &layer.ship(&world.depot));
        assert!(error.contains(why), "{why}: {error}");
    }
}

trait OtherMagic {
    fn end_with_magic(self) -> Craft;
}

impl OtherMagic for Craft {
    fn end_with_magic(mut self) -> Craft {
        self.bytes[0] ^= 1;
        self
    }
}

#[test]
fn paths_that_no_system_call_takes() {
    let deep = |levels: usize, last: &[u8]| {
        let mut craft = Craft::new();
        for _ in 0..levels {
            craft = craft.dir(&[b'd'; 255]);
        }
        craft = craft.file(last, false, b"x");
        for _ in 0..levels {
            craft = craft.up();
        }
        craft.end()
    };
    // 16 x 256 bytes, and one less.
    let world = World::new();
    fetch(&world.depot, &deep(15, &[b'f'; 255]).ship(&world.depot), &world.cache).unwrap();
    for (levels, last) in [(16, &[b'f'; 1][..]), (15, &[b'f'; 256]), (300, b"f"), (15, b"a\n")] {
        let world = World::new();
        let layer = deep(levels, last).ship(&world.depot);
        if last == b"a\n" {
            fetch(&world.depot, &layer, &world.cache).unwrap();
            continue;
        }
        let error = refused(&world, &layer);
        assert!(error.contains("long") || error.contains("bytes"), "{levels}: {error}");
    }
}

#[test]
fn an_entry_under_a_file_cannot_be_said() {
    // Nesting is by records: what follows a file is beside it.
    let world = World::new();
    let id = Craft::new().file(b"a", false, b"").file(b"b", false, b"").end().ship(&world.depot);
    let tree = common::dump(&fetch(&world.depot, &id, &world.cache).unwrap()[0].path);
    assert_eq!(tree.len(), 3);
}

#[test]
fn attributes_out_of_range() {
    let file = |craft: Craft| craft.meta(&[0]).meta(&0u64.to_le_bytes()).end_content(b"").end();
    let head = || Craft::new().head(FILE, b"f");
    let long = vec![0; 65537];
    let cases: Vec<(&str, Craft)> = vec![
        ("out of range", file(head().attr(0o10000, (0, 0), 0, &[]))),
        ("out of range", file(head().attr(0o644, (u32::MAX, 0), 0, &[]))),
        ("out of range", file(head().attr(0o644, (0, u32::MAX), 0, &[]))),
        ("out of range", file(head().attr(0o644, (0, 0), 1_000_000_000, &[]))),
        ("not allowed", file(head().attr(0o644, (0, 0), 0, &[(b"trusted.overlay.opaque", b"y")]))),
        ("not allowed", file(head().attr(0o644, (0, 0), 0, &[(b"user.overlay.redirect", b"/etc")]))),
        ("not allowed", file(head().attr(0o644, (0, 0), 0, &[(b"security.selinux", b"x")]))),
        ("not allowed", file(head().attr(0o644, (0, 0), 0, &[(b"", b"x")]))),
        ("twice", file(head().attr(0o644, (0, 0), 0, &[(b"user.a", b""), (b"user.a", b"")]))),
        ("too long", file(head().attr(0o644, (0, 0), 0, &[(b"user.a", &long)]))),
        ("yes or no", head().attr(0o644, (0, 0), 0, &[]).meta(&[2]).end()),
        ("size is out of range", Craft::new().file_head(b"f", false, 1 << 63).end_content(b"").end()),
        ("on a symbolic link", Craft::new().head(4, b"f").attr(0o644, (0, 0), 0, &[(b"user.a", b"")]).end()),
    ];
    for (why, layer) in cases {
        let world = World::new();
        let error = refused(&world, &layer.ship(&world.depot));
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn contents_that_lie() {
    let file = |size| Craft::new().file_head(b"f", false, size);
    let cases: Vec<(&str, Craft)> = vec![
        ("another digest", file(3).extent(0, b"abc").end_content(b"abd").end()),
        ("outside it", file(2).extent(0, b"abc").end_content(b"abc").end()),
        ("outside it", file(9).extent(8, b"abc").end_content(b"abc").end()),
        ("outside it", file(9).extent_of(u64::MAX - 1, 3, b"abc").end_content(b"abc").end()),
        ("outside it", file(9).extent_of(0, 0, b"").end_content(b"").end()),
        ("out of order", file(9).extent(3, b"abc").extent(0, b"abc").end_content(b"abcabc").end()),
        ("out of order", file(9).extent(0, b"abc").extent(2, b"abc").end_content(b"abcabc").end()),
        ("cut off", file(1 << 40).extent_of(0, 1 << 40, b"abc")),
    ];
    for (why, layer) in cases {
        let world = World::new();
        let error = refused(&world, &layer.ship(&world.depot));
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn each_length_and_a_flipped_bit_in_each_byte_is_refused() {
    let world = World::new();
    let good = Craft::new().file(b"a", true, b"content").link(b"b", 0).dir(b"d").whiteout(b"w").up().end();
    for length in 0..good.bytes.len() {
        let id = ship(&world.depot, &good.bytes[..length], &good.id(), length as u64);
        refused(&world, &id);
    }
    for at in 0..good.bytes.len() {
        let mut bytes = good.bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        refused(&world, &ship(&world.depot, &bytes, &good.id(), bytes.len() as u64));
    }
}

#[test]
fn a_whole_layer_under_another_name() {
    let world = World::new();
    let (good, other) = (Craft::new().end(), Craft::new().whiteout(b"w").end());
    let id = ship(&world.depot, &good.bytes, &other.id(), good.bytes.len() as u64);
    assert!(refused(&world, &id).contains("its digest is"));
    let id = ship(&world.depot, &good.bytes, &good.id(), 5);
    assert!(refused(&world, &id).contains("the manifest says 5"));
}

#[test]
fn links_and_fifos_in_place_of_files() {
    let world = World::new();
    let good = Craft::new().end();
    let id = good.ship(&world.depot);
    let layer = world.path("depot/layers").join(format!("{}.layer", good.id()));
    std::fs::rename(&layer, world.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(world.path("elsewhere"), &layer).unwrap();
    let error = fetch(&world.depot, &id, &world.cache).unwrap_err().to_string();
    assert!(error.contains("symbolic links"), "{error}");
    std::fs::remove_file(&layer).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &layer, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(refused(&world, &id).contains("0 bytes"));
}

#[test]
fn directories_of_others_are_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    for (name, mode) in [("group", 0o770), ("all", 0o707)] {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        for error in [
            skiff_snapshot::Depot::open(&path).unwrap_err(),
            skiff_snapshot::Depot::open_existing(&path).unwrap_err(),
            skiff_snapshot::Cache::open(&path, 0).unwrap_err(),
        ] {
            let told = format!("belongs to uid {} with mode {mode:o}", rustix::process::geteuid().as_raw());
            assert!(error.to_string().contains(&told) && error.hint().is_some(), "{error}");
        }
    }
    if common::is_root("a directory of another user") {
        let path = dir.path().join("bobs");
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
        let error = skiff_snapshot::Cache::open(&path, 0).unwrap_err().to_string();
        assert!(error.contains("belongs to uid 1234"), "{error}");
    }
}
