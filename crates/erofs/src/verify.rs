//! Checks that an image is one that [`super::finish`] could have written, so that the kernel is shown nothing else.
//!
//! Time and memory are bounded by the image's real size, whatever it says of itself: no two parts of the metadata may overlap, so
//! all of them together cannot be larger than it.

use std::collections::{HashMap, HashSet};

use super::Result;
use super::dirents;
use super::format::{BLOCK_SIZE, INODE_SIZE};
use super::layout::DEPTH_MAX;
use super::read::{InodeKind, Reader, StoredInode};
use super::seal::Seal;
use super::source::ReadAt;
use super::tree::BLOCK;

/// What an image was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Files of all kinds; those with several names count once.
    pub inodes: u64,
    /// Names, the root's included.
    pub names: u64,
    /// How many of the files are devices.
    pub devices: u64,
    /// How many of the files are character devices of number 0:0, which are whiteouts in a layer of an overlay. They count as devices, too.
    pub whiteouts: u64,
    /// UUID, which every image has that was made of the same files.
    pub uuid: [u8; 16],
}

/// Checks an image for a store: what is mounted by the machine's root, and shown to users, has no devices either.
///
/// # Errors
/// As [`verify`].
pub fn verify_stored<S: ReadAt>(reader: &Reader<S>) -> Result<Verified> {
    let verified = verify_stored_unsealed(reader)?;
    check_seal(reader)?;
    Ok(verified)
}

/// As [`verify_stored`], for whoever calls [`check_seal`] beside it, in another thread.
///
/// # Errors
/// As [`verify`].
pub fn verify_stored_unsealed<S: ReadAt>(reader: &Reader<S>) -> Result<Verified> {
    let verified = verify_unsealed(reader)?;
    if verified.devices > 0 {
        return Err(reader.bad_image("it has devices, which an image in a store must not"));
    }
    Ok(verified)
}

/// As [`verify_stored`], for a layer of an overlay: it may have whiteouts, which are no devices.
///
/// # Errors
/// As [`verify`].
pub fn verify_layer<S: ReadAt>(reader: &Reader<S>) -> Result<Verified> {
    let verified = verify_unsealed(reader)?;
    if verified.devices > verified.whiteouts {
        return Err(reader.bad_image("it has devices, which a layer in a store must not"));
    }
    check_seal(reader)?;
    Ok(verified)
}

/// Checks all metadata of an image; what is in its files' full blocks is not looked at.
///
/// # Errors
/// [`super::Error::BadImage`] with the first thing that is wrong, [`super::Error::Io`].
pub fn verify<S: ReadAt>(reader: &Reader<S>) -> Result<Verified> {
    let verified = verify_unsealed(reader)?;
    check_seal(reader)?;
    Ok(verified)
}

fn verify_unsealed<S: ReadAt>(reader: &Reader<S>) -> Result<Verified> {
    let root = reader.root()?;
    let mut walk = Walk {
        reader,
        unclaimed: reader.size() - reader.metadata_start(),
        names: 1,
        inodes: 0,
        devices: 0,
        whiteouts: 0,
        once: vec![],
        several: HashMap::new(),
        shared_xattrs: HashMap::new(),
    };
    let mut stack = vec![Pending { inode: root, parent: root.number, depth: 1 }];
    walk.claim(&root)?;
    while let Some(directory) = stack.pop() {
        walk.directory(&directory, &mut stack)?;
    }
    walk.finish()?;
    let Walk { inodes, names, devices, whiteouts, .. } = walk;
    Ok(Verified { inodes, names, devices, whiteouts, uuid: reader.uuid() })
}

/// A directory whose turn will come.
struct Pending {
    inode: StoredInode,
    parent: u64,
    depth: usize,
}

struct Walk<'r, S> {
    reader: &'r Reader<S>,
    /// How much of the metadata no inode has been found to lie in.
    unclaimed: u64,
    names: u64,
    inodes: u64,
    devices: u64,
    whiteouts: u64,
    /// The inodes that have one name, each as often as a name was found.
    once: Vec<u64>,
    /// Inodes with several names, and how many of these are still to be found.
    several: HashMap<u64, u32>,
    /// The names of shared attributes, by their places.
    shared_xattrs: HashMap<u32, Vec<u8>>,
}

