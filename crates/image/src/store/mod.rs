//! Where images are kept: one file each, under the name of its manifest's digest, with a note of what it was made from.
//!
//! ```text
//! version              the layout's, so that an older program leaves a newer store alone
//! images/ID.erofs      complete and synced; nothing under such a name is ever changed
//! images/ID.json       its record: size, layers, and the configuration to run it with
//! images/ID.lock       held by whoever makes it
//! users/UID/ID         that a user may use it; used last when its time says
//! meanings/DIGEST.ARCH the ID that a digest in a registry, of an index perhaps, led to
//! blobs/...            layers as they came, complete or not, for the next pull
//! tmp/                 what is being made
//! ```
//!
//! The trusted store belongs to a system user and all users share it; without the helper each has one of his own. Both are this.

mod collect;
mod record;
mod verify;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, fsync, mkdirat,
    openat, renameat, statat, unlinkat, utimensat,
};
use rustix::io::Errno;
use skiff_spec::digest::Digest;
use skiff_spec::image::{ImageId, store as names};
use skiff_spec::platform::Platform;

use crate::error::{Context, Error, Result};
use crate::registry::BlobDir;

pub use collect::{Collected, Usage};
pub use record::{Layer, Record};

/// The layout that this version reads and writes.
const VERSION: &str = "1\n";
const DIRS: [&str; 5] = ["images", "users", "meanings", "blobs", "tmp"];

/// A store, open.
pub struct Store {
    path: PathBuf,
    dir: OwnedFd,
}

impl Store {
    /// Opens the store at `path`, and makes what is missing of it.
    ///
    /// # Errors
    /// When it cannot be written to, or is of a newer version.
    pub fn open(path: &Path) -> Result<Store> {
        let shown = || path.display().to_string();
        std::fs::create_dir_all(path).map_err(|e| Error::io("make", shown(), &e))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, path, flags, Mode::empty()).on("open", shown())?;
        let store = Store { path: path.into(), dir };
        store.check_version()?;
        for name in DIRS {
            match mkdirat(&store.dir, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e).on("make", store.shown(name)),
            }
        }
        Ok(store)
    }

    fn check_version(&self) -> Result<()> {
        match std::fs::read_to_string(self.path.join("version")) {
            Ok(text) if text == VERSION => Ok(()),
            Ok(text) => {
                Err(Error::Newer { store: self.path.display().to_string(), version: text.trim().into() })
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let name = unique("tmp.version");
                self.write_new(&name, VERSION.as_bytes())?;
                renameat(&self.dir, &name, &self.dir, "version").on("rename", self.shown("version"))
            }
            Err(e) => Err(Error::io("read", self.shown("version"), &e)),
        }
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where layers are kept as they came.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// What is known of an image, if it is there.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn find(&self, id: ImageId) -> Result<Option<Record>> {
        if statat(&self.dir, names::image(id), AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return Ok(None);
        }
        Record::read(&self.path.join(record_name(id)))
    }

    /// An image's file, for reading.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open_image(&self, id: ImageId) -> Result<File> {
        let name = names::image(id);
        openat(&self.dir, &name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
            .map(File::from)
            .on("open", self.shown(&name))
    }

    /// Begins to make an image, unless it is there. Whoever else does so at the moment, on this node or another, is waited for;
    /// `waiting` is told so once.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn begin(&self, id: ImageId, waiting: &mut dyn FnMut()) -> Result<Begun<'_>> {
        let name = format!("images/{id}.lock");
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock =
                openat(&self.dir, &name, flags, Mode::from_raw_mode(0o600)).on("open", self.shown(&name))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                waiting();
                rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))
                    .on("lock", self.shown(&name))?;
            }
            // Its last holder removed it under our hands: then this lock keeps nobody out.
            let (held, named) =
                (rustix::fs::fstat(&lock), statat(&self.dir, &name, AtFlags::SYMLINK_NOFOLLOW));
            if !held.is_ok_and(|h| named.is_ok_and(|n| (h.st_dev, h.st_ino) == (n.st_dev, n.st_ino))) {
                continue;
            }
            if let Some(record) = self.find(id)? {
                self.remove(&name)?;
                return Ok(Begun::There(record));
            }
            return Making::new(self, id, lock).map(Begun::New);
        }
    }

    /// The image that a digest in a registry, of an index perhaps, stands for on such machines; as far as it was ever pulled.
    #[must_use]
    pub fn known(&self, digest: &Digest, platform: &Platform) -> Option<ImageId> {
        std::fs::read_to_string(self.path.join(meaning(digest, platform))).ok()?.trim().parse().ok()
    }

    /// Notes that.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn remember(&self, digest: &Digest, platform: &Platform, id: ImageId) -> Result<()> {
        let name = meaning(digest, platform);
        if self.known(digest, platform) == Some(id) {
            return Ok(());
        }
        let new = unique("tmp/meaning");
        self.write_new(&new, format!("{id}\n").as_bytes())?;
        renameat(&self.dir, &new, &self.dir, &name).on("rename", self.shown(&name))
    }

    /// Notes that a user may use an image, and that he does now.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn permit(&self, uid: u32, id: ImageId) -> Result<()> {
        let user = format!("users/{uid}");
        match mkdirat(&self.dir, &user, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e).on("make", self.shown(&user)),
        }
        let name = names::permit(uid, id);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&self.dir, &name, flags, Mode::from_raw_mode(0o644)).on("create", self.shown(&name))?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(&self.dir, &name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .on("set the time of", self.shown(&name))
    }

    /// Whether a user may use an image.
    #[must_use]
    pub fn permitted(&self, uid: u32, id: ImageId) -> bool {
        statat(&self.dir, names::permit(uid, id), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Takes that back; the image stays as long as somebody else may use it.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn forbid(&self, uid: u32, id: ImageId) -> Result<()> {
        self.remove(&names::permit(uid, id))?;
        if self.users_of(id)?.is_empty() { self.delete(id) } else { Ok(()) }
    }

    /// Every image that is there.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn images(&self) -> Result<Vec<ImageId>> {
        let mut all: Vec<ImageId> = self
            .list("images")?
            .iter()
            .filter_map(|name| name.strip_suffix(".erofs")?.parse().ok())
            .collect();
        all.sort();
        Ok(all)
    }

    fn users_of(&self, id: ImageId) -> Result<Vec<u32>> {
        let uids = self.list("users")?.into_iter().filter_map(|name| name.parse().ok());
        Ok(uids.filter(|uid| self.permitted(*uid, id)).collect())
    }

    /// The file goes first: without it the record means nothing. Layers that no other image has go along.
    fn delete(&self, id: ImageId) -> Result<()> {
        let layers = self.find(id).ok().flatten().map(|record| record.layers).unwrap_or_default();
        self.remove(&names::image(id))?;
        self.remove(&record_name(id))?;
        let blobs = BlobDir::open(&self.blobs())?;
        let needed = self.layers()?;
        let unneeded = layers.iter().filter(|layer| !needed.contains(&layer.digest));
        // One that is being fetched stays.
        unneeded.flat_map(|layer| layer.digest.parse()).try_for_each(|digest| blobs.remove(&digest).map(drop))
    }

    /// The digests of the layers of all images.
    fn layers(&self) -> Result<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        for id in self.images()? {
            all.extend(self.find(id)?.into_iter().flat_map(|record| record.layers).map(|layer| layer.digest));
        }
        Ok(all)
    }

    fn list(&self, name: &str) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = openat(&self.dir, name, flags, Mode::empty()).on("open", self.shown(name))?;
        let mut names = vec![];
        for entry in Dir::new(dir).on("read", self.shown(name))? {
            let entry = entry.on("read", self.shown(name))?;
            names.extend(entry.file_name().to_str().ok().filter(|n| !n.starts_with('.')).map(String::from));
        }
        Ok(names)
    }

    /// Removes a file that may be gone already.
    fn remove(&self, name: &str) -> Result<()> {
        match unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e).on("remove", self.shown(name)),
        }
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(&self.dir, name, flags, Mode::from_raw_mode(0o644)).on("create", self.shown(name))?;
        let mut file = File::from(file);
        std::io::Write::write_all(&mut file, bytes)
            .map_err(|e| Error::io("write to", self.shown(name), &e))?;
        fsync(&file).on("sync", self.shown(name))
    }

    fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// A name that no other process on any node gives a file.
