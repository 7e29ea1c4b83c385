//! Trees made in memory, and what they look like: from the tree itself, from our reader, and from a mounted file system.

#![allow(clippy::unwrap_used, dead_code)]

pub mod mounted;
pub mod seen;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use skiff_erofs::tree::{
    Attributes, BLOCK, BlockRun, Content, FileKind, Inode, InodeId, Sparse, Tree, XattrsId,
};
use skiff_erofs::{self as erofs, Summary};

/// Whether this process may do what the test needs. A test that is skipped says so, and fails where nothing may be skipped.
pub fn is_root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root");
    skipped(test, "it needs root");
    false
}

/// Past the harness, which keeps what a passing test prints to itself.
pub fn skipped(test: &str, why: &str) {
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Attributes of an ordinary file.
pub fn plain() -> Attributes {
    Attributes {
        mode: 0o644,
        uid: 1000,
        gid: 100,
        mtime: 1_700_000_000,
        mtime_nsec: 123_456_789,
        xattrs: XattrsId(0),
    }
}

/// A tree in the making, with the data of its files in place.
pub struct Builder {
    pub tree: Tree,
    image: File,
    path: PathBuf,
    next_block: u32,
    spill: Vec<u8>,
}

/// An image file in a directory of its own, which goes with it.
pub struct Image {
    pub file: File,
    pub path: PathBuf,
    pub summary: Summary,
    _dir: tempfile::TempDir,
}

impl Builder {
    pub fn new(dir: &tempfile::TempDir) -> Builder {
        let path = dir.path().join("image.erofs");
        let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let tree = Tree::new(Attributes { mode: 0o755, ..plain() });
        Builder { tree, image, path, next_block: 1, spill: vec![0xEE; 7] }
    }

    pub fn xattrs(&mut self, xattrs: &[(&[u8], &[u8])]) -> XattrsId {
        self.tree.intern(xattrs.iter().map(|(name, value)| (Box::from(*name), Box::from(*value))).collect())
    }

    pub fn add(
        &mut self,
        parent: InodeId,
        name: impl AsRef<[u8]>,
        attributes: Attributes,
        kind: FileKind,
    ) -> InodeId {
        let id = self.tree.add(Inode { attributes, kind, layer: 3, names: 0 });
        self.name(parent, name, id);
        id
    }

    /// One more name of an inode.
    pub fn name(&mut self, parent: InodeId, name: impl AsRef<[u8]>, id: InodeId) {
        assert!(self.tree.link(parent, name.as_ref(), id), "no directory, or there is one of that name");
    }

    pub fn directory(&mut self, parent: InodeId, name: impl AsRef<[u8]>) -> InodeId {
        self.add(parent, name, Attributes { mode: 0o755, ..plain() }, FileKind::Directory(Default::default()))
    }

    pub fn file(
        &mut self,
        parent: InodeId,
        name: impl AsRef<[u8]>,
        attributes: Attributes,
        bytes: &[u8],
    ) -> InodeId {
        let full = bytes.len() / BLOCK as usize * BLOCK as usize;
        let block = self.blocks(&bytes[..full]);
        let tail = self.spill.len() as u64;
        self.spill.extend(&bytes[full..]);
        let content = Content::Whole { size: bytes.len() as u64, block, tail };
        self.add(parent, name, attributes, FileKind::File(content))
    }

    /// A file with holes: `runs` are pieces of data and the blocks of the file where they begin.
    pub fn sparse(
        &mut self,
        parent: InodeId,
        name: impl AsRef<[u8]>,
        size: u64,
        runs: &[(u32, Vec<u8>)],
    ) -> InodeId {
        let runs = runs.iter().map(|(at, bytes)| {
            let blocks = (bytes.len() as u64 / BLOCK) as u32;
            BlockRun { at: *at, block: self.blocks(bytes), blocks }
        });
        let runs = runs.collect();
        let content = Content::Sparse(Box::new(Sparse { size, runs }));
        self.add(parent, name, plain(), FileKind::File(content))
    }

    /// Puts whole blocks into the data region; gives the first one.
    fn blocks(&mut self, bytes: &[u8]) -> u32 {
        assert_eq!(bytes.len() as u64 % BLOCK, 0);
        let first = self.next_block;
        self.image.write_all_at(bytes, u64::from(first) * BLOCK).unwrap();
        self.next_block += (bytes.len() as u64 / BLOCK) as u32;
        first
    }

    /// A file whose blocks take as much of the data region as they should, but are written only here and there.
    pub fn hollow(
        &mut self,
        parent: InodeId,
        name: impl AsRef<[u8]>,
        size: u64,
        pieces: &[(u32, Vec<u8>)],
    ) -> InodeId {
        let (block, tail) = (self.next_block, self.spill.len() as u64);
        for (at, bytes) in pieces {
            self.image.write_all_at(bytes, u64::from(block + at) * BLOCK).unwrap();
        }
        self.next_block += (size / BLOCK) as u32;
        self.spill.extend(bytes((size % BLOCK) as usize, size));
        self.add(parent, name, plain(), FileKind::File(Content::Whole { size, block, tail }))
    }

    /// Writes the metadata.
    pub fn write(&self) -> skiff_erofs::Result<Summary> {
        let mut tails = |layer: u32, at: u64, buffer: &mut [u8]| {
            assert_eq!(layer, 3);
            buffer.copy_from_slice(&self.spill[at as usize..at as usize + buffer.len()]);
            Ok(())
        };
        let mut told = None;
        let mut room = |bytes| {
            told = Some(bytes);
            Ok(())
        };
        let (image, end) = (self.image.as_fd(), self.next_block);
        let summary = erofs::finish(&self.tree, &mut tails, &mut room, image, "image.erofs", end)?;
        assert_eq!(told, Some(u64::from(summary.blocks - end.max(1)) * BLOCK), "what it grows by");
        Ok(summary)
    }

    /// The finished image. `dir` is the one given to [`Builder::new`].
    pub fn finish(self, dir: tempfile::TempDir) -> Image {
        let summary = self.write().unwrap();
        Image { file: self.image, path: self.path, summary, _dir: dir }
    }

    /// Bytes of a file of this tree.
    pub fn spilled(&self, at: u64, len: usize) -> &[u8] {
        &self.spill[at as usize..at as usize + len]
    }

    pub fn image_file(&self) -> &File {
        &self.image
    }
}

/// Bytes that differ everywhere, none of them zero.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 | 1
    };
    (0..len).map(next).collect()
}

