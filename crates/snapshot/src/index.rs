//! The index: what an upper looked like at its last snapshot, in a file beside it.
//!
//! An entry whose stamp (inode, size, times, mode, owner, links) is still the same is unchanged - except that a change within
//! the clock's granularity of the moment it was read leaves the same ctime. Of such entries ("racy" in git's index)
//! the fingerprint of attributes and content is compared; so it is where only stamps that do not travel differ, as
//! after a rename there and back.
//!
//! The file is a local cache: one that is missing, torn or of another version only means that the next layer is a full one.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::digest::SnapshotId;
use crate::error::Result;
use crate::file::{Temp, read_to_end, write_all};
use crate::tree::{MAX_PATH, NodeType, Stamp, TreeNode, order};
use skiff_sys::{SystemContext, SystemError};

const MAGIC: &[u8; 8] = b"SKIFFIDX";
const VERSION: u32 = 2;
/// The version before: does not say which directories are `partial`, so that only a walk of the tree tells whether the upper is unchanged.
const WITHOUT_PARTIAL: u32 = 1;
const DIGEST: usize = 32;
/// An index is written in pieces of so many bytes.
const PIECE: usize = 1 << 20;
/// Bytes of an entry between its path and whether it has a fingerprint.
const FIXED: usize = 1 + 4 * 8 + 2 * 12 + 3 * 4 + 1;
/// The index's name in the environment's directory.
pub(crate) const NAME: &str = "snapshot.index";
/// Largest index that is read: some ten million entries.
const MAX_SIZE: u64 = 4 << 30;

/// The bytes of an index that is whole. Its entries are parsed where they are needed.
#[derive(Debug)]
pub(crate) struct StoredIndex {
    bytes: Vec<u8>,
    pub(crate) snapshot: SnapshotId,
    /// Whether it is of the version before, and is to be written anew.
    pub(crate) is_old: bool,
}

/// What an index says of one path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IndexedNode<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) kind: NodeType,
    pub(crate) stamp: Stamp,
    pub(crate) fingerprint: Option<[u8; 32]>,
    pub(crate) racy: bool,
    pub(crate) partial: bool,
}

impl StoredIndex {
    /// The index in an environment's directory; nothing if there is none that is whole.
    pub(crate) fn load(state: BorrowedFd<'_>) -> Result<Option<StoredIndex>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(state, NAME, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(SystemError::new("open", NAME, errno).into()),
        };
        Ok(read_to_end(file.as_fd(), MAX_SIZE).on("read", NAME)?.and_then(StoredIndex::new))
    }

    /// From the bytes of its file.
    pub(crate) fn new(bytes: Vec<u8>) -> Option<StoredIndex> {
        let Header { version, snapshot, .. } = header(&mut whole(&bytes)?)?;
        Some(StoredIndex { bytes, snapshot, is_old: version == WITHOUT_PARTIAL })
    }

    /// All of it; nothing if what it holds is not an index.
    pub(crate) fn parse(&self) -> Option<SnapshotIndex> {
        SnapshotIndex::parse_body(whole_unchecked(&self.bytes)?)
    }

    /// The entries' bytes in pieces of so many entries, for [`IndexedNode::take`]. Nothing of an index whose entries do not say all that has
    /// to be known of them.
    pub(crate) fn pieces(&self, entries: u64) -> Option<Vec<&[u8]>> {
        let mut rest = whole_unchecked(&self.bytes)?;
        let Header { mut count, .. } = header(&mut rest)?;
        if self.is_old {
            return None;
        }
        let mut pieces = vec![];
        while count > 0 {
            let now = count.min(entries);
            let begin = rest;
            (0..now).try_for_each(|_| skip(&mut rest))?;
            pieces.push(&begin[..begin.len() - rest.len()]);
            count -= now;
        }
        rest.is_empty().then_some(pieces)
    }
}

/// An upper at its last snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotIndex {
    pub(crate) snapshot: SnapshotId,
    pub(crate) nodes: Vec<TreeNode>,
}

impl SnapshotIndex {
    pub(crate) fn save(&self, state: BorrowedFd<'_>) -> Result<()> {
        let (temp, file) = Temp::create(state)?;
        self.write(&mut |piece| Ok(write_all(file.as_fd(), piece).on("write to", temp.name())?))?;
        Ok(temp.publish(NAME).on("rename into place", NAME)?)
    }