fn unique(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
    format!("{prefix}.{host}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn meaning(digest: &Digest, platform: &Platform) -> String {
    let variant = platform.variant.as_deref().map_or(String::new(), |v| format!("-{v}"));
    let machine = format!("{}-{}{variant}", platform.os, platform.architecture).replace('/', "_");
    format!("meanings/{}.{machine}", digest.hex())
}

fn record_name(id: ImageId) -> String {
    format!("images/{id}.json")
}

/// What [`Store::begin`] found.
pub enum Begun<'a> {
    /// The image is there, made meanwhile perhaps.
    There(Record),
    /// It is to be made.
    New(Making<'a>),
}

/// An image that is being made. Dropped before [`Making::publish`], nothing of it is left.
pub struct Making<'a> {
    store: &'a Store,
    id: ImageId,
    file: OwnedFd,
    name: String,
    _lock: OwnedFd,
}

impl<'a> Making<'a> {
    fn new(store: &'a Store, id: ImageId, lock: OwnedFd) -> Result<Making<'a>> {
        // With the lock held, what stands under this name is what a crash has left.
        let name = format!("tmp/{id}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(&store.dir, &name, flags, Mode::from_raw_mode(0o600)).on("create", store.shown(&name))?;
        Ok(Making { store, id, file, name, _lock: lock })
    }

    /// The image's file, still empty.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The file's name, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.store.shown(&self.name)
    }

    /// A directory on the same file system, for what is needed only meanwhile.
    #[must_use]
    pub fn room(&self) -> PathBuf {
        self.store.path.join("tmp")
    }

    /// Makes the finished file an image of the store, on the disk for good.
    ///
    /// # Errors
    /// When the store cannot be written to; then the image is not there.
    pub fn publish(self, record: &Record) -> Result<()> {
        let Making { store, id, .. } = &self;
        let shown = || store.shown(&names::image(*id));
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(0o444)).on("set the mode of", shown())?;
        fsync(&self.file).on("sync", shown())?;
        let aside = format!("{}.json", self.name);
        store.write_new(&aside, &record.to_bytes())?;
        renameat(&store.dir, &aside, &store.dir, record_name(*id))
            .on("rename", store.shown(&record_name(*id)))?;
        renameat(&store.dir, &self.name, &store.dir, names::image(*id)).on("rename", shown())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(&store.dir, "images", flags, Mode::empty()).on("open", store.shown("images"))?;
        fsync(&dir).on("sync", store.shown("images"))
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        // Best effort: what stays is overwritten by the next one, or collected.
        for name in [self.name.clone(), format!("images/{}.lock", self.id)] {
            self.store.remove(&name).unwrap_or_default();
        }
    }
}
