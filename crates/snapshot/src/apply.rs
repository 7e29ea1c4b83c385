//! A snapshot as one directory again: its chain of layers, merged as an overlay shows it, to be an environment's upper.
//!
//! Each layer is unpacked beside the result and moved into it by renames: so data is written once, and a layer is in use only after all
//! of it was verified. What the layers hide of the base, the result hides too.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{
    AtFlags, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid, XattrFlags, fsync, renameat_with,
};
use rustix::io::Errno;

use crate::base::{BaseRoot, find};
use crate::chunk::{OpenHere, StreamBytes};
use crate::clock::Clock;
use crate::depot::{Depot, make_dir};
use crate::digest::SnapshotId;
use crate::error::{Error, Result};
use crate::index::{self, SnapshotIndex};
use crate::layer::{LayerReader, expect, fingerprint, unpack};
use crate::manifest::LayerRef;
use crate::remove::remove_all;
use crate::room::is_full;
use crate::tree::{DirStack, NodeType, Stamp, TreeNode, dir_flags, is_within, split};
use crate::walk::walk;
use crate::xattr;
use skiff_sys::SystemContext;

const UPPER: &str = "upper";
/// A layer until it is merged.
const LAYER: &str = "layer";
/// Longer than a change may take to show in a ctime (see `index`): what is looked at after it is not racy.
const PAUSE: Duration = Duration::from_millis(60);

/// Makes `upper` in `work`, an empty directory of the caller, as the snapshot has it, and the index that goes with it.
/// `base` is what the upper will lie on. Runs inside the environment's user namespace.
pub fn apply(depot: &Depot, id: &SnapshotId, work: BorrowedFd<'_>, base: BorrowedFd<'_>) -> Result<()> {
    let upper = merge_layers((depot, &|_| None), &depot.manifest(id)?.layers, work, base)?;
    write_index(upper.as_fd(), *id, work)
}

