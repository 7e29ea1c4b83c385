//! What the linker has to know of a library: its name, which others and which glibc it needs, or which glibc it is. Only the dynamic section of 64-bit ELF files is read,
//! as elf(5) and the gABI describe it.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::symbol_versions::SymbolVersions;

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GlibcVersion(pub u32, pub u32);

/// What is known of a library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfFacts {
    /// The name that programs ask for.
    pub soname: Option<String>,
    /// The libraries that it needs, by the names that it asks for.
    pub libraries: Vec<String>,
    /// Directories in which the linker looks for them before all others, with `$ORIGIN` for its own.
    pub search: Vec<String>,
    /// The newest glibc of which it needs a symbol.
    pub needs: Option<GlibcVersion>,
    /// The newest glibc of which it has a symbol.
    pub has: Option<GlibcVersion>,
    /// The newest version of each kind of symbols that it has.
    pub versions: SymbolVersions,
}

/// More entries no table of a library has.
const MOST_ENTRIES: usize = 4096;
/// Longer names no library has, in bytes.
const LONGEST_NAME: usize = 255;
/// Longer lists of directories none has, in bytes.
const LONGEST_PATHS: usize = 64 << 10;
/// More others than a library needs.
const MOST_LIBRARIES: usize = 512;

/// `PT_LOAD` and `PT_DYNAMIC` of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;

/// `DT_NEEDED`, `DT_STRTAB`, `DT_SONAME`, `DT_RPATH`, `DT_RUNPATH`, `DT_VERDEF` and `DT_VERNEED` of dynamic sections.
const LIBRARY: u64 = 1;
const STRINGS: u64 = 5;
const SONAME: u64 = 14;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;
const DEFINED: u64 = 0x6fff_fffc;
const NEEDED: u64 = 0x6fff_fffe;

/// glibc marks by this name that it understands packed relocations, which it does from 2.36 on.
const PACKED_RELOCATIONS: &str = "GLIBC_ABI_DT_RELR";

/// What bytes are read from by their place.
pub(crate) trait Bytes {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<usize>;
}

impl Bytes for File {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_at(&mut buffer[filled..], at.checked_add(filled as u64)?) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(filled)
    }
}

impl Bytes for [u8] {
    fn fill(&self, buffer: &mut [u8], at: u64) -> Option<usize> {
        let rest = self.get(usize::try_from(at).ok()?..)?;
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Some(length)
    }
}

impl GlibcVersion {
    /// Reads `GLIBC_2.34`; nothing of names that are no version.
    fn parse(name: &str) -> Option<Self> {
        if name == PACKED_RELOCATIONS {
            return Some(Self(2, 36));
        }
        let mut parts = name.strip_prefix("GLIBC_")?.split('.');
        Some(Self(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

impl fmt::Display for GlibcVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.0, self.1)
    }
}

impl ElfFacts {
    /// Of a file; nothing if it is no library of 64 bits.
    #[must_use]
    pub fn of(file: &File) -> Option<Self> {
        read(file)
    }
}

struct Elf<'a, B: ?Sized> {
    bytes: &'a B,
    /// Address, size and place in the file of each part that is loaded.
    loaded: Vec<[u64; 3]>,
    strings: u64,
}

