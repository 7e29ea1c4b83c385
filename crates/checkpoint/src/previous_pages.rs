//! The pages of the checkpoint before: what the kernel says of as unchanged is taken from there, by its chunks, and not read again.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use skiff_criu::page_protocol::{PAGE, PRESENT};
use skiff_criu::pagemap::{PageEntry, Pagemap};
use skiff_env::contents::ours;
use skiff_snapshot::{ChunkStore, StoredList};
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::record::{CHUNKS, Checkpoint, FileDigest, IMAGES};
use crate::stored;

/// How the names of images are that say where a process's pages belong.
const PAGEMAP: (&str, &str) = ("pagemap-", ".img");

/// Private memory of processes, as the checkpoint before has it.
#[derive(Debug)]
pub(crate) struct PreviousPages {
    /// Its chunks.
    pub list: StoredList,
    /// Chunks of each process by their addresses: those that a new list may name.
    processes: BTreeMap<i32, Vec<PreviousChunk>>,
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreviousChunk {
    /// Address of its first byte.
    pub address: u64,
    pub length: u64,
    /// Its place in the list.
    place: usize,
    /// Flags of its pages.
    flags: u16,
}

/// Chunks that follow each other, in the process and in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRun {
    /// Address of the first byte.
    pub address: u64,
    pub length: u64,
    pub flags: u16,
    /// Their places in the list.
    pub places: Range<usize>,
}

impl PreviousChunk {
    fn end(&self) -> u64 {
        self.address + self.length
    }
}

impl PreviousPages {
    /// Of the checkpoint in `dir`, which has this record.
    ///
    /// # Errors
    /// It is damaged.
    pub fn of(dir: &Path, checkpoint: &Checkpoint, store: &ChunkStore) -> Result<Self> {
        let damaged = |what: &str| Fault::new(format!("checkpoint {}: {what} is damaged", dir.display()));
        let list = stored::list_in(dir)?;
        if !checkpoint.files.contains(&FileDigest::of(dir, CHUNKS)?)
            || list.length() != checkpoint.stored_size()
        {
            return Err(damaged(CHUNKS));
        }
        let are_reusable = store.reusable(&list).map_err(ours)?;
        let lengths: Vec<u64> = list.lengths().collect();
        let places = places(checkpoint, &lengths).ok_or_else(|| damaged(CHUNKS))?;
        let mut processes = BTreeMap::new();
        for file in &checkpoint.files {
            let Some(pid) = process_of(&file.path) else { continue };
            let path = dir.join(&file.path);
            let bytes = fs::read(&path).context(|| path.display().to_string())?;
            if blake3::hash(&bytes).to_hex().as_str() != file.digest {
                return Err(damaged(&file.path));
            }
            let chunks = Pagemap::parse(&bytes).and_then(|(image, entries)| {
                let places = places.get(&format!("{IMAGES}/pages-{image}.img"))?;
                chunks_of(&entries, &lengths, places.clone())
            });
            let mut chunks = chunks.ok_or_else(|| damaged(&file.path))?;
            chunks.retain(|chunk| are_reusable[chunk.place]);
            processes.insert(pid, chunks);
        }
        Ok(Self { list, processes })
    }

    /// The chunks of a process that lie whole in these ranges, which are in order.
    pub fn within<'a>(
        &'a self,
        pid: i32,
        ranges: &'a [(u64, u64)],
    ) -> impl Iterator<Item = &'a PreviousChunk> {
        self.processes.get(&pid).into_iter().flatten().filter(|chunk| {
            let at = ranges.partition_point(|range| range.1 <= chunk.address);
            ranges.get(at).is_some_and(|range| range.0 <= chunk.address && chunk.end() <= range.1)
        })
    }

    /// From where to where a process has chunks.
    pub fn bounds(&self, pid: i32) -> Option<(u64, u64)> {
        let chunks = self.processes.get(&pid)?;
        Some((chunks.first()?.address, chunks.last()?.end()))
    }

    /// The chunks of a process that make up these ranges, which are in order; nothing if they do not.
    pub fn runs(&self, pid: i32, ranges: &[(u64, u64)]) -> Option<Vec<ChunkRun>> {
        let mut runs: Vec<ChunkRun> = vec![];
        let mut length = 0;
        for chunk in self.within(pid, ranges) {
            length += chunk.length;
            match runs.last_mut() {
                Some(last)
                    if last.address + last.length == chunk.address
                        && last.places.end == chunk.place
                        && last.flags == chunk.flags =>
                {
                    last.length += chunk.length;
                    last.places.end += 1;
                }
                _ => runs.push(ChunkRun {
                    address: chunk.address,
                    length: chunk.length,
                    flags: chunk.flags,
                    places: chunk.place..chunk.place + 1,
                }),
            }
        }
        let wanted: u64 = ranges.iter().map(|(start, end)| end - start).sum();
        (length == wanted).then_some(runs)
    }
}

/// The process whose pages the image of this path says the places of.
fn process_of(path: &str) -> Option<i32> {
    let name = path.strip_prefix(IMAGES)?.strip_prefix('/')?;
    name.strip_prefix(PAGEMAP.0)?.strip_suffix(PAGEMAP.1)?.parse().ok().filter(|pid| *pid > 0)
}

/// Places in the list of the chunks of each image.
fn places(checkpoint: &Checkpoint, lengths: &[u64]) -> Option<BTreeMap<String, Range<usize>>> {
    let (mut all, mut next) = (BTreeMap::new(), 0);
    for image in &checkpoint.stored {
        let (begin, mut left) = (next, image.size);
        while left > 0 {
            left = left.checked_sub(*lengths.get(next)?)?;
            next += 1;
        }
        all.insert(image.path.clone(), begin..next);
    }
    Some(all)
}

/// Chunks at these places with their addresses; nothing if they are cut otherwise than the runs of pages.
fn chunks_of(entries: &[PageEntry], lengths: &[u64], places: Range<usize>) -> Option<Vec<PreviousChunk>> {
    let (mut chunks, mut left, mut last) = (vec![], places, 0);
    for PageEntry { address, pages, flags } in entries.iter().copied() {
        let end = address.checked_add(pages.checked_mul(PAGE)?)?;
        if address < last || !address.is_multiple_of(PAGE) {
            return None;
        }
        last = end;
        let mut address = address;
        while flags & PRESENT != 0 && address < end {
            let place = left.next()?;
            let chunk = PreviousChunk { address, length: *lengths.get(place)?, place, flags };
            address = chunk.end();
            if address > end || !chunk.length.is_multiple_of(PAGE) {
                return None;
            }
            chunks.push(chunk);
        }
    }
    left.is_empty().then_some(chunks)
}
