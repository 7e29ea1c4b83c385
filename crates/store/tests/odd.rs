//! Images of odd contents: `store verify` calls each sound as it was made, and each damaged once a byte of it has changed.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::bytes;
use crate::common::layers::build::{RawEntry as Tar, archive};
use crate::common::stores::{TestStore, Watching};
use crate::common::tools::write_oci;
use skiff_erofs::Reader;
use skiff_image::source::ImageSource;
use skiff_oci::platform::Platform;
use skiff_registry::policy::Policies;
use skiff_store::import::{ImportJob, import};
use skiff_store::{Error, Quota, Store};

type Layers = Vec<Vec<Tar>>;

/// A file of `size` bytes that is all hole but for `pieces` of it.
fn sparse(name: &str, size: u64, pieces: &[(u64, usize)]) -> Tar {
    let map: Vec<_> = pieces.iter().map(|(at, len)| format!("{at},{len}")).collect();
    let data: Vec<u8> = pieces.iter().flat_map(|(at, len)| bytes(*len, *at + 1)).collect();
    Tar::file(name, data).pax("GNU.sparse.size", size.to_string()).pax("GNU.sparse.map", map.join(","))
}

fn xattr(entry: Tar, name: &str, len: usize) -> Tar {
    entry.pax(format!("SCHILY.xattr.{name}"), vec![b'v'; len])
}

/// Files with holes, at and beside the borders of blocks and of chunks.
fn with_holes() -> Vec<(&'static str, Layers)> {
    const MIB: u64 = 1 << 20;
    let one = |name, size, pieces: &[(u64, usize)]| (name, vec![vec![sparse("f", size, pieces)]]);
    let comb =
        |count: u64, step: u64, len: usize| -> Vec<_> { (0..count).map(|n| (n * step, len)).collect() };
    vec![
        one("all hole", MIB, &[]),
        one("all hole, no whole block", 5001, &[]),
        one("a byte at the start", MIB, &[(0, 1)]),
        one("a byte at the end", MIB, &[(MIB - 1, 1)]),
        one("a byte in the middle", MIB, &[(MIB / 2 + 7, 1)]),
        one("a byte beyond 4 GiB", 5 << 30, &[((5 << 30) - 9, 1)]),
        one("a block in a tebibyte", 1 << 40, &[(1 << 39, 4096)]),
        one("a block between holes", 3 * 4096, &[(4096, 4096)]),
        one("a hole between blocks", 3 * 4096, &[(0, 4096), (2 * 4096, 4096)]),
        one("a tail behind a hole", 2 * 4096 + 100, &[(4096, 4196)]),
        one("a hole as the tail", 2 * 4096 + 100, &[(0, 4096)]),
        one("pieces beside blocks' borders", MIB, &comb(20, 50_000, 6000)),
        one("a comb of single bytes", MIB, &comb(128, 8192, 1)),
        one("a comb of blocks", 4 * MIB, &comb(512, 8192, 4096)),
        one("large pieces with a small hole", 4 * MIB + 4096, &[(0, 2 << 20), ((2 << 20) + 4096, 2 << 20)]),
        one("many chunks", 64 * MIB, &comb(1000, 65_000, 700)),
        (
            "two files with holes, and one in a lower layer",
            vec![
                vec![sparse("a", MIB, &[(9999, 9999)]), sparse("b", MIB, &[(5, 5)])],
                vec![sparse("a", 2 * MIB, &[(MIB + 1, 50_000)])],
            ],
        ),
        (
            "a file with holes and a second name",
            vec![vec![sparse("a", MIB, &[(4000, 9000)]), Tar::hard_link("b", "a")]],
        ),
        (
            "a file with holes and an attribute",
            vec![vec![xattr(sparse("a", MIB, &[(4000, 9000)]), "user.a", 3000)]],
        ),
        ("zeros that are stored", vec![vec![Tar::file("zeros", vec![0; 300_000]), Tar::file("one", [1])]]),
    ]
}

