//! Compressed archives: as layers are, with gzip or zstd, and as no layer is, with xz or bzip2, as distributions offer the files of their roots.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bzip2::read::MultiBzDecoder;
use lzma_rust2::XzReader;
use skiff_sys::SystemContext;
use skiff_sys::positional::write_all_at;
use skiff_tar::ByteStream;

use super::files::FilePart;
use crate::blob::FileBlob;
use crate::error::{Error, Result};
use crate::inflate::{InflateWatch, Inflater, LayerCompression};
use crate::spill::nameless;

/// As for layers: no archive inflates to more bytes.
const MOST_INFLATED: u64 = 1 << 40;

/// The memory that `xz -9` needs is 65 MiB; of a header that wants more, nothing is allocated.
const MOST_MEMORY_KIB: u32 = 128 << 10;
/// So many bytes are inflated between two questions whether to go on.
const BETWEEN_QUESTIONS: u64 = 16 << 20;
/// Inflated at once, in bytes.
const PIECE: usize = 256 << 10;

/// An archive without its compression, which its first bytes tell: itself, or a file without a name in `room`. Where `free` is given, so many bytes are
/// free there, of which half may be taken.
pub(crate) fn inflated_within(
    head: &[u8],
    part: FilePart,
    room: (BorrowedFd<'_>, &str),
    free: Option<u64>,
) -> Result<FilePart> {
    inflated_while(head, part, room, (free, &|| true))
}

/// The same, until `goes_on` says no.
pub(crate) fn inflated_while(
    head: &[u8],
    part: FilePart,
    room: (BorrowedFd<'_>, &str),
    (free, goes_on): (Option<u64>, &dyn Fn() -> bool),
) -> Result<FilePart> {
    let other = OtherCompression::of(head);
    let is_plain = matches!(LayerCompression::of(head), LayerCompression::Plain);
    if is_plain && other.is_none() {
        return Ok(part);
    }
    let mut to = InflatedFile::new(&part, room, (free, goes_on))?;
    match other.filter(|_| is_plain) {
        Some(compression) => compression.inflate(&part, &mut to)?,
        None => {
            let limit = to.limit();
            inflate_as_layer(&part, &limit, &mut |bytes| to.push(bytes).map(|()| true))?;
        }
    }
    Ok(to.end())
}

/// The first `most` bytes of an archive without its compression, or all of them, if there are fewer.
pub(crate) fn inflated_head(head: &[u8], part: &FilePart, most: usize) -> Result<Vec<u8>> {
    let mut found = vec![];
    match (LayerCompression::of(head), OtherCompression::of(head)) {
        (LayerCompression::Plain, None) => {
            found.resize(most.min(usize::try_from(part.size).unwrap_or(most)), 0);
            part.read(&mut found, 0)?;
        }
        (LayerCompression::Plain, Some(compression)) => {
            let (reader, called) = compression.reader(part);
            let read = reader.take(most as u64).read_to_end(&mut found);
            read.map_err(|error| bad(part, format!("its {called} stream: {error}")))?;
        }
        _ => inflate_as_layer(part, &Limit { object: part, free: None }, &mut |bytes| {
            found.extend(bytes);
            Ok(found.len() < most)
        })?,
    }
    found.truncate(most);
    Ok(found)
}

pub(super) fn bad(part: &FilePart, why: String) -> Error {
    Error::Foreign { object: part.name.clone(), why, hint: None }
}

/// How an archive is compressed that no layer is compressed by.
#[derive(Clone, Copy)]
enum OtherCompression {
    Bzip2,
    Xz,
}

impl OtherCompression {
    /// What the first bytes say.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [b'B', b'Z', b'h', ..] => Some(Self::Bzip2),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }

    /// An archive's bytes inflated, and what the compression is called.
    fn reader(self, part: &FilePart) -> (Box<dyn Read + '_>, &'static str) {
        let packed = BufReader::with_capacity(PIECE, PartReader { part, at: 0 });
        match self {
            Self::Bzip2 => (Box::new(MultiBzDecoder::new(packed)), "bzip2"),
            Self::Xz => (Box::new(XzReader::new_mem_limit(packed, true, MOST_MEMORY_KIB)), "xz"),
        }
    }

    /// Inflates an archive into `to`.
    fn inflate(self, part: &FilePart, to: &mut InflatedFile<'_>) -> Result<()> {
        let (mut reader, called) = self.reader(part);
        let mut piece = vec![0; PIECE];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => to.push(&piece[..count])?,
                Err(error) => return Err(bad(part, format!("its {called} stream: {error}"))),
            }
        }
    }
}

/// Hands an archive's bytes inflated to `push`, as long as that says that it wants more.
fn inflate_as_layer(
    part: &FilePart,
    limit: &Limit<'_>,
    push: &mut dyn FnMut(&[u8]) -> Result<bool>,
) -> Result<()> {
    let blob = FileBlob::part(Arc::clone(&part.file), part.name.clone(), part.offset, part.size, None);
    let mut inflater = Inflater::new(&blob, limit);
    loop {
        let bytes = inflater.fill().map_err(|error| match error {
            Error::BadLayer { why, .. } => bad(part, why),
            error => error,
        })?;
        if bytes.is_empty() || !push(bytes)? {
            return Ok(());
        }
        let used = bytes.len();
        inflater.consume(used);
    }
}