/// A little of everything that files can be.
pub fn of_everything(builder: &mut Builder) {
    of_all_but_huge(builder);
    huge_holes(builder);
}

/// The same without files of gigabytes, for what reads holes byte by byte.
pub fn of_all_but_huge(builder: &mut Builder) {
    let root = Tree::ROOT;
    for size in [0, 1, 31, 32, 4000, 4031, 4032, 4033, 4064, 4095, 4096, 4097, 8191, 8192, 100_000] {
        builder.file(root, format!("size-{size}"), plain(), &bytes(size, size as u64));
    }
    let owners = Attributes { uid: u32::MAX - 1, gid: 65_536, mode: 0o6755, ..plain() };
    builder.file(root, "owners", owners, b"setuid");
    for (index, (mtime, mtime_nsec)) in [
        (0, 0),
        (-1, 999_999_999),
        (-62_135_596_800, 1),
        (i64::from(u32::MAX) + 5, 500),
        (253_402_300_799, 0),
    ]
    .into_iter()
    .enumerate()
    {
        builder.file(root, format!("time-{index}"), Attributes { mtime, mtime_nsec, ..plain() }, b"time");
    }
    names(builder);
    links_and_devices(builder);
    attributes(builder);
    holes(builder);
}

fn names(builder: &mut Builder) {
    let directory = builder.directory(Tree::ROOT, "names");
    for name in
        [&b"!"[..], b"-", b".-", b"...", b"\xFF\xFE", b"\xC3\xA4", b"with space", b"new\nline", b"\x01"]
    {
        builder.file(directory, name, plain(), name);
    }
    for length in 250..=255 {
        builder.file(directory, vec![b'n'; length], plain(), &bytes(length, 1));
    }
    let mut deep = directory;
    for level in 0..300 {
        deep = builder.directory(deep, format!("{}", level % 10));
    }
    builder.file(deep, "deep", plain(), b"deep");
    // 16 bytes an entry: 254 of them and the dots leave 10 bytes of a block, 255 do not fit.
    for (count, length) in
        [(253, 4), (254, 4), (255, 4), (256, 4), (508, 4), (15, 255), (16, 255), (1500, 30)]
    {
        let directory = builder.directory(Tree::ROOT, format!("of-{count}-{length}"));
        let id = builder.file(directory, format!("{:0length$}", 0), plain(), b"many names");
        for number in 1..count {
            builder.name(directory, format!("{number:0length$}"), id);
        }
    }
    builder.directory(Tree::ROOT, "of-0");
}

fn links_and_devices(builder: &mut Builder) {
    let root = Tree::ROOT;
    let directory = builder.directory(root, "other");
    for length in [1, 59, 60, 4000, 4031, 4032, 4033, 4095] {
        let target = bytes(length, 5).iter().map(|byte| b'a' + byte % 26).collect();
        builder.add(
            directory,
            format!("link-{length}"),
            Attributes { mode: 0o777, ..plain() },
            FileKind::Symlink(target),
        );
    }
    for (number, (major, minor)) in [(0, 0), (8, 17), (4095, (1 << 20) - 1), (1, 256)].into_iter().enumerate()
    {
        builder.add(directory, format!("char-{number}"), plain(), FileKind::CharDevice(major, minor));
        builder.add(directory, format!("block-{number}"), plain(), FileKind::BlockDevice(major, minor));
    }
    builder.add(directory, "fifo", plain(), FileKind::Fifo);
    builder.add(directory, "socket", plain(), FileKind::Socket);
    let hard = builder.file(root, "hard", plain(), &bytes(5000, 9));
    builder.name(directory, "hard", hard);
    builder.name(directory, "hard-2", hard);
}

