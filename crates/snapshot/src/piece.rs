//! Pieces of the depot's files: what has to be read of it for a snapshot, whoever reads it.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::chunk::{LARGEST_FRAME, MAX_LIST, PackSource};
use crate::depot::{Depot, LOOKS};
use crate::digest::{LayerId, PackId};
use crate::error::Result;
use crate::file::read_at_most;
use crate::packs::list_name;

/// No piece has more bytes: a whole frame of a pack is one.
pub const LARGEST_PIECE: u32 = LARGEST_FRAME as u32;

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
pub struct Piece {
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
    fn begin(&self, pieces: &[Piece]);

    /// The next piece; nothing where it is not to be had so, and has to be read from the depot.
    fn read(&self, piece: &Piece) -> Option<Vec<u8>>;

    /// What has come so far.
    fn counts(&self) -> PieceCounts;
}

impl Depot {
    /// The same depot, read by somebody else as far as that is possible.
    #[must_use]
    pub fn read_by(mut self, reader: Box<dyn PieceReader>) -> Self {
        self.reader = Some(reader);
        self
    }

    /// The same depot, read by this process.
    #[must_use]
    pub fn read_directly(mut self) -> Self {
        self.reader = None;
        self
    }

    /// Whether somebody reads for this process.
    #[must_use]
    pub fn has_reader(&self) -> bool {
        self.reader.is_some()
    }

    /// What has come so far by who reads for this process.
    #[must_use]
    pub fn piece_counts(&self) -> PieceCounts {
        self.reader.as_ref().map_or_else(PieceCounts::default, |reader| reader.counts())
    }

    /// Opens a file whose pieces are to be read.
    pub fn open_piece_file(&self, file: &PieceFile) -> Result<OwnedFd> {
        match file {
            PieceFile::Pack(pack) => self.open_pack(pack),
            PieceFile::List(layer) => {
                let name = list_name(layer);
                Ok(self.find(&self.layers, &[&name], LOOKS, || format!("layer {layer}"))?.1)
            }
        }
    }

    /// The list of a layer's chunks, by whoever reads for this process; nothing where that is nobody, or they do not have it.
    pub(crate) fn list_by_reader(&self, layer: &LayerId) -> Option<Vec<u8>> {
        let reader = self.reader.as_ref()?;
        let mut list = vec![];
        loop {
            let at = list.len() as u64;
            let piece = Piece { file: PieceFile::List(*layer), at, length: LARGEST_PIECE };
            reader.begin(&[piece]);
            let bytes = reader.read(&piece)?;
            list.extend_from_slice(&bytes);
            match bytes.len() < LARGEST_PIECE as usize {
                true => return Some(list),
                false if list.len() as u64 > MAX_LIST => return None,
                false => {}
            }
        }
    }
}

impl Piece {
    /// Reads it from its file.
    ///
    /// # Errors
    /// As of reading files.
    pub fn read_from(&self, file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
        read_at_most(file.as_fd(), self.length.min(LARGEST_PIECE) as usize, self.at)
    }
}
