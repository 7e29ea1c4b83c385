//! A layer in the store as the stream that it was made of: so a new layer's chunks that it has need not be read of the depot.
//!
//! Where a file's data lies its file says; everything else is put together anew. What cannot be (which of a file's names are in other layers,
//! pieces of files that begin within a block) comes out as something else: whoever reads it knows the digest of what there should be.

use std::collections::HashMap;
use std::fs::File;

use skiff_erofs::{InodeKind, Reader, StoredInode};
use skiff_snapshot::LayerStream;
use skiff_snapshot::stream::{Attr, HEADER, LayerRecord, NO_EXTENT, OPAQUE};

use crate::error::{Error, Result};

/// Layers with more names are not looked into: each takes some hundred bytes of memory.
const MOST_NAMES: usize = 1_000_000;
/// A file's data is read in such pieces for its digest.
const PIECE: u64 = 256 << 10;
/// Bytes before each extent's data, and behind the last one.
const EXTENT_HEAD: u64 = 16;
const CONTENT_END: u64 = 8 + 32;

/// A layer, open to be read anywhere in its stream.
pub struct StoredLayer {
    reader: Reader<File>,
    name: String,
    records: Vec<StoredRecord>,
    length: u64,
    /// The file that was read last: its extents are not to be looked up for each of its chunks.
    last: Option<OpenedFile>,
}

/// A file's data in the stream.
struct OpenedFile {
    /// Number of its record.
    number: usize,
    extents: Vec<StreamExtent>,
    /// Digest of its data, once it was computed.
    digest: Option<[u8; 32]>,
}

struct StreamExtent {
    /// Where its head begins, counted from that of the file's first extent.
    offset: u64,
    /// Where in the file it lies.
    at: u64,
    length: u64,
}

impl StreamExtent {
    fn end(&self) -> u64 {
        self.offset.saturating_add(EXTENT_HEAD).saturating_add(self.length)
    }
}

struct StoredRecord {
    /// Where in the stream it begins.
    at: u64,
    entry: StreamEntry,
}

enum StreamEntry {
    Header,
    Named(Box<[u8]>, StoredInode, FileNames),
    Up,
    End { records: u64, data: u64 },
}

/// Which of a file's names an entry is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileNames {
    One,
    FirstOfSeveral,
    /// Another one of the file of this number.
    Later(u32),
}

/// A part of the stream that is wanted.
struct Window<'a> {
    into: &'a mut [u8],
    /// Where it begins.
    from: u64,
    /// The place of what is offered next.
    at: u64,
}

impl StoredLayer {
    /// Reads where everything is; `name` is for messages.
    ///
    /// # Errors
    /// It is not a layer, or not as our writer makes one.
    pub fn open(file: File, name: String) -> Result<Self> {
        let reader = Reader::open(file, name.clone())?;
        let mut layer = Self { reader, name, records: vec![], length: 0, last: None };
        layer.push(StreamEntry::Header, HEADER.len() as u64);
        layer.read_entries()?;
        Ok(layer)
    }

