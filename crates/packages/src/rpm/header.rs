//! Reads headers, as RPM's library writes them: an index of tags, and the data behind it, all numbers big-endian.

use std::io::Read;

use super::RpmError;
use crate::stanza::Hash;

/// The first bytes of a header; four more are reserved.
const MAGIC: [u8; 4] = [0x8e, 0xad, 0xe8, 0x01];
/// Of RPM's own bounds.
const MOST_ENTRIES: u32 = 0xffff;
const LONGEST_DATA: u32 = 256 << 20;
/// No system has as many packages.
const MOST: usize = 300_000;
/// Of an entry of the index: tag, type, offset and count.
const ENTRY: usize = 16;
/// Neither RPM nor a file system takes longer names.
const LONGEST_NAME: usize = 200;
/// Tags up to this one say where in the header its signed part lies: that depends on who has written it last.
const LAST_REGION: u32 = 63;

/// Tags, as RPM numbers them.
mod tag {
    pub(super) const NAME: u32 = 1000;
    pub(super) const VERSION: u32 = 1001;
    pub(super) const RELEASE: u32 = 1002;
    pub(super) const EPOCH: u32 = 1003;
    pub(super) const ARCH: u32 = 1022;
    pub(super) const PROVIDES: u32 = 1047;
    pub(super) const REQUIRES: u32 = 1049;
}

/// Types of data.
mod kind {
    pub(super) const STRING: u32 = 6;
    pub(super) const STRINGS: u32 = 8;
    pub(super) const TRANSLATED: u32 = 9;
}

/// What packages provide of which several versions are installed beside each other, as dnf's `installonlypkgs` has it.
const INSTALL_ONLY: [&str; 6] = [
    "kernel",
    "kernel-PAE",
    "installonlypkg(kernel)",
    "installonlypkg(kernel-module)",
    "installonlypkg(vm)",
    "multiversion(kernel)",
];
/// RPM's note of a key that signs packages: each key is one.
const KEY_PACKAGE: &str = "gpg-pubkey";

/// What a merge needs to know of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpmPackage {
    /// Name and architecture, `NAME.ARCH`; a package without an architecture has its name only.
    pub key: String,
    /// `NAME-VERSION-RELEASE.ARCH`, by which `rpm -e` finds it.
    pub label: String,
    /// `[EPOCH:]VERSION-RELEASE`.
    pub version: String,
    /// Of all that is in the header, whoever has written it. RPM notes the time of the installation there, so that each one has its own.
    pub hash: Hash,
    /// Whether several versions may be installed beside each other.
    pub is_install_only: bool,
    pub(crate) provides: Vec<String>,
    pub(crate) requires: Vec<String>,
}

/// One header.
#[derive(Debug)]
pub struct RpmHeader {
    /// All of it, from the first byte on: headers one after the other are a list.
    pub bytes: Vec<u8>,
    /// What is in it.
    pub package: RpmPackage,
}

/// The headers of a list, one by one: of a large system they are more than a hundred megabytes.
pub struct HeaderReader<R> {
    source: R,
    count: usize,
    has_failed: bool,
}

impl<R: Read> HeaderReader<R> {
    /// Of what comes from `source`.
    pub fn new(source: R) -> Self {
        Self { source, count: 0, has_failed: false }
    }

    fn header(&mut self) -> Result<Option<RpmHeader>, RpmError> {
        let number = self.count + 1;
        let wrong = |what| RpmError::Header(number, what);
        let Some(mut bytes) = self.take(16)? else { return Ok(None) };
        if bytes[..4] != MAGIC {
            return Err(wrong("not a header"));
        }
        let (entries, data) = (word(&bytes, 8), word(&bytes, 12));
        if entries > MOST_ENTRIES || data > LONGEST_DATA {
            return Err(wrong("too large"));
        }
        let length = entries as usize * ENTRY + data as usize;
        let rest = self.take(length)?.unwrap_or_default();
        if rest.len() != length {
            return Err(wrong("ends too early"));
        }
        bytes.extend_from_slice(&rest);
        let package = Contents::of(&rest, entries as usize).and_then(|contents| contents.package());
        self.count = number;
        if self.count > MOST {
            return Err(RpmError::TooMany(MOST));
        }
        Ok(Some(RpmHeader { bytes, package: package.map_err(wrong)? }))
    }

    /// So many bytes; nothing at the end of the source. They take memory as they come.
    fn take(&mut self, length: usize) -> Result<Option<Vec<u8>>, RpmError> {
        let mut bytes = vec![];
        let read = self.source.by_ref().take(length as u64).read_to_end(&mut bytes);
        match read.map_err(|e| RpmError::Read(self.count + 1, e))? {
            0 => Ok(None),
            read if read < length => Err(RpmError::Header(self.count + 1, "ends too early")),
            _ => Ok(Some(bytes)),
        }
    }
}

