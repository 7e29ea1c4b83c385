//! A layer's compressed bytes, which may still be on their way.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use skiff_oci::digest::Digest;
use skiff_sys::positional::read_exact_at;

use crate::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// A layer as the registry or an archive has it. Reads may come from several threads.
pub trait Blob: Sync {
    /// Digest or file name, for messages.
    fn name(&self) -> &str;

    /// Length in bytes.
    fn size(&self) -> u64;

    /// The digest that its bytes must have; `None` if someone else checks them.
    fn digest(&self) -> Option<Digest>;

    /// Whether the bytes before `end` are all here, so that reading them would not block.
    fn has(&self, end: u64) -> bool;

    /// Reads exactly these bytes, and waits for them where they have not come yet. Beside reads in order there are some of
    /// the first and the last few bytes, before all others: those are best fetched first.
    ///
    /// # Errors
    /// Of the fetch or the system, and after [`Blob::abandon`]. One that [is a restart](crate::Error::is_restart) says that bytes
    /// read before were wrong, and are fetched anew.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// All bytes have been read; `got` is their digest if it was not the right one. If someone else checks them, or can bring them anew,
    /// waits for what comes of that.
    ///
    /// # Errors
    /// They are wrong, and are not there in another way.
    fn settle(&self, got: Option<Digest>) -> Result<()>;

    /// After an error that [is a restart](crate::Error::is_restart): from now on the new bytes are read.
    fn restart(&self);

    /// Something else went wrong: a read that waits must not wait longer, but fail.
    fn abandon(&self);
}

/// A blob that is a file or a part of one, and wholly there.
pub struct FileBlob {
    file: Arc<File>,
    name: String,
    offset: u64,
    size: u64,
    digest: Option<Digest>,
}

impl FileBlob {
    /// The file's present bytes, which must have the digest, if one is given.
    pub fn new(file: File, name: impl Into<String>, digest: Option<Digest>) -> Result<FileBlob> {
        let name = name.into();
        let size = rustix::fs::fstat(&file).on("look at", &name)?.st_size as u64;
        Ok(FileBlob { file: Arc::new(file), name, offset: 0, size, digest })
    }

    /// `size` bytes of a file from `offset` on, which must have the digest, if one is given.
    pub fn part(file: Arc<File>, name: String, offset: u64, size: u64, digest: Option<Digest>) -> FileBlob {
        FileBlob { file, name, offset, size, digest }
    }
}

impl Blob for FileBlob {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn digest(&self) -> Option<Digest> {
        self.digest
    }

    fn has(&self, _end: u64) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        // Past its end there may be another part, which is none of this blob's.
        if offset.saturating_add(buffer.len() as u64) > self.size {
            return Err(SystemError::new("read", &self.name, rustix::io::Errno::NODATA).into());
        }
        Ok(read_exact_at(self.file.as_fd(), buffer, self.offset + offset).on("read", &self.name)?)
    }

    fn settle(&self, got: Option<Digest>) -> Result<()> {
        match got {
            None => Ok(()),
            Some(_) => Err(Error::WrongDigest { layer: self.name.clone() }),
        }
    }

    fn restart(&self) {}

    fn abandon(&self) {}
}
