//! Asks an image's registry in place of all nodes of a job.

use std::io::Read;
use std::path::{Path, PathBuf};

use skiff_oci::digest::Digest;
use skiff_registry::{BlobRange, ImageParts};
use skiff_relay::{RegistryReader, RelayFile, RelayPiece};
use skiff_snapshot::Depot;
use skiff_store::client;
use skiff_user::context::UserContext;

use super::RelayImage;
use crate::base_fingerprint;

/// So many ranges of blobs are read at a time: a pull asks for eight, and for the ends of some blobs.
const MOST_RANGES: usize = 16;

/// Readers for a relay, one for each tree.
pub(super) fn readers(
    context: &UserContext,
    depot: &Path,
    image: RelayImage<'_>,
) -> [Box<dyn RegistryReader>; 2] {
    let name = match image {
        RelayImage::Named(reference) => ImageSource::Named(reference.into()),
        RelayImage::OfSnapshot(snapshot) => ImageSource::OfSnapshot(depot.into(), snapshot.into()),
    };
    [(), ()].map(|()| -> Box<dyn RegistryReader> {
        Box::new(ImageReader {
            context: context.clone(),
            image: name.clone(),
            parts: None,
            manifest: None,
            ranges: vec![],
        })
    })
}

/// What says which image it is.
#[derive(Clone)]
enum ImageSource {
    Named(String),
    OfSnapshot(PathBuf, String),
}

struct ImageReader {
    context: UserContext,
    image: ImageSource,
    /// Once somebody has wanted something; nothing in it where there is nobody to be asked.
    parts: Option<Option<ImageParts>>,
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
            RelayFile::Depot(_) => None,
        }
    }

    fn pause(&mut self) {
        self.ranges.clear();
    }
}

impl ImageReader {
    fn parts(&mut self) -> Option<&mut ImageParts> {
        let (context, image) = (&self.context, &self.image);
        self.parts.get_or_insert_with(|| client::parts(context, &image.name()?).ok()).as_mut()
    }

    fn read_manifest(&mut self, digest: [u8; 32], piece: &RelayPiece) -> Option<Vec<u8>> {
        if self.manifest.as_ref().is_none_or(|(known, _)| *known != digest) {
            let bytes = self.parts()?.manifest(&Digest::Sha256(digest)).ok()?;
            self.manifest = Some((digest, bytes));
        }
        let (_, bytes) = self.manifest.as_ref()?;
        let from = usize::try_from(piece.at).ok()?.min(bytes.len());
        let to = (from + piece.length as usize).min(bytes.len());
        Some(bytes[from..to].to_vec())
    }

    /// Goes on with the answer that has come so far, or asks for all up to the end of the stripe: what lies behind it is another tree's.
    fn read_blob(&mut self, blob: [u8; 32], piece: &RelayPiece) -> Option<Vec<u8>> {
        let known = self.ranges.iter().position(|range| range.blob == blob && range.at == piece.at);
        let mut range = match known {
            Some(known) => self.ranges.remove(known),
            None => {
                let (at, end) = (piece.at, piece.end_of_stripe());
                let bytes = self.parts()?.blob(&Digest::Sha256(blob), at, end).ok()?;
                OpenRange { blob, at, end, bytes }
            }
        };
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

impl ImageSource {
    fn name(&self) -> Option<String> {
        match self {
            Self::Named(name) => Some(name.clone()),
            Self::OfSnapshot(depot, snapshot) => {
                let manifest = Depot::open_existing(depot).ok()?.manifest(&snapshot.parse().ok()?).ok()?;
                let (_, name) = base_fingerprint::image_of(&manifest.base).ok()??;
                Some(name.to_owned())
            }
        }
    }
}