impl<R: Read> Iterator for HeaderReader<R> {
    type Item = Result<RpmHeader, RpmError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let header = self.header();
        self.has_failed = header.is_err();
        header.transpose()
    }
}

/// The entries of a header, by their tags.
struct Contents<'a> {
    entries: Vec<Entry<'a>>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry<'a> {
    tag: u32,
    kind: u32,
    count: u32,
    data: &'a [u8],
}

impl<'a> Contents<'a> {
    fn of(bytes: &'a [u8], count: usize) -> Result<Self, &'static str> {
        let (index, data) = bytes.split_at(count * ENTRY);
        let (mut entries, mut total) = (vec![], 0);
        for entry in index.chunks_exact(ENTRY) {
            let [tag, kind, offset, count] = [0, 4, 8, 12].map(|at| word(entry, at));
            let rest = data.get(offset as usize..).ok_or("data beyond the end")?;
            let length = extent(kind, count, rest).ok_or("data beyond the end")?;
            if tag > LAST_REGION {
                entries.push(Entry { tag, kind, count, data: &rest[..length] });
            }
            total += length;
            // Else to read a header might take much longer than it is.
            if total > 2 * data.len() {
                return Err("overlapping data");
            }
        }
        entries.sort_unstable();
        Ok(Self { entries })
    }

    fn package(&self) -> Result<RpmPackage, &'static str> {
        let name = self.text(tag::NAME).and_then(plain).ok_or("no name that a package can have")?;
        let part = |tag| self.text(tag).and_then(printable).ok_or("no version that can be printed");
        let (version, release) = (part(tag::VERSION)?, part(tag::RELEASE)?);
        let epoch = self.entry(tag::EPOCH).filter(|entry| entry.data.len() >= 4);
        let version = format!("{version}-{release}");
        let arch = self.text(tag::ARCH).and_then(plain).map(|arch| format!(".{arch}")).unwrap_or_default();
        let provides = self.texts(tag::PROVIDES);
        Ok(RpmPackage {
            key: format!("{name}{arch}"),
            label: format!("{name}-{version}{arch}"),
            version: epoch.map_or_else(|| version.clone(), |e| format!("{}:{version}", word(e.data, 0))),
            hash: self.hash(),
            is_install_only: name == KEY_PACKAGE || provides.iter().any(|p| INSTALL_ONLY.contains(&&p[..])),
            provides,
            requires: self.texts(tag::REQUIRES),
        })
    }

    fn entry(&self, tag: u32) -> Option<&Entry<'a>> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    fn text(&self, tag: u32) -> Option<&'a str> {
        let entry = self.entry(tag).filter(|entry| entry.kind == kind::STRING)?;
        entry.data.strip_suffix(b"\0").and_then(|text| std::str::from_utf8(text).ok())
    }

    fn texts(&self, tag: u32) -> Vec<String> {
        let entry = self.entry(tag).filter(|entry| entry.kind == kind::STRINGS);
        let texts = entry.into_iter().flat_map(|entry| entry.data.split(|byte| *byte == 0));
        texts.filter(|text| !text.is_empty()).map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }

    fn hash(&self) -> Hash {
        let mut hasher = blake3::Hasher::new();
        for Entry { tag, kind, count, data } in &self.entries {
            for number in [tag, kind, count] {
                hasher.update(&number.to_be_bytes());
            }
            hasher.update(&(data.len() as u64).to_be_bytes()).update(data);
        }
        let mut hash = Hash::default();
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        hash
    }
}

/// How many bytes an entry has.
fn extent(kind: u32, count: u32, data: &[u8]) -> Option<usize> {
    let count = count as usize;
    let length = match kind {
        0..=2 | 7 => count,
        3 => count.checked_mul(2)?,
        4 => count.checked_mul(4)?,
        5 => count.checked_mul(8)?,
        kind::STRING => data.iter().position(|byte| *byte == 0)? + 1,
        kind::STRINGS | kind::TRANSLATED if count == 0 => 0,
        kind::STRINGS | kind::TRANSLATED => {
            let ends = data.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at + 1);
            ends.take(count).enumerate().find_map(|(n, end)| (n + 1 == count).then_some(end))?
        }
        _ => return None,
    };
    (length <= data.len()).then_some(length)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    if let Some(found) = bytes.get(at..at + 4) {
        word.copy_from_slice(found);
    }
    u32::from_be_bytes(word)
}

/// Names and architectures are arguments of programs, keys of lines, and are printed.
fn plain(name: &str) -> Option<&str> {
    let fits = name.len() <= LONGEST_NAME && !name.starts_with(['-', '.', '(']);
    (fits
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte)))
    .then_some(name)
}

/// So are versions.
fn printable(version: &str) -> Option<&str> {
    let fits = version.len() <= LONGEST_NAME && !version.is_empty();
    (fits && version.bytes().all(|byte| byte.is_ascii_graphic())).then_some(version)
}

#[cfg(test)]
pub(super) mod tests;
