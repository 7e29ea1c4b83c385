//! Packs: frames one behind the other.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use skiff_sys::positional::write_all_at;
use skiff_sys::{SystemContext, writeback};
use zstd::bulk::Compressor;

use super::LARGEST_FRAME;
use super::list::PackFrame;
use crate::digest::PackId;
use crate::error::Result;

/// As fast as disks; higher levels make programs and libraries a tenth smaller, in twice the time and more.
const LEVEL: i32 = 1;
/// After so many bytes the disk begins to write them: whoever waits for all to be there then waits for little more than the last.
const WRITEBACK: u64 = 8 << 20;

/// A pack being written.
pub(super) struct PackWriter {
    file: OwnedFd,
    /// The file's name, for messages.
    object: Vec<u8>,
    compressor: FrameCompressor,
    hasher: blake3::Hasher,
    at: u64,
}

/// Makes frames smaller, one after the other.
pub(super) struct FrameCompressor {
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
}

impl FrameCompressor {
    /// `object` is the pack's name, for messages.
    pub(super) fn new(object: &[u8]) -> Result<Self> {
        // What fails here is memory.
        let compressor = Compressor::new(LEVEL).map_err(|_| Errno::NOMEM).on("compress into", object)?;
        Ok(Self { compressor, compressed: vec![0; zstd::zstd_safe::compress_bound(LARGEST_FRAME)] })
    }

    /// The frame as it is to be stored.
    pub(super) fn compress<'a>(&'a mut self, bytes: &'a [u8]) -> &'a [u8] {
        match self.compressor.compress_to_buffer(bytes, &mut self.compressed[..]) {
            // What hardly gets smaller is read faster as it is.
            Ok(length) if length < bytes.len() - bytes.len() / 16 => &self.compressed[..length],
            _ => bytes,
        }
    }
}

impl PackWriter {
    pub(super) fn new(file: OwnedFd, object: Vec<u8>) -> Result<Self> {
        let compressor = FrameCompressor::new(&object)?;
        Ok(Self { file, object, compressor, hasher: blake3::Hasher::new(), at: 0 })
    }

    /// The file's name, for messages.
    pub(super) fn object(&self) -> &[u8] {
        &self.object
    }

    /// Appends a frame; its pack's number is for the caller to say.
    pub(super) fn frame(&mut self, bytes: &[u8]) -> Result<PackFrame> {
        let Self { file, object, compressor, hasher, at } = self;
        append(file, object, (hasher, at), (compressor.compress(bytes), bytes.len()))
    }

    /// Appends a frame of `length` bytes that is compressed already.
    pub(super) fn compressed(&mut self, stored: &[u8], length: usize) -> Result<PackFrame> {
        let Self { file, object, hasher, at, .. } = self;
        append(file, object, (hasher, at), (stored, length))
    }

    /// The file, its name in the depot, and its length.
    pub(super) fn finish(self) -> (OwnedFd, PackId, u64) {
        (self.file, PackId(*self.hasher.finalize().as_bytes()), self.at)
    }
}

fn append(
    file: &OwnedFd,
    object: &[u8],
    (hasher, at): (&mut blake3::Hasher, &mut u64),
    (stored, length): (&[u8], usize),
) -> Result<PackFrame> {
    write_all_at(file.as_fd(), stored, *at).on("write to", object)?;
    hasher.update(stored);
    let frame = PackFrame { pack: 0, at: *at, stored: stored.len() as u32, length: length as u32 };
    *at += stored.len() as u64;
    let begun = frame.at / WRITEBACK * WRITEBACK;
    if *at - begun >= WRITEBACK {
        writeback::begin(file.as_fd(), begun, WRITEBACK);
    }
    Ok(frame)
}
