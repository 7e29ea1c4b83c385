//! The linker's cache, `/etc/ld.so.cache`, in the format that glibc has had since 2.2 (`dl-cache.h`): which file each library is in. That of an image is read,
//! and written again with the libraries of devices in front of those of the same name.

use std::cmp::Ordering;

/// A library that the linker is to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The name that programs ask for.
    pub name: String,
    /// Where the file is, inside.
    pub path: String,
}

/// What a cache begins with.
const MAGIC: &[u8; 20] = b"glibc-ld.so.cache1.1";
/// What one begins with that has the format of before 2.2 in front.
const OLD_MAGIC: &[u8; 11] = b"ld.so-1.7.0";
/// What the part of a cache begins with that names variants of processors.
const EXTENSION: u32 = 0xeaa4_2174;
/// The part of it with the variants' names.
const VARIANTS: u32 = 1;
/// In an entry: which variant it is for stands in the lower half.
const IS_VARIANT: u64 = 1 << 62;
/// The numbers of a cache are written with the lowest byte first.
const LITTLE_ENDIAN: u8 = 2;

const HEADER: usize = 48;
const ENTRY: usize = 24;
/// More libraries than any root has.
const MOST: usize = 200_000;

/// More text than all of them have, in bytes.
const MOST_TEXT: usize = 64 << 20;

/// What an entry says of a library's kind: for glibc, and for this processor in 64 bits.
const NATIVE: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    flags: u32,
    name: Vec<u8>,
    path: Vec<u8>,
    os_version: u32,
    hwcap: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cache {
    entries: Vec<Entry>,
    /// Names of variants, which entries name by their number.
    variants: Vec<Vec<u8>>,
}

/// A cache of what `existing` has, if it is one, and of these libraries.
#[must_use]
pub fn merged(existing: Option<&[u8]>, libraries: &[Library]) -> Vec<u8> {
    let mut cache = existing.and_then(Cache::parse).unwrap_or_default();
    let entry = |library: &Library| Entry {
        flags: NATIVE,
        name: library.name.clone().into_bytes(),
        path: library.path.clone().into_bytes(),
        os_version: 0,
        hwcap: 0,
    };
    // The sort keeps the order of equal names, of which the linker takes the first.
    cache.entries.splice(0..0, libraries.iter().map(entry));
    cache.entries.sort_by(|one, other| compare(&other.name, &one.name));
    cache.to_bytes()
}

/// The libraries of 64 bits in a cache, in the order in which the linker looks; none if it is no cache.
#[must_use]
pub fn listed(cache: &[u8]) -> Vec<Library> {
    let entries = Cache::parse(cache).unwrap_or_default().entries;
    let native = entries.into_iter().filter(|entry| entry.flags == NATIVE && entry.hwcap == 0);
    let text = |bytes| String::from_utf8(bytes).ok();
    native.filter_map(|entry| Some(Library { name: text(entry.name)?, path: text(entry.path)? })).collect()
}