/// `setfacl -m u:1000:r` on a file of mode 640, and a default of the same.
pub const ACL: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\
    \x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
/// `cap_net_raw+ep`.
pub const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn attributes(builder: &mut Builder) {
    let directory = builder.directory(Tree::ROOT, "xattrs");
    let long = bytes(60 << 10, 6);
    let sets = [
        builder.xattrs(&[(b"user.once", b"only here")]),
        builder.xattrs(&[(b"security.capability", CAPABILITY)]),
        builder.xattrs(&[(b"user.long", &long), (b"user.empty", b"")]),
        builder.xattrs(&[
            (b"trusted.overlay.opaque", b"y"),
            (b"user.overlay.opaque", b"y"),
            (b"user.b", b"2"),
        ]),
        builder.xattrs(&[
            (b"user.a", &bytes(500, 7)),
            (b"user.b", &bytes(501, 8)),
            (b"user.c", &bytes(65_000, 9)),
        ]),
    ];
    for (number, &xattrs) in sets.iter().enumerate() {
        for size in [0, 1, 4000, 4094, 5000] {
            let name = format!("set-{number}-{size}");
            builder.file(directory, name, Attributes { xattrs, ..plain() }, &bytes(size, 3));
            if number == 0 {
                break;
            }
        }
    }
    // Heads of all lengths before tails of about a block.
    for length in 0..16 {
        let xattrs = builder.xattrs(&[(b"user.pad", &bytes(length * 4 + 1, 2))]);
        for tail in [3900, 4060, 4064, 4066, 4070, 4080, 4095] {
            let name = format!("pad-{length}-{tail}");
            builder.file(directory, name, Attributes { xattrs, ..plain() }, &bytes(8192 + tail, 4));
        }
        let target = bytes(3900 + length * 8, 5).iter().map(|byte| b'a' + byte % 26).collect();
        // User attributes are for files and directories only.
        let xattrs = builder.xattrs(&[(b"trusted.pad", &bytes(length * 4 + 1, 2))]);
        builder.add(
            directory,
            format!("link-{length}"),
            Attributes { xattrs, ..plain() },
            FileKind::Symlink(target),
        );
    }
    let inline: Vec<(Vec<u8>, Vec<u8>)> =
        (0..400u64).map(|number| (format!("user.{number:03}").into_bytes(), bytes(120, number))).collect();
    let inline: Vec<(&[u8], &[u8])> = inline.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    let many = builder.xattrs(&inline);
    builder.file(directory, "many", Attributes { xattrs: many, ..plain() }, &bytes(4095, 3));
    builder.file(directory, "many-2", Attributes { xattrs: many, ..plain() }, b"");
    let once = builder.xattrs(&inline[1..]);
    builder.add(
        directory,
        "many-dir",
        Attributes { xattrs: once, mode: 0o755, ..plain() },
        FileKind::Directory(Default::default()),
    );
    let acl = builder.xattrs(&[(b"system.posix_acl_access", ACL), (b"system.posix_acl_default", ACL)]);
    let acl = Attributes { xattrs: acl, mode: 0o640, ..plain() };
    builder.add(directory, "acl", acl, FileKind::Directory(Default::default()));
}

fn holes(builder: &mut Builder) {
    let directory = builder.directory(Tree::ROOT, "holes");
    let block = |seed| bytes(4096, seed);
    builder.sparse(directory, "none", 0, &[]);
    builder.sparse(directory, "all", 5000, &[]);
    builder.sparse(directory, "first", 3 << 20, &[(0, bytes(8192, 1))]);
    builder.sparse(directory, "some", 80_000, &[(2, bytes(8192, 2)), (5, block(3)), (17, bytes(8192, 4))]);
    let mut last = block(5);
    last[100..].fill(0);
    builder.sparse(directory, "last", 4096 * 9 + 100, &[(9, last)]);
}

fn huge_holes(builder: &mut Builder) {
    let directory = builder.directory(Tree::ROOT, "huge");
    let block = |seed| bytes(4096, seed);
    builder.sparse(directory, "over-4g", (5 << 30) + 1, &[(77, block(7)), (1 << 20, bytes(40_960, 6))]);
    builder.sparse(directory, "tib", 1 << 40, &[(123_456_789, block(8))]);
    builder.sparse(directory, "empty-eib", i64::MAX as u64, &[]);
    let many: Vec<_> = (0..100)
        .map(|number| (number * 3000 + number % 7, bytes(4096 * (1 + number as usize % 3), 9)))
        .collect();
    builder.sparse(directory, "many", 2 << 30, &many);
}