/// Files that are long or short by little, many, or large.
fn with_sizes() -> Vec<(&'static str, Layers)> {
    let sizes = |list: &[usize]| {
        let file = |len: &usize| Tar::file(format!("f{len}"), bytes(*len, *len as u64));
        vec![list.iter().map(file).collect::<Vec<_>>()]
    };
    let many = |count: u64, len: usize| {
        vec![(0..count).map(|n| Tar::file(format!("f{n}"), bytes(len, n))).collect()]
    };
    vec![
        ("nothing at all", vec![vec![]]),
        ("an empty file", sizes(&[0])),
        ("one byte", sizes(&[1])),
        ("a block and its neighbours", sizes(&[4095, 4096, 4097])),
        ("tails of all lengths", sizes(&(3900..4097).step_by(7).collect::<Vec<_>>())),
        ("tails behind a block", sizes(&(4097..8200).step_by(211).collect::<Vec<_>>())),
        ("a large file", sizes(&[5_000_001])),
        (
            "large files that were replaced",
            vec![
                vec![Tar::file("a", bytes(2_000_000, 1)), Tar::file("b", bytes(100_000, 2))],
                vec![Tar::file("a", bytes(1_000_000, 3))],
                vec![Tar::file("a", bytes(3_000_000, 4)), Tar::file(".wh.b", b"")],
            ],
        ),
        (
            "a layer that only removes",
            vec![vec![Tar::file("a", bytes(100_000, 1))], vec![Tar::file(".wh.a", b"")]],
        ),
        ("many empty files", many(3000, 0)),
        ("many small files", many(3000, 40)),
        ("many blocks", many(300, 4096)),
        ("the same file in ten layers", (0..10).map(|n| vec![Tar::file("a", bytes(50_000, n))]).collect()),
    ]
}

/// Names, links, attributes and kinds.
fn with_names() -> Vec<(&'static str, Layers)> {
    let deep: String = (0..300).map(|n| format!("d{n}/")).collect();
    let all_bytes: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let links = |count: u64| {
        let link = |n| Tar::hard_link(format!("l{n}"), "a");
        let mut entries = vec![Tar::file("a", bytes(70_000, 1))];
        entries.extend((0..count).map(link));
        vec![entries]
    };
    let xattrs = |len: usize, tail: usize| {
        let file = Tar::file("a", bytes(3 * 4096 + tail, 1));
        vec![vec![
            xattr(xattr(file, "user.a", len), "user.b", len),
            xattr(Tar::directory("d"), "user.a", len),
        ]]
    };
    vec![
        (
            "names of 255 bytes",
            vec![vec![Tar::file("n".repeat(255), b"x"), Tar::file("m".repeat(255), b"y")]],
        ),
        (
            "names of all bytes",
            vec![vec![Tar::file(&all_bytes[..127], b"x"), Tar::file(&all_bytes[127..], b"y")]],
        ),
        ("a deep tree", vec![vec![Tar::file(format!("{deep}f"), bytes(9000, 1))]]),
        (
            "a directory of many names",
            vec![(0..2000).map(|n| Tar::symlink(format!("{n:0200}"), "t")).collect()],
        ),
        ("a second name", links(1)),
        ("a thousand names", links(1000)),
        (
            "a name in a layer above",
            vec![
                vec![Tar::file("a", bytes(9000, 1))],
                vec![Tar::hard_link("b", "a"), Tar::file(".wh.c", b"")],
            ],
        ),
        (
            "long links",
            vec![vec![Tar::symlink("a", "t".repeat(4095)), Tar::symlink("b", "x"), Tar::symlink("c", "..")]],
        ),
        (
            "devices, pipes and sockets",
            vec![vec![
                Tar::new(b'3', "null").device(1, 3),
                Tar::new(b'4', "disk").device(259, 70_000),
                Tar::new(b'6', "pipe"),
            ]],
        ),
        ("short attributes", xattrs(1, 9)),
        ("long attributes and a long tail", xattrs(1500, 4000)),
        ("attributes of more than a block", xattrs(9000, 4095)),
        (
            "an attribute of the largest size",
            vec![vec![xattr(Tar::file("a", bytes(8191, 1)), "user.a", 60_000)]],
        ),
        (
            "a capability and owners of 32 bits",
            vec![vec![
                Tar::file("a", b"x").pax("SCHILY.xattr.security.capability", crate::common::CAPABILITY),
                Tar::file("b", b"y").pax("uid", "4000000000").pax("gid", "70000").mode(0o7777),
            ]],
        ),
        (
            "times before 1970 and after 2106",
            vec![vec![
                Tar::file("a", b"x").pax("mtime", "-1000000.5"),
                Tar::file("b", b"x").pax("mtime", "5000000000.123456789"),
            ]],
        ),
        (
            "a directory that hides what is below",
            vec![
                vec![Tar::file("d/a", bytes(9000, 1)), Tar::file("d/b", bytes(9000, 2))],
                vec![Tar::file("d/.wh..wh..opq", b""), Tar::file("d/b", bytes(5000, 3))],
            ],
        ),
        (
            "a file in place of a directory",
            vec![vec![Tar::file("d/a", bytes(9000, 1))], vec![Tar::file("d", bytes(9000, 2))]],
        ),
    ]
}

