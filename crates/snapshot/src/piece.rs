//! Pieces of the depot's files: what has to be read of it for a snapshot, whoever reads it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::{LayerId, PackId};

/// No piece has more bytes: a whole frame of a pack is one.
pub const LARGEST_PIECE: u32 = 384 << 10;

/// A file of a depot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PieceFile {
    /// The list of a layer's chunks.
    List(LayerId),
    /// Chunks of layers.
    Pack(PackId),
}

/// Some bytes of such a file; fewer if it ends before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DepotPiece {
    /// The file.
    pub file: PieceFile,
    /// Where in the file it begins.
    pub at: u64,
    /// How many bytes it has; [`LARGEST_PIECE`] at most.
    pub length: u32,
}

/// How many bytes of pieces have come from where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceCounts {
    /// From other nodes.
    pub relayed: u64,
    /// From the depot, by this node for all.
    pub read: u64,
}

/// Who reads pieces in place of this process, as another node that has read them already. What they are is found out by who uses them: lists and
/// layers have digests.
pub trait PieceReader: fmt::Debug + Send + Sync {
    /// Says which pieces will be read, in this order.
    fn begin(&self, pieces: &[DepotPiece]);

    /// The next piece; nothing where it is not to be had so, and has to be read from the depot.
    fn read(&self, piece: &DepotPiece) -> Option<Vec<u8>>;

    /// What has come so far.
    fn counts(&self) -> PieceCounts;
}
