//! All directories of the host's root file system.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

use super::TICK;
use super::walk::{ChangeTime, DirStamp, DirWalk};

/// What an administrator does not install into, is not in an environment, or is changed all the time.
const LEFT_OUT: [&str; 15] = [
    ".",
    "..",
    "boot",
    "dev",
    "home",
    "lost+found",
    "media",
    "mnt",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "var",
    "scratch",
];
/// More directories than this are data.
const MOST: usize = 300_000;
/// A look at a low priority may take long.
const LIMIT: Duration = Duration::from_secs(120);
/// How many that have changed are named.
const NAMED: usize = 1000;
const DEEPEST: usize = 64;

/// All directories together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FullLook {
    /// A sum of hashes, so that the order does not matter. Nothing if it is not to be relied on.
    pub(super) sum: Option<u64>,
    /// The latest change.
    pub(super) newest: ChangeTime,
}

impl FullLook {
    /// The same, if nothing has changed since `unsure`; else a sum that no other is equal to.
    pub(super) fn sure(self, unsure: SystemTime) -> Self {
        let sum = self.sum.filter(|_| self.newest < ChangeTime::from(unsure));
        Self { sum, ..self }
    }

    /// Whether this look found what the other one did.
    pub(super) fn is_same(self, other: Self) -> bool {
        self.sum.is_some() && self.sum == other.sum
    }
}

/// What a full look found.
pub(super) struct FullLookResult {
    pub(super) look: FullLook,
    /// The directories that have changed since.
    pub(super) newer: Vec<PathBuf>,
}

/// Looks at all; names those that have changed after `since`.
pub(super) fn look(since: Option<ChangeTime>) -> FullLookResult {
    let begun = SystemTime::now() - TICK;
    let (mut sum, mut newest, mut newer) = (0_u64, ChangeTime::default(), vec![]);
    let mut visit = |path: &Path, stamp: DirStamp| {
        let mut hasher = DefaultHasher::new();
        stamp.hash(&mut hasher);
        sum = sum.wrapping_add(hasher.finish());
        newest = newest.max(stamp.changed);
        if since.is_some_and(|since| stamp.changed > since) && newer.len() < NAMED {
            newer.push(path.to_owned());
        }
    };
    let mut walk = DirWalk::begin(MOST, Instant::now() + LIMIT, &mut visit);
    tops().iter().for_each(|top| walk.tree(top, DEEPEST));
    // One that came to its limits has seen a part only, and another part each time.
    let sum = (walk.left > 0).then_some(sum);
    FullLookResult { look: FullLook { sum, newest }.sure(begun), newer }
}

fn tops() -> Vec<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = openat(CWD, "/", flags, Mode::empty()).and_then(Dir::new).into_iter().flatten().flatten();
    let names: Vec<_> =
        entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()).collect();
    let tops = names.iter().filter(|name| !LEFT_OUT.iter().any(|out| **name == **out));
    tops.map(|name| Path::new("/").join(name)).collect()
}
