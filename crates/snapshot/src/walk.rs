//! Lists all of a tree, by several threads where it is large. Each takes one directory after the other from a queue and looks at what is in it.
//! So no more directories are open than there are threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::tree::{MAX_PATH, MOST_ENTRIES, NodeType, TreeNode, dir_flags, join, names, open_within, threads};
use crate::xattr;
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

/// How often an entry that changes its kind while it is looked at is looked at again.
const TRIES: u32 = 8;
/// From so many waiting directories on, other threads help.
const MANY: usize = 32;

/// All of a tree in [`order`](crate::tree::order), root first. What vanishes meanwhile is left out.
pub(crate) fn walk(root: BorrowedFd<'_>) -> Result<Vec<TreeNode>> {
    walk_at_most(root, MOST_ENTRIES)
}

/// The same of a tree with at most so many entries: of a larger one no more is kept in memory.
fn walk_at_most(root: BorrowedFd<'_>, most: usize) -> Result<Vec<TreeNode>> {
    let walk = Walk::new(root, most)?;
    walk.lock().add(Vec::new());
    std::thread::scope(|scope| {
        let mut alone = true;
        walk.work(|waiting| {
            if !alone || waiting < MANY {
                return;
            }
            alone = false;
            for _ in 1..threads(waiting) {
                // One that cannot be started leaves its share to the others.
                if std::thread::Builder::new().spawn_scoped(scope, || walk.work(|_| ())).is_err() {
                    break;
                }
            }
        });
    });
    let WalkState { found, failed, .. } = walk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or_else(|| Ok(in_order(found)), Err)
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    device: u64,
    /// How many entries there may be, and how many names have been listed.
    most: usize,
    listed: AtomicUsize,
    state: Mutex<WalkState>,
    more: Condvar,
}

/// What the threads have in common.
#[derive(Default)]
struct WalkState {
    /// Directories that nobody has begun: their numbers and paths.
    waiting: Vec<(usize, Vec<u8>)>,
    /// How many directories are looked at now.
    begun: usize,
    /// What each directory is, by its number.
    found: Vec<Option<WalkedEntry>>,
    failed: Option<Error>,
}

/// What is at the path of a directory.
enum WalkedEntry {
    /// The directory, and what is in it in the order of the names.
    Dir(TreeNode, Vec<Child>),
    /// Something else meanwhile.
    Leaf(TreeNode),
}

/// What is in a directory.
enum Child {
    Leaf(TreeNode),
    /// A directory, by its number.
    Dir(usize),
}

/// Held while a thread looks at a directory. If that panics, the other threads would wait for it for ever.
struct BegunGuard<'a, 'b>(&'a Walk<'b>);

impl Drop for BegunGuard<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().begun -= 1;
        self.0.more.notify_all();
    }
}

impl WalkState {
    fn add(&mut self, path: Vec<u8>) -> usize {
        self.found.push(None);
        self.waiting.push((self.found.len() - 1, path));
        self.found.len() - 1
    }
}

