//! What a tree looks like: the same from whichever side it is seen.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use skiff_erofs::tree::{BLOCK, Content, FileKind, InodeId, Tree};
use skiff_erofs::{FileEntry, InodeKind, Reader};

use super::Builder;

/// Each path below the root, and the root as "".
pub type Seen = BTreeMap<Vec<u8>, Entry>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// Type and permissions.
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, u32),
    pub links: u32,
    /// The first of all paths of this inode.
    pub same_as: Vec<u8>,
    pub device: (u32, u32),
    /// Of directories zero, since that is each file system's own affair.
    pub size: u64,
    pub target: Vec<u8>,
    /// Each block that is not all zeros.
    pub blocks: BTreeMap<u64, u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What a store keeps of it: no devices.
pub fn without_devices(mut seen: Seen) -> Seen {
    seen.retain(|_, entry| !matches!(entry.mode & 0o17_0000, libc_mode::CHAR | libc_mode::BLOCK));
    seen
}

/// Adds the blocks of some bytes of a file that begin at a block's start.
pub fn add_blocks(blocks: &mut BTreeMap<u64, u64>, first: u64, bytes: &[u8]) {
    for (number, block) in bytes.chunks(BLOCK as usize).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            let mut hasher = DefaultHasher::new();
            block.hash(&mut hasher);
            blocks.insert(first + number as u64, hasher.finish());
        }
    }
}

/// What a tree should look like.
pub fn of_tree(builder: &Builder) -> Seen {
    let mut seen = Seen::new();
    let mut first_names = BTreeMap::new();
    let mut stack = vec![(vec![], Tree::ROOT)];
    let mut paths = BTreeMap::new();
    while let Some((path, id)) = stack.pop() {
        if let FileKind::Directory(children) = &builder.tree.inode(id).kind {
            stack.extend(children.iter().map(|(name, child)| ([&path[..], b"/", name].concat(), *child)));
        }
        paths.insert(path, id);
    }
    for (path, id) in paths {
        let same_as = first_names.entry(id).or_insert_with(|| path.clone()).clone();
        seen.insert(path, Entry { same_as, ..entry(builder, id) });
    }
    seen
}

fn entry(builder: &Builder, id: InodeId) -> Entry {
    let inode = builder.tree.inode(id);
    let attributes = &inode.attributes;
    let xattrs = builder.tree.xattrs(attributes.xattrs).iter();
    let mut entry = Entry {
        mode: u32::from(attributes.mode),
        owner: (attributes.uid, attributes.gid),
        mtime: (attributes.mtime, attributes.mtime_nsec),
        links: inode.names,
        xattrs: xattrs.map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
        ..Entry::default()
    };
    entry.mode |= match &inode.kind {
        FileKind::Directory(children) => {
            let is_directory =
                |id: &&InodeId| matches!(builder.tree.inode(**id).kind, FileKind::Directory(_));
            entry.links = 2 + children.values().filter(is_directory).count() as u32;
            libc_mode::DIRECTORY
        }
        FileKind::File(content) => {
            add_content(builder, content, &mut entry);
            libc_mode::REGULAR
        }
        FileKind::Symlink(target) => {
            entry.target = target.to_vec();
            entry.size = target.len() as u64;
            libc_mode::SYMLINK
        }
        FileKind::CharDevice(major, minor) => {
            entry.device = (*major, *minor);
            libc_mode::CHAR
        }
        FileKind::BlockDevice(major, minor) => {
            entry.device = (*major, *minor);
            libc_mode::BLOCK
        }
        FileKind::Fifo => libc_mode::FIFO,
        FileKind::Socket => libc_mode::SOCKET,
    };
    entry
}

pub mod libc_mode {
    pub const FIFO: u32 = 0o01_0000;
    pub const CHAR: u32 = 0o02_0000;
    pub const DIRECTORY: u32 = 0o04_0000;
    pub const BLOCK: u32 = 0o06_0000;
    pub const REGULAR: u32 = 0o10_0000;
    pub const SYMLINK: u32 = 0o12_0000;
    pub const SOCKET: u32 = 0o14_0000;
}

