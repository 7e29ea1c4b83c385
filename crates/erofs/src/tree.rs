//! An image's files as they will be: names, attributes, and where their bytes already lie. Everything but the bytes is in memory.
//!
//! Inodes stand in one vector and are named by their index; a directory maps names to inodes, so that a hard link is a second
//! name of one inode. At most some 250 bytes a file, since images of a million files exist.

use std::collections::BTreeMap;
use std::collections::HashMap;

/// An inode's index in its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u32);

/// A set of extended attributes, of which many inodes may have the same; its index in [`Tree::xattrs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrsId(pub u32);

/// Extended attributes: full names ("user.mime_type") and values, sorted by name.
pub type Xattrs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// What `stat` tells of every kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits with setuid, setgid and sticky: 0o7777 at most.
    pub mode: u16,
    /// Owner, as written in the image.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub mtime_nsec: u32,
    /// Extended attributes.
    pub xattrs: XattrsId,
}

/// A file of any kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Inode {
    /// Owner, mode, time.
    pub attributes: Attributes,
    /// What it is, and what it holds.
    pub kind: FileKind,
    /// Where the file's last bytes are to be read from: a number that only the `tails` of [`finish`](super::finish) interprets. For container
    /// images it is the layer's, counted from the bottom.
    pub layer: u32,
    /// How many names it has; a directory counts once. Zero: removed, or not yet [linked](Tree::link).
    pub names: u32,
}

/// What a file is, and what it holds.
#[derive(Debug, Clone, PartialEq)]
pub enum FileKind {
    /// A directory, with the names in it, sorted by their bytes.
    Directory(BTreeMap<Box<[u8]>, InodeId>),
    /// A regular file.
    File(Content),
    /// A symbolic link with its target.
    Symlink(Box<[u8]>),
    /// A character device, with major and minor number.
    CharDevice(u32, u32),
    /// A block device, with major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Where a regular file's bytes lie.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Full blocks one after the other in the image file; the rest, less than one block, is asked for by [`finish`](super::finish).
    Whole {
        /// Length in bytes.
        size: u64,
        /// Number of the first full block in the image file; of no meaning if there is none.
        block: u32,
        /// Offset of the last `size % BLOCK` bytes in wherever the caller keeps them, in bytes.
        tail: u64,
    },
    /// With holes.
    Sparse(Box<Sparse>),
}

/// A file with holes: whole blocks of data that lie anywhere; what is in none of the runs reads as zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct Sparse {
    /// Length in bytes; the last block of data may reach beyond it, and is zero there.
    pub size: u64,
    /// Sorted, apart from each other.
    pub runs: Vec<BlockRun>,
}

/// Some blocks of a sparse file that lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRun {
    /// Number of the first one in the file.
    pub at: u32,
    /// Number of the first one in the image file.
    pub block: u32,
    /// How many.
    pub blocks: u32,
}

/// The unit of an image file's data, in bytes.
pub const BLOCK: u64 = 4096;

/// The files of one image, or of its lower layers.
#[derive(Debug)]
pub struct Tree {
    inodes: Vec<Inode>,
    xattrs: Vec<Xattrs>,
    known_xattrs: HashMap<Xattrs, XattrsId>,
}

impl Tree {
    /// The root directory's inode.
    pub const ROOT: InodeId = InodeId(0);

    /// A tree with nothing in it but a root directory with these attributes and the extended attributes `xattrs`.
    pub fn new(root: Attributes) -> Tree {
        let known_xattrs = HashMap::from([(vec![], XattrsId(0))]);
        let kind = FileKind::Directory(BTreeMap::new());
        let root = Inode { attributes: Attributes { xattrs: XattrsId(0), ..root }, kind, layer: 0, names: 1 };
        Tree { inodes: vec![root], xattrs: vec![vec![]], known_xattrs }
    }

    /// One inode.
    ///
    /// # Panics
    /// The tree has no inode of this number. So do all that take one.
    pub fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.0 as usize]
    }

    /// One inode, to be changed.
    pub fn inode_mut(&mut self, id: InodeId) -> &mut Inode {
        &mut self.inodes[id.0 as usize]
    }

    /// All inodes, removed ones included.
    pub fn inodes(&self) -> impl Iterator<Item = &Inode> {
        self.inodes.iter()
    }

    /// How many inodes there are, removed ones included.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether there is not even a root: never.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Adds an inode; [`Tree::link`] gives it its names.
    pub fn add(&mut self, inode: Inode) -> InodeId {
        self.inodes.push(inode);
        InodeId((self.inodes.len() - 1) as u32)
    }

    /// Gives an inode one more name. `false`, and nothing is changed, if `directory` is not a directory or has that name already.
    pub fn link(&mut self, directory: InodeId, name: &[u8], id: InodeId) -> bool {
        let FileKind::Directory(children) = &mut self.inode_mut(directory).kind else { return false };
        if children.contains_key(name) {
            return false;
        }
        children.insert(name.into(), id);
        self.inode_mut(id).names += 1;
        true
    }

    /// Takes all names of devices away. A device is a way to the machine's, whoever owns the file: the kernel mounts images as root of the
    /// machine, and what keeps devices from being opened is a flag of each mount, which who mounts can leave out.
    pub fn remove_devices(&mut self) {
        let is_device =
            |inode: &Inode| matches!(inode.kind, FileKind::CharDevice(..) | FileKind::BlockDevice(..));
        if !self.inodes.iter().any(is_device) {
            return;
        }
        let devices: Vec<bool> = self.inodes.iter().map(is_device).collect();
        for (inode, is_device) in self.inodes.iter_mut().zip(&devices) {
            if *is_device {
                inode.names = 0;
            }
            if let FileKind::Directory(children) = &mut inode.kind {
                children.retain(|_, id| !devices[id.0 as usize]);
            }
        }
    }

    /// These extended attributes, which become sorted, as a set of this tree.
    pub fn intern(&mut self, mut xattrs: Xattrs) -> XattrsId {
        xattrs.sort();
        let next = XattrsId(self.xattrs.len() as u32);
        *self.known_xattrs.entry(xattrs).or_insert_with_key(|xattrs| {
            self.xattrs.push(xattrs.clone());
            next
        })
    }

    /// One set of extended attributes.
    pub fn xattrs(&self, id: XattrsId) -> &Xattrs {
        &self.xattrs[id.0 as usize]
    }
}
