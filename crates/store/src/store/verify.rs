//! Whether an image is still as it was made.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::fstat;
use skiff_erofs as erofs;
use skiff_erofs::tree::BLOCK;
use skiff_image::Error::BadImage;
use skiff_image::sum::of_blocks;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::verity::{self, Measured};

use super::Store;
use crate::error::Result;
use skiff_sys::{SystemContext, SystemError};

impl Store {
    /// Reads all of an image: its metadata must be as ours always are, its files' data what was written.
    ///
    /// # Errors
    /// [`skiff_image::Error::BadImage`] with what is wrong with it; it is not there, or cannot be read.
    pub fn verify(&self, id: ImageId) -> Result<()> {
        let name = id.to_string();
        let bad = |why: &str| Err(BadImage { file: id.to_string(), why: why.into() }.into());
        let file = self.open_image(id)?;
        let Some(record) = self.find(id)? else { return bad("the store has no record of it") };
        if fstat(&file).on("look at", &*name)?.st_size as u64 != record.size {
            return bad("it is not as long as it was when it was made");
        }
        if !self.is_as_sealed(file.as_fd(), &names::image(id))? {
            return bad("fs-verity does not hold it to the digest noted when it was made");
        }
        let reader = erofs::Reader::open(self.open_image(id)?, name.clone())?;
        if record.layer {
            erofs::verify_layer(&reader)?
        } else {
            erofs::verify_stored(&reader)?
        };
        // Of what the format can hold, block numbers have 32 bits.
        let data = 1..(reader.metadata_start() / BLOCK) as u32;
        let sum = of_blocks(file.as_fd(), &name, &[data])?;
        if record.data_sum.is_some_and(|made| made != sum) {
            return bad("what is in its files is not what it was when it was made");
        }
        Ok(())
    }
    /// Whether the kernel holds a file to the digest that was noted of it. The helper asks the same before it mounts the file.
    fn is_as_sealed(&self, file: BorrowedFd<'_>, name: &str) -> Result<bool> {
        let note = names::verity(name);
        let measured = verity::measure(file).on("measure", self.shown(name))?;
        match std::fs::read(self.path.join(&note)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
            Err(e) => Err(SystemError::new("read", self.shown(&note), e).into()),
            Ok(noted) => Ok(match measured {
                Measured::Digest(digest) => noted == digest,
                Measured::Nothing => false,
                Measured::Unsupported => true,
            }),
        }
    }
}