fn add_content(builder: &Builder, content: &Content, entry: &mut Entry) {
    let read = |block: u32, len: u64| {
        let mut bytes = vec![0; len as usize];
        let file = builder.image_file();
        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, u64::from(block) * BLOCK).unwrap();
        bytes
    };
    match content {
        Content::Whole { size, block, tail } => {
            entry.size = *size;
            let full = size / BLOCK;
            if full > 0 {
                add_blocks(&mut entry.blocks, 0, &read(*block, full * BLOCK));
            }
            add_blocks(&mut entry.blocks, full, builder.spilled(*tail, (size % BLOCK) as usize));
        }
        Content::Sparse(sparse) => {
            entry.size = sparse.size;
            for run in &sparse.runs {
                let len = (sparse.size - u64::from(run.at) * BLOCK).min(u64::from(run.blocks) * BLOCK);
                add_blocks(&mut entry.blocks, u64::from(run.at), &read(run.block, len));
            }
        }
    }
}

/// What our reader makes of an image.
pub fn of_image(path: &std::path::Path) -> Seen {
    let reader = Reader::open(std::fs::File::open(path).unwrap(), "image.erofs").unwrap();
    let mut seen = Seen::new();
    for file in reader.files() {
        let FileEntry { mut path, inode } = file.unwrap();
        if !path.is_empty() {
            path.insert(0, b'/');
        }
        let (mode, device) = match inode.kind {
            InodeKind::Directory => (libc_mode::DIRECTORY, (0, 0)),
            InodeKind::File => (libc_mode::REGULAR, (0, 0)),
            InodeKind::Symlink => (libc_mode::SYMLINK, (0, 0)),
            InodeKind::CharDevice(major, minor) => (libc_mode::CHAR, (major, minor)),
            InodeKind::BlockDevice(major, minor) => (libc_mode::BLOCK, (major, minor)),
            InodeKind::Fifo => (libc_mode::FIFO, (0, 0)),
            InodeKind::Socket => (libc_mode::SOCKET, (0, 0)),
        };
        let mut entry = Entry {
            mode: mode | u32::from(inode.mode),
            owner: (inode.uid, inode.gid),
            mtime: (inode.mtime, inode.mtime_nsec),
            links: inode.links,
            same_as: format!("{}", inode.number).into_bytes(),
            device,
            size: if inode.kind == InodeKind::Directory { 0 } else { inode.size },
            xattrs: reader
                .xattrs(&inode)
                .unwrap()
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..Entry::default()
        };
        if inode.kind == InodeKind::Symlink {
            entry.target = reader.target(&inode).unwrap();
        }
        if inode.kind == InodeKind::File {
            for extent in reader.extents(&inode).map(Result::unwrap).filter(|extent| extent.place.is_some()) {
                let mut bytes = vec![0; extent.length as usize];
                assert_eq!(reader.read_at(&inode, &mut bytes, extent.at).unwrap(), bytes.len());
                add_blocks(&mut entry.blocks, extent.at / BLOCK, &bytes);
            }
        }
        seen.insert(path, entry);
    }
    // Numbers become first names, as in the other views.
    let mut first_names = BTreeMap::new();
    for (path, entry) in &mut seen {
        entry.same_as = first_names.entry(entry.same_as.clone()).or_insert_with(|| path.clone()).clone();
    }
    seen
}

/// Compares, and says which paths differ and how; not all of a large tree.
pub fn assert_same(found: &Seen, expected: &Seen) {
    let mut differences = vec![];
    for path in found.keys().chain(expected.keys()) {
        let (left, right) = (found.get(path), expected.get(path));
        if left != right {
            differences.push(format!(
                "{}:\n  found    {}\n  expected {}",
                path.escape_ascii(),
                show(left),
                show(right)
            ));
        }
    }
    differences.dedup();
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences[..differences.len().min(5)].join("\n")
    );
}

fn show(entry: Option<&Entry>) -> String {
    let Some(entry) = entry else { return "nothing".to_owned() };
    let mut text = format!("{entry:?}");
    text.truncate(text.floor_char_boundary(1200));
    text
}
