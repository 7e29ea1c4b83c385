//! A tar file whose entries are used where they lie: nothing of it is unpacked.
//!
//! It was made by anyone: an entry whose name stands there twice, or leads out of the archive, could be read in two ways, so
//! both are refused.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use skiff_tar::{self as tar, ByteStream, EntryKind, TarReader};

use super::compressed::{bad, inflated_while};
use super::files::{FilePart, ImageFiles};
use crate::error::{Error, Result};
use crate::inflate::HEAD;

/// An image's archive has some hundred entries; each costs memory.
const MOST_ENTRIES: usize = 100_000;
/// Linux follows no more symbolic links either.
const MOST_LINKS: usize = 40;
/// A header and what often follows it.
const BUFFER: usize = 4096;
/// The entries of a tar file by their names.
pub struct Archive {
    part: FilePart,
    entries: HashMap<String, ArchiveEntry>,
    is_root: bool,
}

enum ArchiveEntry {
    File {
        offset: u64,
        size: u64,
    },
    /// To this path in the archive.
    Link(String),
    /// Why it cannot be read.
    Other(&'static str),
}

impl Archive {
    /// Finds what is in a tar file. A compressed one is inflated first, into a file without a name in `room`.
    ///
    /// # Errors
    /// It is none, or one that can be read in two ways; there is no room.
    pub fn open(part: FilePart, room: BorrowedFd<'_>, room_name: &str) -> Result<Archive> {
        Self::open_while(part, (room, room_name), &|| true)
    }

    /// The same, which ends with [`Error::Cancelled`] when `goes_on` says so. While a compressed one is inflated that is asked each 16 MiB.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub fn open_while(
        part: FilePart,
        room: (BorrowedFd<'_>, &str),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Archive> {
        let mut head = [0; HEAD];
        let head = &mut head[..HEAD.min(part.size as usize)];
        part.read(head, 0)?;
        let part = inflated_while(head, part, room, (None, goes_on))?;
        let (entries, is_root) = entries(&part)?;
        Ok(Archive { part, entries, is_root })
    }

    fn follow(&self, path: &str) -> Result<Option<(u64, u64)>> {
        let mut path = path;
        for _ in 0..=MOST_LINKS {
            match self.entries.get(path) {
                None => return Ok(None),
                Some(ArchiveEntry::File { offset, size }) => return Ok(Some((*offset, *size))),
                Some(ArchiveEntry::Link(target)) => path = target,
                Some(ArchiveEntry::Other(what)) => {
                    return Err(bad(&self.part, format!("{path} is {what} in it")));
                }
            }
        }
        Err(bad(&self.part, format!("{path} is a link that leads to itself")))
    }
}

impl ImageFiles for Archive {
    fn name(&self) -> &str {
        &self.part.name
    }

    fn find(&self, path: &str) -> Result<Option<FilePart>> {
        let name = format!("{}:{path}", self.part.name);
        let part = |(offset, size)| FilePart {
            file: Arc::clone(&self.part.file),
            name,
            offset: self.part.offset + offset,
            size,
        };
        Ok(self.follow(path)?.map(part))
    }

