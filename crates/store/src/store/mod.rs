//! Where images are kept: one file each, under the name of its manifest's digest, with a note of what it was made from.
//!
//! ```text
//! version              the layout's, so that an older program leaves a newer store alone
//! images/ID.erofs      complete and synced; nothing under such a name is ever changed
//! images/ID.sqsh       the same once more, where the kernel has no EROFS: a squashfs as well
//! images/ID.json       its record: size, layers, and the configuration to run it with
//! images/ID.lock       held by whoever makes it
//! images/*.verity      the digest that fs-verity holds such a file to, where the file system has it
//! users/UID/ID         that a user may use it; used last when its time says
//! meanings/UID         resolved digests: the IDs that digests in registries, of indexes perhaps, led to for this user
//! removed/UID.*        images that this user was the last to have, and that somebody still uses
//! blobs/UID/...        layers as they came for this user, complete or not, for their next pull
//! refusals/UID         when a user failed to show that they can have an image that is there
//! tmp/                 what is being made, and marks of temporary files
//! ```
//!
//! The trusted store belongs to a system user and all users share it; without the helper each has one of their own. Both are this.
//!
//! What users share is images, whole and checked; nobody can look in by themselves, and who names one that is there shows that they can
//! have it (`proof`). Layers they do not share: one may be a secret, and what another has fetched of it may be wrong.

mod collect;
mod layers;
mod metadata;
mod patience;
mod quota;
mod refusals;
mod removed;
mod resolved_digests;
mod squashfs;
mod temporary;
mod unfinished;
mod users;
mod verify;

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, fchmod, flock, fsync, mkdirat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use skiff_oci::digest::Digest;
use skiff_registry::{BlobDir, Origin};
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::kernel::host_name;
use skiff_sys::verity::{self, Measured};

use crate::error::{Error, Result};
use patience::Waiter;
use skiff_sys::{IgnoreError, SystemContext, SystemError};

pub use collect::{Collected, Usage};
pub use metadata::{ImageLayer, ImageMetadata};
pub use patience::Patience;
pub use quota::{Quota, UserUsage};
pub(crate) use temporary::TemporaryFiles;
use unfinished::lock_name;
pub use unfinished::{Begun, UnfinishedImage};
pub(crate) use users::users_for_root;

/// The layout that this version reads and writes.
const VERSION: &str = "1\n";
/// Directories of the store, and who may pass through: whoever knows an image's id may look whether the store has it. Whether it has it for a user,
/// only that user may see (`users`).
const DIRS: [(&str, Mode); 7] = [
    ("images", PASSABLE),
    ("users", PASSABLE),
    (resolved_digests::DIR, CLOSED),
    ("blobs", CLOSED),
    ("refusals", CLOSED),
    ("removed", CLOSED),
    ("tmp", CLOSED),
];
const PASSABLE: Mode = Mode::from_raw_mode(0o711);
const CLOSED: Mode = Mode::from_raw_mode(0o700);

/// How many places are known to have an image: for who finds it elsewhere, its layers are the proof.
const MOST_ORIGINS: usize = 16;
/// How often to look whether an image that somebody else makes is there.
const LOOK: Duration = Duration::from_millis(50);