    /// Gives its bytes to `out` in pieces: all of them would take nearly as much memory as the nodes.
    fn write(&self, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut piece, mut hasher) = (Vec::with_capacity(2 * PIECE), blake3::Hasher::new());
        piece.extend(MAGIC);
        piece.extend(VERSION.to_le_bytes());
        piece.extend(self.snapshot.0);
        piece.extend((self.nodes.len() as u64).to_le_bytes());
        for node in &self.nodes {
            put(&mut piece, node);
            if piece.len() >= PIECE {
                hasher.update(&piece);
                out(&piece)?;
                piece.clear();
            }
        }
        hasher.update(&piece);
        out(&piece)?;
        out(hasher.finalize().as_bytes())
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        let mut take = |piece: &[u8]| {
            bytes.extend(piece);
            Ok(())
        };
        self.write(&mut take).unwrap();
        bytes
    }

    /// Parses an index; nothing if it is not one, or not whole.
    pub(crate) fn parse(bytes: &[u8]) -> Option<SnapshotIndex> {
        SnapshotIndex::parse_body(whole(bytes)?)
    }

    /// The part before the digest. Apart, so that fuzzing gets past the digest.
    pub(crate) fn parse_body(body: &[u8]) -> Option<SnapshotIndex> {
        let mut rest = body;
        let Header { snapshot, count, .. } = header(&mut rest)?;
        let mut nodes: Vec<TreeNode> = Vec::new();
        for _ in 0..count {
            let node = IndexedNode::take(&mut rest)?.node();
            if nodes.last().is_some_and(|last| !order(&last.path, &node.path).is_lt()) {
                return None;
            }
            nodes.push(node);
        }
        rest.is_empty().then_some(SnapshotIndex { snapshot, nodes })
    }
}

/// The bytes before the digest, if it is theirs.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let (body, digest) = bytes.split_last_chunk::<DIGEST>()?;
    (blake3::hash(body).as_bytes() == digest).then_some(body)
}

/// The same of bytes whose digest has been looked at.
fn whole_unchecked(bytes: &[u8]) -> Option<&[u8]> {
    bytes.split_last_chunk::<DIGEST>().map(|(body, _)| body)
}

struct Header {
    version: u32,
    snapshot: SnapshotId,
    /// How many entries follow.
    count: u64,
}

fn header(rest: &mut &[u8]) -> Option<Header> {
    *rest = rest.strip_prefix(MAGIC)?;
    let version = int(rest).filter(|version| [VERSION, WITHOUT_PARTIAL].contains(version))?;
    Some(Header { version, snapshot: SnapshotId(take(rest)?), count: long(rest)? })
}

fn put(out: &mut Vec<u8>, node: &TreeNode) {
    let TreeNode { path, kind, stamp, fingerprint, racy, partial, data: _ } = node;
    out.extend((path.len() as u16).to_le_bytes());
    out.extend(path);
    out.push(match kind {
        NodeType::Dir { opaque: false } => 0,
        NodeType::Dir { opaque: true } => 1,
        NodeType::File => 2,
        NodeType::Symlink => 3,
        NodeType::Fifo => 4,
        NodeType::Whiteout => 5,
        NodeType::Other => 6,
    });
    for number in [stamp.ino, stamp.size, stamp.nlink, stamp.rdev] {
        out.extend(number.to_le_bytes());
    }
    for (seconds, nanoseconds) in [stamp.mtime, stamp.ctime] {
        out.extend(seconds.to_le_bytes());
        out.extend(nanoseconds.to_le_bytes());
    }
    for number in [stamp.mode, stamp.uid, stamp.gid] {
        out.extend(number.to_le_bytes());
    }
    out.push(u8::from(*racy) | u8::from(*partial) << 1);
    out.push(u8::from(fingerprint.is_some()));
    out.extend(fingerprint.iter().flatten());
}

/// Goes past one entry.
fn skip(rest: &mut &[u8]) -> Option<()> {
    let length = usize::from(u16::from_le_bytes(take(rest)?));
    let fixed = length + FIXED;
    let [has_fingerprint] = *rest.get(fixed..fixed + 1)?.first_chunk()?;
    *rest = rest.get(fixed + 1 + if has_fingerprint == 0 { 0 } else { DIGEST }..)?;
    Some(())
}