    fn root(&self) -> Option<FilePart> {
        self.is_root.then(|| self.part.clone())
    }
}

/// Whether an entry belongs to a root's files: without programs there is nothing to run. No archive of an image has such an entry.
fn is_of_root(path: &str) -> bool {
    matches!(path.split('/').next(), Some("bin" | "sbin" | "usr"))
}

/// The entries, and whether they are the files of a root. Of those, layers may hold what archives of images may not: so the search for lists of
/// images ends with the first of that, if none has been found.
fn entries(part: &FilePart) -> Result<(HashMap<String, ArchiveEntry>, bool)> {
    let mut reader = TarReader::new(Seeking { part, at: 0, buffer: vec![0; BUFFER], ready: 0..0 });
    let mut entries = HashMap::new();
    let mut is_root = false;
    let name_error = |error| match error {
        tar::Error::Bad(why) => bad(part, format!("it is not a tar file, or a damaged one: {why}")),
        tar::Error::Stream(error) => error,
    };
    while let Some(entry) = reader.next_entry().map_err(name_error)? {
        let lossy = String::from_utf8_lossy(&entry.path).into_owned();
        let Some(path) = cleaned("", &lossy) else {
            return Err(bad(part, format!("{lossy:?} in it would lie outside of it")));
        };
        is_root |= is_of_root(&path);
        let found = match entry.kind {
            EntryKind::Directory => continue,
            EntryKind::File(size) => ArchiveEntry::File { offset: reader.at(), size },
            EntryKind::Symlink(target) => link(parent(&path), &target),
            EntryKind::HardLink(target) => link("", &target),
            EntryKind::Sparse { .. } => ArchiveEntry::Other("a sparse file"),
            _ => ArchiveEntry::Other("a device or pipe"),
        };
        let is_twice = entries.insert(path, found).is_some();
        let has_list = || ["manifest.json", "index.json"].iter().any(|list| entries.contains_key(*list));
        if (is_twice || entries.len() > MOST_ENTRIES) && is_root && !has_list() {
            break;
        }
        if is_twice {
            return Err(bad(part, format!("{lossy:?} is twice in it")));
        }
        if entries.len() > MOST_ENTRIES {
            return Err(bad(part, format!("it has more than {MOST_ENTRIES} entries: it is not an image")));
        }
    }
    Ok((entries, is_root))
}

fn link(base: &str, target: &[u8]) -> ArchiveEntry {
    match cleaned(base, &String::from_utf8_lossy(target)) {
        Some(path) => ArchiveEntry::Link(path),
        None => ArchiveEntry::Other("a link that leads out of it"),
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The path from the archive's root without `.` and `..`; `None` if it leads beyond that.
fn cleaned(base: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut names: Vec<&str> = base.split('/').filter(|name| !name.is_empty()).collect();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

/// Reads headers, and passes over data without reading it.
struct Seeking<'a> {
    part: &'a FilePart,
    /// Where the buffer's end lies.
    at: u64,
    buffer: Vec<u8>,
    ready: std::ops::Range<usize>,
}

impl ByteStream for Seeking<'_> {
    type Error = Error;

    fn fill(&mut self) -> Result<&[u8]> {
        if self.ready.is_empty() {
            let len = BUFFER.min(usize::try_from(self.part.size - self.at).unwrap_or(BUFFER));
            self.part.read(&mut self.buffer[..len], self.at)?;
            self.at += len as u64;
            self.ready = 0..len;
        }
        Ok(&self.buffer[self.ready.clone()])
    }

    fn consume(&mut self, used: usize) {
        self.ready.start += used;
    }

    fn skip(&mut self, most: u64) -> Result<u64> {
        let buffered = self.ready.len() as u64;
        if most < buffered {
            self.ready.start += most as usize;
            return Ok(most);
        }
        let beyond = (most - buffered).min(self.part.size - self.at);
        self.ready = 0..0;
        self.at += beyond;
        Ok(buffered + beyond)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use skiff_tar::build::{RawEntry as Tar, archive};

    fn open(bytes: &[u8]) -> Result<Archive> {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        let room = File::open(std::env::temp_dir()).unwrap();
        Archive::open(FilePart::whole(file, "FILE".into())?, room.as_fd(), "ROOM")
    }

    fn content(archive: &Archive, path: &str) -> Result<Option<Vec<u8>>> {
        archive.find(path)?.map(|part| part.document()).transpose()
    }

    fn refused(bytes: &[u8], because: &str) {
        let why = open(bytes).err().expect("must be refused").to_string();
        assert!(why.contains(because), "{why:?} does not say {because:?}");
    }

    #[test]
    fn entries_are_found_where_they_lie() {
        let big = vec![7; 100_000];
        let entries = [
            Tar::directory("./"),
            Tar::file("./a", b"first"),
            Tar::file("d/big", &big),
            Tar::symlink("d/e/link", "../../a"),
            Tar::hard_link("hard", "d/big"),
            Tar::symlink("chain", "d/e/link"),
            Tar::file("empty", b""),
        ];
        let plain = archive(&entries);
        let compressed = {
            let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, &plain).unwrap();
            encoder.finish().unwrap()
        };
        let other = {
            let mut encoder = bzip2::write::BzEncoder::new(vec![], bzip2::Compression::fast());
            std::io::Write::write_all(&mut encoder, &plain).unwrap();
            encoder.finish().unwrap()
        };
        refused(&other[..other.len() / 2], "its bzip2 stream: ");
        for bytes in [plain, compressed, other] {
            let archive = open(&bytes).unwrap();
            assert_eq!(content(&archive, "a").unwrap().unwrap(), b"first");
            assert_eq!(content(&archive, "d/e/link").unwrap().unwrap(), b"first");
            assert_eq!(content(&archive, "chain").unwrap().unwrap(), b"first");
            assert_eq!(content(&archive, "hard").unwrap().unwrap(), big);
            assert_eq!(content(&archive, "empty").unwrap().unwrap(), b"");
            assert!(content(&archive, "missing").unwrap().is_none());
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        refused(&archive(&[Tar::file("a", b"1"), Tar::file("./a", b"2")]), "twice");
        refused(&archive(&[Tar::file("/etc/passwd", b"1")]), "outside");
        refused(&archive(&[Tar::file("a/../../b", b"1")]), "outside");
        refused(&archive(&[Tar::file("a", b"1").size(1 << 32)]), "before its file does");
        refused(b"BZh91AY", "bzip2");
        refused(b"\xfd7zXZ\0...", "xz");
        // A dictionary of 4 GiB, which would be memory.
        refused(b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\x02\0\x21\x01\x28\0\0\0\xd9\x45\xe9\x83", "xz");
        refused(&[b'x'; 2000], "not a tar file");
        let loops = open(&archive(&[Tar::symlink("a", "b"), Tar::symlink("b", "a")])).unwrap();
        assert!(content(&loops, "a").unwrap_err().to_string().contains("leads to itself"));
        let out =
            open(&archive(&[Tar::symlink("a", "/etc/passwd"), Tar::symlink("d/b", "../../x")])).unwrap();
        for path in ["a", "d/b"] {
            assert!(content(&out, path).unwrap_err().to_string().contains("leads out"), "{path}");
        }
    }
}
