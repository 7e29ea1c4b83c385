//! What a user changed: their upper against the base.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags, Stat, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::base::{BaseEntry, BaseRoot};
use crate::error::Result;
use crate::tree::{NodeType, TreeNode, join, names, open_beneath, order, split};
use crate::walk::walk;
use crate::xattr;
use skiff_sys::{SystemContext, SystemError};

const PIECE: usize = 128 * 1024;

/// How a path differs from the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// The base has nothing there.
    Added,
    /// The base has something else there, or with other content, owner, mode or attributes.
    Changed,
    /// Only the base has it. Of a deleted directory only the directory itself is told.
    Deleted,
}

/// One path that differs.
///
/// As JSON: `{"path": "etc/motd", "kind": "changed"}`. Where the path is not UTF-8, `path` has a replacement character for each
/// wrong byte, for people, and `path_hex` has all of its bytes as hex digits, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub struct Change {
    /// Relative to the root, without a leading slash; empty for the root itself. Any bytes but NUL.
    pub path: Vec<u8>,
    /// What happened to it.
    pub kind: ChangeKind,
    /// Whether the base has changed it, too, since the user's own was made. Told of what is changed and no directory.
    pub base_changed: bool,
}

#[derive(Serialize, Deserialize)]
struct Json {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: ChangeKind,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    base_changed: bool,
}

impl From<Change> for Json {
    fn from(Change { path, kind, base_changed }: Change) -> Json {
        let hex = || path.iter().map(|byte| format!("{byte:02x}")).collect();
        let path_hex = std::str::from_utf8(&path).is_err().then(hex);
        Json { path: String::from_utf8_lossy(&path).into_owned(), path_hex, kind, base_changed }
    }
}

impl TryFrom<Json> for Change {
    type Error = String;

    fn try_from(json: Json) -> std::result::Result<Change, String> {
        let path = match json.path_hex {
            None => json.path.into_bytes(),
            Some(hex) => parse_hex(&hex).ok_or_else(|| format!("not hex digits: {hex:?}"))?,
        };
        Ok(Change { path, kind: json.kind, base_changed: json.base_changed })
    }
}

fn parse_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let pairs = hex.as_bytes().chunks(2).map(|pair| match *pair {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

/// How to compare.
pub struct DiffOptions<'a> {
    /// What the upper's side sees as uid and gid where the base's side sees the given ones.
    pub map_owner: &'a dyn Fn(u32, u32) -> (u32, u32),
}

impl Default for DiffOptions<'_> {
    /// Both sides see the same ids, as when the base is the host's view mounted for the environment.
    fn default() -> Self {
        DiffOptions { map_owner: &|uid, gid| (uid, gid) }
    }
}

/// Compares an upper with its base, in the order of a walk: a directory, then what is in it, names by their bytes.
///
/// A whiteout over something is a deletion, and so is all that an opaque directory hides and does not have itself. A
/// directory that was only copied up on the way to something in it is not told; neither is a file that was
/// copied up but is still the same. Files are the same if type, mode, owner, attributes, size, time and content are.
pub fn diff(upper: BorrowedFd<'_>, base: BorrowedFd<'_>, options: &DiffOptions<'_>) -> Result<Vec<Change>> {
    let nodes = walk(upper)?;
    let mut differ = UpperDiffer { upper, base: BaseRoot(base), options, changes: Vec::new() };
    // Directories on the way to the current node, and whether the base is hidden in them.
    let mut hiding: Vec<(&[u8], bool)> = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        while hiding.last().is_some_and(|(dir, _)| !dir.is_empty() && *dir != split(&node.path).0) {
            hiding.pop();
        }
        let found = differ.base.look(&node.path)?;
        if let NodeType::Dir { opaque } = node.kind {
            let hides = opaque || hiding.last().is_some_and(|(_, hides)| *hides);
            hiding.push((&node.path, hides));
            if hides && matches!(found, BaseEntry::Here { kind: NodeType::Dir { .. }, .. }) {
                differ.hidden(&nodes[at..])?;
            }
        }
        differ.node(node, found)?;
    }
    differ.changes.sort_by(|a, b| order(&a.path, &b.path));
    Ok(differ.changes)
}

struct UpperDiffer<'a> {
    upper: BorrowedFd<'a>,
    base: BaseRoot<'a>,
    options: &'a DiffOptions<'a>,
    changes: Vec<Change>,
}