/// What verification says of the image in a layout, and of the same image's file imported as a file.
fn check(dir: &Path, name: &str, layers: &[Vec<Tar>]) {
    let layers: Vec<_> = layers.iter().map(|entries| archive(entries)).collect();
    write_oci(dir, &layers);
    let store = TestStore::new();
    let mut reference = format!("oci:{}:x", dir.display());
    for made in ["of layers", "of a file system"] {
        let image = store.import(&reference).unwrap_or_else(|error| panic!("{name}, {made}: {error}"));
        store.store.verify(image.id).unwrap_or_else(|error| panic!("{name}, {made}: {error}"));
        let path = store.store.path().join(format!("images/{}.erofs", image.id));
        let copy = dir.join("x.erofs");
        std::fs::copy(&path, &copy).unwrap();
        damage(&path);
        let error = store.store.verify(image.id).expect_err(name).to_string();
        assert!(error.contains("damaged"), "{name}, {made}: {error}");
        reference = copy.display().to_string();
    }
}

/// Changes the last byte before the metadata that is not zero: of a chunk put together anew if there is one. Where all of that is zero, a byte
/// of the metadata.
fn damage(path: &Path) {
    let mut permissions = std::fs::metadata(path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    std::fs::set_permissions(path, permissions).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let reader = Reader::open(File::open(path).unwrap(), "image").unwrap();
    let mut block = [0; 4096];
    let mut at = reader.metadata_start();
    let place = loop {
        at -= 4096;
        if at == 0 {
            break reader.metadata_start() + 4000;
        }
        file.read_exact_at(&mut block, at).unwrap();
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            break at + last as u64;
        }
    };
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place).unwrap();
}

#[test]
fn fifty_odd_images_are_sound_until_a_byte_changes() {
    let images: Vec<_> = [with_holes(), with_sizes(), with_names()].concat();
    assert!(images.len() >= 50, "{}", images.len());
    std::thread::scope(|scope| {
        for part in images.chunks(images.len().div_ceil(4)) {
            scope.spawn(move || {
                for (name, layers) in part {
                    check(tempfile::tempdir().unwrap().path(), name, layers);
                }
            });
        }
    });
}

/// Whether no other test runs in this process: temporary files of all that runs in it count. If not, the test of this name is run in a process of its own.
fn is_alone(name: &str) -> bool {
    const ALONE: &str = "SKIFF_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&test.stdout);
    assert!(
        test.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&test.stderr)
    );
    false
}

/// What files with a byte each in a long hole take at the end is known before: nothing of it is written beyond the quota.
#[test]
fn the_metadata_of_files_with_holes_counts_before_it_is_written() {
    if !is_alone("odd::the_metadata_of_files_with_holes_counts_before_it_is_written") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("root.tar");
    let files =
        (0..100).map(|number| sparse(&format!("f{number:03}"), 4 << 30, &[((2 << 30) + 82 * 4096, 1)]));
    let root = [Tar::directory("./"), Tar::directory("./usr/"), Tar::file("./usr/bin/tool", b"x")];
    let entries: Vec<Tar> = root.into_iter().chain(files).collect();
    std::fs::write(&path, archive(&entries)).unwrap();
    let store_of = |dir: &Path, bytes| Store::open(dir).unwrap().with_quota(Quota::Bytes(bytes));
    let import = |store: &Store| {
        let source = ImageSource::open_path(&path).unwrap();
        let (policies, platform) = (Policies::default(), Platform::linux("amd64", None));
        let job = ImportJob { store, source: &source, policies: &policies, platform: &platform, uid: 1000 };
        import(&job, &mut Watching::default())
    };
    let (at, limit) = (dir.path().join("store"), 4 << 20);
    let error = import(&store_of(&at, limit)).expect_err("refused");
    let Error::Quota { used, more, quota } = error else { panic!("{error}") };
    assert!(quota == limit && used <= limit && more > limit, "{used} + {more}");
    // The file system may need some blocks of its own.
    let store = store_of(&at, used + more + (1 << 20));
    assert_eq!(store.usage_of(1000).unwrap().total(), 0, "nothing of it is left");
    import(&store).unwrap();
    let has = store.usage_of(1000).unwrap().total();
    assert!(has > more, "{has} of {used} + {more}");
}
