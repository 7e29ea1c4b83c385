//! The entries of a stream, and the data of each.

use crate::header::{self, Header, RECORD};
use crate::pax::{self, Pax, Scope};
use crate::sparse::{self, Segment};
use crate::{ByteStream, EntryKind, Error, LONGEST_PATH, TarEntry};

/// No longer body of a PAX header or GNU long name.
const LONGEST_META: u64 = 4 << 20;

/// Reads the entries of a stream, and the data of each.
pub struct TarReader<S> {
    stream: S,
    /// How many bytes of the stream have been used.
    at: u64,
    /// How many bytes of data of the current entry have not.
    left: u64,
    /// And how many that fill its last record.
    padding: u64,
    global: Pax,
    ended: bool,
}

/// What the headers before an entry say about it.
#[derive(Default)]
struct Before {
    pax: Option<Pax>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<S: ByteStream> TarReader<S> {
    /// A reader of all that the stream has.
    pub fn new(stream: S) -> TarReader<S> {
        TarReader { stream, at: 0, left: 0, padding: 0, global: Pax::default(), ended: false }
    }

    /// The stream, of which the archive's end and what follows it may be unread.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// The next entry, whatever of the current one's data is unread; `None` at the archive's end, which is two records of
    /// zeros or the end of the stream.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>, Error<S::Error>> {
        let began = self.at + self.left + self.padding;
        self.try_next().map_err(|error| match error {
            Error::Bad(why) => Error::Bad(format!("{why} (in the entry at byte {began} of the tar stream)")),
            error => error,
        })
    }

    fn try_next(&mut self) -> Result<Option<TarEntry>, Error<S::Error>> {
        let mut before = Before::default();
        loop {
            self.skip_rest()?;
            let Some(record) = self.header_record()? else { return Ok(None) };
            let header = Header::new(&record).ok_or_else(|| bad("no tar header: its checksum is wrong"))?;
            match header.flag() {
                b'x' | b'X' => {
                    let mut pax = self.global.clone();
                    pax.add(&self.meta(&header)?, Scope::Local).map_err(Error::Bad)?;
                    before.pax = Some(pax);
                }
                b'g' => {
                    let body = self.meta(&header)?;
                    self.global.add(&body, Scope::Global).map_err(Error::Bad)?;
                }
                b'L' => before.long_name = Some(header::text(&self.meta(&header)?).to_vec()),
                b'K' => before.long_link = Some(header::text(&self.meta(&header)?).to_vec()),
                // The label of a volume of GNU tar.
                b'V' => self.expect(size_of(&header).map_err(Error::Bad)?),
                _ => return self.entry(&header, before).map(Some),
            }
        }
    }