/// What an archive has been inflated to so far: a file without a name.
struct InflatedFile<'a> {
    archive: &'a FilePart,
    file: File,
    name: String,
    size: u64,
    /// How many bytes were free where it lies, if it is not to take them all.
    free: Option<u64>,
    goes_on: &'a dyn Fn() -> bool,
}

impl<'a> InflatedFile<'a> {
    fn new(
        archive: &'a FilePart,
        (room, room_name): (BorrowedFd<'_>, &str),
        (free, goes_on): (Option<u64>, &'a dyn Fn() -> bool),
    ) -> Result<Self> {
        let file = File::from(nameless(room).on("make a temporary file in", room_name)?);
        Ok(Self { archive, file, name: format!("a temporary file in {room_name}"), size: 0, free, goes_on })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let size = self.size + bytes.len() as u64;
        self.limit().check(size)?;
        write_all_at(self.file.as_fd(), bytes, self.size).on("write to", &self.name)?;
        let is_asked = size / BETWEEN_QUESTIONS > self.size / BETWEEN_QUESTIONS;
        self.size = size;
        if is_asked && !(self.goes_on)() { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn limit(&self) -> Limit<'a> {
        Limit { object: self.archive, free: self.free }
    }

    fn end(self) -> FilePart {
        FilePart { file: Arc::new(self.file), name: self.archive.name.clone(), offset: 0, size: self.size }
    }
}

/// Holds an archive that is inflated to a size that is possible.
struct Limit<'a> {
    object: &'a FilePart,
    free: Option<u64>,
}

impl Limit<'_> {
    fn check(&self, inflated: u64) -> Result<()> {
        // The files in it will need as much once more.
        let needed = inflated.saturating_mul(2);
        if let Some(free) = self.free.filter(|free| needed > *free) {
            let object = format!("unpacking {}, which takes twice the size of its content", self.object.name);
            return Err(Error::NoSpace { object, needed, free });
        }
        if inflated <= MOST_INFLATED {
            return Ok(());
        }
        Err(bad(self.object, format!("it inflates to more than {MOST_INFLATED} bytes")))
    }
}

impl InflateWatch for Limit<'_> {
    fn before_read(&self) -> Result<()> {
        Ok(())
    }

    fn wait(&self, read: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        read()
    }

    fn progress(&self, _read: u64, _inflated: u64) -> Result<()> {
        Ok(())
    }
}

/// The bytes of a part, one after the other.
struct PartReader<'a> {
    part: &'a FilePart,
    at: u64,
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = self.part.size - self.at;
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.part.read(&mut buffer[..count], self.at).map_err(std::io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn of_an_archive_no_more_is_inflated_than_is_looked_at() {
        let head_of = |packed: &[u8]| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(packed).expect("written");
            let part = FilePart::whole(file, "x.gz".into()).expect("a file");
            inflated_head(&packed[..packed.len().min(18)], &part, 1000)
        };
        let mut bytes = b"first".to_vec();
        assert_eq!(head_of(&bytes).expect("read"), bytes, "a plain file that has fewer");
        bytes.resize(8 << 20, 0);
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
        gzip.write_all(&bytes).expect("packed");
        let mut bzip2 = bzip2::write::BzEncoder::new(vec![], bzip2::Compression::fast());
        bzip2.write_all(&bytes).expect("packed");
        for mut packed in [gzip.finish().expect("packed"), bzip2.finish().expect("packed"), bytes.clone()] {
            // The end is not looked at.
            packed.extend(b"damaged");
            assert_eq!(head_of(&packed).expect("read"), bytes[..1000]);
        }
    }

    #[test]
    fn an_archive_takes_no_more_than_half_of_what_is_free() {
        let room = tempfile::tempdir().expect("a directory");
        let dir = File::open(room.path()).expect("opened");
        let inflate = |packed: &[u8], free| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(packed).expect("written");
            let part = FilePart::whole(file, "x.tar.gz".into()).expect("a file");
            inflated_within(packed, part, (dir.as_fd(), "room"), free)
        };
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
        gzip.write_all(&vec![0; 8 << 20]).expect("packed");
        let gzip = gzip.finish().expect("packed");
        let mut bzip2 = bzip2::write::BzEncoder::new(vec![], bzip2::Compression::fast());
        bzip2.write_all(&vec![0; 8 << 20]).expect("packed");
        let bzip2 = bzip2.finish().expect("packed");
        for packed in [gzip, bzip2] {
            assert_eq!(inflate(&packed, None).expect("inflated").size, 8 << 20);
            assert_eq!(inflate(&packed, Some(16 << 20)).expect("inflated").size, 8 << 20);
            let refused = inflate(&packed, Some((16 << 20) - 1)).map(|part| part.size).expect_err("too much");
            let refused = refused.to_string();
            let begins = "no space for unpacking x.tar.gz, which takes twice the size of its content: it needs at least ";
            assert!(refused.starts_with(begins), "{refused}");
            assert!(refused.ends_with(" MiB, 16.0 MiB are free"), "{refused}");
        }
    }
}
