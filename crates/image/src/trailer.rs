//! An image's configuration behind a file system: variables, entry point and all else that an EROFS or squashfs file has no place for. Kernels
//! and other programs read no further than the file system says it is long.
//!
//! The text (JSON) is followed by zeros, then by its length (8 bytes, little endian) and the letters `SKIFFCFG`, which end the file. All of it is whole
//! blocks of [`BLOCK`] bytes, as loop devices want them.

use std::fs::File;
use std::os::fd::AsFd;

use serde_json::Value;
use skiff_erofs::tree::BLOCK;
use skiff_oci::manifest::{ImageConfig, MAX_DOCUMENT};
use skiff_sys::SystemContext;
use skiff_sys::positional::write_all_at;

use crate::error::{Error, Result};
use crate::transport::FilePart;

const MAGIC: &[u8; 8] = b"SKIFFCFG";
/// Length and [`MAGIC`].
const END: u64 = 16;

/// Writes a configuration behind what a file holds.
pub(crate) fn append(file: &File, name: &str, config: &Value) -> Result<()> {
    let length = file.metadata().on("look at", name)?.len();
    let mut bytes = config.to_string().into_bytes();
    let text = bytes.len() as u64;
    bytes.resize(size_of(text) as usize - END as usize, 0);
    bytes.extend(text.to_le_bytes());
    bytes.extend(MAGIC);
    Ok(write_all_at(file.as_fd(), &bytes, length.next_multiple_of(BLOCK)).on("write to", name)?)
}

/// Tells the file system from the configuration behind it, which is there if Skiff wrote the file.
///
/// # Errors
/// The configuration is none, or cannot be read.
pub fn split(file: &FilePart) -> Result<(FilePart, Option<Value>)> {
    let none = || Ok((file.clone(), None));
    let mut end = [0; END as usize];
    let Some(at) = file.size.checked_sub(END) else { return none() };
    file.read(&mut end, at)?;
    let (length, magic) = end.split_at(8);
    if magic != MAGIC {
        return none();
    }
    let length = length.try_into().map_or(0, u64::from_le_bytes);
    let size = if length > MAX_DOCUMENT { None } else { file.size.checked_sub(size_of(length)) };
    let Some(size) = size else {
        return Err(Error::unsound(
            file.name.clone(),
            "its configuration is longer than the file, or than any",
        ));
    };
    let mut text = vec![0; length as usize];
    file.read(&mut text, size)?;
    ImageConfig::parse(&file.name, &text)?;
    let config =
        serde_json::from_slice(&text).map_err(|e| Error::unsound(file.name.clone(), e.to_string()))?;
    Ok((FilePart { size, ..file.clone() }, Some(config)))
}

/// What a text of this length takes, with all that follows it.
fn size_of(text: u64) -> u64 {
    (text + END).next_multiple_of(BLOCK)
}
