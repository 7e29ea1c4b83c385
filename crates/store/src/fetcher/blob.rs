//! A layer's compressed bytes while a registry sends them.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use skiff_image::blob::Blob;
use skiff_oci::digest::Digest;
use skiff_registry::{BlobReader, Growing};

use crate::Error;

/// A blob that a registry is sending. Its digest is checked as it comes.
pub(super) struct FetchedBlob {
    name: String,
    growing: Arc<Growing>,
    reader: RwLock<BlobReader>,
}

impl FetchedBlob {
    /// What is being fetched.
    pub fn new(growing: &Arc<Growing>) -> FetchedBlob {
        let name = growing.digest().to_string();
        FetchedBlob { name, growing: Arc::clone(growing), reader: RwLock::new(growing.reader()) }
    }

    pub fn reader(&self) -> RwLockReadGuard<'_, BlobReader> {
        self.reader.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blob for FetchedBlob {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.growing.size()
    }

    fn digest(&self) -> Option<Digest> {
        None
    }

    fn has(&self, end: u64) -> bool {
        self.reader().has(end)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> skiff_image::Result<()> {
        Ok(self.reader().read_at(buffer, offset).map_err(Error::from)?)
    }

    fn settle(&self, _got: Option<Digest>) -> skiff_image::Result<()> {
        Ok(self.reader().wait_verified().map_err(Error::from)?)
    }

    fn restart(&self) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = self.growing.reader();
    }

    fn abandon(&self) {
        self.growing.abandon();
    }
}