impl<'a> Walk<'a> {
    fn new(root: BorrowedFd<'a>, most: usize) -> Result<Self> {
        let device = rustix::fs::fstat(root).on("look at", "/")?.st_dev;
        // The root is in no directory's list.
        let listed = AtomicUsize::new(1);
        Ok(Self { root, device, most, listed, state: Mutex::default(), more: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, WalkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at directories until none is left. `begun` is told how many wait.
    fn work(&self, mut begun: impl FnMut(usize)) {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() || (state.waiting.is_empty() && state.begun == 0) {
                return self.more.notify_all();
            }
            let Some((number, path)) = state.waiting.pop() else {
                state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.begun += 1;
            let waiting = state.waiting.len();
            drop(state);
            let guard = BegunGuard(self);
            begun(waiting);
            let looked = self.look(path);
            std::mem::forget(guard);
            state = self.lock();
            state.begun -= 1;
            match looked {
                Ok(found) => {
                    let found = found.map(|at| at.numbered(&mut state));
                    state.found[number] = found;
                }
                Err(error) => state.failed = Some(error),
            }
            if state.waiting.len() > 1 {
                self.more.notify_all();
            }
        }
    }

    /// What is at the path of something that was a directory; nothing if it vanished.
    fn look(&self, path: Vec<u8>) -> Result<Option<UnnumberedEntry>> {
        if path.len() > MAX_PATH {
            return Err(SystemError::new("open", path, Errno::NAMETOOLONG).into());
        }
        for _ in 0..TRIES {
            match self.open(&path, dir_flags()) {
                Ok(dir) => return self.directory(dir.as_fd(), path).map(Some),
                Err(Errno::NOENT) => return Ok(None),
                // No longer a directory, or one on the way is not.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(SystemError::new("open", path, errno).into()),
            }
            let fd = match self.open(&path, OFlags::PATH | OFlags::NOFOLLOW) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(errno) => return Err(SystemError::new("look at", path, errno).into()),
            };
            let stat = rustix::fs::fstat(&fd).on("look at", &path)?;
            let kind = NodeType::of(&stat);
            if !kind.is_dir() {
                return Ok(Some(UnnumberedEntry::Leaf(TreeNode::new(path, kind, &stat))));
            }
        }
        Err(Error::Busy { object: show(&path), tries: TRIES })
    }

    fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        open_within(self.root, path, flags, ResolveFlags::empty())
    }

    /// A directory as its descriptor shows it, and then what is in it: so what comes later than its stamp changes that stamp.
    fn directory(&self, dir: BorrowedFd<'_>, path: Vec<u8>) -> Result<UnnumberedEntry> {
        let stat = rustix::fs::fstat(dir).on("look at", &path)?;
        if stat.st_dev != self.device {
            let why = "another file system is mounted there".into();
            return Err(Error::Unsupported { object: show(&path), why });
        }
        let opaque = xattr::is_opaque(dir).on("read the attributes of", &path)?;
        let mut inside = vec![];
        let names = names(dir).on("read the directory", &path)?;
        if self.listed.fetch_add(names.len(), Ordering::Relaxed) + names.len() > self.most {
            return Err(Error::TooMany { object: show(&path), most: self.most });
        }
        for name in names {
            if xattr::FUSE_MARKS.contains(&&name[..]) {
                continue;
            }
            match rustix::fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let (path, kind) = (join(&path, &name), NodeType::of(&stat));
                    let dir = kind.is_dir();
                    inside.push(if dir {
                        UnnumberedChild::Dir(path)
                    } else {
                        UnnumberedChild::Leaf(TreeNode::new(path, kind, &stat))
                    });
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("look at", join(&path, &name), errno).into()),
            }
        }
        Ok(UnnumberedEntry::Dir(TreeNode::new(path, NodeType::Dir { opaque }, &stat), inside))
    }
}

/// As [`WalkedEntry`], before the directories in it have numbers.
enum UnnumberedEntry {
    Dir(TreeNode, Vec<UnnumberedChild>),
    Leaf(TreeNode),
}

/// As [`Child`], before a directory has its number.
enum UnnumberedChild {
    Leaf(TreeNode),
    Dir(Vec<u8>),
}

impl UnnumberedEntry {
    fn numbered(self, state: &mut WalkState) -> WalkedEntry {
        match self {
            UnnumberedEntry::Leaf(node) => WalkedEntry::Leaf(node),
            UnnumberedEntry::Dir(node, inside) => {
                let number = |seen| match seen {
                    UnnumberedChild::Leaf(node) => Child::Leaf(node),
                    UnnumberedChild::Dir(path) => Child::Dir(state.add(path)),
                };
                WalkedEntry::Dir(node, inside.into_iter().map(number).collect())
            }
        }
    }
}

