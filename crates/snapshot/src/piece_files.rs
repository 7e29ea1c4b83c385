//! A depot whose files are read in pieces, by this process or by somebody else.

use std::os::fd::OwnedFd;

use crate::chunk::{MAX_LIST, PackSource};
use crate::depot::{Depot, LOOKS};
use crate::digest::LayerId;
use crate::error::{Error, Result};
use crate::packs::{list_name, whole_name};
use crate::piece::{DepotPiece, LARGEST_PIECE, PieceCounts, PieceFile, PieceReader};

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
                let [list, whole] = [list_name(layer), whole_name(layer)];
                let missing = || format!("layer {layer}");
                let (found, file) = self.find(&self.layers, &[&list, &whole], LOOKS, missing)?;
                match found == list {
                    true => Ok(file),
                    // In one piece, as versions before wrote it, it has no list.
                    false => {
                        Err(Error::Missing { what: missing(), depot: self.path().display().to_string() })
                    }
                }
            }
        }
    }

    /// The list of a layer's chunks, by whoever reads for this process; nothing where that is nobody, or they do not have it.
    pub(crate) fn list_by_reader(&self, layer: &LayerId) -> Option<Vec<u8>> {
        let reader = self.reader.as_ref()?;
        let mut list = vec![];
        loop {
            let at = list.len() as u64;
            let piece = DepotPiece { file: PieceFile::List(*layer), at, length: LARGEST_PIECE };
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
