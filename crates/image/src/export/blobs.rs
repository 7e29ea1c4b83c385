//! An image as a registry takes it. Its one layer is made each time that it is read, the same each time: of what is sent, nothing is
//! kept on the disk.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use skiff_oci::digest::Digest;
use skiff_oci::hash::sha256;

use super::{Documents, OpenImage, layer};
use crate::error::Result;
use crate::transport::MANIFEST_TYPE;
use crate::unpack::LeftOut;

/// Bytes that go from the thread that makes the layer to who sends it.
const PIECE: usize = 1 << 20;
/// How many such pieces wait.
const PIECES: usize = 4;

/// What a registry gets of an image. The layer is [`OpenImage::layer_from`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageBlobs {
    /// Digest of the layer.
    pub layer: Digest,
    /// Bytes of the layer.
    pub layer_size: u64,
    /// The configuration.
    pub config: Vec<u8>,
    /// Digest of the configuration.
    pub config_digest: Digest,
    /// The manifest.
    pub manifest: Vec<u8>,
    /// Digest of the manifest, which is the image's.
    pub digest: Digest,
    /// What was left out.
    pub left_out: LeftOut,
}

impl ImageBlobs {
    /// Media type of the manifest.
    pub const MEDIA_TYPE: &str = MANIFEST_TYPE;
}

impl OpenImage {
    /// Reads the whole image, for what only that tells.
    ///
    /// # Errors
    /// The image holds what layers cannot, or cannot be read.
    pub fn blobs(&self) -> Result<ImageBlobs> {
        let written =
            layer::write(&self.reader()?, &mut std::io::sink(), self.layer_name(), self.is_of_changes())?;
        let Documents { config, manifest, digest } = self.documents(&written);
        Ok(ImageBlobs {
            layer: written.digest,
            layer_size: written.size,
            config_digest: sha256(&config),
            config,
            manifest,
            digest,
            left_out: written.left_out(),
        })
    }

    /// The layer's bytes from `begin` on. A thread makes them as they are read.
    ///
    /// # Errors
    /// The image's file cannot be opened once more, or there is no thread to be had.
    pub fn layer_from(&self, begin: u64) -> std::io::Result<LayerBytes> {
        let image = self.reader().map_err(std::io::Error::other)?;
        let (name, is_of_changes) = (self.layer_name().to_owned(), self.is_of_changes());
        let (sender, receiver) = sync_channel(PIECES);
        std::thread::Builder::new().name("layer".into()).spawn(move || {
            let pieces = Pieces { sender: sender.clone(), skipped: begin };
            let mut out = BufWriter::with_capacity(PIECE, pieces);
            let made = layer::write(&image, &mut out, &name, is_of_changes).map_err(std::io::Error::other);
            if let Err(e) = made.and_then(|_| out.flush()) {
                // Whoever reads no more wants to hear of nothing.
                let (Ok(()) | Err(_)) = sender.send(Err(e));
            }
        })?;
        Ok(LayerBytes { receiver, piece: vec![], at: 0 })
    }

    /// What messages call it.
    fn layer_name(&self) -> &Path {
        Path::new(&self.name)
    }
}

/// Sends on what comes behind the bytes that are to be skipped.
struct Pieces {
    sender: SyncSender<std::io::Result<Vec<u8>>>,
    skipped: u64,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let skip = self.skipped.min(bytes.len() as u64);
        self.skipped -= skip;
        let rest = &bytes[usize::try_from(skip).unwrap_or(bytes.len())..];
        if !rest.is_empty() && self.sender.send(Ok(rest.to_vec())).is_err() {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A layer as it is made. Dropped, it ends the thread that makes it.
pub struct LayerBytes {
    receiver: Receiver<std::io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for LayerBytes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.piece.len() {
            match self.receiver.recv() {
                Ok(piece) => (self.piece, self.at) = (piece?, 0),
                // It has been made to its end.
                Err(_) => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len() - self.at);
        buffer[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_from_anywhere_on() {
        let whole: Vec<u8> = (0..100).collect();
        for begin in [0, 1, 7, 10, 99, 100] {
            let (sender, receiver) = sync_channel(100);
            let mut pieces = Pieces { sender, skipped: begin };
            whole.chunks(7).for_each(|chunk| pieces.write_all(chunk).expect("somebody reads"));
            drop(pieces);
            let mut read = vec![];
            let mut layer = LayerBytes { receiver, piece: vec![], at: 0 };
            layer.read_to_end(&mut read).expect("no error was sent");
            assert_eq!(read, whole[usize::try_from(begin).expect("small")..], "from {begin}");
        }
    }

    #[test]
    fn an_error_of_the_image_reaches_who_reads() {
        let (sender, receiver) = sync_channel(2);
        sender.send(Ok(vec![1])).expect("room");
        sender.send(Err(std::io::Error::other("bad image"))).expect("room");
        let mut read = vec![];
        let error = LayerBytes { receiver, piece: vec![], at: 0 }.read_to_end(&mut read).expect_err("sent");
        assert_eq!((read, error.to_string().as_str()), (vec![1], "bad image"));
        // Who reads no more ends who writes.
        let (sender, receiver) = sync_channel(1);
        drop(receiver);
        Pieces { sender, skipped: 0 }.write_all(b"x").expect_err("nobody reads");
    }
}