/// A store, open.
pub struct Store {
    path: PathBuf,
    dir: OwnedFd,
    quota: Quota,
    /// Has images unmounted that are gone and only kept mounted.
    let_go: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Store {
    /// Opens the store at `path`, and makes what is missing of it.
    ///
    /// # Errors
    /// When it cannot be written to, or is of a newer version.
    pub fn open(path: &Path) -> Result<Store> {
        let shown = || path.display().to_string();
        std::fs::create_dir_all(path).on("make", shown())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, path, flags, Mode::empty()).on("open", shown())?;
        let store = Store { path: path.into(), dir, quota: Quota::Unlimited, let_go: None };
        store.check_version()?;
        for (name, mode) in DIRS {
            store.make_dir(name, mode)?;
        }
        store.close_permits().ignore_error("a store that takes no changes is good enough to read from");
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
                Ok(renameat(&self.dir, &name, &self.dir, "version").on("rename", self.shown("version"))?)
            }
            Err(e) => Err(SystemError::new("read", self.shown("version"), e).into()),
        }
    }

    /// Directory of the store.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where layers are kept as they came for a user.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn blobs(&self, uid: u32) -> Result<PathBuf> {
        let name = format!("blobs/{uid}");
        self.make_dir(&name, CLOSED)?;
        Ok(self.path.join(name))
    }

    /// The same of all users.
    fn all_blobs(&self) -> Result<Vec<String>> {
        let users = self.list("blobs")?.into_iter().filter(|name| name.parse::<u32>().is_ok());
        Ok(users.map(|user| format!("blobs/{user}")).collect())
    }

    fn make_dir(&self, name: &str, mode: Mode) -> Result<()> {
        match mkdirat(&self.dir, name, mode) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(SystemError::new("make", self.shown(name), e).into()),
        }
    }

    /// What is known of an image, if it is there.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn find(&self, id: ImageId) -> Result<Option<ImageMetadata>> {
        if statat(&self.dir, names::image(id), AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return Ok(None);
        }
        ImageMetadata::read(&self.path.join(record_name(id)))
    }

    /// Notes one more origin of an image (`proof`).
    pub(crate) fn add_origin(&self, id: ImageId, origin: Origin) -> Result<()> {
        let Some(mut record) = self.find(id)? else { return Ok(()) };
        if record.origins.contains(&origin) || record.origins.len() >= MOST_ORIGINS {
            return Ok(());
        }
        record.origins.push(origin);
        let new = unique("tmp/record");
        self.write_new(&new, &record.to_bytes())?;
        let name = record_name(id);
        Ok(renameat(&self.dir, &new, &self.dir, &name).on("rename", self.shown(&name))?)
    }

    /// An image's file, for reading.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open_image(&self, id: ImageId) -> Result<File> {
        let name = names::image(id);
        self.open_to_read(&name).map(File::from)
    }

    fn open_to_read(&self, name: &str) -> Result<OwnedFd> {
        Ok(openat(&self.dir, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
            .on("open", self.shown(name))?)
    }

    /// A file that is going to be called `name` stays as it is from now on, on the disk. Where the file system has fs-verity, the kernel
    /// sees to that, whoever takes over a writer later; the digest that it holds the file to is noted. It is open for writing nowhere.
    fn seal(&self, file: BorrowedFd<'_>, name: &str) -> Result<()> {
        let on = |e: std::io::Error| SystemError::new("enable fs-verity for", self.shown(name), e);
        let note = names::verity(name);
        if verity::enable(file).map_err(on)?
            && let Measured::Digest(digest) = verity::measure(file).map_err(on)?
        {
            let new = unique("tmp/verity");
            self.write_new(&new, &digest)?;
            renameat(&self.dir, &new, &self.dir, &note).on("rename", self.shown(&note))?;
        } else {
            // One that is left of an earlier file would have this one refused.
            self.remove(&note)?;
        }
        fchmod(file, Mode::from_raw_mode(0o400)).on("set the mode of", self.shown(name))?;
        Ok(fsync(file).on("sync", self.shown(name))?)
    }

    /// Begins to make an image for a user, unless it is there. Whoever else does so at the moment, on this node or another, is waited for;
    /// `waiting` is told so once.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn begin(
        &self,
        (id, uid): (ImageId, u32),
        patience: Patience,
        waiting: &mut dyn FnMut(),
    ) -> Result<Begun<'_>> {
        let mark = unfinished::mark(uid, &made(id));
        let name = lock_name(id);
        let mut waiter = None;
        loop {
            let lock = self.open_lock(&name)?;
            let is_held = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => false,
                Err(Errno::WOULDBLOCK) => true,
                Err(e) => return Err(SystemError::new("lock", self.shown(&name), e).into()),
            };
            if let Some(record) = self.find(id)? {
                if !is_held {
                    self.remove(&name)?;
                }
                return Ok(Begun::There(record));
            }
            if is_held {
                let waiter = waiter.get_or_insert_with(|| {
                    waiting();
                    Waiter::new(patience)
                });
                let is_own = statat(&self.dir, &mark, AtFlags::SYMLINK_NOFOLLOW).is_ok();
                if !waiter.waits(is_own, self.bytes_of(&made(id)), Instant::now()) {
                    return UnfinishedImage::new(self, id, unique(&made(id)), None).map(Begun::New);
                }
                std::thread::sleep(LOOK);
            } else if self.is_named(&lock, &name) {
                self.remove_abandoned().ignore_error("what stays is found the next time");
                // With the lock held, what stands under that name is what a crash has left.
                return UnfinishedImage::new(self, id, made(id), Some(lock)).map(Begun::New);
            }
        }
    }

    /// Whether this file has this name still. If the last holder of a lock has removed it, it keeps nobody out.
    fn is_named(&self, file: &OwnedFd, name: &str) -> bool {
        let (held, named) = (rustix::fs::fstat(file), statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW));
        held.is_ok_and(|h| named.is_ok_and(|n| (h.st_dev, h.st_ino) == (n.st_dev, n.st_ino)))
    }

    fn bytes_of(&self, name: &str) -> u64 {
        statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| stat.st_blocks as u64 * 512)
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
        Ok(uids.filter(|uid| self.has_permit(*uid, id)).collect())
    }

    /// The file goes first: without it the record means nothing. As long as somebody uses it, it counts for `uid`.
    fn delete(&self, id: ImageId, uid: u32) -> Result<()> {
        self.set_aside(id, uid)?;
        for name in [names::image(id), names::squashfs(id)] {
            self.remove(&names::verity(&name))?;
        }
        self.remove(&record_name(id))
    }

    /// The layers that an image was made of; none of an environment's layer.
    fn layers_of_image(&self, id: ImageId) -> Vec<Digest> {
        let record = ImageMetadata::read(&self.path.join(record_name(id))).default_on_error(
            "one that cannot be read says nothing of its layers, which go when there is no room",
        );
        let layers = record.filter(|record| !record.layer).map(|record| record.layers).unwrap_or_default();
        layers.iter().flat_map(|layer| layer.digest.parse()).collect()
    }

    /// Removes such layers from those that are kept for a user's next pull, but for those that another of this user's images has. What others have is
    /// not looked at: they may have any number of images and layers.
    fn drop_layers_of(&self, uid: u32, layers: &[Digest]) -> Result<()> {
        let dir = format!("blobs/{uid}");
        let is_there = |name: String| statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let is_kept =
            |layer: &&Digest| is_there(format!("{dir}/{}", layer.to_string().replacen(':', "-", 1)));
        let mut unneeded: Vec<&Digest> = layers.iter().filter(is_kept).collect();
        if unneeded.is_empty() {
            return Ok(());
        }
        for other in self.images_of(uid)? {
            let needed = self.layers_of_image(other);
            unneeded.retain(|layer| !needed.contains(layer));
        }
        let blobs = BlobDir::open(&self.path.join(dir))?;
        // One that is being fetched stays.
        Ok(unneeded.into_iter().try_for_each(|digest| blobs.remove(digest).map(drop))?)
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
            Err(e) => Err(SystemError::new("remove", self.shown(name), e).into()),
        }
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)).on("create", self.shown(name))?;
        let mut file = File::from(file);
        std::io::Write::write_all(&mut file, bytes).on("write to", self.shown(name))?;
        Ok(fsync(&file).on("sync", self.shown(name))?)
    }

    fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// A name that no other process on any node gives a file. (Numbers of processes would not do: each writer has a PID namespace of its own.)
fn unique(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static RANDOM: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    let host = host_name().replace('/', "_");
    format!("{prefix}.{host}.{:016x}.{}", *RANDOM, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// An image while it is made.
fn made(id: ImageId) -> String {
    format!("tmp/{id}")
}

fn record_name(id: ImageId) -> String {
    format!("images/{id}.json")
}