/// Makes `upper` in `work`, an empty directory of the caller, of these layers as an overlay over `base` shows them. The depot is read for layers that
/// `here` has not.
pub(crate) fn merge_layers(
    sources: (&Depot, &OpenHere<'_>),
    layers: &[LayerRef],
    work: BorrowedFd<'_>,
    base: BorrowedFd<'_>,
) -> Result<OwnedFd> {
    for (at, layer) in layers.iter().enumerate() {
        let name = if at == 0 { UPPER } else { LAYER };
        let dir = unpack_layer(sources, layer, (work, name))?;
        if at > 0 {
            let upper = rustix::fs::openat(work, UPPER, dir_flags(), Mode::empty()).on("open", UPPER)?;
            merge(dir.as_fd(), upper.as_fd())?;
            remove_all(work, name.as_bytes())?;
        }
    }
    let upper = rustix::fs::openat(work, UPPER, dir_flags(), Mode::empty()).on("open", UPPER)?;
    remove_shown_whiteouts(upper.as_fd(), BaseRoot(base))?;
    Ok(upper)
}

/// Puts what [`apply`] has made in `work` in the place of an environment's upper, all at once; `work` has the one that was there.
pub fn put_in_place(work: BorrowedFd<'_>, environment: BorrowedFd<'_>) -> Result<()> {
    // On disk first: after a crash of the machine the name must not stand for half a tree.
    rustix::fs::openat(work, UPPER, dir_flags(), Mode::empty())
        .and_then(|upper| rustix::fs::syncfs(&upper))
        .on("sync", UPPER)?;
    renameat_with(work, UPPER, environment, UPPER, RenameFlags::EXCHANGE).on("exchange", UPPER)?;
    // Until this is done the old index is compared with the new upper: everything is found changed then, and nothing is missed.
    rustix::fs::renameat(work, index::NAME, environment, index::NAME).on("rename into place", index::NAME)?;
    Ok(fsync(environment).on("sync", UPPER)?)
}

/// What is in an upper that no snapshot holds: sockets and devices.
pub fn unshippable(upper: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
    let nodes = walk(upper)?.into_iter();
    Ok(nodes.filter(|node| node.kind == NodeType::Other).map(|node| node.path).collect())
}

/// Unpacks a layer into a new directory.
fn unpack_layer(
    (depot, here): (&Depot, &OpenHere<'_>),
    layer: &LayerRef,
    (work, name): (BorrowedFd<'_>, &str),
) -> Result<OwnedFd> {
    let new_dir = || {
        make_dir(work, name.as_bytes())?;
        Ok::<_, Error>(rustix::fs::openat(work, name, dir_flags(), Mode::empty()).on("open", name)?)
    };
    let dir = new_dir()?;
    if let Some(stream) = here(&layer.digest) {
        match unpack_into(
            LayerReader::new(StreamBytes::new(stream, layer.size), layer.digest.to_string()),
            layer,
            &dir,
        ) {
            // What a node has may be damaged or gone; then it is as if it had nothing. A full disk is full for the depot's, too.
            Err(error) if !error.errno().is_some_and(is_full) => {
                remove_all(work, name.as_bytes())?;
                let dir = new_dir()?;
                return unpack_into(depot.read_layer(layer), layer, &dir).map(|()| dir);
            }
            unpacked => return unpacked.map(|()| dir),
        }
    }
    unpack_into(depot.read_layer(layer), layer, &dir).map(|()| dir)
}

fn unpack_into<R: Read>(reader: Result<LayerReader<R>>, layer: &LayerRef, dir: &OwnedFd) -> Result<()> {
    expect(&unpack(reader?, dir.as_fd())?, &layer.digest)
}

/// Moves all of `layer` into `upper`, over what is there.
fn merge(layer: BorrowedFd<'_>, upper: BorrowedFd<'_>) -> Result<()> {
    let nodes = walk(layer)?;
    let (mut from, mut to) = (DirStack::new(layer)?, DirStack::new(upper)?);
    let (mut merged, mut moved) = (vec![], None::<&[u8]>);
    for node in &nodes {
        if moved.is_some_and(|dir| is_within(&node.path, dir)) {
            continue;
        }
        let (parent, name) = split(&node.path);
        from.go(parent)?.on("open", parent)?;
        to.go(parent)?.on("open", parent)?;
        let there = match node.path.is_empty() {
            true => Some(NodeType::Dir { opaque: false }),
            false => kind_of(to.dir(), name, &node.path)?,
        };
        if node.kind == (NodeType::Dir { opaque: false }) && there.is_some_and(NodeType::is_dir) {
            merged.push(node);
            continue;
        }
        moved = Some(&node.path);
        remove_all(to.dir(), name)?;
        rustix::fs::renameat(from.dir(), name, to.dir(), name).on("move into place", &node.path)?;
        // An overlay looks no further below what is no directory.
        if node.kind.is_dir() && there.is_some() {
            let dir =
                rustix::fs::openat(to.dir(), name, dir_flags(), Mode::empty()).on("open", &node.path)?;
            rustix::fs::fsetxattr(&dir, xattr::OPAQUE, b"y", XattrFlags::empty())
                .on("set an extended attribute of", &node.path)?;
        }
    }
    // Those inside before those around them: the times of these change meanwhile.
    for node in merged.into_iter().rev() {
        from.go(&node.path)?.on("open", &node.path)?;
        to.go(&node.path)?.on("open", &node.path)?;
        copy_attributes(from.dir(), node, to.dir())?;
    }
    Ok(())
}

fn kind_of(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Option<NodeType>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(NodeType::of(&stat))),
        Err(Errno::NOENT) => Ok(None),
        found => Ok(found.map(|_| None).on("look at", path)?),
    }
}

/// Gives a directory what the layer's has. Owner before the rest, ACL before mode (see `unpack`), and the time, which the
/// layer's own directory no longer has, last.
fn copy_attributes(from: BorrowedFd<'_>, node: &TreeNode, to: BorrowedFd<'_>) -> Result<()> {
    let (path, stamp) = (&node.path, &node.stamp);
    rustix::fs::fchown(to, Some(Uid::from_raw(stamp.uid)), Some(Gid::from_raw(stamp.gid)))
        .on("change the owner of", path)?;
    let attributes = xattr::read(from).on("read the attributes of", path)?;
    let old = xattr::read(to).on("read the attributes of", path)?;
    for (name, _) in old.iter().filter(|(name, _)| attributes.iter().all(|(kept, _)| kept != name)) {
        rustix::fs::fremovexattr(to, &name[..]).on("remove an extended attribute of", path)?;
    }
    xattr::write(to, &attributes).on("set an extended attribute of", path)?;
    rustix::fs::fchmod(to, Mode::from_raw_mode(stamp.mode & 0o7777)).on("change the mode of", path)?;
    set_time(to, stamp, path)
}

fn set_time(dir: BorrowedFd<'_>, stamp: &Stamp, path: &[u8]) -> Result<()> {
    let time = Timespec { tv_sec: stamp.mtime.0, tv_nsec: i64::from(stamp.mtime.1) };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::futimens(dir, &times).on("set the time of", path)?)
}

/// Removes whiteouts from directories that nothing of the base shows through: the overlay would list them there as files that cannot be
/// opened, since it looks for them only where it merges directories.
fn remove_shown_whiteouts(upper: BorrowedFd<'_>, base: BaseRoot<'_>) -> Result<()> {
    let nodes = walk(upper)?;
    let mut stack = DirStack::new(upper)?;
    let mut merges = None::<(&[u8], bool)>;
    for node in nodes.iter().filter(|node| node.kind == NodeType::Whiteout) {
        let (parent, name) = split(&node.path);
        let Some(dir) = find(&nodes, parent) else { continue };
        let is_merged = match merges {
            Some((known, is_merged)) if known == parent => is_merged,
            _ => dir.kind == NodeType::Dir { opaque: false } && base.merges(&nodes, parent)?,
        };
        merges = Some((parent, is_merged));
        if !is_merged {
            stack.go(parent)?.on("open", parent)?;
            rustix::fs::unlinkat(stack.dir(), name, AtFlags::empty()).on("remove", &node.path)?;
            set_time(stack.dir(), &dir.stamp, parent)?;
        }
    }
    Ok(())
}

/// Writes the index of an upper that nobody uses, so that the next snapshot sends only what has changed since.
fn write_index(upper: BorrowedFd<'_>, snapshot: SnapshotId, work: BorrowedFd<'_>) -> Result<()> {
    std::thread::sleep(PAUSE);
    let clock = Clock::of(work);
    let mut nodes = walk(upper)?;
    for node in &mut nodes {
        node.racy = clock.is_racy(&node.stamp);
        // Moving the upper changes its stamp, and an overlay leaves notes on directories.
        if node.kind.is_dir() {
            node.fingerprint = fingerprint(upper, node)?;
        }
    }
    SnapshotIndex { snapshot, nodes }.save(work)
}