impl UpperDiffer<'_> {
    fn node(&mut self, node: &TreeNode, found: BaseEntry) -> Result<()> {
        let mut base_changed = false;
        let kind = match (node.kind, found) {
            (NodeType::Whiteout, BaseEntry::Absent) => return Ok(()),
            (NodeType::Whiteout, _) => ChangeKind::Deleted,
            (_, BaseEntry::Absent) => ChangeKind::Added,
            // A place where something is mounted or that is closed: of a directory, nothing can be told.
            (NodeType::Dir { .. }, BaseEntry::Unknown) => return Ok(()),
            (_, BaseEntry::Unknown) => ChangeKind::Changed,
            (_, BaseEntry::Here { kind, stat, fd }) => {
                if self.is_same(node, kind, &stat, &fd)? {
                    return Ok(());
                }
                base_changed = self.has_base_changed(node, &stat);
                ChangeKind::Changed
            }
        };
        self.changes.push(Change { path: node.path.clone(), kind, base_changed });
        Ok(())
    }

    /// Whether the base's file has changed since the user's own was made: copied up, or put in its place. Neither of the two times can be set:
    /// the birth of the one file, and the last change of the other. A file system that knows of no births says nothing.
    fn has_base_changed(&self, node: &TreeNode, base: &Stat) -> bool {
        if node.kind.is_dir() {
            return false;
        }
        let own = open_beneath(self.upper, &node.path, OFlags::PATH | OFlags::NOFOLLOW);
        let birth = own.and_then(|own| rustix::fs::statx(own, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME));
        birth.is_ok_and(|birth| {
            birth.stx_mask & StatxFlags::BTIME.bits() != 0
                && (base.st_ctime, i128::from(base.st_ctime_nsec))
                    > (birth.stx_btime.tv_sec, i128::from(birth.stx_btime.tv_nsec))
        })
    }

    /// Tells what the base has in a directory that hides it, and the upper has not. `nodes` begins with the directory.
    fn hidden(&mut self, nodes: &[TreeNode]) -> Result<()> {
        let dir = &nodes[0].path[..];
        let children = nodes[1..].iter().take_while(|node| crate::tree::is_within(&node.path, dir));
        let own: BTreeSet<&[u8]> =
            children.filter(|node| split(&node.path).0 == dir).map(|node| split(&node.path).1).collect();
        let listed = match open_beneath(self.base.0, dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) => names(fd.as_fd()).on("read the base's directory", dir)?,
            // What could not be listed was not there for the user before either.
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::XDEV) => Vec::new(),
            Err(errno) => return Err(SystemError::new("open the base's directory", dir, errno).into()),
        };
        for name in listed.iter().filter(|name| !own.contains(&name[..])) {
            self.changes.push(Change {
                path: join(dir, name),
                kind: ChangeKind::Deleted,
                base_changed: false,
            });
        }
        Ok(())
    }

    fn is_same(&self, node: &TreeNode, kind: NodeType, base: &Stat, fd: &OwnedFd) -> Result<bool> {
        let stamp = &node.stamp;
        let owner = (self.options.map_owner)(base.st_uid, base.st_gid);
        let modes = node.kind == NodeType::Symlink || (base.st_mode ^ stamp.mode) & 0o7777 == 0;
        let kinds = kind == node.kind || (kind.is_dir() && node.kind.is_dir());
        if !kinds || !modes || owner != (stamp.uid, stamp.gid) {
            return Ok(false);
        }
        let times = crate::tree::Stamp::from(base).mtime == stamp.mtime;
        let sizes = u64::try_from(base.st_size) == Ok(stamp.size);
        match node.kind {
            NodeType::File if !times || !sizes => Ok(false),
            NodeType::File | NodeType::Dir { .. } => self.is_same_inside(node),
            NodeType::Symlink => self.is_same_link(node, fd),
            NodeType::Fifo => Ok(true),
            NodeType::Whiteout | NodeType::Other => Ok(crate::tree::Stamp::from(base).rdev == stamp.rdev),
        }
    }

    /// Compares attributes and, of files, content. What vanished or is closed counts as changed, except for directories:
    /// of those only what can be seen is compared.
    fn is_same_inside(&self, node: &TreeNode) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let own = open_beneath(self.upper, &node.path, flags);
        let bases = open_beneath(self.base.0, &node.path, flags);
        let (Ok(own), Ok(bases)) = (own, bases) else { return Ok(node.kind.is_dir()) };
        let attributes = |fd: &OwnedFd| match xattr::read(fd.as_fd()) {
            Err(Errno::XDEV) => Ok(None),
            other => other.map(Some).on("read the attributes of", &node.path),
        };
        if attributes(&own)? != attributes(&bases)? {
            return Ok(false);
        }
        if node.kind.is_dir() { Ok(true) } else { Ok(same_content(&own, &bases).on("compare", &node.path)?) }
    }

    fn is_same_link(&self, node: &TreeNode, base: &OwnedFd) -> Result<bool> {
        let Ok(own) = open_beneath(self.upper, &node.path, OFlags::PATH | OFlags::NOFOLLOW) else {
            return Ok(false);
        };
        let target =
            |fd: &OwnedFd| rustix::fs::readlinkat(fd, c"", Vec::new()).on("read the link", &node.path);
        Ok(target(&own)? == target(base)?)
    }
}

fn same_content(a: &OwnedFd, b: &OwnedFd) -> rustix::io::Result<bool> {
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    loop {
        let got = rustix::io::retry_on_intr(|| rustix::io::pread(a, &mut left[..], at))?;
        let mut filled = 0;
        while filled < got {
            let want = &mut right[filled..got];
            match rustix::io::retry_on_intr(|| rustix::io::pread(b, &mut want[..], at + filled as u64))? {
                0 => return Ok(false),
                more => filled += more,
            }
        }
        if got == 0 || left[..got] != right[..got] {
            return Ok(got == 0);
        }
        at += got as u64;
    }
}
