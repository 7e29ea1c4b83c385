//! Writes tar streams in the PAX form: what a header has no room for stands in records before it.
//!
//! The same files give the same bytes. Numbers that PAX has no need to repeat stand in base 256 where octal digits do not do.

use std::io::{self, Write};

use super::header::{GID, MAJOR, MINOR, MODE, MTIME, RECORD, SIZE, UID};
use super::{EntryKind, Segment, TarEntry};

/// Length of a header without records, in bytes.
pub const HEADER: usize = RECORD;

/// An archive, which is that only once [`Writer::end`] was called.
pub struct Writer<W> {
    out: W,
    /// How many bytes have been written.
    at: u64,
    /// How many bytes of the current entry's data are to come, and what fills its last record.
    left: u64,
    padding: usize,
}

impl<W: Write> Writer<W> {
    /// Nothing yet.
    pub fn new(out: W) -> Writer<W> {
        Writer { out, at: 0, left: 0, padding: 0 }
    }

    /// Begins an entry. A file's bytes are to follow, all of them; of a sparse one those of its map, which is in the form 1.0 of GNU tar. That reads
    /// a file only by whole records: parts of a map should begin and end at multiples of them, but for the file's end.
    ///
    /// # Errors
    /// Of `out`; `InvalidInput` if bytes of the entry before are missing.
    pub fn entry(&mut self, entry: &TarEntry) -> io::Result<()> {
        self.end_entry()?;
        let map = match &entry.kind {
            EntryKind::Sparse { map, .. } => map_text(map),
            _ => vec![],
        };
        let (flag, link, size): (u8, &[u8], u64) = match &entry.kind {
            EntryKind::File(size) => (b'0', b"", *size),
            EntryKind::Sparse { map: parts, .. } => {
                (b'0', b"", map.len() as u64 + parts.iter().map(|part| part.len).sum::<u64>())
            }
            EntryKind::HardLink(target) => (b'1', target, 0),
            EntryKind::Symlink(target) => (b'2', target, 0),
            EntryKind::CharDevice(..) => (b'3', b"", 0),
            EntryKind::BlockDevice(..) => (b'4', b"", 0),
            EntryKind::Directory => (b'5', b"", 0),
            EntryKind::Fifo => (b'6', b"", 0),
        };
        let records = records(entry, size);
        if !records.is_empty() {
            let pax = header(b'x', b"././@PaxHeader", b"", records.len() as u64, &PAX_HEADER);
            self.put(&pax)?;
            self.put(&records)?;
            self.pad(padding(records.len() as u64))?;
        }
        self.put(&header(flag, &entry.path, link, size, entry))?;
        self.left = size;
        self.padding = padding(size);
        self.data(&map)
    }

