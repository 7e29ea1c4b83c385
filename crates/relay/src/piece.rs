//! What goes from node to node: pieces of a depot's files, of images' files, and of what a registry has.

use std::fs::File;
use std::os::fd::AsFd as _;

use skiff_snapshot::{DepotPiece, LARGEST_PIECE, PieceFile, read_at_most};

/// Images' files and what a registry has are cut at multiples of so many bytes, so that all nodes ask for the same pieces.
pub const IMAGE_PIECE: u32 = 256 << 10;

/// Pieces of so many bytes of a file one behind the other go down the same tree: who reads its source reads so much of it in order.
pub const STRIPE: u64 = 4 << 20;

/// A file that nodes pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelayFile {
    /// One of the depot's.
    Depot(PieceFile),
    /// An image that is one file, as its copy in the depot, by the SHA-256 of that file.
    Image([u8; 32]),
    /// A manifest or an index of manifests in a registry, by its SHA-256.
    Manifest([u8; 32]),
    /// A blob in a registry, by its SHA-256.
    Blob([u8; 32]),
}

/// Some bytes of such a file; fewer if it ends before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayPiece {
    /// The file.
    pub file: RelayFile,
    /// Where in the file it begins.
    pub at: u64,
    /// How many bytes it has at most; no more than [`skiff_snapshot::LARGEST_PIECE`].
    pub length: u32,
}

/// Who opens images' files in place of the other nodes, by their SHA-256; nothing where there is no such file.
pub type ImageOpener = dyn Fn(&[u8; 32]) -> Option<File> + Send + Sync;

/// Who asks the registry in place of the other nodes. Whatever comes is checked by who uses it: manifests and blobs have digests.
pub trait RegistryReader: Send {
    /// The bytes of a piece of a manifest or a blob; nothing where it is not to be had.
    fn read(&mut self, piece: &RelayPiece) -> Option<Vec<u8>>;

    /// Nothing more is wanted for a while.
    fn pause(&mut self);
}

impl From<DepotPiece> for RelayPiece {
    fn from(DepotPiece { file, at, length }: DepotPiece) -> Self {
        Self { file: RelayFile::Depot(file), at, length }
    }
}

impl RelayPiece {
    /// The piece of an image's file, or of what a registry has, in which the byte at `at` is.
    #[must_use]
    pub fn of_image(file: RelayFile, at: u64) -> Self {
        let length = IMAGE_PIECE;
        Self { file, at: at - at % u64::from(length), length }
    }

    /// Reads it from its file.
    pub(crate) fn read_from(&self, file: &File) -> rustix::io::Result<Vec<u8>> {
        read_at_most(file.as_fd(), self.length.min(LARGEST_PIECE) as usize, self.at)
    }

    /// The end of its stripe.
    #[must_use]
    pub fn end_of_stripe(&self) -> u64 {
        (self.at / STRIPE).saturating_add(1).saturating_mul(STRIPE)
    }
}

impl RelayFile {
    /// What it is called by.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        match self {
            Self::Depot(PieceFile::List(layer)) => &layer.0,
            Self::Depot(PieceFile::Pack(pack)) => &pack.0,
            Self::Image(digest) | Self::Manifest(digest) | Self::Blob(digest) => digest,
        }
    }
}
