//! The depot: where snapshots wait for the nodes, a directory of the user on a file system that all nodes see.
//!
//! ```text
//! packs/DIGEST.pack        chunks of layers, each once (`chunk`)
//! layers/DIGEST.chunks     which chunks a layer consists of
//! layers/DIGEST.layer      a layer in one piece, as versions before wrote it
//! snapshots/DIGEST.json    manifests
//! ```
//!
//! Files appear whole, by rename, and never change; so neither writers nor readers need locks, which network file systems do badly.
//! Whoever relies on a layer that is already there makes it young first, and only old ones are pruned.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use rustix::process::geteuid;
use skiff_site::TrustedDir;

use crate::digest::{LayerId, PackId, SnapshotId};
use crate::error::{Error, Result};
use crate::file::{TEMP_PREFIX, Temp, read_to_end, write_durably};
use crate::manifest::{self, SnapshotManifest};
use crate::packs::{layer_of, pack_of};
use crate::tree::{dir_flags, names};
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

pub(crate) const LAYERS: &str = "layers";
pub(crate) const PACKS: &str = "packs";
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// Layers and unfinished files younger than this are never pruned: someone may be about to name them in a manifest.
const GRACE: Duration = Duration::from_secs(600);
/// A file just made on another node may not be seen at once on NFS: how often to look again, and after how long.
pub(crate) const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(60);

/// A depot.
#[derive(Debug)]
pub struct Depot {
    path: PathBuf,
    pub(crate) layers: OwnedFd,
    snapshots: OwnedFd,
    /// Not in one that a version before has made, before it is submitted to.
    pub(crate) packs: Option<OwnedFd>,
}

