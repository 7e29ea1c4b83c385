//! A node's cache: layers unpacked once, used by all jobs of a user on the node.
//!
//! ```text
//! layers/DIGEST/tree    the layer, as an overlay takes it
//! layers/DIGEST/mark    when it was made and how much room it takes
//! locks/DIGEST          held shared by who uses the layer, exclusively by who makes or removes it
//! tmp/DIGEST            being unpacked or removed, under the exclusive lock
//! lists/DIGEST          the chunks of a layer in the node's store of images (`cache_lists`)
//! ```
//!
//! Layers are not synced to disk: they can be had again. Instead the mark holds the boot in which they were made, and after
//! another one they are unpacked anew - a crash of the machine may have left files empty.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use skiff_site::TrustedDir;

use crate::depot::{Depot, make_dir};
use crate::digest::{LayerId, SnapshotId};
use crate::error::{Error, Result};
use crate::file::{read_to_end, write_atomically};
use crate::layer::{expect, unpack};
use crate::manifest::{LayerRef, SnapshotManifest};
use crate::remove::remove_all;
use crate::room::{DiskRoom, is_full};
use crate::tree::{dir_flags, names};
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

const LAYERS: &str = "layers";
const LOCKS: &str = "locks";
const TEMPS: &str = "tmp";
pub(crate) const LISTS: &str = "lists";
const TREE: &str = "tree";
const MARK: &str = "mark";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The cache of one user on this node.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    layers: OwnedFd,
    locks: OwnedFd,
    temps: OwnedFd,
    pub(crate) lists: OwnedFd,
    budget: u64,
    boot: String,
}

/// A layer in the cache, kept there as long as this lives.
#[derive(Debug)]
pub struct LayerDir {
    /// The directory to mount.
    pub path: PathBuf,
    /// What keeps it.
    pub lease: LayerLease,
}

/// Keeps a layer in the cache: a shared lock that ends with the last descriptor of it. Close-on-exec.
#[derive(Debug)]
pub struct LayerLease(OwnedFd);

impl AsFd for LayerLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<LayerLease> for OwnedFd {
    fn from(lease: LayerLease) -> Self {
        lease.0
    }
}

/// What an eviction removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evicted {
    /// Layers.
    pub layers: u64,
    /// Room they took, roughly, in bytes.
    pub bytes: u64,
    /// Unfinished ones of processes that died.
    pub unfinished: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    boot: String,
    bytes: u64,
}

/// Gets all layers of a snapshot into the cache, bottom first, each unpacked unless it is there already. Runs inside the
/// environment's user namespace: layers hold files of several owners. Calling [`Cache::evict`] afterwards keeps the budget.
pub fn fetch(depot: &Depot, id: &SnapshotId, cache: &Cache) -> Result<Vec<LayerDir>> {
    depot.manifest(id)?.layers.iter().map(|layer| cache.get(depot, layer)).collect()
}

impl Cache {
    /// Opens the cache at `path`, on a local file system, which nobody else may be able to exchange, and makes it, for its owner only, where it
    /// is missing. (Not in a user namespace, as [`Depot::open`].) `budget`: bytes that
    /// layers not in use may take.
    pub fn open(path: &Path, budget: u64) -> Result<Cache> {
        // What is above is root's to make, or was there before.
        let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
        let root = TrustedDir::open(parent, geteuid().as_raw())?.make_dir(name, 0o700)?.private()?;
        Cache::open_in(&root, budget)
    }

    /// The same in a directory that is open already.
    pub fn open_in(root: &TrustedDir, budget: u64) -> Result<Cache> {
        let path = root.path();
        let part = |name: &str| {
            make_dir(root.as_fd(), name.as_bytes())?;
            let object = path.join(name);
            let dir = rustix::fs::openat(root, name, dir_flags(), Mode::empty());
            Ok::<_, Error>(dir.on("open", object.as_os_str().as_bytes())?)
        };
        let (layers, locks, temps, lists) = (part(LAYERS)?, part(LOCKS)?, part(TEMPS)?, part(LISTS)?);
        Ok(Cache { path: path.into(), layers, locks, temps, lists, budget, boot: boot_id()? })
    }

    /// Keeps a layer whose directory [`fetch`] gave to another process, such as one inside the user namespace; nothing if it has
    /// been removed meanwhile. Runs anywhere.
    pub fn lease(&self, layer: &Path) -> Result<Option<LayerLease>> {
        let name = layer.parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
        // Looked at first, so that no lock is made for what is not there.
        if name.parse::<LayerId>().is_err() || self.mark(name)?.is_none() {
            return Ok(None);
        }
        let lock = self.lock(name, FlockOperation::LockShared)?;
        Ok(self.is_there(name)?.then_some(LayerLease(lock)))
    }

