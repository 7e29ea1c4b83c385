//! Environments over a base: what changed in one, and how it gets to the nodes of a job.
//!
//! [`diff()`] tells what a user changed. [`push`] takes a snapshot of it into a [`Depot`] on a shared file system, as a short
//! chain of layer files; [`fetch`] unpacks them into a node's [`Cache`] as lower directories of an overlay. Both run inside the
//! environment's user namespace, where all of its files can be read and owners are the same on every node.

mod apply;
mod base;
mod bundle;
mod cache;
mod cache_lists;
mod chain;
mod changes;
mod chunk;
mod chunk_store;
mod clock;
mod collect;
mod compare;
mod content_hash;
mod depot;
mod diff;
mod digest;
mod error;
mod file;
mod file_chunks;
mod index;
mod layer;
mod manifest;
mod new_layer;
mod packs;
mod piece;
mod piece_files;
mod plan;
mod remove;
mod room;
mod snapshot;
mod tree;
mod unchanged;
mod verify;
mod walk;
pub mod whole;
mod xattr;

pub use apply::{apply, put_in_place, unshippable};
pub use bundle::{Bundle, BundleInfo, Bundled, bundle, is_bundle};
pub use cache::{Cache, Evicted, LayerDir, LayerLease, fetch};
pub use cache_lists::LEAST_SHARED;
pub use chain::MergePolicy;
pub use changes::{ChangesInput, push_changes};
pub use chunk::{LayerStream, NearLayer, OpenHere, SharedChunks};
pub use chunk_store::{
    ChunkStore, ChunkUse, CollectedChunks, StoreWriter, StoredList, StoredStream, StreamPart, WrittenList,
};
pub use collect::{
    CollectOptions, CollectedFiles, CollectionPlan, DepotContents, DepotFile, DepotManifest, DepotSnapshot,
    UnnamedFile,
};
pub use compare::{ChangeConflict, Side, compare, conflicts};
pub use depot::Depot;
pub use diff::{Change, ChangeKind, DiffOptions, diff};
pub use digest::{BadDigest, LayerId, PackId, SnapshotId};
pub use error::{Error, Result};
pub use file::read_at_most;
pub use file_chunks::{FileChunks, FileFault, ImageFileStream};
pub use manifest::{LayerRef, SnapshotManifest};
pub use packs::OpenLayer;
pub use piece::{DepotPiece, LARGEST_PIECE, PieceCounts, PieceFile, PieceReader};
pub use snapshot::{How, Pushed, SnapshotInput, last_snapshot, push};
pub use unchanged::looks_changed;
pub use verify::{DepotCheck, DepotVerdict};

/// What a layer consists of, for whoever makes something else of it than a directory.
pub mod stream {
    pub use crate::layer::{Attr, HEADER, LayerReader, LayerRecord, NO_EXTENT};
    pub use crate::xattr::OPAQUE;
}

/// How the directories of an upper are marked that hide the base's, for whoever reads an upper itself.
pub mod marks {
    pub use crate::xattr::{FUSE_MARKS, is_opaque};
}

/// The parsers of foreign bytes, for fuzzing: nothing else may call them.
#[doc(hidden)]
pub mod fuzz {
    use std::os::fd::BorrowedFd;

    /// Unpacks a layer of unknown digest.
    pub fn layer(bytes: &[u8], target: BorrowedFd<'_>) -> crate::Result<()> {
        let reader = crate::layer::LayerReader::new(bytes, "fuzzed".into())?;
        crate::layer::unpack(reader, target).map(|_| ())
    }

    /// Only reads it.
    pub fn records(bytes: &[u8]) -> crate::Result<()> {
        let mut reader = crate::layer::LayerReader::new(bytes, "fuzzed".into())?;
        while reader.record()?.is_some() {}
        reader.finish().map(|_| ())
    }

    /// A list of chunks, with its digest and without; then what it says of a pack that is these very bytes.
    pub fn chunks(bytes: &[u8]) -> bool {
        let lists = [crate::chunk::ChunkList::parse(bytes), crate::chunk::ChunkList::parse_body(bytes)];
        lists.into_iter().flatten().any(|list| {
            crate::chunk::read_all(list, bytes).is_some_and(|read| read <= (bytes.len() as u64) << 20)
        })
    }

    /// An exported environment, in a file.
    pub fn bundle(file: std::os::fd::OwnedFd, target: BorrowedFd<'_>) -> bool {
        crate::Bundle::open(file, "fuzzed").is_ok_and(|bundle| bundle.unpack(target).is_ok())
    }

    /// An index without its digest.
    pub fn index(bytes: &[u8]) -> bool {
        crate::index::SnapshotIndex::parse(bytes).is_some()
            | crate::index::SnapshotIndex::parse_body(bytes).is_some()
    }

    /// A manifest of unknown digest.
    pub fn manifest(bytes: &[u8]) -> bool {
        crate::manifest::SnapshotManifest::parse_unnamed(bytes).is_ok()
    }
}
