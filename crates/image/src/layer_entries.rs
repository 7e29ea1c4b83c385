//! What a layer says about its files, in as few bytes as that takes: it waits in memory until the layers below are merged.
//!
//! An entry is a string of numbers in LEB128 and of byte strings with their length before them. Nobody else sees this.

use skiff_erofs::tree::{BlockRun, Content, Sparse, Xattrs};

/// An entry of a layer. What is a file's data lies in the image and the layer's spill already.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerEntry {
    /// As in the layer.
    pub path: Box<[u8]>,
    pub kind: LayerEntryKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
    pub mtime_nsec: u32,
    pub xattrs: Xattrs,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LayerEntryKind {
    File(Content),
    HardLink(Box<[u8]>),
    Symlink(Box<[u8]>),
    Directory,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
}

const CHUNK: usize = 256 << 10;

/// A layer's entries in their order.
#[derive(Debug, Default)]
pub(crate) struct LayerEntries {
    /// No entry crosses from one to the next, so that each can be freed when it has been read.
    chunks: Vec<Vec<u8>>,
    marks: Vec<Box<[u8]>>,
}

impl LayerEntries {
    /// Adds one at the end.
    pub fn push(&mut self, record: &LayerEntry) {
        if self.chunks.last().is_none_or(|chunk| chunk.capacity() - chunk.len() < 1024) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            encode(chunk, record);
        }
    }

    /// Adds a whiteout, or another mark that is no file.
    pub fn push_mark(&mut self, path: &[u8]) {
        self.marks.push(path.into());
    }

    /// The paths of all of those.
    pub fn marks(&self) -> &[Box<[u8]>] {
        &self.marks
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = LayerEntry> + '_ {
        self.chunks.iter().flat_map(|chunk| Decoder(chunk))
    }

    /// All entries; what has been read is freed.
    pub fn into_each(self, mut each: impl FnMut(LayerEntry) -> Result<(), String>) -> Result<(), String> {
        self.chunks.into_iter().try_for_each(|chunk| Decoder(&chunk).try_for_each(&mut each))
    }
}

fn encode(out: &mut Vec<u8>, record: &LayerEntry) {
    put_bytes(out, &record.path);
    for number in [
        record.mode.into(),
        record.uid.into(),
        record.gid.into(),
        record.mtime as u64,
        record.mtime_nsec.into(),
    ] {
        put(out, number);
    }
    put(out, record.xattrs.len() as u64);
    for (name, value) in &record.xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
    match &record.kind {
        LayerEntryKind::File(Content::Whole { size, block, tail }) => {
            put_all(out, &[0, *size, (*block).into(), *tail])
        }
        LayerEntryKind::File(Content::Sparse(sparse)) => {
            put_all(out, &[1, sparse.size, sparse.runs.len() as u64]);
            sparse
                .runs
                .iter()
                .for_each(|run| put_all(out, &[run.at.into(), run.block.into(), run.blocks.into()]));
        }
        LayerEntryKind::HardLink(target) => {
            put(out, 2);
            put_bytes(out, target);
        }
        LayerEntryKind::Symlink(target) => {
            put(out, 3);
            put_bytes(out, target);
        }
        LayerEntryKind::Directory => put(out, 4),
        LayerEntryKind::CharDevice(major, minor) => put_all(out, &[5, (*major).into(), (*minor).into()]),
        LayerEntryKind::BlockDevice(major, minor) => put_all(out, &[6, (*major).into(), (*minor).into()]),
        LayerEntryKind::Fifo => put(out, 7),
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_all(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| put(out, *number));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what [`encode`] wrote, and nothing else: a slip in either is a panic, not wrong data.
struct Decoder<'a>(&'a [u8]);

impl Iterator for Decoder<'_> {
    type Item = LayerEntry;

    fn next(&mut self) -> Option<LayerEntry> {
        (!self.0.is_empty()).then(|| self.record())
    }
}

impl Decoder<'_> {
    fn record(&mut self) -> LayerEntry {
        let path = self.bytes();
        let [mode, uid, gid, mtime, mtime_nsec] = std::array::from_fn(|_| self.number());
        let xattrs = (0..self.number()).map(|_| (self.bytes(), self.bytes())).collect();
        let kind = match self.number() {
            0 => {
                let [size, block, tail] = std::array::from_fn(|_| self.number());
                LayerEntryKind::File(Content::Whole { size, block: block as u32, tail })
            }
            1 => {
                let size = self.number();
                let runs = (0..self.number()).map(|_| self.run()).collect();
                LayerEntryKind::File(Content::Sparse(Box::new(Sparse { size, runs })))
            }
            2 => LayerEntryKind::HardLink(self.bytes()),
            3 => LayerEntryKind::Symlink(self.bytes()),
            4 => LayerEntryKind::Directory,
            5 => LayerEntryKind::CharDevice(self.number() as u32, self.number() as u32),
            6 => LayerEntryKind::BlockDevice(self.number() as u32, self.number() as u32),
            7 => LayerEntryKind::Fifo,
            kind => unreachable!("no record has the kind {kind}"),
        };
        let (mode, mtime_nsec) = (mode as u16, mtime_nsec as u32);
        LayerEntry {
            path,
            kind,
            mode,
            uid: uid as u32,
            gid: gid as u32,
            mtime: mtime as i64,
            mtime_nsec,
            xattrs,
        }
    }

    fn run(&mut self) -> BlockRun {
        let [at, block, blocks] = std::array::from_fn(|_| self.number() as u32);
        BlockRun { at, block, blocks }
    }

    fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.0[0];
            self.0 = &self.0[1..];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    fn bytes(&mut self) -> Box<[u8]> {
        let len = self.number() as usize;
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went_in() {
        let sparse = Sparse { size: u64::MAX, runs: vec![BlockRun { at: 1, block: u32::MAX, blocks: 3 }] };
        let kinds = [
            LayerEntryKind::File(Content::Whole { size: 1 << 40, block: 7, tail: 127 }),
            LayerEntryKind::File(Content::Sparse(Box::new(sparse))),
            LayerEntryKind::HardLink(b"a/b"[..].into()),
            LayerEntryKind::Symlink(b"\xff"[..].into()),
            LayerEntryKind::Directory,
            LayerEntryKind::CharDevice(4095, 1 << 20),
            LayerEntryKind::BlockDevice(0, 0),
            LayerEntryKind::Fifo,
        ];
        let xattrs: Xattrs =
            vec![(b"user.x"[..].into(), vec![0; 300_000].into()), (b"user.y"[..].into(), [].into())];
        let all: Vec<LayerEntry> = kinds
            .into_iter()
            .map(|kind| LayerEntry {
                path: b"usr/bin"[..].into(),
                kind,
                mode: 0o7777,
                uid: u32::MAX - 1,
                gid: 128,
                mtime: -1,
                mtime_nsec: 999_999_999,
                xattrs: xattrs.clone(),
            })
            .collect();
        let mut records = LayerEntries::default();
        all.iter().for_each(|record| records.push(record));
        assert_eq!(records.iter().collect::<Vec<_>>(), all);
        let mut each = vec![];
        let push = |record| {
            each.push(record);
            Ok(())
        };
        records.into_each(push).unwrap();
        assert_eq!(each, all);
    }
}
