//! How fast images' metadata is written and verified, and how much of it is waste: of many small files, and of a real tree.
//!
//! `cargo run --release -p skiff-image --example erofs_bench [DIRECTORY [IMAGE]]` leaves the directory's image there.
//! Figures are in `docs/decisions/007-our-own-writer-of-images.md`.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use skiff_image::erofs::{Reader, finish, verify};
use skiff_image::tree::{Attributes, BLOCK, Content, Inode, InodeId, Kind, Tree, XattrsId};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let (directory, kept) = (arguments.next(), arguments.next());
    let dir = tempfile::tempdir_in(".").unwrap();
    let image = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(dir.path().join("image"))
        .unwrap();
    for _ in 0..3 {
        measure("1,000,000 files of 0 to 299 bytes", &million(300), &image, 1, &[]);
    }
    for _ in 0..3 {
        measure("1,000,000 files of 0 to 4095 bytes", &million(4096), &image, 1, &[]);
    }
    if let Some(directory) = directory {
        let mut real = Real {
            tree: Tree::new(plain(0o755)),
            spill: vec![],
            next: 1,
            image: &image,
            links: HashMap::new(),
        };
        real.add_all(Path::new(&directory), Tree::ROOT);
        measure(&directory.to_string_lossy(), &real.tree, &image, real.next, &real.spill);
        if let Some(kept) = kept {
            std::fs::copy(dir.path().join("image"), kept).unwrap();
        }
    }
}

fn measure(what: &str, tree: &Tree, image: &File, data_blocks: u32, spill: &[u8]) {
    let mut payload = 0;
    let mut tails = |_: u32, at: u64, buffer: &mut [u8]| {
        payload += buffer.len() as u64;
        match spill.get(at as usize..at as usize + buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => buffer.fill(at as u8 | 1),
        }
        Ok(())
    };
    let before = resident();
    let start = Instant::now();
    let summary = finish(tree, &mut tails, image.as_fd(), "image", data_blocks).unwrap();
    let written = start.elapsed();
    let more = resident().saturating_sub(before);
    let reader = Reader::open(image.try_clone().unwrap(), "image").unwrap();
    let start = Instant::now();
    let verified = verify(&reader).unwrap();
    let checked = start.elapsed();
    let metadata = u64::from(summary.metadata_blocks) * BLOCK;
    println!(
        "{what}: {} inodes, metadata {} MiB ({} MiB of it tails), written in {written:.2?} ({} MiB more memory at the end), \
         {} names verified in {checked:.2?}",
        summary.inodes,
        metadata >> 20,
        payload >> 20,
        more >> 20,
        verified.names
    );
}

/// The most memory that this process ever had.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn plain(mode: u16) -> Attributes {
    Attributes { mode, uid: 0, gid: 0, mtime: 1_700_000_000, mtime_nsec: 5, xattrs: XattrsId(0) }
}

fn name(tree: &mut Tree, parent: InodeId, name: &[u8], id: InodeId) {
    tree.inode_mut(id).names += 1;
    let Kind::Directory(children) = &mut tree.inode_mut(parent).kind else { unreachable!() };
    children.insert(name.into(), id);
}

fn add(tree: &mut Tree, parent: InodeId, file_name: &[u8], attributes: Attributes, kind: Kind) -> InodeId {
    let id = tree.add(Inode { attributes, kind, layer: 0, names: 0 });
    name(tree, parent, file_name, id);
    id
}

fn million(below: u64) -> Tree {
    let mut tree = Tree::new(plain(0o755));
    for directory in 0..10_000u64 {
        let path = format!("directory-{directory}");
        let parent =
            add(&mut tree, Tree::ROOT, path.as_bytes(), plain(0o755), Kind::Directory(Default::default()));
        for file in 0..100 {
            let size = (directory * 100 + file).wrapping_mul(0x9E37_79B9_7F4A_7C15) % below;
            let content = Content::Whole { size, block: 0, tail: u64::MAX >> 1 };
            add(&mut tree, parent, format!("file-{file}.py").as_bytes(), plain(0o644), Kind::File(content));
        }
    }
    tree
}

/// A directory of this machine, with the data of its files.
struct Real<'a> {
    tree: Tree,
    spill: Vec<u8>,
    next: u32,
    image: &'a File,
    links: HashMap<(u64, u64), InodeId>,
}

impl Real<'_> {
    fn add_all(&mut self, directory: &Path, parent: InodeId) {
        let mut paths: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        // As in a layer.
        paths.sort();
        for path in paths {
            let metadata = path.symlink_metadata().unwrap();
            let file_name = path.file_name().unwrap().as_bytes();
            let key = (metadata.dev(), metadata.ino());
            let mut attributes = plain(metadata.mode() as u16 & 0o7777);
            (attributes.mtime, attributes.mtime_nsec) = (metadata.mtime(), metadata.mtime_nsec() as u32);
            if let Some(id) = self.links.get(&key) {
                name(&mut self.tree, parent, file_name, *id);
                continue;
            }
            let kind = if metadata.is_dir() {
                Kind::Directory(Default::default())
            } else if metadata.is_symlink() {
                Kind::Symlink(std::fs::read_link(&path).unwrap().as_os_str().as_bytes().into())
            } else if metadata.is_file() {
                Kind::File(self.content(&std::fs::read(&path).unwrap()))
            } else {
                continue;
            };
            let id = add(&mut self.tree, parent, file_name, attributes, kind);
            if metadata.is_dir() {
                self.add_all(&path, id);
            } else if metadata.nlink() > 1 {
                self.links.insert(key, id);
            }
        }
    }

    fn content(&mut self, bytes: &[u8]) -> Content {
        let (full, rest) = bytes.split_at(bytes.len() / BLOCK as usize * BLOCK as usize);
        self.image.write_all_at(full, u64::from(self.next) * BLOCK).unwrap();
        let content =
            Content::Whole { size: bytes.len() as u64, block: self.next, tail: self.spill.len() as u64 };
        self.next += (full.len() as u64 / BLOCK) as u32;
        self.spill.extend(rest);
        content
    }
}
