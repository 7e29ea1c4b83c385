//! A node asks the one above it for pieces, each of which is answered in its turn. A process on the same node asks in the same way.

use std::sync::Arc;

use skiff_ipc::{Codec, Framing, Protocol};
use skiff_snapshot::{LARGEST_PIECE, LayerId, PackId, PieceFile};

use crate::piece::{RelayFile, RelayPiece};

const LIST: u8 = 1;
const PACK: u8 = 2;
const MANIFEST: u8 = 3;
const BLOB: u8 = 4;
const IMAGE: u8 = 5;
/// Added to the kind of file of what is wanted only if it is there.
const IF_HERE: u8 = 0x80;
/// Bytes of a question: which file, its digest, where, how many bytes (little-endian).
const QUESTION: usize = 1 + 32 + 8 + 4;

/// Asks for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceRequest {
    /// Which.
    pub piece: RelayPiece,
    /// Whether it is refused at once if it is not there yet. (In the kind's first bit.)
    pub only_if_here: bool,
}

/// The answer: how it stands, about which piece, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceAnswer {
    /// Which was asked for.
    pub piece: RelayPiece,
    /// What there is of it.
    pub state: PieceState,
}

/// What there is of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceState {
    /// The bytes, as another node has sent them.
    Relayed(Arc<Vec<u8>>),
    /// The bytes, as this node has read them from the depot or the registry.
    Read(Arc<Vec<u8>>),
    /// Not the bytes yet: who asks goes on waiting.
    NotYet,
    /// Nothing: it cannot be had here.
    Failed,
}

impl PieceRequest {
    /// Asks for a piece that whoever is asked gets first, if it is not there.
    #[must_use]
    pub fn of(piece: RelayPiece) -> Self {
        Self { piece, only_if_here: false }
    }
}

impl Codec for PieceRequest {
    const LONGEST: usize = QUESTION;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        let RelayPiece { file, at, length } = self.piece;
        let (kind, digest) = match file {
            RelayFile::Depot(PieceFile::List(LayerId(digest))) => (LIST, digest),
            RelayFile::Depot(PieceFile::Pack(PackId(digest))) => (PACK, digest),
            RelayFile::Image(digest) => (IMAGE, digest),
            RelayFile::Manifest(digest) => (MANIFEST, digest),
            RelayFile::Blob(digest) => (BLOB, digest),
        };
        let kind = if self.only_if_here { kind | IF_HERE } else { kind };
        Some([&[kind][..], &digest, &at.to_le_bytes(), &length.to_le_bytes()].concat())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (digest, rest) = rest.split_first_chunk::<32>()?;
        let (at, rest) = rest.split_first_chunk::<8>()?;
        let length = u32::from_le_bytes(rest.try_into().ok()?);
        let only_if_here = kind & IF_HERE != 0;
        let file = match *kind & !IF_HERE {
            LIST => RelayFile::Depot(PieceFile::List(LayerId(*digest))),
            PACK => RelayFile::Depot(PieceFile::Pack(PackId(*digest))),
            IMAGE => RelayFile::Image(*digest),
            MANIFEST => RelayFile::Manifest(*digest),
            BLOB => RelayFile::Blob(*digest),
            _ => return None,
        };
        let piece = RelayPiece { file, at: u64::from_le_bytes(*at), length };
        (1..=LARGEST_PIECE).contains(&length).then_some(Self { piece, only_if_here })
    }
}

impl PieceAnswer {
    /// What stands before the bytes of the piece, and these.
    pub(crate) fn to_parts(&self) -> Option<(Vec<u8>, &[u8])> {
        let (kind, bytes) = match &self.state {
            PieceState::Relayed(bytes) => (b'+', &bytes[..]),
            PieceState::Read(bytes) => (b'd', &bytes[..]),
            PieceState::NotYet => (b'.', &[][..]),
            PieceState::Failed => (b'-', &[][..]),
        };
        let fits = bytes.len() <= self.piece.length as usize;
        fits.then(|| Some(([&[kind][..], &PieceRequest::of(self.piece).to_bytes()?].concat(), bytes)))?
    }
}

impl Codec for PieceAnswer {
    const LONGEST: usize = 1 + QUESTION + LARGEST_PIECE as usize;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        self.to_parts().map(|(head, bytes)| [&head, bytes].concat())
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (question, rest) = rest.split_first_chunk::<QUESTION>()?;
        let PieceRequest { piece, .. } = PieceRequest::from_bytes(question)?;
        let state = match kind {
            b'+' => PieceState::Relayed(Arc::new(rest.to_vec())),
            b'd' => PieceState::Read(Arc::new(rest.to_vec())),
            b'.' if rest.is_empty() => PieceState::NotYet,
            b'-' if rest.is_empty() => PieceState::Failed,
            _ => return None,
        };
        (rest.len() <= piece.length as usize).then_some(Self { piece, state })
    }
}

impl Protocol for PieceRequest {
    type Answer = PieceAnswer;
    const NAME: &'static str = "Relay";
    const SIDES: [&'static str; 2] = ["a node of a job", "the one above it"];
    const FRAMING: Framing = Framing::Own(
        "Most of it is the bytes of files. Between nodes each message is one of a secure connection, by the local socket it stands behind its length.",
    );
}
