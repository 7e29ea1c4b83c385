//! One layer from its tar stream: its files' data into the image file at once, what it says about them into [`LayerEntries`].

use std::os::fd::BorrowedFd;

use skiff_erofs::tree::{BLOCK, BlockRun, Content, Sparse, Xattrs};
use skiff_sys::uncached::Uncached;
use skiff_tar::{self as tar, ByteStream, EntryKind, Segment, TarEntry, TarReader};

use crate::layer_entries::{LayerEntries, LayerEntry, LayerEntryKind};
use crate::merge::is_mark;
use crate::preallocation::Preallocation;
use crate::punch::clear;
use crate::space::{BlockRange, BlockSpace, Refusal, Room};
use crate::spill::Spill;
use crate::sum::DataSum;
use crate::{Error, Result};
use skiff_sys::SystemContext;

/// Small files' blocks are gathered into writes of this size.
const GATHER: usize = 1 << 20;
/// Pieces of this size are written from where they are.
const DIRECT: usize = 64 << 10;

/// Whoever unpacks layers beside this one.
pub(crate) trait Others {
    /// So many bytes go into the image file. An error ends the unpacking.
    fn placing(&self, bytes: u64) -> Result<()>;
    /// One more entry, with so many bytes of texts. An error ends the unpacking.
    fn entry(&self, texts: u64) -> Result<()>;
    /// Waits, while someone else may use the processor.
    fn wait(&self, wait: &mut dyn FnMut());
}

/// The image file, and the place of one layer in it.
pub(crate) struct LayerTarget<'a> {
    pub image: BorrowedFd<'a>,
    pub data: &'a Uncached,
    /// The image's name, and the layer's: for messages.
    pub image_name: &'a str,
    pub layer_name: &'a str,
    pub space: &'a BlockSpace,
    pub layer: usize,
}

/// Puts a layer where it belongs.
pub(crate) struct LayerUnpacker<'a, O> {
    target: LayerTarget<'a>,
    others: &'a O,
    room: Room<'a>,
    spill: Spill,
    records: LayerEntries,
    /// What of the image is not written yet, and where it begins there.
    gathered: Vec<u8>,
    gathered_at: u64,
    preallocation: Preallocation,
    sum: DataSum,
    keeps_whiteouts: bool,
}

/// What came of a layer.
pub(crate) struct UnpackedLayer {
    pub records: LayerEntries,
    pub spill: Spill,
    /// Where its data lies in the image file.
    pub used: [BlockRange; 2],
    /// The sum of that data.
    pub sum: u64,
}

