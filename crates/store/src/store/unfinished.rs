//! An image while it is made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fsync, openat, renameat};
use rustix::io::Errno;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::IgnoreError;

use super::{ImageMetadata, Store, record_name};
use crate::error::Result;
use skiff_sys::{SystemContext, SystemError};

/// What [`Store::begin`] found.
pub enum Begun<'a> {
    /// The image is there, made meanwhile perhaps.
    There(ImageMetadata),
    /// The image is to be made.
    New(UnfinishedImage<'a>),
}

/// An image that is being made. Dropped before [`UnfinishedImage::publish`], nothing of it is left.
pub struct UnfinishedImage<'a> {
    pub(super) store: &'a Store,
    id: ImageId,
    file: OwnedFd,
    pub(super) name: String,
    /// Nothing, where its holder was not to be waited for.
    lock: Option<OwnedFd>,
    /// What says for whom it is made.
    pub(super) mark: Option<String>,
}

impl<'a> UnfinishedImage<'a> {
    pub(super) fn new(
        store: &'a Store,
        id: ImageId,
        name: String,
        lock: Option<OwnedFd>,
    ) -> Result<UnfinishedImage<'a>> {
        // What a crash has left may be finished, so that even its owner cannot write to it.
        store.remove(&name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(&store.dir, &name, flags, Mode::from_raw_mode(0o600)).on("create", store.shown(&name))?;
        Ok(UnfinishedImage { store, id, file, name, lock, mark: None })
    }

    /// The image.
    #[must_use]
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// The store that it is made in.
    pub(crate) fn store(&self) -> &'a Store {
        self.store
    }

    /// The image's file, still empty.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether somebody else was not waited for, and has it made by now.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.lock.is_none() && self.store.find(self.id).is_ok_and(|found| found.is_some())
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
    pub fn publish(mut self, record: &ImageMetadata) -> Result<()> {
        // Another's is there meanwhile: it is the same, and what is there is not changed.
        if self.store.find(self.id)?.is_some() {
            return Ok(());
        }
        self.file = self.store.open_to_read(&self.name)?;
        self.store.seal(self.file.as_fd(), &names::image(self.id))?;
        let UnfinishedImage { store, id, .. } = &self;
        let shown = || store.shown(&names::image(*id));
        let aside = format!("{}.json", self.name);
        store.write_new(&aside, &record.to_bytes())?;
        renameat(&store.dir, &aside, &store.dir, record_name(*id))
            .on("rename", store.shown(&record_name(*id)))?;
        renameat(&store.dir, &self.name, &store.dir, names::image(*id)).on("rename", shown())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(&store.dir, "images", flags, Mode::empty()).on("open", store.shown("images"))?;
        Ok(fsync(&dir).on("sync", store.shown("images"))?)
    }
}

/// The lock of an image of which a killed writer has left something: it keeps others from making the image while that is removed.
pub(super) struct AbandonedLock<'a> {
    store: &'a Store,
    name: String,
    _lock: OwnedFd,
}

impl Drop for AbandonedLock<'_> {
    fn drop(&mut self) {
        self.store.remove(&self.name).ignore_error("a lock that nobody holds keeps nobody out");
    }
}

impl Store {
    /// The lock of the image to whose making a file in `tmp` belongs, if nobody makes it: then a crash has left the file. Nothing of a file
    /// that was made without a lock.
    pub(super) fn lock_abandoned(&self, path: &Path) -> Result<Option<AbandonedLock<'_>>> {
        let Some(id) = path.file_name().and_then(|name| image_of(name.to_str()?)) else { return Ok(None) };
        let name = lock_name(id);
        let lock = self.open_lock(&name)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if self.is_named(&lock, &name) => {
                Ok(Some(AbandonedLock { store: self, name, _lock: lock }))
            }
            Ok(()) | Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(SystemError::new("lock", self.shown(&name), e).into()),
        }
    }

    /// Removes what writers that were killed have left: it would take up room, and count for its users, until the next collection.
    pub(super) fn remove_abandoned(&self) -> Result<()> {
        for name in self.list("tmp")? {
            if self.lock_abandoned(Path::new(&name))?.is_some() {
                self.remove(&format!("tmp/{name}"))?;
            }
        }
        Ok(())
    }

    pub(super) fn open_lock(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)).on("open", self.shown(name))?)
    }
}

/// The name of the lock that whoever makes an image holds.
pub(super) fn lock_name(id: ImageId) -> String {
    format!("images/{id}.lock")
}

/// The image to which a file in `tmp` belongs that is made under its lock: `ID`, `ID.json`, `for.UID.ID`.
fn image_of(name: &str) -> Option<ImageId> {
    let name = match name.strip_prefix("for.") {
        Some(mark) => mark.split_once('.')?.1,
        None => name,
    };
    name.strip_suffix(".json").unwrap_or(name).parse().ok()
}

/// What says for whom a file in `tmp` is made.
pub(super) fn mark(uid: u32, name: &str) -> String {
    format!("tmp/for.{uid}.{}", name.trim_start_matches("tmp/"))
}

impl Drop for UnfinishedImage<'_> {
    fn drop(&mut self) {
        self.store
            .remove(&self.name)
            .ignore_error("best effort: what stays is overwritten by the next one, or collected");
        if let Some(mark) = &self.mark {
            self.store.remove(mark).ignore_error("what stays is overwritten by the next one, or collected");
        }
        if self.lock.is_some() {
            self.store
                .remove(&lock_name(self.id))
                .ignore_error("what stays is overwritten by the next one, or collected");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::image_of;

    #[test]
    fn files_that_are_made_under_a_lock() {
        let id = "ab".repeat(32);
        for (name, is_its) in [
            (id.clone(), true),
            (format!("{id}.json"), true),
            (format!("for.1000.{id}"), true),
            (format!("{id}.n1.0123456789abcdef.0"), false),
            (format!("for.1000.{id}.n1.0123456789abcdef.0"), false),
            (format!("for.{id}"), false),
            ("spill".into(), false),
        ] {
            assert_eq!(image_of(&name).is_some(), is_its, "{name}");
        }
    }
}
