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
//! Whoever relies on a layer that is already there marks it as used first, by its time, and looks for it again at the end ([`collect`](crate::collect)).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use rustix::process::geteuid;
use skiff_site::TrustedDir;

use crate::digest::SnapshotId;
use crate::error::{Error, Result};
use crate::file::{read_to_end, write_durably};
use crate::manifest::{self, SnapshotManifest};
use crate::piece::PieceReader;
use crate::room::DiskRoom;
use crate::tree::{dir_flags, names};
use skiff_sys::error::show;
use skiff_sys::{SystemContext, SystemError};

pub(crate) const LAYERS: &str = "layers";
pub(crate) const PACKS: &str = "packs";
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// A file just made on another node may not be seen at once on NFS: how often to look again, and after how long.
pub(crate) const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(60);

/// A depot.
#[derive(Debug)]
pub struct Depot {
    path: PathBuf,
    pub(crate) layers: OwnedFd,
    pub(crate) snapshots: OwnedFd,
    /// Not in one that a version before has made, before it is submitted to.
    pub(crate) packs: Option<OwnedFd>,
    /// Who reads in place of this process, as far as that is possible.
    pub(crate) reader: Option<Box<dyn PieceReader>>,
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

    /// The same; nothing where there is none.
    pub fn find_existing(path: &Path) -> Result<Option<Depot>> {
        let Some(root) = TrustedDir::find(path, geteuid().as_raw())? else { return Ok(None) };
        let root = root.private()?;
        if root.stat(LAYERS)?.is_none() || root.stat(SNAPSHOTS)?.is_none() {
            return Ok(None);
        }
        Depot::parts(&root).map(Some)
    }

    fn parts(root: &TrustedDir) -> Result<Depot> {
        let path = root.path();
        let part =
            |name| rustix::fs::openat(root, name, dir_flags(), Mode::empty()).on("open", object(path, name));
        let packs = match rustix::fs::openat(root, PACKS, dir_flags(), Mode::empty()) {
            Err(Errno::NOENT) => None,
            opened => Some(opened.on("open", object(path, PACKS))?),
        };
        Ok(Depot {
            path: path.into(),
            layers: part(LAYERS)?,
            snapshots: part(SNAPSHOTS)?,
            packs,
            reader: None,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The room on its disk.
    pub(crate) fn room(&self) -> DiskRoom {
        DiskRoom::of(self.packs.as_ref().unwrap_or(&self.layers))
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

    /// The snapshots whose manifests are there. What these say may be damaged all the same: whoever reads one is told.
    pub fn snapshot_ids(&self) -> Result<BTreeSet<SnapshotId>> {
        let object = self.path.join(SNAPSHOTS).into_os_string().into_encoded_bytes();
        let fresh = open_anew(&self.snapshots).on("open", &object)?;
        let names = names(fresh.as_fd()).on("read the directory", &object)?;
        Ok(names.iter().filter_map(|name| manifest_id(name)).collect())
    }

    /// The regular files in one of its directories: what else was put there is not ours.
    pub(crate) fn list(&self, dir: &OwnedFd) -> Result<Vec<(Vec<u8>, Stat)>> {
        let path = self.path.as_os_str().as_bytes();
        let fresh = open_anew(dir).on("open", path)?;
        let mut listed = Vec::new();
        for name in names(fresh.as_fd()).on("read the directory", path)? {
            match rustix::fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                    listed.push((name, stat));
                }
                Ok(_) => {}
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(SystemError::new("look at", name, errno).into()),
            }
        }
        Ok(listed)
    }

    /// Writes a manifest. On return it is on disk.
    pub(crate) fn add_manifest(&self, manifest: &SnapshotManifest) -> Result<SnapshotId> {
        let (id, bytes) = manifest.bytes()?;
        write_durably(self.snapshots.as_fd(), &manifest_name(&id), &bytes)?;
        Ok(id)
    }

    /// Marks a snapshot as used that somebody is about to rely on, so that no collection removes it; an error if it is not whole.
    pub fn rely_on(&self, id: &SnapshotId) -> Result<()> {
        if self.mark_used(id, &self.manifest(id)?)? {
            return Ok(());
        }
        let depot = show(self.path.as_os_str().as_bytes());
        Err(Error::Missing { what: format!("a part of snapshot {id}"), depot })
    }

    /// Marks a snapshot, its layers and their packs as used now; false if it is not whole.
    pub(crate) fn mark_used(&self, id: &SnapshotId, manifest: &SnapshotManifest) -> Result<bool> {
        for layer in &manifest.layers {
            if !self.mark_layer_used(layer)? || !self.mark_packs_used(layer)? {
                return Ok(false);
            }
        }
        Ok(self.touch(&self.snapshots, SNAPSHOTS, &manifest_name(id))?.is_some())
    }

    /// Sets the times of a file of the depot to now, and gives what it is; nothing if it is not there.
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
            let fresh = open_anew(dir).on("open", self.path.as_os_str().as_bytes())?;
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

/// Opens a directory again, which makes an NFS client ask whether it changed.
fn open_anew(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, c".", dir_flags(), Mode::empty())
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

pub(crate) fn manifest_name(id: &SnapshotId) -> String {
    format!("{id}.json")
}

pub(crate) fn manifest_id(name: &[u8]) -> Option<SnapshotId> {
    std::str::from_utf8(name).ok()?.strip_suffix(".json")?.parse().ok()
}
