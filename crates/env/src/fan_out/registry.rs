//! Asks an image's registry in place of all nodes of a job.

use std::io::Read;
use std::sync::Arc;

use skiff_oci::digest::Digest;
use skiff_registry::BlobRange;
use skiff_relay::{RegistryReader, RelayFile, RelayPiece};

use super::image::RelayedImage;

/// As a pull, which has so many requests under way.
const READERS: usize = 8;
/// So many answers are open at most in each reader: the ends of some blobs are asked for before all else.
const MOST_RANGES: usize = 4;

/// Readers for a relay.
pub(super) fn readers(image: &Arc<RelayedImage>) -> Vec<Box<dyn RegistryReader>> {
    let reader = |_| -> Box<dyn RegistryReader> {
        Box::new(ImageReader { image: Arc::clone(image), manifest: None, ranges: vec![] })
    };
    (0..READERS).map(reader).collect()
}

struct ImageReader {
    image: Arc<RelayedImage>,
    /// The one that was read last.
    manifest: Option<([u8; 32], Vec<u8>)>,
    /// Answers that are being read, the one that was asked for last at the end.
    ranges: Vec<OpenRange>,
}

/// An answer of the registry's, and how far it has been read.
struct OpenRange {
    blob: [u8; 32],
    at: u64,
    end: u64,
    bytes: BlobRange,
}

impl RegistryReader for ImageReader {
    fn read(&mut self, piece: &RelayPiece) -> Option<Vec<u8>> {
        match piece.file {
            RelayFile::Manifest(digest) => self.read_manifest(digest, piece),
            RelayFile::Blob(digest) => self.read_blob(digest, piece),
            RelayFile::Depot(_) | RelayFile::Image(_) => None,
        }
    }

    fn pause(&mut self) {
        self.ranges.clear();
    }
}

impl ImageReader {
    fn read_manifest(&mut self, digest: [u8; 32], piece: &RelayPiece) -> Option<Vec<u8>> {
        if self.manifest.as_ref().is_none_or(|(known, _)| *known != digest) {
            let bytes = self.image.parts()?.manifest(&Digest::Sha256(digest)).ok()?;
            self.manifest = Some((digest, bytes));
        }
        let (_, bytes) = self.manifest.as_ref()?;
        let from = usize::try_from(piece.at).ok()?.min(bytes.len());
        let to = (from + piece.length as usize).min(bytes.len());
        Some(bytes[from..to].to_vec())
    }

    /// Goes on with the answer that has come so far, or asks for all up to the end of the stripe: what lies behind it is another reader's.
    fn read_blob(&mut self, blob: [u8; 32], piece: &RelayPiece) -> Option<Vec<u8>> {
        let known = self.ranges.iter().position(|range| range.blob == blob && range.at == piece.at);
        // A server closes connections on which nothing was read for long.
        let known = known.map(|known| self.ranges.remove(known));
        let resumed = known.and_then(|range| self.read_range(range, piece));
        resumed.or_else(|| {
            let (at, end) = (piece.at, piece.end_of_stripe());
            let bytes = self.image.parts()?.blob(&Digest::Sha256(blob), at, end).ok()?;
            self.read_range(OpenRange { blob, at, end, bytes }, piece)
        })
    }

    fn read_range(&mut self, mut range: OpenRange, piece: &RelayPiece) -> Option<Vec<u8>> {
        let mut bytes = vec![];
        (&mut range.bytes).take(piece.length.into()).read_to_end(&mut bytes).ok()?;
        range.at += bytes.len() as u64;
        if range.at < range.end && bytes.len() == piece.length as usize {
            if self.ranges.len() >= MOST_RANGES {
                self.ranges.remove(0);
            }
            self.ranges.push(range);
        }
        Some(bytes)
    }
}