impl<'a> IndexedNode<'a> {
    /// Takes one from the beginning of bytes.
    pub(crate) fn take(rest: &mut &'a [u8]) -> Option<IndexedNode<'a>> {
        let length = usize::from(u16::from_le_bytes(take(rest)?));
        if length > MAX_PATH {
            return None;
        }
        let (path, after) = rest.split_at_checked(length)?;
        *rest = after;
        let kind = match take::<1>(rest)? {
            [0] => NodeType::Dir { opaque: false },
            [1] => NodeType::Dir { opaque: true },
            [2] => NodeType::File,
            [3] => NodeType::Symlink,
            [4] => NodeType::Fifo,
            [5] => NodeType::Whiteout,
            [6] => NodeType::Other,
            _ => return None,
        };
        let [ino, size, nlink, rdev] = [long(rest)?, long(rest)?, long(rest)?, long(rest)?];
        let [mtime, ctime] = [time(rest)?, time(rest)?];
        let [mode, uid, gid] = [int(rest)?, int(rest)?, int(rest)?];
        let (racy, partial) = match take::<1>(rest)? {
            [flags @ 0..=3] => (flags & 1 != 0, flags & 2 != 0),
            _ => return None,
        };
        let fingerprint = match take::<1>(rest)? {
            [0] => None,
            [1] => Some(take(rest)?),
            _ => return None,
        };
        let stamp = Stamp { ino, size, mtime, ctime, mode, uid, gid, nlink, rdev };
        Some(IndexedNode { path, kind, stamp, fingerprint, racy, partial })
    }

    fn node(self) -> TreeNode {
        let IndexedNode { path, kind, stamp, fingerprint, racy, partial } = self;
        TreeNode { path: path.to_vec(), kind, stamp, fingerprint, racy, partial, data: 0 }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn int(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
}

fn long(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

fn time(rest: &mut &[u8]) -> Option<(i64, u32)> {
    let seconds = i64::from_le_bytes(take(rest)?);
    let nanoseconds = int(rest)?;
    (nanoseconds < 1_000_000_000).then_some((seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SnapshotIndex {
        let stamp =
            Stamp { ino: 7, size: 1 << 40, mtime: (-5, 999_999_999), ctime: (9, 1), ..Stamp::default() };
        let node = |path: &[u8], kind, fingerprint| TreeNode {
            path: path.to_vec(),
            kind,
            stamp,
            fingerprint,
            racy: true,
            partial: path == b"a",
            data: 0,
        };
        let nodes = vec![
            node(b"", NodeType::Dir { opaque: false }, None),
            node(b"a", NodeType::Dir { opaque: true }, Some([3; 32])),
            node(b"a/\xff\n", NodeType::File, None),
            node(b"a-b", NodeType::Whiteout, None),
        ];
        SnapshotIndex { snapshot: SnapshotId([9; 32]), nodes }
    }

    #[test]
    fn an_index_comes_back_as_it_was() {
        assert_eq!(SnapshotIndex::parse(&sample().bytes()), Some(sample()));
    }

    #[test]
    fn an_index_of_many_pieces_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let state = std::fs::File::open(dir.path()).unwrap();
        let mut index = sample();
        let last = index.nodes[3].clone();
        let path = |number: usize| format!("many/{number:07}").into_bytes();
        index
            .nodes
            .extend((0..3 * PIECE / FIXED).map(|number| TreeNode { path: path(number), ..last.clone() }));
        index.save(state.as_fd()).unwrap();
        let stored = StoredIndex::load(state.as_fd()).unwrap().unwrap();
        assert!(stored.bytes.len() > 3 * PIECE);
        assert_eq!(stored.parse(), Some(index));
    }

    #[test]
    fn the_pieces_of_an_index_are_its_entries() {
        let stored = StoredIndex::new(sample().bytes()).unwrap();
        assert_eq!((stored.snapshot, stored.parse()), (sample().snapshot, Some(sample())));
        for (size, pieces) in [(1, 4), (3, 2), (9, 1)] {
            let found = stored.pieces(size).unwrap();
            assert_eq!(found.len(), pieces);
            let mut nodes = vec![];
            for mut piece in found {
                while !piece.is_empty() {
                    nodes.push(IndexedNode::take(&mut piece).unwrap().node());
                }
            }
            assert_eq!(nodes, sample().nodes);
        }
    }

    #[test]
    fn an_index_of_the_version_before_is_compared_with_a_walk() {
        let with_version = |version: u32| {
            let mut bytes = sample().bytes();
            bytes.truncate(bytes.len() - DIGEST);
            bytes[MAGIC.len()..][..4].copy_from_slice(&version.to_le_bytes());
            let digest = blake3::hash(&bytes);
            bytes.extend(digest.as_bytes());
            StoredIndex::new(bytes)
        };
        let old = with_version(WITHOUT_PARTIAL).unwrap();
        assert_eq!(old.parse(), Some(sample()));
        assert!(old.pieces(1).is_none());
        assert!(with_version(VERSION).unwrap().pieces(1).is_some());
        assert!(with_version(3).is_none());
    }

    #[test]
    fn a_torn_or_altered_index_is_no_index() {
        let bytes = sample().bytes();
        for length in 0..bytes.len() {
            assert_eq!(SnapshotIndex::parse(&bytes[..length]), None);
            assert_eq!(SnapshotIndex::parse_body(&bytes[..length.min(bytes.len() - 33)]), None);
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert_eq!(SnapshotIndex::parse(&altered), None);
        }
    }
}
