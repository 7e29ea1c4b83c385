//! The files of an image as a tar stream, the same for the same image: all of them, or those that differ from an image below.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use skiff_erofs::{FileEntry, InodeKind, Reader, StoredInode};
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_sys::{SystemContext, SystemError};
use skiff_tar::{EntryKind, TarEntry, Writer};

use crate::assemble::ImageLimits;
use crate::changes;
use crate::error::{Error, Result};
use crate::unpack::LeftOut;

const PIECE: u64 = 1 << 20;

/// What came of it.
pub(super) struct WrittenLayer {
    pub digest: Digest,
    pub size: u64,
    /// How many sockets were left out.
    sockets: u64,
}

impl WrittenLayer {
    pub(super) fn left_out(&self) -> LeftOut {
        LeftOut { sockets: self.sockets, ..LeftOut::default() }
    }
}

/// An entry of a layer over other layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LayerChange {
    /// A file of the image, new or changed.
    File(FileEntry),
    /// The path of a file of the image below.
    Removed(Vec<u8>),
}

/// Writes all files to `out`; `path` is its name, for messages. Of an image of changes, whiteouts are what their names say.
pub(super) fn write(
    reader: &Reader<File>,
    out: &mut dyn Write,
    path: &Path,
    is_of_changes: bool,
) -> Result<WrittenLayer> {
    let changes = reader.files().map(|file| Ok(LayerChange::File(file?)));
    write_changes(reader, changes, (out, path), is_of_changes)
}

/// Writes some files, and whiteouts.
pub(super) fn write_changes(
    reader: &Reader<File>,
    changes: impl IntoIterator<Item = Result<LayerChange>>,
    (out, path): (&mut dyn Write, &Path),
    is_of_changes: bool,
) -> Result<WrittenLayer> {
    let hashing = Hashing { out, hasher: Hasher::like(&Digest::Sha256([0; 32])) };
    let mut layer = LayerWriter {
        reader,
        path,
        is_of_changes,
        tar: Writer::new(hashing),
        first_names: HashMap::new(),
        expanded: 0,
        sockets: 0,
        buffer: vec![],
    };
    for change in changes {
        match change? {
            LayerChange::File(file) => layer.file(file)?,
            LayerChange::Removed(removed) => layer.removed(&removed)?,
        }
    }
    let LayerWriter { mut tar, sockets, .. } = layer;
    let size = tar.end().on("write to", path.display().to_string())?;
    let digest = tar.into_inner().hasher.finish();
    Ok(WrittenLayer { digest, size, sockets })
}

struct LayerWriter<'a> {
    reader: &'a Reader<File>,
    path: &'a Path,
    is_of_changes: bool,
    tar: Writer<Hashing<'a>>,
    /// Of files with several names, the one that came first.
    first_names: HashMap<u64, Vec<u8>>,
    /// Bytes of files so far, holes counted.
    expanded: u64,
    sockets: u64,
    buffer: Vec<u8>,
}

impl LayerWriter<'_> {
    fn file(&mut self, file: FileEntry) -> Result<()> {
        let FileEntry { mut path, inode } = file;
        let is_mark = path.rsplit(|byte| *byte == b'/').next().is_some_and(changes::is_mark);
        // In a layer such a name removes another one.
        if is_mark && !self.is_of_changes {
            let file = format!("/{}", path.escape_ascii());
            let why = "in a layer a name that begins with .wh. stands for a removed file".into();
            return Err(Error::Unstorable { file, why });
        }
        let first = self.first_names.get(&inode.number).cloned();
        let kind = match (first, inode.kind) {
            (Some(first), _) => EntryKind::HardLink(first),
            (None, InodeKind::Directory) => EntryKind::Directory,
            (None, InodeKind::File) => EntryKind::File(inode.size),
            (None, InodeKind::Symlink) => EntryKind::Symlink(self.reader.target(&inode)?),
            (None, InodeKind::CharDevice(major, minor)) => EntryKind::CharDevice(major, minor),
            (None, InodeKind::BlockDevice(major, minor)) => EntryKind::BlockDevice(major, minor),
            (None, InodeKind::Fifo) => EntryKind::Fifo,
            (None, InodeKind::Socket) => {
                self.sockets += 1;
                return Ok(());
            }
        };
        if kind == EntryKind::Directory {
            path.extend(if path.is_empty() { &b"./"[..] } else { b"/" });
        } else if inode.links > 1 {
            self.first_names.entry(inode.number).or_insert_with(|| path.clone());
        }
        let is_link = matches!(kind, EntryKind::HardLink(_));
        let xattrs = if is_link { vec![] } else { self.reader.xattrs(&inode)? };
        let xattrs = xattrs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let StoredInode { mode, uid, gid, mtime, mtime_nsec, .. } = inode;
        let has_data = matches!(kind, EntryKind::File(_));
        let entry = TarEntry { path, kind, mode, uid, gid, mtime, mtime_nsec, xattrs };
        self.tar.entry(&entry).map_err(|e| failed(self.path, e))?;
        if has_data { self.content(&inode, &entry.path) } else { Ok(()) }
    }

    /// A whiteout. It has nothing of the file that is gone, so the same removal gives the same bytes.
    fn removed(&mut self, path: &[u8]) -> Result<()> {
        let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let path = [&path[..name], changes::WHITEOUT, &path[name..]].concat();
        self.tar.entry(&TarEntry::plain_file(path, 0)).map_err(|e| failed(self.path, e))
    }

    /// Holes become zeros.
    fn content(&mut self, inode: &StoredInode, path: &[u8]) -> Result<()> {
        self.expanded = self.expanded.saturating_add(inode.size);
        let limit = ImageLimits::default().bytes;
        if self.expanded > limit {
            let file = format!("/{}", path.escape_ascii());
            let why = format!("with it there are more than {limit} bytes, holes counted");
            return Err(Error::Unstorable { file, why });
        }
        let mut at = 0;
        while at < inode.size {
            self.buffer.resize((inode.size - at).min(PIECE) as usize, 0);
            let count = self.reader.read_at(inode, &mut self.buffer, at)?;
            if count == 0 {
                let why = format!("inode {} is cut off", inode.number);
                return Err(Error::BadImage { file: path.escape_ascii().to_string(), why });
            }
            self.tar.data(&self.buffer[..count]).map_err(|e| failed(self.path, e))?;
            at += count as u64;
        }
        Ok(())
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    SystemError::new("write to", path.display().to_string(), error).into()
}

/// Takes the digest of what passes through.
struct Hashing<'a> {
    out: &'a mut dyn Write,
    hasher: Hasher,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