    /// All layers of a snapshot, bottom first, if none has to be unpacked. Runs anywhere.
    pub fn all_there(&self, manifest: &SnapshotManifest) -> Result<Option<Vec<LayerDir>>> {
        let one = |layer: &LayerRef| {
            let path = self.path.join(LAYERS).join(layer.digest.to_string()).join(TREE);
            Ok(self.lease(&path)?.map(|lease| LayerDir { path, lease }))
        };
        manifest.layers.iter().map(one).collect()
    }

    /// How many bytes the layers of a snapshot have that are not there; nothing if all are. Runs anywhere.
    pub fn missing(&self, manifest: &SnapshotManifest) -> Result<Option<u64>> {
        let mut missing = None;
        for layer in &manifest.layers {
            let path = self.path.join(LAYERS).join(layer.digest.to_string()).join(TREE);
            if self.lease(&path)?.is_none() {
                missing = Some(missing.unwrap_or(0) + layer.size);
            }
        }
        Ok(missing)
    }

    /// One layer: as it is, or unpacked now. Of several who want it at once, one unpacks and the others wait.
    fn get(&self, depot: &Depot, layer: &LayerRef) -> Result<LayerDir> {
        let name = layer.digest.to_string();
        loop {
            let lock = self.lock(&name, FlockOperation::LockShared)?;
            if self.is_there(&name)? {
                let path = self.path.join(LAYERS).join(&name).join(TREE);
                return Ok(LayerDir { path, lease: LayerLease(lock) });
            }
            drop(lock);
            let lock = self.lock(&name, FlockOperation::LockExclusive)?;
            if !self.is_there(&name)? {
                self.unpack_or_make_room(depot, layer, &name)?;
            }
            drop(lock);
        }
    }