pub(crate) fn read<B: Bytes + ?Sized>(bytes: &B) -> Option<ElfFacts> {
    let mut head = [0; 64];
    bytes.fill(&mut head, 0).filter(|read| *read == head.len())?;
    // 64 bits, and the lowest byte first.
    if head[..6] != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let (table, entry, count) = (long(&head, 32)?, half(&head, 54)?, half(&head, 56)?);
    if entry != 56 || count == 0 || usize::from(count) > MOST_ENTRIES {
        return None;
    }
    let headers = some(bytes, table, 56 * usize::from(count))?;
    let mut elf = Elf { bytes, loaded: vec![], strings: 0 };
    let mut dynamic = None;
    for header in headers.chunks_exact(56) {
        match word(header, 0)? {
            LOAD => elf.loaded.push([long(header, 16)?, long(header, 32)?, long(header, 8)?]),
            DYNAMIC => dynamic = Some((long(header, 8)?, long(header, 32)?)),
            _ => {}
        }
    }
    let (at, size) = dynamic?;
    let section = some(bytes, at, usize::try_from(size).ok()?.min(16 * MOST_ENTRIES))?;
    let entries = || {
        let entries = section.chunks_exact(16).filter_map(|entry| Some((long(entry, 0)?, long(entry, 8)?)));
        entries.take_while(|(tag, _)| *tag != 0)
    };
    let entry = |wanted: u64| entries().find_map(|(tag, value)| (tag == wanted).then_some(value));
    elf.strings = elf.place(entry(STRINGS)?)?;
    let soname = entry(SONAME).and_then(|offset| elf.string(offset));
    let names = |tag: u64, kind: Table| {
        entry(tag).and_then(|at| elf.place(at)).and_then(|at| elf.versions(at, kind)).unwrap_or_default()
    };
    let newest = |names: &[String]| names.iter().filter_map(|name| GlibcVersion::parse(name)).max();
    let (needed, defined) = (names(NEEDED, Table::Needed), names(DEFINED, Table::Defined));
    let (needs, has) = (newest(&needed), newest(&defined));
    let versions = SymbolVersions::of(defined.iter().map(String::as_str));
    let named = entries().filter(|(tag, _)| *tag == LIBRARY).take(MOST_LIBRARIES);
    let libraries = named.filter_map(|(_, offset)| elf.string(offset)).collect();
    // The linker does not look at the older kind where there is the newer.
    let path = entry(RUNPATH).or(entry(RPATH)).and_then(|offset| elf.string_up_to(offset, LONGEST_PATHS));
    let search =
        path.unwrap_or_default().split(':').filter(|dir| !dir.is_empty()).map(String::from).collect();
    Some(ElfFacts { soname, libraries, search, needs, has, versions })
}

/// A table of versions in a library.
#[derive(Clone, Copy)]
enum Table {
    Needed,
    Defined,
}

impl<B: Bytes + ?Sized> Elf<'_, B> {
    /// Where in the file an address is.
    fn place(&self, address: u64) -> Option<u64> {
        let part = self
            .loaded
            .iter()
            .find(|[from, size, _]| address.checked_sub(*from).is_some_and(|at| at < *size))?;
        (address - part[0]).checked_add(part[2])
    }

    fn string(&self, offset: u64) -> Option<String> {
        self.string_up_to(offset, LONGEST_NAME)
    }

    fn string_up_to(&self, offset: u64, longest: usize) -> Option<String> {
        let mut buffer = vec![0; longest + 1];
        let read = self.bytes.fill(&mut buffer, self.strings.checked_add(offset)?)?;
        let text = buffer[..read].split(|byte| *byte == 0).next()?;
        (text.len() < read).then(|| std::str::from_utf8(text).ok().map(String::from))?
    }

    /// The names in a table of versions: entries, each with a chain of names.
    fn versions(&self, table: u64, kind: Table) -> Option<Vec<String>> {
        let (mut names, mut left) = (vec![], MOST_ENTRIES);
        let mut at = table;
        for _ in 0..MOST_ENTRIES {
            let size = if matches!(kind, Table::Needed) { 16 } else { 20 };
            let entry = some(self.bytes, at, size)?;
            let (count, first, next) = match kind {
                Table::Needed => (half(&entry, 2)?, word(&entry, 8)?, word(&entry, 12)?),
                // The first name is its own, those behind it its parents'.
                Table::Defined => (half(&entry, 6)?.min(1), word(&entry, 12)?, word(&entry, 16)?),
            };
            let mut name_at = at.checked_add(first.into())?;
            for _ in 0..count {
                left = left.checked_sub(1)?;
                let name = match kind {
                    Table::Needed => some(self.bytes, name_at, 16)?,
                    Table::Defined => some(self.bytes, name_at, 8)?,
                };
                let (text, behind) = match kind {
                    Table::Needed => (word(&name, 8)?, word(&name, 12)?),
                    Table::Defined => (word(&name, 0)?, word(&name, 4)?),
                };
                names.extend(self.string(text.into()));
                name_at = name_at.checked_add(behind.into())?;
            }
            if next == 0 {
                break;
            }
            at = at.checked_add(next.into())?;
        }
        Some(names)
    }
}

fn some<B: Bytes + ?Sized>(bytes: &B, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; length];
    bytes.fill(&mut buffer, at).filter(|read| *read == length)?;
    Some(buffer)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}
