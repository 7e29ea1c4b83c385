//! Layers in the depot: each is a stream of bytes, cut by its content into chunks, and the depot has each chunk once.
//!
//! ```text
//! packs/DIGEST.pack       what was new at one submission: chunks, some together in a frame, compressed by zstd where that helps
//! layers/DIGEST.chunks    which chunks make up a layer, in order, and where each lies (`list`)
//! ```
//!
//! A chunk ends where a hash of its last bytes says so (FastCDC), not after a number of bytes. So a byte that is inserted, a file that is
//! renamed or moved, or a directory that is copied changes only the chunks at its edges; the others are there already, whoever brought them.

pub(crate) mod cutter;
pub(crate) mod list;
mod near;
mod pack;
mod read;
mod workers;
mod write;

pub(crate) use list::{ChunkList, ChunkRef, ListFault, ListReadFault, MAX_SIZE as MAX_LIST, PackFrame};
pub(crate) use near::StreamBytes;
pub use near::{LayerStream, NearLayer, OpenHere, SharedChunks};
pub(crate) use read::{ChunkReader, PackSource, read_all};
pub(crate) use write::{ChunkWriter, ListBuilder, Written};

/// The least, the average and the largest chunk, in bytes. What a layer's list takes grows with their number, what a small change costs
/// with their size.
const SIZES: [usize; 3] = [8 << 10, 32 << 10, 128 << 10];
const LARGEST: usize = SIZES[2];
/// A frame is compressed when its chunks have this many bytes together: more make zstd better, and reading one of them dearer.
const FRAME: usize = 256 << 10;
/// The most that one has: less than a frame, and one chunk more.
const LARGEST_FRAME: usize = FRAME + LARGEST;
const _: () = assert!(LARGEST_FRAME == crate::piece::LARGEST_PIECE as usize);
