//! A depot's files, and an image's, are read once for a job, and go from node to node.
//!
//! The nodes of a job form two trees (`tree`). Every node asks the one above it for pieces of these files, and passes on what it has got
//! as soon as it is there; the two nodes at the tops read the depot, or ask the registry. Nothing is sent that was not asked for: a node
//! that has all, or comes later, disturbs nobody. Where the node above does not answer, or is much slower (`bypass`), the one above that is
//! asked, and in the end the depot or the registry.
//!
//! On each node this is a process ([`serve()`]) beside the one that fetches, which asks it by a socket ([`RelayReader`]), or as a registry's
//! mirror ([`Mirror`]). Connections between nodes are encrypted by keys that follow from a secret of the job's
//! ([`skiff_launch::secure`]). What comes is checked where it is used.

mod bypass;
mod client;
mod link;
mod mirror;
mod patience;
mod piece;
mod registry;
mod request;
mod serve;
mod spool;
#[cfg(test)]
mod tests;
mod thread;
mod tree;
mod upstream;
mod visitors;
pub mod wire;

pub use client::{ImagePieceReader, RelayReader};
pub use mirror::{Mirror, MirrorAddress};
pub use patience::RelayPatience;
pub use piece::{IMAGE_PIECE, ImageOpener, RegistryReader, RelayFile, RelayPiece};
pub use serve::{RelaySetup, serve};