    /// How long the stream is.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    fn read_entries(&mut self) -> Result<()> {
        let mut entries = vec![];
        for file in self.reader.files() {
            let file = file?;
            let (level, name) = match file.path.iter().rposition(|byte| *byte == b'/') {
                _ if file.path.is_empty() => (0, &[][..]),
                None => (1, &file.path[..]),
                Some(at) => {
                    (2 + file.path[..at].iter().filter(|byte| **byte == b'/').count(), &file.path[at + 1..])
                }
            };
            entries.push((level, Box::<[u8]>::from(name), file.inode));
            if entries.len() > MOST_NAMES {
                return Err(self.bad("it has too many names"));
            }
        }
        let (mut open, mut links, mut data) = (0, HashMap::new(), 0);
        for (level, name, inode) in entries {
            while open > level {
                self.push(StreamEntry::Up, 1);
                open -= 1;
            }
            open += usize::from(inode.kind == InodeKind::Directory);
            let count = links.len() as u32;
            let names = match links.entry(inode.number) {
                _ if inode.kind != InodeKind::File || inode.links == 1 => FileNames::One,
                std::collections::hash_map::Entry::Occupied(number) => FileNames::Later(*number.get()),
                std::collections::hash_map::Entry::Vacant(number) => {
                    number.insert(count);
                    FileNames::FirstOfSeveral
                }
            };
            data += self.push_named(name, inode, names)?;
        }
        for _ in 0..open {
            self.push(StreamEntry::Up, 1);
        }
        // The header is not one.
        let records = self.records.len() as u64 - 1;
        self.push(StreamEntry::End { records, data }, 1 + 16);
        Ok(())
    }

    /// Gives how many bytes of data the entry has.
    fn push_named(&mut self, name: Box<[u8]>, inode: StoredInode, names: FileNames) -> Result<u64> {
        let mut length = self.record(&name, &inode, names)?.len() as u64;
        let mut data = 0;
        if inode.kind == InodeKind::File && !matches!(names, FileNames::Later(_)) {
            let extents = self.extents(&inode)?;
            data = extents.iter().map(|extent| extent.length).sum();
            length += extents.last().map_or(0, StreamExtent::end) + CONTENT_END;
        }
        self.push(StreamEntry::Named(name, inode, names), length);
        Ok(data)
    }

    fn push(&mut self, entry: StreamEntry, length: u64) {
        self.records.push(StoredRecord { at: self.length, entry });
        self.length = self.length.saturating_add(length);
    }

    /// The bytes of an entry's record, without its content.
    fn record(&self, name: &[u8], inode: &StoredInode, names: FileNames) -> Result<Vec<u8>> {
        let name = name.to_vec();
        let record = match inode.kind {
            InodeKind::Directory => {
                let Attr { xattrs, .. } = self.attr(inode)?;
                let opaque = xattrs.iter().any(|(name, _)| name == OPAQUE);
                let xattrs = xattrs.into_iter().filter(|(name, _)| name != OPAQUE).collect();
                LayerRecord::Dir { name, attr: Attr { xattrs, ..bare_attr(inode) }, opaque }
            }
            InodeKind::File => match names {
                FileNames::Later(number) => LayerRecord::Link { name, number },
                FileNames::One | FileNames::FirstOfSeveral => LayerRecord::File {
                    name,
                    attr: self.attr(inode)?,
                    linked: names == FileNames::FirstOfSeveral,
                    size: inode.size,
                },
            },
            InodeKind::Symlink => {
                LayerRecord::Symlink { name, attr: bare_attr(inode), target: self.reader.target(inode)? }
            }
            InodeKind::Fifo => LayerRecord::Fifo { name, attr: bare_attr(inode) },
            InodeKind::CharDevice(0, 0) => LayerRecord::Whiteout { name },
            _ => return Err(self.bad("it has a device or a socket")),
        };
        let mut bytes = vec![];
        record.encode(&mut bytes);
        Ok(bytes)
    }

    fn attr(&self, inode: &StoredInode) -> Result<Attr> {
        let xattrs = self.reader.xattrs(inode)?.into_iter();
        let xattrs = xattrs.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
        Ok(Attr { xattrs, ..bare_attr(inode) })
    }

    /// Where a file has data, ascending, without the holes.
    fn extents(&self, inode: &StoredInode) -> Result<Vec<StreamExtent>> {
        let mut extents: Vec<StreamExtent> = vec![];
        for extent in self.reader.extents(inode) {
            let extent = extent?;
            let offset = extents.last().map_or(0, StreamExtent::end);
            match extents.last_mut() {
                _ if extent.place.is_none() => {}
                Some(last) if last.at + last.length == extent.at => last.length += extent.length,
                _ => extents.push(StreamExtent { offset, at: extent.at, length: extent.length }),
            }
        }
        Ok(extents)
    }

    /// The data of a record's file, of which it was looked up before where that was the last one.
    fn opened(&mut self, number: usize, inode: &StoredInode) -> Result<OpenedFile> {
        match self.last.take() {
            Some(last) if last.number == number => Ok(last),
            _ => Ok(OpenedFile { number, extents: self.extents(inode)?, digest: None }),
        }
    }

    fn fill(&mut self, into: &mut [u8], from: u64) -> Result<bool> {
        let end = from.checked_add(into.len() as u64).filter(|end| *end <= self.length);
        let Some(end) = end else { return Ok(false) };
        let first = self.records.partition_point(|record| record.at <= from).saturating_sub(1);
        let mut window = Window { into, from, at: 0 };
        for number in first..self.records.len() {
            window.at = self.records[number].at;
            if window.at >= end {
                break;
            }
            self.offer(number, &mut window)?;
        }
        Ok(true)
    }

    /// Writes what of a record is wanted.
    fn offer(&mut self, number: usize, window: &mut Window<'_>) -> Result<()> {
        let (name, inode, names) = match &self.records[number].entry {
            StreamEntry::Header => {
                window.bytes(&HEADER);
                return Ok(());
            }
            StreamEntry::Named(name, inode, names) => (name, *inode, *names),
            StreamEntry::Up => {
                window.encoded(&LayerRecord::Up);
                return Ok(());
            }
            StreamEntry::End { records, data } => {
                window.encoded(&LayerRecord::End { records: *records, data: *data });
                return Ok(());
            }
        };
        window.bytes(&self.record(name, &inode, names)?);
        if inode.kind != InodeKind::File || matches!(names, FileNames::Later(_)) {
            return Ok(());
        }
        let file = self.opened(number, &inode)?;
        self.last = Some(self.offer_content(file, &inode, window)?);
        Ok(())
    }

    /// Writes what of a file's content is wanted.
    fn offer_content(
        &self,
        mut file: OpenedFile,
        inode: &StoredInode,
        window: &mut Window<'_>,
    ) -> Result<OpenedFile> {
        let (begin, extents) = (window.at, &file.extents);
        // Of a file with very many holes only what lies in the window is gone through: it is asked for in many pieces.
        let first = extents.partition_point(|extent| begin.saturating_add(extent.end()) <= window.from);
        for StreamExtent { offset, at, length } in &extents[first..] {
            window.at = begin.saturating_add(*offset);
            if window.at >= window.end() {
                break;
            }
            window.bytes(&at.to_le_bytes());
            window.bytes(&length.to_le_bytes());
            if let Some((into, skipped)) = window.part(*length) {
                self.reader.read_at(inode, into, at + skipped)?;
                if extents.len() == 1 && into.len() as u64 == *length {
                    // Its digest comes next: of a small file no byte is read twice.
                    file.digest = Some(*blake3::hash(into).as_bytes());
                }
            }
        }
        window.at = begin.saturating_add(extents.last().map_or(0, StreamExtent::end));
        window.bytes(&NO_EXTENT.to_le_bytes());
        if let Some((into, skipped)) = window.part(32) {
            let digest = file.digest.map_or_else(|| self.digest(inode, extents), Ok)?;
            into.copy_from_slice(&digest[skipped as usize..][..into.len()]);
            file.digest = Some(digest);
        }
        Ok(file)
    }

    /// The digest of a file's data.
    fn digest(&self, inode: &StoredInode, extents: &[StreamExtent]) -> Result<[u8; 32]> {
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; PIECE.min(inode.size) as usize]);
        for StreamExtent { at, length, .. } in extents {
            let (mut at, end) = (*at, at + length);
            while at < end {
                let piece = &mut buffer[..(end - at).min(PIECE) as usize];
                self.reader.read_at(inode, piece, at)?;
                hasher.update(piece);
                at += piece.len() as u64;
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn bad(&self, why: &str) -> Error {
        Error::unsound(self.name.clone(), why)
    }
}

impl LayerStream for StoredLayer {
    fn read_at(&mut self, into: &mut [u8], at: u64) -> bool {
        self.fill(into, at).unwrap_or(false)
    }
}

impl Window<'_> {
    /// Where it ends.
    fn end(&self) -> u64 {
        self.from.saturating_add(self.into.len() as u64)
    }

    /// Where in the window the next bytes of the stream belong, as many as are offered, and how many of them lie before it.
    fn part(&mut self, length: u64) -> Option<(&mut [u8], u64)> {
        let begin = self.at;
        self.at = begin.saturating_add(length);
        let (first, last) = (begin.max(self.from), self.at.min(self.from + self.into.len() as u64));
        let range = (first.checked_sub(self.from)? as usize)..(last.checked_sub(self.from)? as usize);
        (first < last).then(|| self.into.get_mut(range).map(|into| (into, first - begin)))?
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if let Some((into, skipped)) = self.part(bytes.len() as u64) {
            into.copy_from_slice(&bytes[skipped as usize..][..into.len()]);
        }
    }

    fn encoded(&mut self, record: &LayerRecord) {
        let mut bytes = vec![];
        record.encode(&mut bytes);
        self.bytes(&bytes);
    }
}

fn bare_attr(inode: &StoredInode) -> Attr {
    let StoredInode { mode, uid, gid, mtime, mtime_nsec, .. } = *inode;
    Attr { mode: mode.into(), uid, gid, mtime: (mtime, mtime_nsec), xattrs: vec![] }
}
