//! A blob that is to be pushed: its bytes, read as often as the registry needs them, and whoever is told of each.

use std::io::Read;

use skiff_oci::digest::Digest;
use skiff_oci::reference::Named;

use super::Result;
use super::failure::Failure;

/// Gives the bytes of a blob from this one on, as often as it is asked.
pub type ReadFrom<'a> = dyn Fn(u64) -> std::io::Result<Box<dyn Read>> + 'a;

/// A blob to push.
pub struct Upload<'a> {
    /// The digest.
    pub digest: Digest,
    /// How many bytes it has.
    pub size: u64,
    /// The image in whose repository it is, too, as far as is known. If that is one of the same registry, nothing is sent.
    pub from: Option<&'a Named>,
    /// The bytes.
    pub read: &'a ReadFrom<'a>,
    /// Is told how many bytes have been sent, from the beginning.
    pub sent: &'a dyn Fn(u64),
}

/// What is to be pushed cannot be read here.
#[derive(Debug, thiserror::Error)]
#[error("what is to be pushed cannot be read: {0}")]
pub(super) struct Unreadable(std::io::Error);

impl Upload<'_> {
    pub(super) fn reader(&self, begin: u64) -> Result<impl Read + '_, Failure> {
        let unreadable = |e| Failure::Unreadable(Unreadable(e).to_string());
        Ok(Counting { blob: self, reader: (self.read)(begin).map_err(unreadable)?, at: begin })
    }
}

/// Tells of each byte that is read, and ends where the blob ends.
struct Counting<'a> {
    blob: &'a Upload<'a>,
    reader: Box<dyn Read>,
    at: u64,
}

impl Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer).map_err(|e| std::io::Error::other(Unreadable(e)))?;
        self.at += read as u64;
        if read == 0 && self.at < self.blob.size && !buffer.is_empty() {
            let short = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(std::io::Error::other(Unreadable(short)));
        }
        (self.blob.sent)(self.at);
        Ok(read)
    }
}
