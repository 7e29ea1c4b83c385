//! Layers that a node has already, from which chunks of another one are taken.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::list::{ChunkList, ChunkRef};
use crate::digest::LayerId;

/// The bytes of a layer, in whatever form it is kept.
pub trait LayerStream: Send {
    /// Fills the buffer from there on; whether that could be done. Whether they are the right bytes is seen by who uses them.
    fn read_at(&mut self, into: &mut [u8], at: u64) -> bool;
}

/// Opens a layer that this node has; nothing where it has not.
pub type OpenHere<'a> = dyn Fn(&LayerId) -> Option<Box<dyn LayerStream>> + 'a;

/// A layer's stream, read from its beginning to its end.
pub(crate) struct StreamBytes {
    stream: Box<dyn LayerStream>,
    at: u64,
    end: u64,
}

impl StreamBytes {
    pub(crate) fn new(stream: Box<dyn LayerStream>, end: u64) -> Self {
        Self { stream, at: 0, end }
    }
}

impl Read for StreamBytes {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let length = into.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        if !self.stream.read_at(&mut into[..length], self.at) {
            return Err(std::io::Error::other("the layer cannot be read here"));
        }
        self.at += length as u64;
        Ok(length)
    }
}

/// Which of the chunks that are wanted a layer has, and where in its stream.
pub struct SharedChunks {
    layer: LayerId,
    length: u64,
    places: HashMap<[u8; 32], u64>,
    bytes: u64,
}

/// Such a layer that can be read.
pub struct NearLayer {
    shared: SharedChunks,
    source: Box<dyn LayerStream>,
    /// Bytes that were taken of it.
    taken: Arc<AtomicU64>,
}

impl SharedChunks {
    /// `wanted`: chunks and their lengths.
    pub(crate) fn of(wanted: &HashMap<[u8; 32], u32>, (layer, list): (LayerId, &ChunkList)) -> Self {
        let (mut at, mut places, mut bytes) = (0, HashMap::new(), 0);
        for chunk in &list.chunks {
            if wanted.get(&chunk.digest) == Some(&chunk.length) && !places.contains_key(&chunk.digest) {
                places.insert(chunk.digest, at);
                bytes += u64::from(chunk.length);
            }
            at += u64::from(chunk.length);
        }
        Self { layer, length: at, places, bytes }
    }

    /// Leaves to others what is not wanted of this layer any more.
    pub(crate) fn keep_wanted(&mut self, wanted: &HashMap<[u8; 32], u32>) {
        self.places.retain(|digest, _| wanted.contains_key(digest));
        self.bytes = self.places.keys().filter_map(|digest| wanted.get(digest)).copied().map(u64::from).sum();
    }

    /// Takes what this layer has out of what is wanted.
    pub(crate) fn take_from(&self, wanted: &mut HashMap<[u8; 32], u32>) {
        self.places.keys().for_each(|digest| {
            wanted.remove(digest);
        });
    }

    /// How many chunks it has.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Which layer it is.
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// The length of its stream.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many bytes the chunks have together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The layer, read by this. `taken` gets how many bytes have been.
    pub fn read_by(self, source: Box<dyn LayerStream>, taken: Arc<AtomicU64>) -> NearLayer {
        NearLayer { shared: self, source, taken }
    }
}

impl NearLayer {
    pub(crate) fn has(&self, digest: &[u8; 32]) -> bool {
        self.shared.places.contains_key(digest)
    }

    /// A chunk; nothing if the layer has something else in its place.
    pub(super) fn read(&mut self, chunk: &ChunkRef) -> Option<Vec<u8>> {
        let at = *self.shared.places.get(&chunk.digest)?;
        let mut bytes = vec![0; chunk.length as usize];
        let is_right =
            self.source.read_at(&mut bytes, at) && *blake3::hash(&bytes).as_bytes() == chunk.digest;
        if !is_right {
            return None;
        }
        self.taken.fetch_add(u64::from(chunk.length), Ordering::Relaxed);
        Some(bytes)
    }
}

impl fmt::Debug for NearLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NearLayer").field("layer", &self.shared.layer).finish_non_exhaustive()
    }
}
