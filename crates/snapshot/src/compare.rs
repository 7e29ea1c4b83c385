//! What changed between two snapshots, or between one and an upper as it is now, without unpacking anything: from the records of their
//! layers, and from the base where one of the two sides leaves it as it is.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::base::{BaseEntry, BaseRoot};
use crate::chunk::OpenHere;
use crate::content_hash::content_on_disk;
use crate::depot::Depot;
use crate::diff::{Change, ChangeKind};
use crate::digest::SnapshotId;
use crate::error::Result;
use crate::manifest::LayerRef;
use crate::tree::{NodeType, Stamp, join, names, open_beneath, order};
use crate::xattr;
use skiff_sys::SystemContext;

use flat::{Details, FlatEntry, FlatLayers, key};

mod conflicts;
mod flat;

pub use conflicts::{ChangeConflict, conflicts};

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    /// A snapshot in the depot.
    Snapshot(&'a SnapshotId),
    /// An upper, which may be in use, and the environment's own directory: its index tells what is as it was in the last snapshot.
    Upper(BorrowedFd<'a>, BorrowedFd<'a>),
}

/// Compares two states of environments over `base`, in the order of a walk. Of a directory that is gone only the directory itself is told.
pub fn compare(
    depot: &Depot,
    before: Side<'_>,
    after: Side<'_>,
    base: BorrowedFd<'_>,
) -> Result<Vec<Change>> {
    let (before, after) = match (before, after) {
        (Side::Snapshot(before), Side::Snapshot(after)) => of_snapshots(depot, (before, after))?,
        (Side::Snapshot(before), Side::Upper(upper, state)) => {
            let layers = depot.manifest(before)?.layers;
            (FlatLayers::empty().over(depot, &layers)?, FlatLayers::of_upper(upper, state, Some(before))?)
        }
        (Side::Upper(upper, state), Side::Snapshot(after)) => {
            let layers = depot.manifest(after)?.layers;
            (FlatLayers::of_upper(upper, state, Some(after))?, FlatLayers::empty().over(depot, &layers)?)
        }
        (Side::Upper(before, state), Side::Upper(after, other)) => {
            (FlatLayers::of_upper(before, state, None)?, FlatLayers::of_upper(after, other, None)?)
        }
    };
    differences(&before, &after, base)
}

/// What an upper over these layers changes, over `base`; and how many bytes the files of both have. The depot is read for layers that `here` has not.
pub(crate) fn changes_over(
    (depot, here): (&Depot, &OpenHere<'_>),
    layers: &[LayerRef],
    upper: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
) -> Result<(Vec<Change>, u64)> {
    let before = match FlatLayers::empty().over_here((depot, here), layers) {
        Ok(before) => before,
        // What a node has may be damaged or gone; then it is as if it had nothing.
        Err(_) => FlatLayers::empty().over(depot, layers)?,
    };
    let after = before.clone().with_upper(upper)?;
    Ok((differences(&before, &after, base)?, after.bytes()))
}

fn differences(before: &FlatLayers<'_>, after: &FlatLayers<'_>, base: BorrowedFd<'_>) -> Result<Vec<Change>> {
    let mut differ = StateDiffer { before, after, base: BaseRoot(base), changes: vec![] };
    differ.entry(b"", (false, false))?;
    differ.changes.sort_by(|a, b| order(&a.path, &b.path));
    Ok(differ.changes)
}

/// Layers that both have are read once.
fn of_snapshots<'a>(
    depot: &Depot,
    ids: (&SnapshotId, &SnapshotId),
) -> Result<(FlatLayers<'a>, FlatLayers<'a>)> {
    let (before, after) = (depot.manifest(ids.0)?.layers, depot.manifest(ids.1)?.layers);
    let shared = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let both = FlatLayers::empty().over(depot, &before[..shared])?;
    Ok((both.clone().over(depot, &before[shared..])?, both.over(depot, &after[shared..])?))
}

