//! Packs: frames one behind the other.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use skiff_sys::SystemContext;
use zstd::bulk::Compressor;

use super::LARGEST_FRAME;
use super::list::PackFrame;
use crate::digest::PackId;
use crate::error::Result;
use crate::layer::write_at;

/// As fast as disks; higher levels make programs and libraries a tenth smaller, in twice the time and more.
const LEVEL: i32 = 1;

/// A pack being written.
pub(super) struct PackWriter {
    file: OwnedFd,
    /// The file's name, for messages.
    object: Vec<u8>,
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
    hasher: blake3::Hasher,
    at: u64,
}

impl PackWriter {
    pub(super) fn new(file: OwnedFd, object: Vec<u8>) -> Result<Self> {
        // What fails here is memory.
        let compressor = Compressor::new(LEVEL).map_err(|_| Errno::NOMEM).on("compress into", &object)?;
        let compressed = vec![0; zstd::zstd_safe::compress_bound(LARGEST_FRAME)];
        Ok(Self { file, object, compressor, compressed, hasher: blake3::Hasher::new(), at: 0 })
    }

    /// Appends a frame; its pack's number is for the caller to say.
    pub(super) fn frame(&mut self, bytes: &[u8]) -> Result<PackFrame> {
        let done = self.compressor.compress_to_buffer(bytes, &mut self.compressed[..]);
        let stored = match done {
            // What hardly gets smaller is read faster as it is.
            Ok(length) if length < bytes.len() - bytes.len() / 16 => &self.compressed[..length],
            _ => bytes,
        };
        write_at(self.file.as_fd(), stored, self.at).on("write to", &self.object)?;
        self.hasher.update(stored);
        let frame =
            PackFrame { pack: 0, at: self.at, stored: stored.len() as u32, length: bytes.len() as u32 };
        self.at += stored.len() as u64;
        Ok(frame)
    }

    /// The file, its name in the depot, and its length.
    pub(super) fn finish(self) -> (OwnedFd, PackId, u64) {
        (self.file, PackId(*self.hasher.finalize().as_bytes()), self.at)
    }
}
