//! What the base has at a path: the tree below the upper, as the user sees it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use crate::error::Result;
use crate::tree::{NodeType, TreeNode, open_beneath, order, split};
use skiff_sys::{SystemContext, SystemError};

/// The base's root directory. It should be of the very mount that lies below the upper: other mounts on top of it are not
/// entered.
#[derive(Clone, Copy)]
pub(crate) struct BaseRoot<'a>(pub(crate) BorrowedFd<'a>);

/// What the base has at a path.
pub(crate) enum BaseEntry {
    Absent,
    /// Something that cannot be looked at: under a mount, or not accessible.
    Unknown,
    Here {
        kind: NodeType,
        stat: Stat,
        fd: OwnedFd,
    },
}

impl BaseRoot<'_> {
    pub(crate) fn look(&self, path: &[u8]) -> Result<BaseEntry> {
        match open_beneath(self.0, path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(fd.as_fd()).on("look at", path)?;
                Ok(BaseEntry::Here { kind: NodeType::of(&stat), stat, fd })
            }
            // A symbolic link on the way: the upper's directory of that name hides it with all it leads to.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(BaseEntry::Absent),
            Err(Errno::XDEV | Errno::ACCESS | Errno::PERM) => Ok(BaseEntry::Unknown),
            Err(errno) => Err(SystemError::new("look in the base at", path, errno).into()),
        }
    }

    /// Whether something of the base shows at `path` where the upper `nodes` have nothing.
    pub(crate) fn shows(&self, nodes: &[TreeNode], path: &[u8]) -> Result<bool> {
        Ok(!is_hidden(nodes, path) && !matches!(self.look(path)?, BaseEntry::Absent))
    }

    /// Whether a directory of the base shows through a directory of the upper at `path` that is not opaque.
    pub(crate) fn merges(&self, nodes: &[TreeNode], path: &[u8]) -> Result<bool> {
        let directory = match self.look(path)? {
            BaseEntry::Absent => false,
            BaseEntry::Unknown => true,
            BaseEntry::Here { kind, .. } => kind.is_dir(),
        };
        Ok(directory && !is_hidden(nodes, path))
    }
}

/// The node of a path.
pub(crate) fn find<'n>(nodes: &'n [TreeNode], path: &[u8]) -> Option<&'n TreeNode> {
    nodes.binary_search_by(|node| order(&node.path, path)).ok().map(|at| &nodes[at])
}

/// Whether a directory above `path` is opaque.
fn is_hidden(nodes: &[TreeNode], path: &[u8]) -> bool {
    let mut path = path;
    while !path.is_empty() {
        path = split(path).0;
        if find(nodes, path).is_some_and(|node| node.kind == NodeType::Dir { opaque: true }) {
            return true;
        }
    }
    false
}
