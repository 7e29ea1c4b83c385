//! What a directory tree consists of: its nodes and their stamps, the order of their paths, and the way to each by descriptors.
//!
//! An upper belongs to its user, who may change it while it is looked at: each step opens one name in a directory that
//! is already open and never follows a symbolic link, so no tree leads out of its root.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::error::Result;
use skiff_sys::{SystemContext, SystemError};

/// Longest path in a tree, in bytes: the kernel's PATH_MAX without the final NUL. What is deeper could not be named in
/// a system call either.
pub(crate) const MAX_PATH: usize = 4095;
/// Most entries of a tree: as many as a layer can have that a node mounts. Each takes some hundred bytes of memory while a snapshot is taken.
pub(crate) const MOST_ENTRIES: usize = 8_000_000;
/// What an entry takes in a layer besides its path and its data, roughly.
pub(crate) const ENTRY: u64 = 64;
/// How many directories of the current path are kept open; the ones above are opened again on the way back.
const OPEN_LEVELS: usize = 64;
/// A file system's own locks leave nothing to do for more.
const MAX_THREADS: usize = 8;

/// What a path in an upper is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeType {
    /// A directory; opaque ones hide what lies under them in the base.
    Dir {
        opaque: bool,
    },
    File,
    Symlink,
    Fifo,
    /// The base's object of this name is deleted.
    Whiteout,
    /// A socket or a device: nothing that another node could use.
    Other,
}

impl NodeType {
    pub(crate) fn is_dir(self) -> bool {
        matches!(self, NodeType::Dir { .. })
    }

    /// The kind of what `stat` describes; a directory's opacity has to be asked for apart.
    pub(crate) fn of(stat: &Stat) -> NodeType {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => NodeType::Dir { opaque: false },
            FileType::RegularFile => NodeType::File,
            FileType::Symlink => NodeType::Symlink,
            FileType::Fifo => NodeType::Fifo,
            FileType::CharacterDevice if stat.st_rdev == 0 => NodeType::Whiteout,
            _ => NodeType::Other,
        }
    }
}

/// What tells whether an inode changed. Any change of content or attributes moves the ctime, which no one can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u64,
    pub(crate) rdev: u64,
}

impl From<&Stat> for Stamp {
    // The C library's field types differ between architectures; none of these values is ever out of range.
    #[allow(clippy::unnecessary_cast)]
    fn from(stat: &Stat) -> Stamp {
        Stamp {
            ino: stat.st_ino as u64,
            size: stat.st_size as u64,
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
            mode: stat.st_mode as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: stat.st_nlink as u64,
            rdev: stat.st_rdev as u64,
        }
    }
}

/// One path of a tree. The root has the empty path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeNode {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: NodeType,
    pub(crate) stamp: Stamp,
    /// What the entry was when it was shipped, attributes and content, where that is known (see `index`).
    pub(crate) fingerprint: Option<[u8; 32]>,
    /// Whether a later change might have left the stamp as it is ("racy", see `index`).
    pub(crate) racy: bool,
    /// A directory of which not all names are among the nodes: what cannot be shipped has been taken out.
    pub(crate) partial: bool,
    /// Bytes of data without holes, roughly. Not part of what is compared or kept.
    pub(crate) data: u64,
}

impl TreeNode {
    pub(crate) fn new(path: Vec<u8>, kind: NodeType, stat: &Stat) -> TreeNode {
        let stamp = Stamp::from(stat);
        let room = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let data = if kind == NodeType::File { stamp.size.min(room) } else { 0 };
        TreeNode { path, kind, stamp, fingerprint: None, racy: false, partial: false, data }
    }

    /// What it takes in a layer, roughly, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.data + ENTRY + self.path.len() as u64
    }
}

/// The open directories from a tree's root to the current one.
pub(crate) struct DirStack {
    root: OwnedFd,
    levels: Vec<Level>,
    path: Vec<u8>,
}

struct Level {
    fd: Option<OwnedFd>,
    parent_len: usize,
}

impl DirStack {
    /// Begins at `root`, which is opened anew so that reading it does not move the caller's position in it.
    pub(crate) fn new(root: BorrowedFd<'_>) -> Result<DirStack> {
        let root = rustix::fs::openat(root, c".", dir_flags(), Mode::empty()).on("open", "/")?;
        Ok(DirStack { root, levels: Vec::new(), path: Vec::new() })
    }

    /// The current directory.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        let top = self.levels.last().and_then(|level| level.fd.as_ref());
        top.unwrap_or(&self.root).as_fd()
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The current directory's path.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The path of `name` in the current directory.
    pub(crate) fn child(&self, name: &[u8]) -> Vec<u8> {
        join(&self.path, name)
    }