    /// Some of what is left of the current entry's data; nothing at its end.
    pub fn data(&mut self) -> Result<&[u8], Error<S::Error>> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let buffer = self.stream.fill()?;
        if buffer.is_empty() {
            return Err(cut_off(self.left));
        }
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        Ok(&buffer[..len])
    }

    /// So many bytes of what [`TarReader::data`] gave have been used.
    pub fn consume(&mut self, used: usize) {
        self.stream.consume(used);
        self.at += used as u64;
        self.left -= used as u64;
    }

    /// How many bytes of the stream have been used: at an entry, where its data begins.
    pub fn at(&self) -> u64 {
        self.at
    }

    fn expect(&mut self, data: u64) {
        self.left = data;
        self.padding = data.wrapping_neg() % RECORD as u64;
    }

    /// Skips what is unread of the current entry. The padding may be missing at the stream's end, as some writers have it.
    fn skip_rest(&mut self) -> Result<(), Error<S::Error>> {
        while self.left > 0 {
            match self.stream.skip(self.left)? {
                0 => return Err(cut_off(self.left)),
                skipped => {
                    self.at += skipped;
                    self.left -= skipped;
                }
            }
        }
        self.left = std::mem::take(&mut self.padding);
        while self.left > 0 {
            match self.stream.fill()?.len() {
                0 => self.left = 0,
                len => self.consume(len.min(self.left as usize)),
            }
        }
        Ok(())
    }

    /// The next record that is not the archive's end.
    fn header_record(&mut self) -> Result<Option<[u8; RECORD]>, Error<S::Error>> {
        if self.ended {
            return Ok(None);
        }
        let first = self.record()?.filter(|record| *record != [0; RECORD]);
        if first.is_none() {
            self.ended = true;
            // Nothing, or zeros, may follow a record of zeros. A single one amid headers is damage, not an end.
            if self.record()?.is_some_and(|second| second != [0; RECORD]) {
                return Err(bad("a header behind a single record of zeros"));
            }
        }
        Ok(first)
    }

    /// The next 512 bytes; `None` if there is nothing more.
    fn record(&mut self) -> Result<Option<[u8; RECORD]>, Error<S::Error>> {
        let mut record = [0; RECORD];
        let mut have = 0;
        while have < RECORD {
            let buffer = self.stream.fill()?;
            let len = buffer.len().min(RECORD - have);
            match (len, have) {
                (0, 0) => return Ok(None),
                (0, _) => return Err(bad("the stream ends within a header")),
                _ => record[have..have + len].copy_from_slice(&buffer[..len]),
            }
            self.stream.consume(len);
            self.at += len as u64;
            have += len;
        }
        Ok(Some(record))
    }

    /// The body of a header that is about the next one.
    fn meta(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Error<S::Error>> {
        let size = size_of(header).map_err(Error::Bad)?;
        if size > LONGEST_META {
            return Err(bad(format!("a header of {size} bytes, more than the {LONGEST_META} allowed")));
        }
        self.expect(size);
        let mut body = vec![];
        while self.left > 0 {
            let data = self.data()?;
            let len = data.len();
            body.extend_from_slice(data);
            self.consume(len);
        }
        Ok(body)
    }

    fn entry(&mut self, header: &Header<'_>, before: Before) -> Result<TarEntry, Error<S::Error>> {
        let mut pax = before.pax.unwrap_or_else(|| self.global.clone());
        let path = before.long_name.or(pax.path.take()).unwrap_or_else(|| header.name());
        let link = before.long_link.or(pax.link.take()).unwrap_or_else(|| header.link());
        // The header's own size cannot be trusted where PAX gives one: it may be 0, or all that fits.
        let stored = match pax.size {
            Some(size) => size,
            None => size_of(header).map_err(Error::Bad)?,
        };
        let kind = match kind_of(header, &path).map_err(Error::Bad)? {
            Shape::File => self.file(header, &pax, stored)?,
            // Whatever size they give, no data follows: it does in no archive that Go or GNU tar would write.
            Shape::HardLink => EntryKind::HardLink(bounded(link).map_err(Error::Bad)?),
            Shape::Symlink => EntryKind::Symlink(bounded(link).map_err(Error::Bad)?),
            Shape::NoData(kind) => kind,
            Shape::GnuDirectory => {
                self.expect(stored);
                EntryKind::Directory
            }
        };
        let path = match (&kind, pax.sparse.name.take()) {
            (EntryKind::Sparse { .. }, Some(name)) => name,
            _ => path,
        };
        let (mtime, mtime_nsec) = match pax.mtime {
            Some(time) => time,
            None => (header.number(header::MTIME).map_err(Error::Bad)?, 0),
        };
        let mode = (header.number(header::MODE).map_err(Error::Bad)? & 0o7777) as u16;
        let uid = id(pax.uid, header, header::UID).map_err(Error::Bad)?;
        let gid = id(pax.gid, header, header::GID).map_err(Error::Bad)?;
        Ok(TarEntry {
            path: bounded(path).map_err(Error::Bad)?,
            kind,
            mode,
            uid,
            gid,
            mtime,
            mtime_nsec,
            xattrs: pax.xattrs,
        })
    }

    /// A file's kind: sparse by GNU tar's header, by PAX records, or not.
    fn file(&mut self, header: &Header<'_>, pax: &Pax, stored: u64) -> Result<EntryKind, Error<S::Error>> {
        let keys = &pax.sparse;
        if header.flag() == b'S' {
            let mut map = sparse::GnuMap::new(header.record()).map_err(Error::Bad)?;
            while map.continues {
                let extension =
                    self.record()?.ok_or_else(|| bad("the stream ends within a sparse file's map"))?;
                map.extend(&extension).map_err(Error::Bad)?;
            }
            self.expect(stored);
            return self.sparse(map.map, map.size);
        }
        self.expect(stored);
        match (keys.major, keys.minor) {
            (Some(1), Some(0)) => {
                let map = self.map_before_data()?;
                self.sparse(map, keys.size.ok_or_else(|| bad("a sparse file without its size"))?)
            }
            (None | Some(0), _) => match (&keys.map, keys.size) {
                (Some(map), Some(size)) => self.sparse(map.clone(), size),
                (Some(_), None) => Err(bad("a sparse file without its size")),
                (None, _) => Ok(EntryKind::File(stored)),
            },
            (Some(major), minor) => {
                Err(bad(format!("a sparse file of the unknown version {major}.{}", minor.unwrap_or(0))))
            }
        }
    }

    fn sparse(&mut self, map: Vec<Segment>, size: u64) -> Result<EntryKind, Error<S::Error>> {
        sparse::check(&map, size, self.left).map_err(Error::Bad)?;
        Ok(EntryKind::Sparse { size, map })
    }

    /// The map of version 1.0, decimal numbers on lines of their own, which fills whole records at the data's beginning.
    fn map_before_data(&mut self) -> Result<Vec<Segment>, Error<S::Error>> {
        let end = self.left;
        let count = self.line()?;
        if count > sparse::MOST_SEGMENTS as u64 {
            return Err(Error::Bad(sparse::too_many(count as usize)));
        }
        let mut map = vec![];
        for _ in 0..count {
            map.push(Segment { offset: self.line()?, len: self.line()? });
        }
        let mut fill = (end - self.left).wrapping_neg() % RECORD as u64;
        while fill > 0 {
            let len = self.data()?.len().min(fill as usize);
            if len == 0 {
                return Err(bad("a sparse file whose map has no end"));
            }
            self.consume(len);
            fill -= len as u64;
        }
        Ok(map)
    }

    fn line(&mut self) -> Result<u64, Error<S::Error>> {
        let mut digits = vec![];
        // No number has more digits.
        while digits.len() <= 20 {
            let Some(&byte) = self.data()?.first() else { break };
            self.consume(1);
            if byte == b'\n' {
                return pax::unsigned(&digits).map_err(Error::Bad);
            }
            digits.push(byte);
        }
        Err(bad("a sparse file whose map is not one of numbers"))
    }
}

