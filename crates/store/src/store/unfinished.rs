//! An image while it is made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, fsync, openat, renameat};
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::IgnoreError;

use super::{ImageMetadata, Store, record_name};
use crate::error::Result;
use skiff_sys::SystemContext;

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
                .remove(&format!("images/{}.lock", self.id))
                .ignore_error("what stays is overwritten by the next one, or collected");
        }
    }
}