impl Cache {
    fn parse(file: &[u8]) -> Option<Self> {
        let bytes = match file.starts_with(OLD_MAGIC) {
            true => {
                let count = usize::try_from(word(file, 12)?).ok()?.min(MOST);
                file.get((16 + 12 * count).next_multiple_of(8)..)?
            }
            false => file,
        };
        if !bytes.starts_with(MAGIC) || !matches!(bytes.get(28)?, 0 | &LITTLE_ENDIAN) {
            return None;
        }
        let count = usize::try_from(word(bytes, 20)?).ok().filter(|count| *count <= MOST)?;
        let table = bytes.get(HEADER..HEADER.checked_add(ENTRY * count)?)?;
        let entry = |entry: &[u8]| {
            Some(Entry {
                flags: word(entry, 0)?,
                name: text(bytes, word(entry, 4)?)?,
                path: text(bytes, word(entry, 8)?)?,
                os_version: word(entry, 12)?,
                hwcap: u64::from(word(entry, 16)?) | u64::from(word(entry, 20)?) << 32,
            })
        };
        let (mut entries, mut text) = (vec![], 0);
        for read in table.chunks_exact(ENTRY).map(entry) {
            let read = read?;
            text += read.name.len() + read.path.len();
            // Many entries may name one long text, which would be kept for each.
            if text > MOST_TEXT {
                return None;
            }
            entries.push(read);
        }
        let variants = variants(bytes).unwrap_or_default();
        let is_known = |hwcap: u64| (hwcap & u64::from(u32::MAX)) < variants.len() as u64;
        // One of a variant that has no name would be taken where it may not run.
        entries.retain(|entry| entry.hwcap & IS_VARIANT == 0 || is_known(entry.hwcap));
        Some(Self { entries, variants })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (mut strings, mut table) = (vec![], vec![]);
        let start = HEADER + ENTRY * self.entries.len();
        let place = |strings: &mut Vec<u8>, text: &[u8]| {
            let at = start + strings.len();
            strings.extend_from_slice(text);
            strings.push(0);
            offset(at).to_le_bytes()
        };
        for entry in &self.entries {
            table.extend(entry.flags.to_le_bytes());
            table.extend(place(&mut strings, &entry.name));
            table.extend(place(&mut strings, &entry.path));
            table.extend(entry.os_version.to_le_bytes());
            table.extend(entry.hwcap.to_le_bytes());
        }
        let names: Vec<[u8; 4]> = self.variants.iter().map(|name| place(&mut strings, name)).collect();
        let length = offset(strings.len());
        strings.resize(strings.len().next_multiple_of(4), 0);
        let extension = if names.is_empty() { 0 } else { offset(start + strings.len()) };
        let count = offset(self.entries.len());
        let mut bytes = MAGIC.to_vec();
        bytes.extend(count.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend([LITTLE_ENDIAN, 0, 0, 0]);
        bytes.extend(extension.to_le_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend([table, strings].concat());
        if extension > 0 {
            let size = offset(4 * names.len());
            let head = [EXTENSION, 1, VARIANTS, 0, extension + 24, size];
            bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(names.concat());
        }
        bytes
    }
}

/// A place in a cache as it is written there. What is read has a limit far below what 32 bits count.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// The names of variants in the part behind a cache's texts.
fn variants(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let at = usize::try_from(word(bytes, 32)?).ok().filter(|at| *at > 0)?;
    let extension = bytes.get(at..)?;
    if word(extension, 0)? != EXTENSION {
        return None;
    }
    let count = usize::try_from(word(extension, 4)?).ok()?.min(64);
    let section =
        (0..count).map(|number| 8 + 16 * number).find(|at| word(extension, *at) == Some(VARIANTS))?;
    let (from, size) = (
        usize::try_from(word(extension, section + 8)?).ok()?,
        usize::try_from(word(extension, section + 12)?).ok()?,
    );
    let names = bytes.get(from..from.checked_add(size.min(4 * 64))?)?;
    names.chunks_exact(4).map(|name| text(bytes, word(name, 0)?)).collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

/// Longer paths no file has.
const LONGEST: usize = 4096;

fn text(bytes: &[u8], at: u32) -> Option<Vec<u8>> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let rest = &rest[..rest.len().min(LONGEST)];
    rest.iter().position(|byte| *byte == 0).map(|end| rest[..end].to_vec())
}

/// The linker's order of names, by which it looks for one: numbers count as such, and stand behind letters.
fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let (mut one, mut other) = (one, other);
    loop {
        match (one.first(), other.first()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let ((a, rest_one), (b, rest_other)) = (number(one), number(other));
                match a.cmp(&b) {
                    Ordering::Equal => (one, other) = (rest_one, rest_other),
                    unlike => return unlike,
                }
            }
            (Some(a), _) if a.is_ascii_digit() => return Ordering::Greater,
            (Some(_), None) => return Ordering::Greater,
            (Some(_), Some(b)) if b.is_ascii_digit() => return Ordering::Less,
            (Some(a), Some(b)) if a == b => (one, other) = (&one[1..], &other[1..]),
            // As C compares its characters, which have a sign.
            (Some(a), Some(b)) => return a.cast_signed().cmp(&b.cast_signed()),
        }
    }
}

/// The number that a text begins with, and the rest. The linker computes in 32 bits, which wrap.
fn number(text: &[u8]) -> (i32, &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let value = text[..end]
        .iter()
        .fold(0_i32, |value, digit| value.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
    (value, &text[end..])
}

/// What a cache says of a library, for tests: the paths by its name, in order.
#[cfg(test)]
pub(crate) fn paths_of(cache: &[u8], name: &str) -> Vec<String> {
    let cache = Cache::parse(cache).expect("a cache");
    let named = cache.entries.iter().filter(|entry| entry.name == name.as_bytes());
    named.map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect()
}

/// Whether a cache stands in the order that this module takes for the linker's, for tests.
#[cfg(test)]
pub(crate) fn is_in_order(cache: &[u8]) -> bool {
    let entries = Cache::parse(cache).expect("a cache").entries;
    entries.windows(2).all(|pair| compare(&pair[0].name, &pair[1].name) != Ordering::Less)
}

/// Reads a cache, writes it, and reads it again.
#[doc(hidden)]
pub(crate) fn check(bytes: &[u8]) {
    let Some(mut cache) = Cache::parse(bytes) else { return };
    cache.entries.sort_by(|one, other| compare(&other.name, &one.name));
    let again = Cache::parse(&merged(Some(bytes), &[])).expect("what was written is a cache");
    assert_eq!(again, cache);
}