    /// Makes the directory `name` the current one. The outer error ends the walk, the inner one is the system's answer.
    pub(crate) fn enter(&mut self, name: &[u8]) -> Result<rustix::io::Result<()>> {
        let path = self.child(name);
        if path.len() > MAX_PATH {
            return Err(SystemError::new("open", path, Errno::NAMETOOLONG).into());
        }
        let fd = match rustix::fs::openat(self.dir(), name, dir_flags(), Mode::empty()) {
            Ok(fd) => fd,
            Err(errno) => return Ok(Err(errno)),
        };
        self.levels.push(Level { fd: Some(fd), parent_len: self.path.len() });
        self.path = path;
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS + 1) {
            self.levels[far].fd = None;
        }
        Ok(Ok(()))
    }

    /// Goes back to the parent. At the root nothing happens.
    pub(crate) fn leave(&mut self) -> Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        self.path.truncate(level.parent_len);
        if let Some(level) = self.levels.last_mut()
            && level.fd.is_none()
        {
            level.fd = Some(open_beneath(self.root.as_fd(), &self.path, dir_flags()).on("open", &self.path)?);
        }
        Ok(())
    }

    /// Goes to the directory `path` by the shortest way.
    pub(crate) fn go(&mut self, path: &[u8]) -> Result<rustix::io::Result<()>> {
        while !is_within(path, &self.path) {
            self.leave()?;
        }
        let from = if self.path.is_empty() { 0 } else { (self.path.len() + 1).min(path.len()) };
        for name in path[from..].split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if let Err(errno) = self.enter(name)? {
                return Ok(Err(errno));
            }
        }
        Ok(Ok(()))
    }
}

pub(crate) fn dir_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Opens `path` without leaving `root`'s mount and without following any symbolic link.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open_within(root, path, flags, ResolveFlags::NO_XDEV)
}

/// The same, for what may be on another mount if `more` does not forbid it.
pub(crate) fn open_within(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    more: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | more;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// `name` in the directory `dir`.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match (dir, name) {
        (b"", name) => name.to_vec(),
        (dir, b"") => dir.to_vec(),
        _ => [dir, b"/", name].concat(),
    }
}

/// The directory that holds `path`, and its name there. The root has neither.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Whether `path` is `dir` or lies under it.
pub(crate) fn is_within(path: &[u8], dir: &[u8]) -> bool {
    dir.is_empty() || path == dir || (path.starts_with(dir) && path.get(dir.len()) == Some(&b'/'))
}

/// The order in which a walk gives paths: a directory, then what is in it, by the names' bytes.
pub(crate) fn order(a: &[u8], b: &[u8]) -> Ordering {
    match a.iter().zip(b).find(|(a, b)| a != b) {
        // '/' sorts before every byte that a name may hold.
        Some((b'/', _)) => Ordering::Less,
        Some((_, b'/')) => Ordering::Greater,
        Some((a, b)) => a.cmp(b),
        None => a.len().cmp(&b.len()),
    }
}

/// The names in an open directory, sorted.
pub(crate) fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut buffer = [MaybeUninit::uninit(); 32 * 1024];
    let mut names = Vec::new();
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) => match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(name.to_vec()),
            },
            // The directory itself was removed: it is empty now.
            Err(Errno::NOENT) => break,
            Err(errno) => return Err(errno),
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// How many threads look at so many pieces of a tree.
pub(crate) fn threads(pieces: usize) -> usize {
    if pieces < 2 {
        return 1;
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    pieces.min(processors).min(MAX_THREADS)
}

/// The files of `nodes` that have several names, by inode.
pub(crate) fn link_groups(nodes: &[TreeNode]) -> HashMap<u64, Vec<usize>> {
    let mut groups: HashMap<u64, Vec<usize>> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        if node.kind == NodeType::File && node.stamp.nlink > 1 {
            groups.entry(node.stamp.ino).or_default().push(at);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_before_what_is_in_it_and_that_before_what_only_begins_alike() {
        let sorted = [&b""[..], b"a", b"a/\x01", b"a/b", b"a\x01", b"a-b", b"a\xff", b"b"];
        for (at, path) in sorted.iter().enumerate() {
            for (other, against) in sorted.iter().enumerate() {
                assert_eq!(order(path, against), at.cmp(&other), "{path:?} and {against:?}");
            }
        }
    }

    #[test]
    fn split_join_within() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
        assert_eq!(join(b"", b"a"), b"a");
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a"));
    }
}
