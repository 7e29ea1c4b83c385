//! What a node has of a new image's file in other images: after a file was added or changed, nearly all of it.
//!
//! As of layers (`near_layers`), only images are looked into that are in the node's store for this very user. Each chunk is compared with its digest, and the
//! file with its own before the store gets it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_plan::get::ImageOrigin;
use skiff_plan::image_peers::ImagePeers;
use skiff_snapshot::{
    Cache, FileChunks, ImageFileStream, LayerId, NearLayer, PieceCounts, PieceReader, SharedChunks,
};
use skiff_spec::image::ImageId;
use skiff_store::client::{self, PullMirror};
use skiff_store::copies;
use skiff_sys::IgnoreError;
use skiff_user::context::UserContext;

use crate::fan_out::{JobRelay, room_for};

/// Where a node gets an image from: what it has itself, the job's relays, and the depot.
pub struct ImageSources<'a> {
    depot: &'a Path,
    cache: PathBuf,
    relay: Option<&'a JobRelay>,
    /// The chunks of the image's copy, once they were looked up.
    list: Cell<Option<Vec<u8>>>,
    reused: Arc<AtomicU64>,
}

impl<'a> ImageSources<'a> {
    pub fn new(depot: &'a Path, cache: PathBuf, relay: Option<&'a JobRelay>) -> Self {
        Self { depot, cache, relay, list: Cell::default(), reused: Arc::default() }
    }

    /// How many bytes were in other images here.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// Where an image came from. What was put together here, without relays, is of the depot.
    pub fn origin(&self, origin: ImageOrigin) -> ImageOrigin {
        let by_relay =
            || self.relay.is_some_and(|relay| relay.image_counts(origin) != PieceCounts::default());
        match origin {
            ImageOrigin::Nodes if !by_relay() => ImageOrigin::Depot,
            origin => origin,
        }
    }

    /// Keeps the list of an image that is in the store now, for the images that come after it.
    pub fn keep_list(&self, context: &UserContext, id: ImageId) {
        if let Some(list) = self.list.take() {
            let kept = self.open_cache(context).map(|cache| cache.keep_list(&LayerId(id.0), &list));
            kept.unwrap_or(Ok(())).ignore_error("the next image is read whole then");
        }
    }

    fn open_cache(&self, context: &UserContext) -> Option<Cache> {
        Cache::open(&self.cache, context.config.slurm.cache_bytes).ok()
    }

    /// Puts the file together; nothing where too little of it is here.
    fn by_chunks(&self, context: &UserContext, id: ImageId, length: u64) -> Option<File> {
        let chunks = copies::chunks(self.depot, id, length).ok()??;
        self.list.set(Some(chunks.bytes()));
        let near = self.near(context, &chunks);
        if near.is_empty() {
            return None;
        }
        let (copy, file) = (copies::open(self.depot, id).ok()??, room_for(context, length)?);
        let missing = chunks.missing(&near);
        let write = |reader: Option<&dyn PieceReader>| -> Option<File> {
            let expected = Digest::Sha256(id.0);
            let mut hashed = HashedFile { file, hasher: Hasher::like(&expected) };
            chunks.write((copy.into(), reader), near, &mut hashed).ok()?;
            (hashed.hasher.finish() == expected).then_some(hashed.file)
        };
        let made = match self.relay {
            Some(relay) => relay.with_image_pieces(missing, write),
            None => write(None),
        };
        if made.is_none() {
            self.reused.store(0, Ordering::Relaxed);
        }
        made
    }

    fn near(&self, context: &UserContext, chunks: &FileChunks) -> Vec<NearLayer> {
        let is_here = |id: &LayerId| client::has(context, ImageId(id.0));
        let Some(cache) = self.open_cache(context) else { return vec![] };
        let found = cache.files_like(chunks, is_here).default_on_error("the depot has all of it");
        found.into_iter().filter_map(|shared| self.open(context, shared)).collect()
    }

    fn open(&self, context: &UserContext, shared: SharedChunks) -> Option<NearLayer> {
        let id = ImageId(shared.layer().0);
        let (record, file) = client::open_file(context, id, &id.to_string()).ok()?;
        // A layer's list is that of its stream, and not of its file.
        (!record.layer).then(|| shared.read_by(Box::new(ImageFileStream(file)), Arc::clone(&self.reused)))
    }
}

impl ImagePeers for ImageSources<'_> {
    fn mirror(&self) -> Option<PullMirror> {
        self.relay.and_then(ImagePeers::mirror)
    }

    fn file(&self, context: &UserContext, digest: ImageId, length: u64) -> Option<File> {
        self.by_chunks(context, digest, length).or_else(|| self.relay?.file(context, digest, length))
    }
}

/// A file whose digest is taken as it is written.
struct HashedFile {
    file: File,
    hasher: Hasher,
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
