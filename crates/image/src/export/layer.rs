//! All files of an image as one tar stream, the same for the same image.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use skiff_erofs::{FileEntry, Node, NodeKind, Reader};
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_tar::{EntryKind, TarEntry, Writer};

use crate::assemble::ImageLimits;
use crate::error::{Error, Result};

const PIECE: u64 = 1 << 20;
/// In a layer such a name would remove another one.
const WHITEOUT: &[u8] = b".wh.";

/// What came of it.
pub(super) struct WrittenLayer {
    pub digest: Digest,
    pub size: u64,
    /// How many sockets were left out.
    pub sockets: u64,
}

/// Writes them to `out`; `path` is its name, for messages.
pub(super) fn write(reader: &Reader<File>, out: &mut dyn Write, path: &Path) -> Result<WrittenLayer> {
    let hashing = Hashing { out, hasher: Hasher::like(&Digest::Sha256([0; 32])) };
    let mut layer = LayerWriter {
        reader,
        path,
        tar: Writer::new(hashing),
        first_names: HashMap::new(),
        expanded: 0,
        sockets: 0,
        buffer: vec![],
    };
    for file in reader.files() {
        layer.file(file?)?;
    }
    let LayerWriter { mut tar, sockets, .. } = layer;
    let size = tar.end().map_err(|e| Error::io("write to", path.display().to_string(), &e))?;
    let digest = tar.into_inner().hasher.finish();
    Ok(WrittenLayer { digest, size, sockets })
}

struct LayerWriter<'a> {
    reader: &'a Reader<File>,
    path: &'a Path,
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
        let FileEntry { mut path, node } = file;
        if path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(WHITEOUT)) {
            let file = format!("/{}", path.escape_ascii());
            let why = "in a layer a name that begins with .wh. stands for a removed file".into();
            return Err(Error::Unstorable { file, why });
        }
        let first = self.first_names.get(&node.number).cloned();
        let kind = match (first, node.kind) {
            (Some(first), _) => EntryKind::HardLink(first),
            (None, NodeKind::Directory) => EntryKind::Directory,
            (None, NodeKind::File) => EntryKind::File(node.size),
            (None, NodeKind::Symlink) => EntryKind::Symlink(self.reader.target(&node)?),
            (None, NodeKind::CharDevice(major, minor)) => EntryKind::CharDevice(major, minor),
            (None, NodeKind::BlockDevice(major, minor)) => EntryKind::BlockDevice(major, minor),
            (None, NodeKind::Fifo) => EntryKind::Fifo,
            (None, NodeKind::Socket) => {
                self.sockets += 1;
                return Ok(());
            }
        };
        if kind == EntryKind::Directory {
            path.extend(if path.is_empty() { &b"./"[..] } else { b"/" });
        } else if node.links > 1 {
            self.first_names.entry(node.number).or_insert_with(|| path.clone());
        }
        let is_link = matches!(kind, EntryKind::HardLink(_));
        let xattrs = if is_link { vec![] } else { self.reader.xattrs(&node)? };
        let xattrs = xattrs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let Node { mode, uid, gid, mtime, mtime_nsec, .. } = node;
        let has_data = matches!(kind, EntryKind::File(_));
        let entry = TarEntry { path, kind, mode, uid, gid, mtime, mtime_nsec, xattrs };
        self.tar.entry(&entry).map_err(|e| failed(self.path, &e))?;
        if has_data { self.content(&node, &entry.path) } else { Ok(()) }
    }

    /// Holes become zeros.
    fn content(&mut self, node: &Node, path: &[u8]) -> Result<()> {
        self.expanded = self.expanded.saturating_add(node.size);
        let limit = ImageLimits::default().bytes;
        if self.expanded > limit {
            let file = format!("/{}", path.escape_ascii());
            let why = format!("with it there are more than {limit} bytes, holes counted");
            return Err(Error::Unstorable { file, why });
        }
        let mut at = 0;
        while at < node.size {
            self.buffer.resize((node.size - at).min(PIECE) as usize, 0);
            let count = self.reader.read_at(node, &mut self.buffer, at)?;
            if count == 0 {
                let why = format!("inode {} is cut off", node.number);
                return Err(Error::BadImage { file: path.escape_ascii().to_string(), why });
            }
            self.tar.data(&self.buffer[..count]).map_err(|e| failed(self.path, &e))?;
            at += count as u64;
        }
        Ok(())
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::io("write to", path.display().to_string(), error)
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