impl<S: ReadAt> Walk<'_, S> {
    fn directory(&mut self, directory: &Pending, stack: &mut Vec<Pending>) -> Result<()> {
        let Pending { inode, parent, depth } = directory;
        let bad = |why| self.reader.bad(inode.number, why);
        if *depth > DEPTH_MAX {
            return Err(bad("lies too deep"));
        }
        let first = stack.len();
        let mut last: Option<Box<[u8]>> = None;
        let (mut subdirectories, mut dots) = (0u32, 0);
        for block in 0..inode.size.div_ceil(BLOCK) {
            let entries = self.reader.entries(inode, block)?;
            if last.as_ref().is_some_and(|last| *last >= entries[0].name) {
                return Err(self.reader.bad(inode.number, "has names that are not sorted"));
            }
            last = entries.last().map(|entry| entry.name.clone());
            for entry in entries {
                let expected = match &*entry.name {
                    b"." => inode.number,
                    b".." => *parent,
                    _ => {
                        let child = self.child(inode, &entry)?;
                        if child.kind == InodeKind::Directory {
                            subdirectories += 1;
                            stack.push(Pending { inode: child, parent: inode.number, depth: depth + 1 });
                        }
                        continue;
                    }
                };
                dots += 1;
                if entry.number != expected || entry.file_type != InodeKind::Directory.type_of().1 {
                    return Err(self.reader.bad(inode.number, "has a wrong '.' or '..'"));
                }
            }
        }
        // The first one's turn comes first: so they were written.
        stack[first..].reverse();
        if dots != 2 {
            return Err(self.reader.bad(inode.number, "has no '.' or no '..'"));
        }
        if u64::from(inode.links) != 2 + u64::from(subdirectories) {
            return Err(self.reader.bad(inode.number, "does not have as many directories in it as it says"));
        }
        Ok(())
    }

    /// One name in a directory.
    fn child(&mut self, directory: &StoredInode, entry: &dirents::Read) -> Result<StoredInode> {
        self.names += 1;
        if self.names > self.reader.most_names() {
            return Err(self.reader.bad_image("its directories overlap"));
        }
        let inode = self.reader.inode(entry.number)?;
        if entry.file_type != inode.kind.type_of().1 {
            return Err(self.reader.bad(directory.number, "calls a file something that it is not"));
        }
        if inode.kind != InodeKind::Directory && inode.links > 1 {
            if let Some(left) = self.several.get_mut(&inode.number) {
                let fewer = left.checked_sub(1);
                *left = fewer.ok_or_else(|| self.reader.bad(inode.number, "has more names than it says"))?;
                return Ok(inode);
            }
            self.several.insert(inode.number, inode.links - 1);
        } else {
            self.once.push(inode.number);
        }
        self.claim(&inode)?;
        Ok(inode)
    }

    /// Checks an inode that was not met before, and takes the metadata that is its own.
    fn claim(&mut self, inode: &StoredInode) -> Result<()> {
        self.inodes += 1;
        let beside = INODE_SIZE as u64 + u64::from(inode.xattr_size) + self.reader.length_behind(inode);
        let own = beside.saturating_add(self.reader.own_blocks(inode).saturating_mul(BLOCK));
        let left = self.unclaimed.checked_sub(own);
        self.unclaimed = left.ok_or_else(|| self.reader.bad_image("its inodes overlap"))?;
        self.xattrs(inode)?;
        match inode.kind {
            InodeKind::CharDevice(..) | InodeKind::BlockDevice(..) => {
                self.devices += 1;
                self.whiteouts += u64::from(inode.kind == InodeKind::CharDevice(0, 0));
                Ok(())
            }
            InodeKind::Symlink => self.reader.target(inode).map(|_| ()),
            InodeKind::File => self.reader.extents(inode).try_for_each(|extent| extent.map(|_| ())),
            _ => Ok(()),
        }
    }

    fn xattrs(&mut self, inode: &StoredInode) -> Result<()> {
        let (shared, inline) = self.reader.unread_xattrs(inode)?;
        for id in &shared {
            if !self.shared_xattrs.contains_key(id) {
                let name = self.reader.shared_xattr(inode, *id)?.name;
                self.shared_xattrs.insert(*id, name);
            }
        }
        let shared_names = shared.iter().map(|id| &self.shared_xattrs[id]);
        let mut names = HashSet::new();
        for name in inline.iter().map(|xattr| &xattr.name).chain(shared_names) {
            if !names.insert(name) {
                return Err(self.reader.bad(inode.number, "has an extended attribute twice"));
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.once.sort_unstable();
        if let Some(pair) = self.once.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(self.reader.bad(pair[0], "has more names than it says"));
        }
        if let Some((number, _)) = self.several.iter().find(|(_, left)| **left > 0) {
            return Err(self.reader.bad(*number, "has fewer names than it says"));
        }
        if self.inodes != self.reader.superblock.inodes {
            return Err(self.reader.bad_image("it does not have as many files as its superblock says"));
        }
        Ok(())
    }
}

/// Reads all metadata from its start to its end: whether it is what was written. That finds what a failing disk has changed, not what
/// somebody has forged, since the seal is no cryptographic one.
///
/// # Errors
/// [`super::Error::BadImage`] if it is not, [`super::Error::Io`].
pub fn check_seal<S: ReadAt>(reader: &Reader<S>) -> Result<()> {
    let mut seal = Seal::default();
    let mut unsealed = reader.superblock;
    unsealed.uuid = [0; 16];
    seal.add(0, &unsealed.encode());
    let mut buffer = vec![0; 64 * BLOCK_SIZE];
    let mut block = u64::from(reader.superblock.metadata);
    let end = u64::from(reader.superblock.blocks);
    while block < end {
        let count = (end - block).min(64);
        let part = &mut buffer[..(count * BLOCK) as usize];
        reader.read_unkept(part, block * BLOCK)?;
        seal.add(block, part);
        block += count;
    }
    if seal.uuid() == reader.uuid() {
        return Ok(());
    }
    Err(reader.bad_image("its metadata is not what it was when it was written"))
}
