//! Whether an upper still is what its index says.
//!
//! At most submissions nothing has changed. Then one look at each entry is enough: a directory whose stamp is the same has the same names in it, so no
//! directory is read, nothing is sorted, and no list of what is there is made. Several threads look at pieces of the index. The first
//! difference ends it, and a walk of the whole tree says what it is.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::AtFlags;

use crate::digest::SnapshotId;
use crate::error::Result;
use crate::index::{IndexedNode, StoredIndex};
use crate::tree::{DirStack, NodeType, Stamp, split, threads};

/// How many entries a thread looks at before it asks for more.
const PIECE: u64 = 512;

/// Whether an upper is seen at a glance to have changed since a snapshot, by the index in the environment's directory `state`. False as well
/// where that says nothing of this snapshot, and of changes that leave stamps as they were.
pub fn looks_changed(upper: BorrowedFd<'_>, state: BorrowedFd<'_>, since: &SnapshotId) -> Result<bool> {
    let index = StoredIndex::load(state)?.filter(|index| index.snapshot == *since && !index.is_old);
    Ok(index.is_some_and(|index| !has_same_stamps(&index, upper, false)))
}

/// Whether all entries of the index, and no others, are in `upper` as they were. False as well where that cannot be told by their stamps, or
/// where one cannot be looked at: whoever walks the tree then finds out.
pub(crate) fn is_unchanged(index: &StoredIndex, upper: BorrowedFd<'_>) -> bool {
    has_same_stamps(index, upper, true)
}