    /// Locks a layer. The lock's file may have been removed while we waited; then it is another one that counts.
    fn lock(&self, name: &str, operation: FlockOperation) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let file = rustix::fs::openat(&self.locks, name, flags, Mode::RUSR | Mode::WUSR)
                .on("open the lock", self.object(LOCKS, name))?;
            rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation))
                .on("lock", self.object(LOCKS, name))?;
            let locked = rustix::fs::fstat(&file).on("look at", self.object(LOCKS, name))?;
            match rustix::fs::statat(&self.locks, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if named.st_ino == locked.st_ino => return Ok(file),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("look at", self.object(LOCKS, name), errno).into()),
            }
        }
    }

    /// Whether a layer is there and whole; then it is marked as used now.
    fn is_there(&self, name: &str) -> Result<bool> {
        let Some(mark) = self.mark(name)? else { return Ok(false) };
        if mark.boot != self.boot {
            return Ok(false);
        }
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(&self.layers, format!("{name}/{MARK}"), &times, AtFlags::SYMLINK_NOFOLLOW)
            .on("set the time of", self.object(LAYERS, name))?;
        Ok(true)
    }

    fn mark(&self, name: &str) -> Result<Option<Mark>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.layers, format!("{name}/{MARK}"), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(SystemError::new("open", self.object(LAYERS, name), errno).into()),
        };
        let bytes = read_to_end(file.as_fd(), BLOCK).on("read", self.object(LAYERS, name))?;
        // One that cannot be read was torn by a crash of the machine: the layer is made anew.
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Unpacks a layer; if there is no room, once more after removing all that is not in use.
    fn unpack_or_make_room(&self, depot: &Depot, layer: &LayerRef, name: &str) -> Result<()> {
        let before = DiskRoom::of(&self.temps);
        let unpacked = self.unpack(depot, layer, name).map_err(|e| before.explain(e, layer.size));
        if !unpacked.as_ref().is_err_and(|error| error.errno().is_some_and(is_full)) {
            return unpacked;
        }
        if self.evict_to(0)?.layers == 0 {
            return unpacked;
        }
        let before = DiskRoom::of(&self.temps);
        self.unpack(depot, layer, name).map_err(|e| before.explain(e, layer.size))
    }

    /// Unpacks a layer, under its exclusive lock. Nothing half made stays.
    fn unpack(&self, depot: &Depot, layer: &LayerRef, name: &str) -> Result<()> {
        let temp = Scratch::new(self.temps.as_fd(), name)?;
        let done = self.unpack_into(depot, layer, &temp)?;
        let mark = Mark { boot: self.boot.clone(), bytes: done };
        let mark = serde_json::to_vec(&mark).map_err(|_| Errno::INVAL).on("write", MARK)?;
        write_atomically(temp.dir.as_fd(), MARK, &mark)?;
        // What an earlier boot left is in the way.
        remove_all(self.layers.as_fd(), name.as_bytes())?;
        rustix::fs::renameat(&self.temps, name, &self.layers, name)
            .on("rename into place", self.object(LAYERS, name))?;
        temp.keep();
        Ok(())
    }

    fn unpack_into(&self, depot: &Depot, layer: &LayerRef, temp: &Scratch<'_>) -> Result<u64> {
        let reader = depot.read_layer(layer)?;
        make_dir(temp.dir.as_fd(), TREE.as_bytes())?;
        let tree = rustix::fs::openat(&temp.dir, TREE, dir_flags(), Mode::empty()).on("open", TREE)?;
        for acl in ["system.posix_acl_default", "system.posix_acl_access"] {
            // A default ACL around the cache would be inherited by every file in it.
            match rustix::fs::fremovexattr(&tree, acl) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(SystemError::new("remove the ACL of", TREE, errno).into()),
            }
        }
        let done = unpack(reader, tree.as_fd())?;
        expect(&done, &layer.digest)?;
        Ok(done.bytes)
    }

    /// Removes the layers longest unused until the rest fits the budget, and what died processes left. Never a layer in use.
    pub fn evict(&self) -> Result<Evicted> {
        self.evict_to(self.budget)
    }

    fn evict_to(&self, budget: u64) -> Result<Evicted> {
        let mut evicted = Evicted { unfinished: self.remove_unfinished()?, ..Evicted::default() };
        let mut layers = Vec::new();
        for name in self.list(&self.layers, LAYERS)? {
            let stat = rustix::fs::statat(&self.layers, format!("{name}/{MARK}"), AtFlags::SYMLINK_NOFOLLOW);
            let used = stat.map_or((0, 0), |stat| (stat.st_mtime, stat.st_mtime_nsec));
            let bytes = self.mark(&name)?.map_or(0, |mark| mark.bytes);
            layers.push((used, name, bytes));
        }
        let mut total: u64 = layers.iter().map(|(_, _, bytes)| bytes).sum();
        layers.sort();
        for (_, name, bytes) in layers {
            if total <= budget {
                break;
            }
            if self.remove_unused(&name)? {
                total -= bytes;
                evicted.layers += 1;
                evicted.bytes += bytes;
            }
        }
        Ok(evicted)
    }

    /// Removes a layer unless someone holds its lock.
    fn remove_unused(&self, name: &str) -> Result<bool> {
        let Some(lock) = self.try_lock(name)? else { return Ok(false) };
        remove_all(self.temps.as_fd(), name.as_bytes())?;
        match rustix::fs::renameat(&self.layers, name, &self.temps, name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(SystemError::new("move away", self.object(LAYERS, name), errno).into()),
        }
        remove_all(self.temps.as_fd(), name.as_bytes())?;
        self.remove_lock(name, lock)?;
        Ok(true)
    }

    /// Removes what is half unpacked or half removed and no one works on.
    fn remove_unfinished(&self) -> Result<u64> {
        let mut removed = 0;
        for name in self.list(&self.temps, TEMPS)? {
            if let Some(lock) = self.try_lock(&name)? {
                remove_all(self.temps.as_fd(), name.as_bytes())?;
                drop(lock);
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn try_lock(&self, name: &str) -> Result<Option<OwnedFd>> {
        match self.lock(name, FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.errno() == Some(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a lock's file while it is held exclusively; who waits for it looks at the name again.
    fn remove_lock(&self, name: &str, held: OwnedFd) -> Result<()> {
        rustix::fs::unlinkat(&self.locks, name, AtFlags::empty())
            .on("remove the lock", self.object(LOCKS, name))?;
        drop(held);
        Ok(())
    }

    /// Names that are digests: nothing else here is ours.
    pub(crate) fn list(&self, dir: &OwnedFd, part: &str) -> Result<Vec<String>> {
        let fresh =
            rustix::fs::openat(dir, c".", dir_flags(), Mode::empty()).on("open", self.object(part, "."))?;
        let names = names(fresh.as_fd()).on("read the directory", self.object(part, "."))?;
        let digests = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
        Ok(digests.filter(|name| name.parse::<LayerId>().is_ok()).collect())
    }

    pub(crate) fn object(&self, part: &str, name: &str) -> Vec<u8> {
        self.path.join(part).join(name).into_os_string().as_bytes().to_vec()
    }
}

/// A mark's largest size.
const BLOCK: u64 = 4096;

/// A directory being filled. Dropped before [`Scratch::keep`], it is removed with all in it.
struct Scratch<'a> {
    temps: BorrowedFd<'a>,
    name: &'a str,
    dir: OwnedFd,
    kept: bool,
}

impl<'a> Scratch<'a> {
    /// Makes it, in place of what a process that died may have left under this name.
    fn new(temps: BorrowedFd<'a>, name: &'a str) -> Result<Scratch<'a>> {
        remove_all(temps, name.as_bytes())?;
        make_dir(temps, name.as_bytes())?;
        let dir = rustix::fs::openat(temps, name, dir_flags(), Mode::empty()).on("open", name)?;
        Ok(Scratch { temps, name, dir, kept: false })
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: the error that brought us here is the one to tell, and the next eviction tries again.
            let (Ok(()) | Err(_)) = remove_all(self.temps, self.name.as_bytes());
        }
    }
}

fn boot_id() -> Result<String> {
    let file =
        rustix::fs::open(BOOT_ID, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).on("open", BOOT_ID)?;
    let bytes = read_to_end(file.as_fd(), BLOCK).on("read", BOOT_ID)?.unwrap_or_default();
    Ok(show(bytes.trim_ascii()))
}