/// What pruning removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Manifests.
    pub snapshots: u64,
    /// Layers.
    pub layers: u64,
    /// Packs of chunks.
    pub packs: u64,
    /// Unfinished files of submitters that died.
    pub unfinished: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Depot {
    /// Opens the depot at `path`, which nobody else may be able to exchange, and makes it, for its owner only, where it is missing. (Not in
    /// a user namespace: root's directories could not be told there from those of others.)
    pub fn open(path: &Path) -> Result<Depot> {
        Depot::open_in(&TrustedDir::make(path, geteuid().as_raw(), 0o700)?.private()?)
    }

    /// The same in a directory that is open already.
    pub fn open_in(root: &TrustedDir) -> Result<Depot> {
        for part in [LAYERS, PACKS, SNAPSHOTS] {
            make_dir(root.as_fd(), part.as_bytes())?;
        }
        Depot::parts(root)
    }

    /// Opens a depot that has to be there, as on a node.
    pub fn open_existing(path: &Path) -> Result<Depot> {
        let root = TrustedDir::open(path, geteuid().as_raw())?.private()?;
        Depot::parts(&root)
    }

    fn parts(root: &TrustedDir) -> Result<Depot> {
        let path = root.path();
        let part =
            |name| rustix::fs::openat(root, name, dir_flags(), Mode::empty()).on("open", object(path, name));
        let packs = match rustix::fs::openat(root, PACKS, dir_flags(), Mode::empty()) {
            Err(Errno::NOENT) => None,
            opened => Some(opened.on("open", object(path, PACKS))?),
        };
        Ok(Depot { path: path.into(), layers: part(LAYERS)?, snapshots: part(SNAPSHOTS)?, packs })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest of a snapshot.
    pub fn manifest(&self, id: &SnapshotId) -> Result<SnapshotManifest> {
        self.read_manifest(id, LOOKS)
    }

    /// The same without waiting for one that is not seen yet.
    pub(crate) fn manifest_now(&self, id: &SnapshotId) -> Result<SnapshotManifest> {
        self.read_manifest(id, 1)
    }

    fn read_manifest(&self, id: &SnapshotId, looks: u32) -> Result<SnapshotManifest> {
        let name = manifest_name(id);
        let (_, file) = self.find(&self.snapshots, &[&name], looks, || format!("snapshot {id}"))?;
        let bytes =
            read_to_end(file.as_fd(), manifest::MAX_SIZE).on("read", self.object(SNAPSHOTS, &name))?;
        let too_long = || Error::BadManifest { snapshot: id.to_string(), why: "it is too long".into() };
        SnapshotManifest::parse(id, &bytes.ok_or_else(too_long)?)
    }

    /// Removes snapshots that are not in `keep` and were not used for `older_than`, then what nothing refers to any more.
    pub fn prune(&self, keep: &BTreeSet<SnapshotId>, older_than: Duration) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        // The age is by the clock of the file system's server, which also set the times.
        let (temp, file) = Temp::create(self.layers.as_fd())?;
        let now = rustix::fs::fstat(&file).on("look at", temp.name())?.st_mtime;
        drop(temp);
        let is_old =
            |stat: &Stat, age: Duration| now.saturating_sub(stat.st_mtime) >= age.as_secs().cast_signed();
        for (name, stat) in self.list(&self.snapshots)? {
            let wanted = manifest_id(&name).is_some_and(|id| keep.contains(&id));
            let unfinished = name.starts_with(TEMP_PREFIX.as_bytes());
            let age = if unfinished { GRACE.max(older_than) } else { older_than };
            if !wanted && is_old(&stat, age) && (unfinished || manifest_id(&name).is_some()) {
                self.remove(&self.snapshots, &name)?;
                *(if unfinished { &mut pruned.unfinished } else { &mut pruned.snapshots }) += 1;
                pruned.bytes += stat.st_size.cast_unsigned();
            }
        }
        let used = self.used_layers()?;
        for (name, stat) in self.list(&self.layers)? {
            let unfinished = name.starts_with(TEMP_PREFIX.as_bytes());
            let unused = layer_of(&name).is_some_and(|id| !used.contains(&id));
            if (unfinished || unused) && is_old(&stat, GRACE.max(older_than)) {
                self.remove(&self.layers, &name)?;
                *(if unfinished { &mut pruned.unfinished } else { &mut pruned.layers }) += 1;
                pruned.bytes += stat.st_size.cast_unsigned();
            }
        }
        let (Some(packs), relied_on) = (&self.packs, self.used_packs()?) else { return Ok(pruned) };
        for (name, stat) in self.list(packs)? {
            let unfinished = name.starts_with(TEMP_PREFIX.as_bytes());
            let unused = pack_of(&name).is_some_and(|id| !relied_on.contains(&id));
            if (unfinished || unused) && is_old(&stat, GRACE.max(older_than)) {
                self.remove(packs, &name)?;
                *(if unfinished { &mut pruned.unfinished } else { &mut pruned.packs }) += 1;
                pruned.bytes += stat.st_size.cast_unsigned();
            }
        }
        Ok(pruned)
    }

    /// The packs that the layers which are there rely on.
    fn used_packs(&self) -> Result<BTreeSet<PackId>> {
        let packs = self.layer_ids()?.into_iter().map(|layer| self.packs_of(&layer));
        Ok(packs.collect::<Result<Vec<_>>>()?.into_iter().flatten().flatten().collect())
    }

    /// The layers of all manifests that can be read; a damaged one can be used by no one.
    fn used_layers(&self) -> Result<BTreeSet<LayerId>> {
        let mut used = BTreeSet::new();
        for (name, _) in self.list(&self.snapshots)? {
            let Some(id) = manifest_id(&name) else { continue };
            match self.manifest_now(&id) {
                Ok(manifest) => used.extend(manifest.layers.iter().map(|layer| layer.digest)),
                Err(Error::Missing { .. } | Error::BadManifest { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }

    fn list(&self, dir: &OwnedFd) -> Result<Vec<(Vec<u8>, Stat)>> {
        let path = self.path.as_os_str().as_bytes();
        let fresh = rustix::fs::openat(dir, c".", dir_flags(), Mode::empty()).on("open", path)?;
        let mut listed = Vec::new();
        for name in names(fresh.as_fd()).on("read the directory", path)? {
            match rustix::fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => listed.push((name, stat)),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("look at", name, errno).into()),
            }
        }
        Ok(listed)
    }

    fn remove(&self, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            // Another one pruned it.
            Err(Errno::NOENT) => Ok(()),
            other => Ok(other.on("remove", name)?),
        }
    }

    /// Writes a manifest. On return it is on disk.
    pub(crate) fn add_manifest(&self, manifest: &SnapshotManifest) -> Result<SnapshotId> {
        let (id, bytes) = manifest.bytes()?;
        write_durably(self.snapshots.as_fd(), &manifest_name(&id), &bytes)?;
        Ok(id)
    }

    /// Makes a snapshot and its layers young; false if it is not whole.
    pub(crate) fn use_snapshot(&self, id: &SnapshotId, manifest: &SnapshotManifest) -> Result<bool> {
        for layer in &manifest.layers {
            if !self.use_layer(layer)? || !self.is_whole(layer)? {
                return Ok(false);
            }
        }
        Ok(self.touch(&self.snapshots, SNAPSHOTS, &manifest_name(id))?.is_some())
    }

    pub(crate) fn touch(&self, dir: &OwnedFd, part: &str, name: &str) -> Result<Option<Stat>> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let touched = rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        match touched {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(SystemError::new("set the time of", self.object(part, name), errno).into()),
        }
    }

    /// Opens the first file of the depot that is there, waiting a moment for one that has only just been made elsewhere.
    pub(crate) fn find<'n>(
        &self,
        dir: &OwnedFd,
        names: &[&'n str],
        looks: u32,
        what: impl Fn() -> String,
    ) -> Result<(&'n str, OwnedFd)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        for look in 1..=looks {
            // Opening the directory anew makes an NFS client ask whether it changed.
            let fresh = rustix::fs::openat(dir, c".", dir_flags(), Mode::empty());
            let fresh = fresh.on("open", self.path.as_os_str().as_bytes())?;
            for name in names {
                match rustix::fs::openat(&fresh, *name, flags, Mode::empty()) {
                    Ok(file) => return Ok((name, file)),
                    Err(Errno::NOENT) => {}
                    Err(errno) => {
                        let object = self.path.join(name).into_os_string().into_encoded_bytes();
                        return Err(SystemError::new("open", object, errno).into());
                    }
                }
            }
            if look < looks {
                std::thread::sleep(PAUSE * look);
            }
        }
        Err(Error::Missing { what: what(), depot: show(self.path.as_os_str().as_bytes()) })
    }

    pub(crate) fn object(&self, part: &str, name: &str) -> Vec<u8> {
        object(&self.path.join(part), name)
    }
}

/// Makes a directory for the caller only, unless there is one.
pub(crate) fn make_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(SystemError::new("make the directory", name, errno).into()),
    }
}

fn object(path: &Path, name: &str) -> Vec<u8> {
    path.join(name).into_os_string().as_bytes().to_vec()
}

fn manifest_name(id: &SnapshotId) -> String {
    format!("{id}.json")
}

fn manifest_id(name: &[u8]) -> Option<SnapshotId> {
    std::str::from_utf8(name).ok()?.strip_suffix(".json")?.parse().ok()
}