impl<'a, O: Others> LayerUnpacker<'a, O> {
    pub fn new(
        target: LayerTarget<'a>,
        others: &'a O,
        spill: Spill,
        keeps_whiteouts: bool,
    ) -> LayerUnpacker<'a, O> {
        let room = Room::new(target.space, target.layer);
        let gathered = Vec::with_capacity(GATHER);
        let (records, preallocation, sum) = Default::default();
        LayerUnpacker {
            target,
            others,
            room,
            spill,
            records,
            gathered,
            gathered_at: 0,
            preallocation,
            sum,
            keeps_whiteouts,
        }
    }

    /// Unpacks all that the stream has. After an error [`LayerUnpacker::reset`] must come before another try.
    pub fn unpack(&mut self, stream: impl ByteStream<Error = Error>) -> Result<()> {
        let mut reader = TarReader::new(stream);
        while let Some(entry) = reader.next_entry().map_err(|error| self.name(error))? {
            self.others.entry(texts(&entry))?;
            let mut records = std::mem::take(&mut self.records);
            note(&mut records, entry, self.keeps_whiteouts, |kind| self.content(kind, &mut reader))?;
            self.records = records;
        }
        self.flush()
    }

    /// All of the layer, when it has been unpacked and has turned out to be the right one.
    pub fn finish(mut self) -> Result<UnpackedLayer> {
        self.spill.flush()?;
        let unused = self.room.used()[0].end..self.allocated();
        clear(self.target.image, self.target.image_name, &[unused])?;
        self.target.space.done(self.target.layer);
        let (used, sum) = (self.room.used(), self.sum.total());
        Ok(UnpackedLayer { records: self.records, spill: self.spill, used, sum })
    }

    /// Forgets all that came, and gives the blocks that it took, which are to be cleared.
    pub fn reset(&mut self) -> [BlockRange; 2] {
        let mut used = self.room.used();
        used[0].end = used[0].end.max(self.allocated());
        self.room.reset();
        self.preallocation = Preallocation::default();
        self.spill.reset();
        self.records = LayerEntries::default();
        self.gathered.clear();
        self.sum = DataSum::default();
        used
    }

    fn content(
        &mut self,
        kind: EntryKind,
        reader: &mut TarReader<impl ByteStream<Error = Error>>,
    ) -> Result<Content> {
        match kind {
            EntryKind::Sparse { size, map } => self.sparse(size, &map, reader),
            EntryKind::File(size) => self.file(size, reader),
            kind => unreachable!("{kind:?} has no data"),
        }
    }

    fn file(&mut self, size: u64, reader: &mut TarReader<impl ByteStream<Error = Error>>) -> Result<Content> {
        let whole = size - size % BLOCK;
        let block = self.allocate(whole / BLOCK)?;
        self.copy(whole, reader)?;
        let tail = self.spill.end();
        self.each_piece(size - whole, reader, |unpacker, piece| unpacker.spill.append(piece))?;
        Ok(Content::Whole { size, block, tail })
    }

    /// Blocks with holes between them; a block that has any data is stored as a whole.
    fn sparse(
        &mut self,
        size: u64,
        map: &[Segment],
        reader: &mut TarReader<impl ByteStream<Error = Error>>,
    ) -> Result<Content> {
        if size.div_ceil(BLOCK) > u32::MAX.into() {
            return Err(self.full());
        }
        let mut runs = runs(map);
        let mut block = self.allocate(runs.iter().map(|run| u64::from(run.blocks)).sum())?;
        for run in &mut runs {
            run.block = block;
            block += run.blocks;
        }
        let mut segments = map.iter().filter(|segment| segment.len > 0).peekable();
        for run in &runs {
            let mut at = u64::from(run.at) * BLOCK;
            let end = at + u64::from(run.blocks) * BLOCK;
            while let Some(segment) = segments.next_if(|segment| segment.offset < end) {
                self.put_zeros(segment.offset - at)?;
                self.copy(segment.len, reader)?;
                at = segment.offset + segment.len;
            }
            self.put_zeros(end - at)?;
        }
        Ok(Content::Sparse(Box::new(Sparse { size, runs })))
    }

    /// So many blocks in a row, at which the next bytes will be written.
    fn allocate(&mut self, blocks: u64) -> Result<u32> {
        if blocks == 0 {
            return Ok(0);
        }
        self.others.placing(blocks * BLOCK)?;
        let few = u32::try_from(blocks).map_err(|_| self.full())?;
        let block = match self.room.allocate(few, |wait| self.others.wait(wait)) {
            Ok(block) => block,
            Err(Refusal::Full) => return Err(self.full()),
            Err(Refusal::Over) => return Err(Error::Cancelled),
        };
        let at = u64::from(block) * BLOCK;
        if at != self.gathered_at + self.gathered.len() as u64 {
            self.flush()?;
            self.gathered_at = at;
        }
        Ok(block)
    }

    /// The next `len` bytes of data into the image file.
    fn copy(&mut self, len: u64, reader: &mut TarReader<impl ByteStream<Error = Error>>) -> Result<()> {
        self.each_piece(len, reader, Self::put)
    }

    fn each_piece<S: ByteStream<Error = Error>>(
        &mut self,
        mut len: u64,
        reader: &mut TarReader<S>,
        mut put: impl FnMut(&mut Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        while len > 0 {
            let data = reader.data().map_err(|error| self.name(error))?;
            let piece = &data[..data.len().min(usize::try_from(len).unwrap_or(usize::MAX))];
            put(self, piece)?;
            let used = piece.len();
            reader.consume(used);
            len -= used as u64;
        }
        Ok(())
    }

    fn put_zeros(&mut self, len: u64) -> Result<()> {
        // Never more than what is missing in two blocks.
        self.put(&[0; 2 * BLOCK as usize][..len as usize])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() >= DIRECT {
            self.flush()?;
            self.write(bytes)?;
            self.gathered_at += bytes.len() as u64;
            return Ok(());
        }
        if self.gathered.len() + bytes.len() > GATHER {
            self.flush()?;
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        self.write(&gathered)?;
        self.gathered_at += gathered.len() as u64;
        gathered.clear();
        self.gathered = gathered;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.add(self.gathered_at, bytes);
        let LayerTarget { image, data, image_name, .. } = self.target;
        let end = self.gathered_at + bytes.len() as u64;
        self.preallocation.reach(image, self.gathered_at, end, self.room.limit());
        Ok(data.write_all_at(image, bytes, self.gathered_at).on("write to", image_name)?)
    }

    /// Up to which block of its region the layer has room allocated.
    fn allocated(&self) -> u32 {
        // Within the region, whose blocks have numbers of 32 bits.
        (self.preallocation.end() / BLOCK) as u32
    }

    fn full(&self) -> Error {
        self.name(tar::Error::Bad(
            "the image would be larger than 16 TiB, which its format does not allow".into(),
        ))
    }

    fn name(&self, error: tar::Error<Error>) -> Error {
        match error {
            tar::Error::Bad(why) => Error::BadLayer { layer: self.target.layer_name.into(), why },
            tar::Error::Stream(error) => error,
        }
    }
}

/// Bytes of what an entry has beside numbers and data.
fn texts(entry: &TarEntry) -> u64 {
    let target = match &entry.kind {
        EntryKind::HardLink(target) | EntryKind::Symlink(target) => target.len(),
        _ => 0,
    };
    let xattrs = entry.xattrs.iter().map(|(name, value)| name.len() + value.len());
    (entry.path.len() + target + xattrs.sum::<usize>()) as u64
}

/// Adds an entry to what its layer says; `content` puts a file's data somewhere.
pub(crate) fn note(
    records: &mut LayerEntries,
    entry: TarEntry,
    keeps_whiteouts: bool,
    content: impl FnOnce(EntryKind) -> Result<Content>,
) -> Result<()> {
    if !keeps_whiteouts && is_mark(&entry.path) {
        records.push_mark(&entry.path);
        return Ok(());
    }
    let kind = match entry.kind {
        kind @ (EntryKind::File(_) | EntryKind::Sparse { .. }) => LayerEntryKind::File(content(kind)?),
        EntryKind::HardLink(target) => LayerEntryKind::HardLink(target.into()),
        EntryKind::Symlink(target) => LayerEntryKind::Symlink(target.into()),
        EntryKind::Directory => LayerEntryKind::Directory,
        EntryKind::CharDevice(major, minor) => LayerEntryKind::CharDevice(major, minor),
        EntryKind::BlockDevice(major, minor) => LayerEntryKind::BlockDevice(major, minor),
        EntryKind::Fifo => LayerEntryKind::Fifo,
    };
    let TarEntry { mode, uid, gid, mtime, mtime_nsec, .. } = entry;
    let xattrs = entry.xattrs.into_iter().filter(|(name, _)| is_kept(name));
    let xattrs: Xattrs = xattrs.map(|(name, value)| (name.into(), value.into())).collect();
    records.push(&LayerEntry { path: entry.path.into(), kind, mode, uid, gid, mtime, mtime_nsec, xattrs });
    Ok(())
}

/// The blocks in which there is data. Their place in the image is not known yet.
fn runs(map: &[Segment]) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = vec![];
    for segment in map.iter().filter(|segment| segment.len > 0) {
        // The file is below 16 TiB, and the segment within it.
        let first = (segment.offset / BLOCK) as u32;
        let end = (segment.offset + segment.len).div_ceil(BLOCK) as u32;
        match runs.last_mut() {
            Some(last) if first <= last.at + last.blocks => last.blocks = end - last.at,
            _ => runs.push(BlockRun { at: first, block: 0, blocks: end - first }),
        }
    }
    runs
}

/// Whether an extended attribute means the same here. What overlayfs keeps for itself would act on our overlays, and SELinux's labels
/// are those of the machine where the layer was made: all engines leave both out.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    !name.starts_with(b"trusted.overlay.")
        && !name.starts_with(b"user.overlay.")
        && !name.starts_with(b"user.fuseoverlayfs.")
        && name != b"security.selinux"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_data_and_lie_apart() {
        let map = |pairs: &[(u64, u64)]| {
            pairs.iter().map(|&(offset, len)| Segment { offset, len }).collect::<Vec<_>>()
        };
        for (pairs, wanted) in [
            (&[][..], &[][..]),
            (&[(9000, 0)], &[]),
            (&[(0, 1)], &[(0, 1)]),
            (&[(4095, 2)], &[(0, 2)]),
            (&[(0, 1), (100, 1), (4096, 1)], &[(0, 2)]),
            (&[(0, 1), (8192, 4096), (12288, 1)], &[(0, 1), (2, 2)]),
        ] {
            let runs = runs(&map(pairs));
            assert_eq!(runs.iter().map(|run| (run.at, run.blocks)).collect::<Vec<_>>(), wanted, "{pairs:?}");
        }
    }
}