/// What a type flag asks for.
enum Shape {
    File,
    HardLink,
    Symlink,
    NoData(EntryKind),
    /// With a list of names in it, which is of no use here.
    GnuDirectory,
}

fn kind_of(header: &Header<'_>, path: &[u8]) -> Result<Shape, String> {
    let device = || {
        let (major, minor) = header.device()?;
        match (u32::try_from(major), u32::try_from(minor)) {
            (Ok(major), Ok(minor)) => Ok((major, minor)),
            _ => Err(format!("a device with the impossible numbers {major}:{minor}")),
        }
    };
    Ok(match header.flag() {
        // V7 had no flag for directories.
        0 if path.ends_with(b"/") => Shape::NoData(EntryKind::Directory),
        0 | b'0' | b'7' | b'S' => Shape::File,
        b'1' => Shape::HardLink,
        b'2' => Shape::Symlink,
        b'3' => device().map(|(major, minor)| Shape::NoData(EntryKind::CharDevice(major, minor)))?,
        b'4' => device().map(|(major, minor)| Shape::NoData(EntryKind::BlockDevice(major, minor)))?,
        b'5' => Shape::NoData(EntryKind::Directory),
        b'6' => Shape::NoData(EntryKind::Fifo),
        b'D' => Shape::GnuDirectory,
        flag => return Err(format!("an entry of the unknown type {:?}", char::from(flag))),
    })
}

fn size_of(header: &Header<'_>) -> Result<u64, String> {
    let size = header.number(header::SIZE)?;
    u64::try_from(size).map_err(|_| format!("a size of {size}"))
}

fn id(pax: Option<i64>, header: &Header<'_>, field: std::ops::Range<usize>) -> Result<u32, String> {
    let id = match pax {
        Some(id) => id,
        None => header.number(field)?,
    };
    // The last one stands for "no id" in Linux.
    let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| "an owner or group that is not between 0 and 4294967294".into())
}

fn bounded(path: Vec<u8>) -> Result<Vec<u8>, String> {
    match path.len() {
        0..=LONGEST_PATH => Ok(path),
        len => Err(format!("a path of {len} bytes, more than the {LONGEST_PATH} allowed")),
    }
}

fn cut_off<E>(left: u64) -> Error<E> {
    bad(format!("the stream ends {left} bytes before its file does"))
}

fn bad<E>(why: impl Into<String>) -> Error<E> {
    Error::Bad(why.into())
}