    /// The next bytes of the current entry's data.
    ///
    /// # Errors
    /// Of `out`; `InvalidInput` if they are more than its size.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| io::Error::other("an entry has more bytes than its header says"))?;
        self.put(bytes)
    }

    /// Ends the archive; gives how many bytes it has.
    ///
    /// # Errors
    /// As [`Writer::entry`].
    pub fn end(&mut self) -> io::Result<u64> {
        self.end_entry()?;
        self.put(&[0; 2 * RECORD])?;
        self.out.flush()?;
        Ok(self.at)
    }

    /// Where the data went.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn end_entry(&mut self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::other("an entry has fewer bytes than its header says"));
        }
        let padding = std::mem::take(&mut self.padding);
        self.pad(padding)
    }

    fn pad(&mut self, len: usize) -> io::Result<()> {
        self.put(&[0; RECORD][..len])
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// The header alone of an entry that needs no records, but for a size of 8 GiB or more: of a number in base 256 all programs
/// understand that too.
#[must_use]
pub fn plain_header(entry: &TarEntry) -> [u8; HEADER] {
    let EntryKind::File(size) = entry.kind else { return header(b'0', &entry.path, b"", 0, entry) };
    header(b'0', &entry.path, b"", size, entry)
}

const PAX_HEADER: TarEntry = TarEntry::plain_file(vec![], 0);

fn padding(size: u64) -> usize {
    (size.wrapping_neg() % RECORD as u64) as usize
}

/// The map in front of a sparse file's data: numbers on lines of their own, up to the end of a record.
fn map_text(map: &[Segment]) -> Vec<u8> {
    let mut text = format!("{}\n", map.len());
    for Segment { offset, len } in map {
        text.push_str(&format!("{offset}\n{len}\n"));
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(RECORD), 0);
    bytes
}

/// What the header has no room for. `stored` is how many bytes follow.
fn records(entry: &TarEntry, stored: u64) -> Vec<u8> {
    let mut records = vec![];
    if entry.path.len() > 100 {
        records.extend(record(b"path", &entry.path));
    }
    if let EntryKind::HardLink(target) | EntryKind::Symlink(target) = &entry.kind
        && target.len() > 100
    {
        records.extend(record(b"linkpath", target));
    }
    for (key, id) in [("uid", entry.uid), ("gid", entry.gid)] {
        if id > 0o777_7777 {
            records.extend(record(key.as_bytes(), id.to_string().as_bytes()));
        }
    }
    if entry.mtime_nsec > 0 || !(0..1 << 33).contains(&entry.mtime) {
        records.extend(record(b"mtime", time(entry.mtime, entry.mtime_nsec).as_bytes()));
    }
    if stored >= 1 << 33 {
        records.extend(record(b"size", stored.to_string().as_bytes()));
    }
    if let EntryKind::Sparse { size, .. } = &entry.kind {
        records.extend(record(b"GNU.sparse.major", b"1"));
        records.extend(record(b"GNU.sparse.minor", b"0"));
        records.extend(record(b"GNU.sparse.name", &entry.path));
        records.extend(record(b"GNU.sparse.realsize", size.to_string().as_bytes()));
    }
    for (name, value) in &entry.xattrs {
        records.extend(record(&[b"SCHILY.xattr.", &name[..]].concat(), value));
    }
    records
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + rest.to_string().len();
    if len.to_string().len() > rest.to_string().len() {
        len += 1;
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Half a second before 1970 is "-0.5".
fn time(seconds: i64, nanos: u32) -> String {
    let (sign, whole, nanos) = match (seconds, nanos) {
        (..0, 1..) => ("-", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
        (..0, 0) => ("-", seconds.unsigned_abs(), 0),
        _ => ("", seconds as u64, nanos),
    };
    let fraction = format!("{nanos:09}");
    match fraction.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        fraction => format!("{sign}{whole}.{fraction}"),
    }
}

/// A header of the ustar form.
fn header(flag: u8, path: &[u8], link: &[u8], size: u64, entry: &TarEntry) -> [u8; RECORD] {
    let mut header = [0; RECORD];
    let mut text = |at: usize, text: &[u8]| {
        let len = text.len().min(100);
        header[at..at + len].copy_from_slice(&text[..len]);
    };
    text(0, path);
    text(157, link);
    let (major, minor) = match entry.kind {
        EntryKind::CharDevice(major, minor) | EntryKind::BlockDevice(major, minor) => (major, minor),
        _ => (0, 0),
    };
    for (field, value) in [
        (MODE, u64::from(entry.mode)),
        (UID, entry.uid.into()),
        (GID, entry.gid.into()),
        (SIZE, size),
        // Times before 1970 stand in a record.
        (MTIME, u64::try_from(entry.mtime).unwrap_or(0)),
        (MAJOR, major.into()),
        (MINOR, minor.into()),
    ] {
        number(&mut header[field], value);
    }
    header[156] = flag;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// In octal, or in base 256 with the first bit set.
fn number(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let octal = format!("{value:0digits$o}");
    if octal.len() == digits {
        field[..digits].copy_from_slice(octal.as_bytes());
        return;
    }
    let bytes = value.to_be_bytes();
    let len = bytes.len().min(field.len() - 1);
    let start = field.len() - len;
    field[0] = 0x80;
    field[start..].copy_from_slice(&bytes[bytes.len() - len..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TarReader;

    fn entry(path: &[u8], kind: EntryKind) -> TarEntry {
        TarEntry { path: path.to_vec(), kind, mode: 0o644, ..PAX_HEADER }
    }

    fn all_kinds() -> Vec<TarEntry> {
        let long = [b'p'; 300];
        let mut entries = vec![
            entry(b"d", EntryKind::Directory),
            entry(&long, EntryKind::File(5)),
            entry(&long[..100], EntryKind::HardLink(long.to_vec())),
            entry(&long[..101], EntryKind::Symlink(long[..101].to_vec())),
            entry(b"\xff\xfe\n=", EntryKind::Fifo),
            entry(b"c", EntryKind::CharDevice(4095, (1 << 20) - 1)),
            entry(b"b", EntryKind::BlockDevice(8, 1)),
        ];
        for (at, (mtime, mtime_nsec)) in [
            (0, 1),
            (-1, 999_999_999),
            (-1, 0),
            (-62_135_596_800, 500_000_000),
            (1 << 33, 0),
            (253_402_300_799, 120_000_000),
        ]
        .into_iter()
        .enumerate()
        {
            entries.push(TarEntry {
                mtime,
                mtime_nsec,
                ..entry(format!("t{at}").as_bytes(), EntryKind::Fifo)
            });
        }
        entries.push(TarEntry { uid: u32::MAX - 1, gid: 1 << 21, ..entry(b"ids", EntryKind::Fifo) });
        let xattrs = vec![
            (b"security.capability".to_vec(), b"\x01\0\0\x02\n=\xff".to_vec()),
            (b"user.big".to_vec(), vec![7; 65_000]),
            (b"user.empty".to_vec(), vec![]),
        ];
        entries.push(TarEntry { xattrs, ..entry(b"xattrs", EntryKind::File(0)) });
        for len in 80..110 {
            let xattrs = vec![(b"user.x".to_vec(), vec![b'v'; len])];
            entries.push(TarEntry { xattrs, ..entry(format!("x{len}").as_bytes(), EntryKind::File(0)) });
        }
        entries
    }

    fn written(entries: &[TarEntry]) -> Vec<u8> {
        let mut writer = Writer::new(vec![]);
        for entry in entries {
            writer.entry(entry).unwrap();
            if let EntryKind::File(size) = entry.kind {
                writer.data(&vec![b'x'; size as usize]).unwrap();
            }
        }
        writer.end().unwrap();
        writer.into_inner()
    }

    #[test]
    fn our_reader_finds_what_was_written() {
        let entries = all_kinds();
        let bytes = written(&entries);
        let mut reader = TarReader::new(&bytes[..]);
        for entry in &entries {
            let mut read = reader.next_entry().unwrap().unwrap();
            read.xattrs.sort();
            assert_eq!(read, *entry);
        }
        assert!(reader.next_entry().unwrap().is_none());
    }

    #[test]
    fn another_reader_finds_the_names() {
        let entries = all_kinds();
        let bytes = written(&entries);
        let mut other = tar::Archive::new(&bytes[..]);
        let names: Vec<Vec<u8>> =
            other.entries().unwrap().map(|entry| entry.unwrap().path_bytes().into_owned()).collect();
        assert_eq!(names, entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn sizes_beyond_octal_digits_are_read() {
        for size in [0, (1 << 33) - 1, 1 << 33, 1 << 40, i64::MAX as u64] {
            let mut writer = Writer::new(vec![]);
            writer.entry(&entry(b"big", EntryKind::File(size))).unwrap();
            let bytes = writer.into_inner();
            let read = TarReader::new(&bytes[..]).next_entry().unwrap().unwrap();
            assert_eq!(read.kind, EntryKind::File(size));
        }
    }

    #[test]
    fn a_sparse_file_has_the_bytes_of_its_map() {
        let map = vec![
            Segment { offset: 512, len: 1024 },
            Segment { offset: 1 << 40, len: 3 },
            Segment { offset: (1 << 40) + 1024, len: 0 },
        ];
        let sparse = entry(&[b's'; 200], EntryKind::Sparse { size: (1 << 40) + 1024, map });
        let mut writer = Writer::new(vec![]);
        writer.entry(&sparse).unwrap();
        assert!(writer.entry(&entry(b"early", EntryKind::Fifo)).is_err());
        writer.data(&[b'x'; 1027]).unwrap();
        let last = entry(b"last", EntryKind::Fifo);
        writer.entry(&last).unwrap();
        writer.end().unwrap();
        let bytes = writer.into_inner();
        let mut reader = TarReader::new(&bytes[..]);
        assert_eq!(reader.next_entry().unwrap().unwrap(), sparse);
        assert_eq!(reader.data().unwrap()[..1027], [b'x'; 1027]);
        assert_eq!(reader.next_entry().unwrap().unwrap(), last);
    }

    #[test]
    fn a_file_has_the_bytes_that_it_promised() {
        let mut writer = Writer::new(vec![]);
        writer.entry(&entry(b"f", EntryKind::File(3))).unwrap();
        assert!(writer.data(b"four").is_err());
        writer.data(b"th").unwrap();
        assert!(writer.entry(&entry(b"g", EntryKind::Fifo)).is_err());
    }
}
