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
use crate::packs::OpenLayer;

/// Layers that share less with another one, in bytes, are not looked into for it: to open one costs about as much as to read so much.
pub const LEAST_SHARED: u64 = 1 << 20;
/// Chunks are taken from so many layers at most.
const MOST_NEAR: usize = 4;
/// Of no more layers are lists read, and no longer ones: these are of layers of 50 GB.
const MOST_LISTS: usize = 256;
const LONGEST_LIST: u64 = 64 << 20;

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
        let Some(list) = layer.chunk_list().filter(|list| list.length() >= LEAST_SHARED) else {
            return Ok(vec![]);
        };
        let mut wanted: HashMap<_, _> =
            list.chunks.iter().map(|chunk| (chunk.digest, chunk.length)).collect();
        let mut lists = self.lists_of(is_here)?;
        let mut found = vec![];
        while found.len() < MOST_NEAR {
            let shared = |(number, (_, list)): (usize, &(LayerId, ChunkList))| {
                let chunks = list.chunks.iter().filter(|chunk| wanted.contains_key(&chunk.digest));
                (chunks.map(|chunk| u64::from(chunk.length)).sum::<u64>(), number)
            };
            let most = lists.iter().enumerate().map(shared).max();
            let Some((_, number)) = most.filter(|(bytes, _)| *bytes >= LEAST_SHARED) else { break };
            let (id, list) = lists.swap_remove(number);
            found.push(SharedChunks::take(&mut wanted, (id, &list)));
        }
        Ok(found)
    }

    fn lists_of(&self, is_here: impl Fn(&LayerId) -> bool) -> Result<Vec<(LayerId, ChunkList)>> {
        let mut lists = vec![];
        for name in self.list(&self.lists, LISTS)?.into_iter().take(MOST_LISTS) {
            let Ok(id) = name.parse::<LayerId>() else { continue };
            let list = if is_here(&id) { self.read_list(&name)? } else { None };
            match list {
                Some(list) => lists.push((id, list)),
                None => rustix::fs::unlinkat(&self.lists, &name, AtFlags::empty())
                    .ignore_error("another process has removed it, or the next one does"),
            }
        }
        Ok(lists)
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