/// The same; `in_doubt` says whether a stamp counts as another one that may be the same although its entry has changed.
fn has_same_stamps(index: &StoredIndex, upper: BorrowedFd<'_>, in_doubt: bool) -> bool {
    let (Some(pieces), Ok(root)) = (index.pieces(PIECE), rustix::fs::fstat(upper)) else { return false };
    // The root says which names there are. Without it none would be missed.
    let has_root =
        pieces.first().and_then(|piece| IndexedNode::take(&mut &piece[..])?.path.is_empty().then_some(()));
    if has_root.is_none() {
        return false;
    }
    let (next, changed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let look = || {
        let Ok(mut stack) = DirStack::new(upper) else { return changed.store(true, Ordering::Relaxed) };
        while !changed.load(Ordering::Relaxed)
            && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
        {
            if !is_same_piece(&mut stack, piece, root.st_dev, in_doubt) {
                changed.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        // One that cannot be started leaves its share to the others.
        for _ in 1..threads(pieces.len()) {
            if std::thread::Builder::new().spawn_scoped(scope, look).is_err() {
                break;
            }
        }
        look();
    });
    !changed.into_inner()
}

fn is_same_piece(stack: &mut DirStack, mut piece: &[u8], device: u64, in_doubt: bool) -> bool {
    while !piece.is_empty() {
        let same = IndexedNode::take(&mut piece).is_some_and(|entry| {
            let is_doubtful = in_doubt && (entry.racy || entry.partial) && entry.kind != NodeType::Whiteout;
            !is_doubtful && is_same(stack, &entry, device)
        });
        if !same {
            return false;
        }
    }
    true
}

fn is_same(stack: &mut DirStack, entry: &IndexedNode<'_>, device: u64) -> bool {
    let IndexedNode { path, kind, stamp, .. } = entry;
    let (dir, name) = if kind.is_dir() { (*path, None) } else { (split(path).0, Some(split(path).1)) };
    if stack.path() != dir && !matches!(stack.go(dir), Ok(Ok(()))) {
        return false;
    }
    let stat = match name {
        None => rustix::fs::fstat(stack.dir()),
        Some(name) => rustix::fs::statat(stack.dir(), name, AtFlags::SYMLINK_NOFOLLOW),
    };
    let Ok(stat) = stat else { return false };
    match kind {
        // The kernel makes all whiteouts of an upper one inode with many names: its stamp says nothing.
        NodeType::Whiteout => NodeType::of(&stat) == NodeType::Whiteout,
        // Whether it is opaque is an attribute: its ctime would be another one.
        NodeType::Dir { .. } => stat.st_dev == device && Stamp::from(&stat) == *stamp,
        _ => Stamp::from(&stat) == *stamp,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::base::BaseRoot;
    use crate::index::SnapshotIndex;
    use crate::plan::take_out_unshippable;
    use crate::tree::TreeNode;
    use crate::walk::walk;

    /// Name of a change in a tree, and the function that makes the change.
    type Change = (&'static str, fn(&Path));

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        // More than one piece.
        for at in 0..40 {
            fs::create_dir_all(dir.path().join(format!("d{at}/x"))).unwrap();
            (0..20).for_each(|file| fs::write(dir.path().join(format!("d{at}/{file}")), "one").unwrap());
        }
        symlink("d1", dir.path().join("link")).unwrap();
        dir
    }

    /// What an index of the tree says whose stamps can be relied on, but for what `change` makes of it.
    fn index(upper: BorrowedFd<'_>, change: impl FnOnce(&mut Vec<TreeNode>)) -> StoredIndex {
        let mut nodes = walk(upper).unwrap();
        take_out_unshippable(&mut nodes, BaseRoot(upper)).unwrap();
        change(&mut nodes);
        StoredIndex::new(SnapshotIndex { snapshot: SnapshotId([1; 32]), nodes }.bytes()).unwrap()
    }

    #[test]
    fn what_has_changed_in_any_way_is_noticed() {
        let changes: [Change; 9] = [
            ("another content, length and time the same", |root| {
                let file = File::options().write(true).open(root.join("d39/7")).unwrap();
                let before = file.metadata().unwrap().modified().unwrap();
                fs::write(root.join("d39/7"), "two").unwrap();
                file.set_modified(before).unwrap();
            }),
            ("mode", |root| {
                fs::set_permissions(root.join("d7/3"), fs::Permissions::from_mode(0o600)).unwrap();
            }),
            ("a new file", |root| fs::write(root.join("d20/new"), "").unwrap()),
            ("a new file in the root", |root| fs::write(root.join("new"), "").unwrap()),
            ("a new socket", |root| drop(UnixListener::bind(root.join("d20/socket")).unwrap())),
            ("a file is gone", |root| fs::remove_file(root.join("d0/0")).unwrap()),
            ("a directory is gone", |root| fs::remove_dir(root.join("d12/x")).unwrap()),
            ("a link leads elsewhere", |root| {
                fs::remove_file(root.join("link")).unwrap();
                symlink("d2", root.join("link")).unwrap();
            }),
            ("a directory is a link to where it is now", |root| {
                fs::rename(root.join("d5"), root.join("else")).unwrap();
                symlink("else", root.join("d5")).unwrap();
            }),
        ];
        for (what, change) in changes {
            let dir = tree();
            let upper = File::open(dir.path()).unwrap();
            let index = index(upper.as_fd(), |_| ());
            assert!(is_unchanged(&index, upper.as_fd()), "before: {what}");
            // Longer than the kernel's clock stands still.
            std::thread::sleep(Duration::from_millis(20));
            change(dir.path());
            assert!(!is_unchanged(&index, upper.as_fd()), "{what}");
            assert!(!has_same_stamps(&index, upper.as_fd(), false), "{what}, at a glance");
        }
    }

    #[test]
    fn what_stamps_cannot_tell_is_looked_at_again() {
        let dir = tree();
        let upper = File::open(dir.path()).unwrap();
        for at in [0, 5, 300] {
            let racy = index(upper.as_fd(), |nodes| nodes[at].racy = true);
            assert!(!is_unchanged(&racy, upper.as_fd()), "{at}");
            assert!(
                has_same_stamps(&racy, upper.as_fd(), false),
                "{at}: but nothing says that it has changed"
            );
        }
        let rootless = index(upper.as_fd(), |nodes| drop(nodes.remove(0)));
        assert!(!is_unchanged(&rootless, upper.as_fd()));
    }

    #[test]
    fn a_directory_with_what_cannot_be_shipped_is_looked_at_again() {
        let dir = tree();
        let _listener = UnixListener::bind(dir.path().join("d3/socket")).unwrap();
        let upper = File::open(dir.path()).unwrap();
        // No base has anything at that path.
        let base = tempfile::tempdir().unwrap();
        let base = File::open(base.path()).unwrap();
        let index = index(upper.as_fd(), |nodes| {
            *nodes = walk(upper.as_fd()).unwrap();
            assert_eq!(take_out_unshippable(nodes, BaseRoot(base.as_fd())).unwrap(), [b"d3/socket"]);
        });
        assert!(!is_unchanged(&index, upper.as_fd()));
    }
}
