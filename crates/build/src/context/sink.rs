//! What becomes of files that are found: their sum, or a tar stream and the sum of that.

use std::io::Write;

use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_oci::hash::Hasher;
use skiff_spec::fault::{Context as _, Result};
use skiff_sys::clock::now;
use skiff_tar::{EntryKind, TarEntry, Writer};

/// What is read and written at once, in bytes.
pub const PIECE: usize = 256 << 10;

/// Takes files in their order.
pub trait EntrySink {
    /// Begins a source; its entries follow.
    ///
    /// # Errors
    /// The receiver closed the stream.
    fn source(&mut self, _name: &[u8], _is_directory: bool) -> Result<()> {
        Ok(())
    }

    /// A file; if it is a regular one, its bytes follow.
    ///
    /// # Errors
    /// The receiver closed the stream.
    fn entry(&mut self, entry: &TarEntry) -> Result<()>;

    /// Next bytes of the last file.
    ///
    /// # Errors
    /// Nobody takes them any more.
    fn data(&mut self, bytes: &[u8]) -> Result<()>;
}

/// The sum of files: of all that is kept of them, but for their times.
pub struct Summed(Hasher);

impl Default for Summed {
    fn default() -> Self {
        Self(Hasher::like(&Digest::Sha256([0; 32])))
    }
}

impl Summed {
    /// The sum.
    #[must_use]
    pub fn finish(self) -> String {
        self.0.finish().to_string()
    }

    /// Takes something of any length, so that no other things can give the same sum.
    pub fn part(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

impl EntrySink for Summed {
    fn source(&mut self, name: &[u8], is_directory: bool) -> Result<()> {
        // No path of an entry has this length: so it is never taken for one.
        self.0.update(&u64::MAX.to_le_bytes());
        self.part(name);
        self.0.update(&[u8::from(is_directory)]);
        Ok(())
    }

    fn entry(&mut self, entry: &TarEntry) -> Result<()> {
        let (kind, link, size): (u8, &[u8], u64) = match &entry.kind {
            EntryKind::File(size) => (b'f', b"", *size),
            EntryKind::Symlink(target) => (b'l', target, 0),
            EntryKind::Directory => (b'd', b"", 0),
            _ => (b'?', b"", 0),
        };
        self.part(&entry.path);
        self.part(link);
        self.0.update(&[kind]);
        self.0.update(&entry.mode.to_le_bytes());
        self.0.update(&entry.uid.to_le_bytes());
        self.0.update(&entry.gid.to_le_bytes());
        self.0.update(&size.to_le_bytes());
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.update(bytes);
        Ok(())
    }
}

/// Files as a tar stream.
pub struct PackedStream<W> {
    writer: Writer<W>,
    sum: Summed,
    naming: Naming,
    /// In front of the names of the source's files.
    prefix: Vec<u8>,
}

/// What files are called where they go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Naming {
    /// As they are; what is in a directory, without that.
    #[default]
    Own,
    /// The only file has this name.
    Only(Vec<u8>),
    /// What is in a directory stays below its name.
    WithDirectory,
}

/// Permission bits of a directory that is copied itself: those of the user's own say nothing to others.
const DIRECTORY_MODE: u16 = 0o755;

/// The stream, in messages.
const STREAM: &str = "stream of files";

impl<W: Write> PackedStream<W> {
    /// A stream without files.
    pub fn new(out: W, naming: Naming) -> Self {
        Self { writer: Writer::new(out), sum: Summed::default(), naming, prefix: vec![] }
    }

    /// Ends the stream; gives the sum of what is in it.
    ///
    /// # Errors
    /// The receiver closed the stream.
    pub fn finish(mut self) -> Result<String> {
        self.writer.end().context(|| STREAM)?;
        Ok(self.sum.finish())
    }
}

impl<W: Write> EntrySink for PackedStream<W> {
    fn source(&mut self, name: &[u8], is_directory: bool) -> Result<()> {
        self.sum.source(name, is_directory)?;
        self.prefix.clear();
        // The root itself has no name.
        if is_directory && self.naming == Naming::WithDirectory && !name.is_empty() {
            self.prefix = [name, b"/"].concat();
            let path = self.prefix.clone();
            let mtime = i64::try_from(now()).unwrap_or(0);
            let directory = TarEntry {
                kind: EntryKind::Directory,
                mode: DIRECTORY_MODE,
                mtime,
                ..TarEntry::plain_file(path, 0)
            };
            self.writer.entry(&directory).context(|| STREAM)?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &TarEntry) -> Result<()> {
        self.sum.entry(entry)?;
        // As other programs write a directory's name.
        let slash: &[u8] = if entry.kind == EntryKind::Directory { b"/" } else { b"" };
        let path = match &self.naming {
            Naming::Only(name) => [name, slash].concat(),
            Naming::Own | Naming::WithDirectory => [&self.prefix, &entry.path, slash].concat(),
        };
        self.writer.entry(&TarEntry { path, ..entry.clone() }).context(|| STREAM)
    }

    fn data(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.data(bytes)?;
        self.writer.data(bytes).context(|| STREAM)
    }
}
