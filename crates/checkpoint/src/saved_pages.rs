//! Reads from a checkpoint what its pages are and where they belong, for the save that comes next.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use skiff_criu::page_protocol::{PAGE, PRESENT};
use skiff_criu::pagemap::{PageEntry, Pagemap};
use skiff_env::snapshot_fault::ours;
use skiff_snapshot::ChunkStore;
use skiff_spec::fault::{Context as _, Fault, Result};

use crate::previous_pages::{PreviousChunk, PreviousPages};
use crate::record::{CHUNKS, Checkpoint, FileDigest, IMAGES};
use crate::stored;

/// How the names of images are that say where a process's pages belong.
const PAGEMAP: (&str, &str) = ("pagemap-", ".img");

/// The private memory of processes in the checkpoint in `dir`, which has this record.
///
/// # Errors
/// It is damaged.
pub(crate) fn pages_of(dir: &Path, checkpoint: &Checkpoint, store: &ChunkStore) -> Result<PreviousPages> {
    let damaged = |what: &str| Fault::new(format!("checkpoint {}: {what} is damaged", dir.display()));
    let list = stored::list_in(dir)?;
    if !checkpoint.files.contains(&FileDigest::of(dir, CHUNKS)?) || list.length() != checkpoint.stored_size()
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
    Ok(PreviousPages { list, processes })
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