/// What shows at a path.
enum ShownEntry<'a> {
    Nothing,
    Own(&'a FlatEntry),
    /// The base's; nothing is known of what lies under a mount, or is closed.
    Base(Option<FlatEntry>),
}

impl ShownEntry<'_> {
    fn entry(&self) -> Option<&FlatEntry> {
        match self {
            ShownEntry::Own(entry) => Some(entry),
            ShownEntry::Base(entry) => entry.as_ref(),
            ShownEntry::Nothing => None,
        }
    }

    fn is_dir(&self) -> bool {
        self.entry().is_some_and(|entry| entry.kind.is_dir())
    }

    /// Whether the base is hidden in this directory, which lies in one where it is or is not.
    fn hides(&self, above: bool) -> bool {
        above || matches!(self, ShownEntry::Own(entry) if entry.kind == NodeType::Dir { opaque: true })
    }
}

struct StateDiffer<'a> {
    before: &'a FlatLayers<'a>,
    after: &'a FlatLayers<'a>,
    base: BaseRoot<'a>,
    changes: Vec<Change>,
}

impl<'a> StateDiffer<'a> {
    fn look(&self, state: &'a FlatLayers<'a>, path: &[u8], hides: bool) -> Result<ShownEntry<'a>> {
        match state.entries.get(&key(path)) {
            Some(entry) if entry.kind == NodeType::Whiteout => Ok(ShownEntry::Nothing),
            Some(entry) => Ok(ShownEntry::Own(entry)),
            None if hides => Ok(ShownEntry::Nothing),
            None => Ok(match self.base.look(path)? {
                BaseEntry::Absent => ShownEntry::Nothing,
                BaseEntry::Unknown => ShownEntry::Base(None),
                BaseEntry::Here { kind, stat, .. } => ShownEntry::Base(Some(FlatEntry {
                    kind,
                    stamp: Stamp::from(&stat),
                    details: None,
                    unchanged: false,
                })),
            }),
        }
    }

    fn tell(&mut self, path: &[u8], kind: ChangeKind) {
        self.changes.push(Change { path: path.to_vec(), kind, base_changed: false });
    }

    /// Compares a path, and all below it; `hides`: whether the two states hide the base there.
    fn entry(&mut self, path: &[u8], hides: (bool, bool)) -> Result<()> {
        let seen = (self.look(self.before, path, hides.0)?, self.look(self.after, path, hides.1)?);
        let hides = (seen.0.hides(hides.0), seen.1.hides(hides.1));
        match &seen {
            (ShownEntry::Nothing, ShownEntry::Nothing) | (ShownEntry::Base(_), ShownEntry::Base(_)) => Ok(()),
            (ShownEntry::Nothing, after) => self.added(path, after, hides.1),
            (_, ShownEntry::Nothing) => {
                self.tell(path, ChangeKind::Deleted);
                Ok(())
            }
            (before, after) => {
                if !self.is_same(path, before, after)? {
                    self.tell(path, ChangeKind::Changed);
                }
                match (before.is_dir(), after.is_dir()) {
                    (true, true) => self.dir(path, hides),
                    (false, true) => self.added_below(path, hides.1),
                    _ => Ok(()),
                }
            }
        }
    }

    fn dir(&mut self, path: &[u8], hides: (bool, bool)) -> Result<()> {
        let mut all: BTreeSet<Vec<u8>> = self.before.children(path).into_iter().collect();
        all.extend(self.after.children(path));
        if hides.0 != hides.1 {
            all.extend(self.names_in_base(path)?);
        }
        all.iter().try_for_each(|name| self.entry(&join(path, name), hides))
    }

    fn added(&mut self, path: &[u8], seen: &ShownEntry<'_>, hides: bool) -> Result<()> {
        self.tell(path, ChangeKind::Added);
        if seen.is_dir() { self.added_below(path, hides) } else { Ok(()) }
    }

    fn added_below(&mut self, path: &[u8], hides: bool) -> Result<()> {
        let mut all: BTreeSet<Vec<u8>> = self.after.children(path).into_iter().collect();
        if !hides {
            all.extend(self.names_in_base(path)?);
        }
        for name in all {
            let path = join(path, &name);
            let seen = self.look(self.after, &path, hides)?;
            if !matches!(seen, ShownEntry::Nothing) {
                self.added(&path, &seen, seen.hides(hides))?;
            }
        }
        Ok(())
    }

    fn names_in_base(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        match open_beneath(self.base.0, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) {
            Ok(dir) => Ok(names(dir.as_fd()).on("read the base's directory", path)?),
            // What could not be listed was not there for the user before either.
            Err(_) => Ok(vec![]),
        }
    }

    fn is_same(&self, path: &[u8], before: &ShownEntry<'_>, after: &ShownEntry<'_>) -> Result<bool> {
        let (Some(a), Some(b)) = (before.entry(), after.entry()) else {
            // Of a directory, nothing can be told.
            return Ok([before, after].iter().any(|seen| seen.is_dir()));
        };
        if a.unchanged || b.unchanged {
            return Ok(true);
        }
        let kinds = a.kind == b.kind || (a.kind.is_dir() && b.kind.is_dir());
        let (x, y) = (&a.stamp, &b.stamp);
        let modes = a.kind == NodeType::Symlink || (x.mode ^ y.mode) & 0o7777 == 0;
        if !kinds || !modes || (x.uid, x.gid) != (y.uid, y.gid) {
            return Ok(false);
        }
        match a.kind {
            NodeType::File if (x.mtime, x.size) != (y.mtime, y.size) => Ok(false),
            NodeType::Other | NodeType::Whiteout => Ok(x.rdev == y.rdev),
            NodeType::Fifo => Ok(true),
            NodeType::Dir { .. } | NodeType::File | NodeType::Symlink => {
                let of = |seen: &ShownEntry<'_>, state: &FlatLayers<'a>| self.details(path, seen, state);
                let (a_more, b_more) = (of(before, self.before)?, of(after, self.after)?);
                // Of a directory that is closed only what can be seen is compared.
                Ok(a_more.zip(b_more).map_or(a.kind.is_dir(), |(a, b)| a == b))
            }
        }
    }

    /// Extended attributes, target and digest of the content; nothing of what vanished or is closed.
    fn details(
        &self,
        path: &[u8],
        seen: &ShownEntry<'_>,
        state: &FlatLayers<'a>,
    ) -> Result<Option<Rc<Details>>> {
        let (Some(entry), root) = (seen.entry(), state.upper.filter(|_| matches!(seen, ShownEntry::Own(_))))
        else {
            return Ok(None);
        };
        match &entry.details {
            Some(details) => Ok(Some(Rc::clone(details))),
            None => Ok(on_disk(root.unwrap_or(self.base.0), path, entry.kind)?.map(Rc::new)),
        }
    }
}

fn on_disk(root: BorrowedFd<'_>, path: &[u8], kind: NodeType) -> Result<Option<Details>> {
    let flags = match kind {
        NodeType::Symlink => OFlags::PATH | OFlags::NOFOLLOW,
        _ => OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
    };
    let Ok(fd) = open_beneath(root, path, flags) else { return Ok(None) };
    if kind == NodeType::Symlink {
        let target = rustix::fs::readlinkat(&fd, c"", vec![]).on("read the link", path)?;
        let target = target.into_bytes();
        return Ok(Some(Details { xattrs: vec![], target, content: [0; 32] }));
    }
    let xattrs = match xattr::read(fd.as_fd()) {
        Err(Errno::XDEV) => return Ok(None),
        xattrs => xattrs.on("read the attributes of", path)?,
    };
    let content = match kind {
        NodeType::File => content_on_disk(&fd).on("read", path)?,
        _ => [0; 32],
    };
    Ok(Some(Details { xattrs, target: vec![], content }))
}