/// All nodes, beginning with those of the directory of number 0.
fn in_order(mut found: Vec<Option<WalkedEntry>>) -> Vec<TreeNode> {
    let (mut nodes, mut open) = (vec![], vec![vec![Child::Dir(0)].into_iter()]);
    while let Some(level) = open.last_mut() {
        match level.next() {
            None => drop(open.pop()),
            Some(Child::Leaf(node)) => nodes.push(node),
            Some(Child::Dir(number)) => match found[number].take() {
                None => {}
                Some(WalkedEntry::Leaf(node)) => nodes.push(node),
                Some(WalkedEntry::Dir(node, inside)) => {
                    nodes.push(node);
                    open.push(inside.into_iter());
                }
            },
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::tree::{open_beneath, order};

    fn paths(dir: &std::path::Path) -> Vec<String> {
        let fd = std::fs::File::open(dir).unwrap();
        walk(fd.as_fd()).unwrap().iter().map(|node| show(&node.path)).collect()
    }

    #[test]
    fn a_walk_is_parent_first_and_in_the_order_it_says() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b", "a-b", "a.b", "b/c/d"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let fd = std::fs::File::open(dir.path()).unwrap();
        let nodes = walk(fd.as_fd()).unwrap();
        let shown: Vec<_> = nodes.iter().map(|node| skiff_sys::error::show(&node.path)).collect();
        assert_eq!(shown, ["/", "a", "a/b", "a-b", "a.b", "b", "b/c", "b/c/d"]);
        assert!(nodes.windows(2).all(|pair| order(&pair[0].path, &pair[1].path).is_lt()));
    }

    #[test]
    fn many_directories_are_walked_in_the_same_order() {
        let dir = tempfile::tempdir().unwrap();
        for at in 0..200 {
            std::fs::create_dir_all(dir.path().join(format!("{}/{at}/x", at % 7))).unwrap();
            std::fs::write(dir.path().join(format!("{}/{at}/y", at % 7)), "").unwrap();
        }
        let fd = std::fs::File::open(dir.path()).unwrap();
        let nodes = walk(fd.as_fd()).unwrap();
        assert_eq!(nodes.len(), 1 + 7 + 3 * 200);
        assert!(nodes.windows(2).all(|pair| order(&pair[0].path, &pair[1].path).is_lt()));
    }

    #[test]
    fn a_tree_of_too_many_entries_is_told_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        (0..100).for_each(|at| std::fs::create_dir_all(dir.path().join(format!("few/{at}"))).unwrap());
        std::fs::create_dir(dir.path().join("many")).unwrap();
        (0..900).for_each(|at| std::fs::write(dir.path().join(format!("many/{at}")), "").unwrap());
        let fd = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(walk_at_most(fd.as_fd(), 1003).unwrap().len(), 1003);
        // The directory that was found last is looked at first.
        for (most, object) in [(1002, "few"), (500, "many"), (1, "/")] {
            let error = walk_at_most(fd.as_fd(), most).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(&format!("cannot take {object} into")), "{told}");
            assert!(told.contains(&format!("more than {most} files and directories")), "{told}");
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_panicked() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let walk = Walk::new(fd.as_fd(), MOST_ENTRIES).unwrap();
        walk.lock().add(Vec::new());
        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk.work(|_| panic!("a test"))));
        assert!(panicked.is_err());
        assert_eq!(walk.lock().begun, 0);
        walk.work(|_| ());
    }

    #[test]
    fn a_symlink_is_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        std::fs::write(out.path().join("secret"), "x").unwrap();
        symlink(out.path(), dir.path().join("way")).unwrap();
        assert_eq!(paths(dir.path()), ["/", "way"]);
        let fd = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(open_beneath(fd.as_fd(), b"way/secret", OFlags::PATH).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn a_deep_tree_is_walked_with_few_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().join("top");
        for level in 0..300 {
            path.push(format!("d{level}"));
        }
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(dir.path().join("top/zz"), "after the deep way back").unwrap();
        assert_eq!(paths(dir.path()).len(), 303);
    }
}
