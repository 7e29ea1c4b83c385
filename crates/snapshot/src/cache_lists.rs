//! Of which chunks the layers consist that a node has in its store: so what of a new layer is in them need not be read of the depot.
//!
//! The lists are the depot's, and are in the user's own cache. Damaged ones are none, and whoever reads a chunk of a layer checks it.

use std::collections::HashMap;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use skiff_sys::{IgnoreError, SystemContext};

use crate::cache::{Cache, LISTS};
use crate::chunk::{ChunkList, SharedChunks};
use crate::digest::LayerId;
use crate::error::Result;
use crate::file::{read_to_end, write_atomically};
use crate::file_chunks::FileChunks;
use crate::packs::OpenLayer;

/// Layers that share less with another one, in bytes, are not looked into for it: to open one costs about as much as to read so much.
pub const LEAST_SHARED: u64 = 1 << 20;
/// Chunks are taken from so many layers at most.
const MOST_NEAR: usize = 4;
/// Of no more layers are lists read, and no longer ones: these are of layers of 50 GB.
const MOST_LISTS: usize = 256;
const LONGEST_LIST: u64 = 64 << 20;
/// Of so many chunks at most places in layers are held at once, each some 60 bytes of memory; of one layer, of all that are wanted.
const MOST_PLACES: usize = 2_000_000;

impl Cache {
    /// Keeps the list of a layer's chunks.
    ///
    /// # Errors
    /// The cache cannot be written to.
    pub fn keep_list(&self, layer: &LayerId, list: &[u8]) -> Result<()> {
        write_atomically(self.lists.as_fd(), &layer.to_string(), list)
    }

    /// Layers of which lists are kept, and which have chunks of this one; first the one that has most. Lists of those that are not here any more
    /// are removed.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn layers_like(
        &self,
        layer: &OpenLayer<'_>,
        is_here: impl Fn(&LayerId) -> bool,
    ) -> Result<Vec<SharedChunks>> {
        layer.chunk_list().map_or(Ok(vec![]), |list| self.like(list, is_here))
    }

    /// The same for an image's file: images and layers of which lists are kept.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn files_like(
        &self,
        file: &FileChunks,
        is_here: impl Fn(&LayerId) -> bool,
    ) -> Result<Vec<SharedChunks>> {
        self.like(&file.list, is_here)
    }

    fn like(&self, list: &ChunkList, is_here: impl Fn(&LayerId) -> bool) -> Result<Vec<SharedChunks>> {
        if list.length() < LEAST_SHARED {
            return Ok(vec![]);
        }
        let mut wanted: HashMap<_, _> =
            list.chunks.iter().map(|chunk| (chunk.digest, chunk.length)).collect();
        let mut candidates = self.candidates(&wanted, is_here)?;
        let mut found = vec![];
        while found.len() < MOST_NEAR {
            let most = candidates.iter().enumerate().max_by_key(|(_, shared)| shared.bytes());
            let Some((number, _)) = most.filter(|(_, shared)| shared.bytes() >= LEAST_SHARED) else { break };
            let chosen = candidates.swap_remove(number);
            chosen.take_from(&mut wanted);
            candidates.iter_mut().for_each(|shared| shared.keep_wanted(&wanted));
            found.push(chosen);
        }
        Ok(found)
    }

    /// What the layers that are here have of what is wanted. One list is held at a time.
    fn candidates(
        &self,
        wanted: &HashMap<[u8; 32], u32>,
        is_here: impl Fn(&LayerId) -> bool,
    ) -> Result<Vec<SharedChunks>> {
        let mut candidates = vec![];
        for name in self.list(&self.lists, LISTS)?.into_iter().take(MOST_LISTS) {
            let Ok(id) = name.parse::<LayerId>() else { continue };
            let list = if is_here(&id) { self.read_list(&name)? } else { None };
            let Some(list) = list else {
                rustix::fs::unlinkat(&self.lists, &name, AtFlags::empty())
                    .ignore_error("another process has removed it, or the next one does");
                continue;
            };
            let shared = SharedChunks::of(wanted, (id, &list));
            if shared.bytes() >= LEAST_SHARED {
                candidates.push(shared);
                drop_least(&mut candidates, MOST_PLACES);
            }
        }
        Ok(candidates)
    }

    /// Nothing if it is damaged, or gone.
    fn read_list(&self, name: &str) -> Result<Option<ChunkList>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.lists, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.on("open", self.object(LISTS, name))?,
        };
        let bytes = read_to_end(file.as_fd(), LONGEST_LIST).on("read", self.object(LISTS, name))?;
        Ok(bytes.and_then(|bytes| ChunkList::parse(&bytes).ok()))
    }
}

/// Gives up what shares least until no more places are held, or one is left.
fn drop_least(candidates: &mut Vec<SharedChunks>, most: usize) {
    while candidates.len() > 1 && candidates.iter().map(SharedChunks::count).sum::<usize>() > most {
        let least = candidates.iter().enumerate().min_by_key(|(_, shared)| shared.bytes());
        let Some((number, _)) = least else { return };
        candidates.swap_remove(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::list::ChunkRef;

    #[test]
    fn no_more_places_are_held_than_there_is_memory_for() {
        let wanted: HashMap<[u8; 32], u32> = (0..100).map(|number| ([number; 32], 10)).collect();
        let shared = |layer: u8, chunks: std::ops::Range<u8>| {
            let chunk = |number| ChunkRef { digest: [number; 32], length: 10, frame: 0, offset: 0 };
            let list = ChunkList { chunks: chunks.map(chunk).collect(), ..ChunkList::default() };
            SharedChunks::of(&wanted, (LayerId([layer; 32]), &list))
        };
        let all = || vec![shared(1, 0..40), shared(2, 0..10), shared(3, 50..100), shared(4, 90..120)];
        for (most, left) in
            [(200, &[1, 2, 3, 4][..]), (100, &[1, 3, 4]), (99, &[1, 3]), (50, &[3]), (0, &[3])]
        {
            let mut candidates = all();
            drop_least(&mut candidates, most);
            let mut kept: Vec<u8> = candidates.iter().map(|shared| shared.layer().0[0]).collect();
            kept.sort_unstable();
            assert_eq!(kept, left, "{most}");
        }
    }
}
