//! Reads a layer from anywhere, believing nothing: depots can be written by their users.

use std::io::Read;

use rustix::io::Errno;

use super::{Attr, BUFFER, LayerRecord, MAGIC, NO_EXTENT, VERSION, tag};
use crate::digest::LayerId;
use crate::error::{Error, Result};
use crate::tree::{MAX_PATH, join, split};
use crate::xattr::{self, XattrList};
use skiff_sys::SystemError;
use skiff_sys::error::show;

/// All values of one entry's extended attributes together.
const MAX_XATTRS: usize = 16 << 20;
const MAX_NAME: usize = 255;

/// The records of a layer. What it gives is well-formed: names are single names, ascending in their directory; ids, modes, times
/// and extents are in range. Whether the layer is the one asked for, only [`LayerReader::finish`] tells.
pub struct LayerReader<R> {
    source: R,
    /// The layer's name, for messages.
    name: String,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    catalog: blake3::Hasher,
    records: u64,
    data: u64,
    links: u32,
    path: Vec<u8>,
    /// For each open directory, the last name seen in it.
    last: Vec<Option<Vec<u8>>>,
    content: Option<Content>,
    ended: bool,
}

/// The content being read.
struct Content {
    size: u64,
    /// No extent may begin before this.
    next: u64,
    /// What is left of the current extent.
    left: u64,
    hasher: blake3::Hasher,
}

impl<R: Read> LayerReader<R> {
    /// Begins to read a layer; `name` is for messages.
    pub fn new(source: R, name: String) -> Result<LayerReader<R>> {
        let mut reader = LayerReader {
            source,
            name,
            buffer: vec![0; BUFFER],
            at: 0,
            end: 0,
            catalog: blake3::Hasher::new(),
            records: 0,
            data: 0,
            links: 0,
            path: Vec::new(),
            last: Vec::new(),
            content: None,
            ended: false,
        };
        if &reader.array::<8>()? != MAGIC {
            return Err(reader.bad("it is not a layer file"));
        }
        let (version, reserved) = (reader.int()?, reader.int()?);
        if version != VERSION || reserved != 0 {
            return Err(Error::OtherVersion { layer: reader.name, version });
        }
        Ok(reader)
    }

    /// The next record; nothing after the end. What was not read of a file's content is read over, and checked.
    pub fn record(&mut self) -> Result<Option<LayerRecord>> {
        while self.extent()?.is_some() {
            while self.piece()?.is_some() {}
        }
        if self.ended {
            return Ok(None);
        }
        let record = self.parse()?;
        self.records += 1;
        Ok(Some(record))
    }

    fn parse(&mut self) -> Result<LayerRecord> {
        let [tag] = self.array()?;
        if self.last.is_empty()
            && !(tag == tag::DIR && self.records == 0 || tag == tag::END && self.records > 0)
        {
            return Err(self.bad("an entry is outside the root directory"));
        }
        Ok(match tag {
            tag::DIR => self.dir()?,
            tag::FILE => self.file()?,
            tag::SYMLINK => {
                let (name, attr) = (self.entry()?, self.bare_attr()?);
                let target = self.string(MAX_PATH)?;
                if target.is_empty() || target.contains(&0) {
                    return Err(self.bad("a symbolic link's target is empty or holds a NUL"));
                }
                LayerRecord::Symlink { name, attr, target }
            }
            tag::FIFO => LayerRecord::Fifo { name: self.entry()?, attr: self.bare_attr()? },
            tag::WHITEOUT => LayerRecord::Whiteout { name: self.entry()? },
            tag::LINK => {
                let (name, number) = (self.entry()?, self.int()?);
                if number >= self.links {
                    return Err(self.bad("a link to a file that did not come before"));
                }
                LayerRecord::Link { name, number }
            }
            tag::UP => {
                self.last.pop();
                self.path.truncate(split(&self.path).0.len());
                LayerRecord::Up
            }
            tag::END => self.end()?,
            _ => return Err(self.bad(&format!("a record of unknown kind {tag}"))),
        })
    }

    fn dir(&mut self) -> Result<LayerRecord> {
        let name = if self.last.is_empty() { self.string(0)? } else { self.entry()? };
        let (attr, opaque) = (self.attr()?, self.flag()?);
        self.path = join(&self.path, &name);
        self.last.push(None);
        Ok(LayerRecord::Dir { name, attr, opaque })
    }

    fn file(&mut self) -> Result<LayerRecord> {
        let (name, attr, linked) = (self.entry()?, self.attr()?, self.flag()?);
        let size = self.long()?;
        if size > i64::MAX.cast_unsigned() {
            return Err(self.bad("a file's size is out of range"));
        }
        self.links = self.links.saturating_add(u32::from(linked));
        self.content = Some(Content { size, next: 0, left: 0, hasher: blake3::Hasher::new() });
        Ok(LayerRecord::File { name, attr, linked, size })
    }

    fn end(&mut self) -> Result<LayerRecord> {
        let (records, data) = (self.long()?, self.long()?);
        if !self.last.is_empty() || (records, data) != (self.records, self.data) {
            return Err(self.bad("it ends too early"));
        }
        if self.at < self.end || self.fill()? {
            return Err(self.bad("something follows its end"));
        }
        self.ended = true;
        Ok(LayerRecord::End { records, data })
    }

    /// The name of an entry of the current directory.
    fn entry(&mut self) -> Result<Vec<u8>> {
        let name = self.string(MAX_NAME)?;
        if matches!(&name[..], b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(self.bad(&format!("{:?} is not a name", show(&name))));
        }
        if self.path.len() + 1 + name.len() > MAX_PATH {
            return Err(self.bad("a path is too long"));
        }
        if self.last.last().is_some_and(|last| last.as_ref().is_some_and(|last| *last >= name)) {
            return Err(self.bad(&format!("{:?} comes twice or out of order", show(&name))));
        }
        if let Some(last) = self.last.last_mut() {
            *last = Some(name.clone());
        }
        Ok(name)
    }

    fn attr(&mut self) -> Result<Attr> {
        let [mode, uid, gid] = [self.int()?, self.int()?, self.int()?];
        let mtime = (i64::from_le_bytes(self.array()?), self.int()?);
        // The id -1 means "leave as it is" to chown.
        if mode > 0o7777 || uid == u32::MAX || gid == u32::MAX || mtime.1 > 999_999_999 {
            return Err(self.bad("a mode, an owner or a time is out of range"));
        }
        let xattrs = self.xattrs()?;
        Ok(Attr { mode, uid, gid, mtime, xattrs })
    }

    /// The attributes of what cannot have extended ones.
    fn bare_attr(&mut self) -> Result<Attr> {
        let attr = self.attr()?;
        if !attr.xattrs.is_empty() {
            return Err(self.bad("extended attributes on a symbolic link or a fifo"));
        }
        Ok(attr)
    }

    fn xattrs(&mut self) -> Result<XattrList> {
        let count = usize::from(u16::from_le_bytes(self.array()?));
        if count > xattr::MAX_COUNT {
            return Err(self.bad("too many extended attributes"));
        }
        let (mut xattrs, mut total) = (XattrList::new(), 0);
        for _ in 0..count {
            let name = self.string(xattr::MAX_NAME)?;
            let length = self.int()? as usize;
            total += length;
            if length > xattr::MAX_VALUE || total > MAX_XATTRS {
                return Err(self.bad("an extended attribute is too long"));
            }
            if !xattr::is_kept(&name) || name.contains(&0) {
                return Err(self.bad(&format!("the extended attribute {:?} is not allowed", show(&name))));
            }
            if xattrs.last().is_some_and(|(last, _)| *last >= name) {
                return Err(self.bad("an extended attribute comes twice or out of order"));
            }
            xattrs.push((name, self.bytes(length)?));
        }
        Ok(xattrs)
    }

    /// The next extent of the file whose record came last: where it begins and how long it is. Nothing after the last one.
    pub fn extent(&mut self) -> Result<Option<(u64, u64)>> {
        while self.piece()?.is_some() {}
        let Some(Content { size, next, .. }) = &self.content else { return Ok(None) };
        let (size, next) = (*size, *next);
        let offset = self.long()?;
        if offset == NO_EXTENT {
            let digest: [u8; 32] = self.array()?;
            let content = self.content.take();
            if content.is_none_or(|content| content.hasher.finalize() != digest) {
                return Err(self.bad("a file's content has another digest"));
            }
            return Ok(None);
        }
        let length = self.long()?;
        let end = offset.checked_add(length).filter(|end| offset >= next && length > 0 && *end <= size);
        let Some(end) = end else { return Err(self.bad("a piece of a file is outside it or out of order")) };
        self.data += length;
        if let Some(content) = &mut self.content {
            (content.next, content.left) = (end, length);
        }
        Ok(Some((offset, length)))
    }

    /// The next piece of the current extent. Nothing at its end.
    pub fn piece(&mut self) -> Result<Option<&[u8]>> {
        if self.content.as_ref().is_none_or(|content| content.left == 0) {
            return Ok(None);
        }
        if self.at == self.end && !self.fill()? {
            return Err(self.bad("it is cut off"));
        }
        let Some(content) = &mut self.content else { return Ok(None) };
        let length = (self.end - self.at).min(usize::try_from(content.left).unwrap_or(usize::MAX));
        let piece = &self.buffer[self.at..self.at + length];
        content.hasher.update(piece);
        content.left -= length as u64;
        self.at += length;
        Ok(Some(piece))
    }

    /// The digest of the whole layer, all of which has to have been read.
    pub fn finish(self) -> Result<LayerId> {
        if !self.ended {
            return Err(self.bad("it was not read to its end"));
        }
        Ok(LayerId(*self.catalog.finalize().as_bytes()))
    }

    /// Ends a layer that has to be this one.
    pub fn finish_as(self, id: &LayerId) -> Result<()> {
        let found = self.finish()?;
        if found == *id {
            return Ok(());
        }
        Err(Error::BadLayer { layer: id.to_string(), why: format!("its digest is {found}") })
    }

    fn bad(&self, why: &str) -> Error {
        let place = format!("{why} (record {}, in {})", self.records, show(&self.path));
        Error::BadLayer { layer: self.name.clone(), why: place }
    }

    /// Gets more into the empty buffer; false at the end of the file.
    fn fill(&mut self) -> Result<bool> {
        loop {
            match self.source.read(&mut self.buffer) {
                Ok(got) => {
                    (self.at, self.end) = (0, got);
                    return Ok(got > 0);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.not_read(error)),
            }
        }
    }

    /// A source of ours says itself what is wrong.
    fn not_read(&self, error: std::io::Error) -> Error {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        error.downcast().unwrap_or_else(|_| SystemError::new("read layer", &self.name, errno).into())
    }

    fn exact(&mut self, out: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.end && !self.fill()? {
                return Err(self.bad("it is cut off"));
            }
            let now = (out.len() - filled).min(self.end - self.at);
            out[filled..filled + now].copy_from_slice(&self.buffer[self.at..self.at + now]);
            self.at += now;
            filled += now;
        }
        self.catalog.update(out);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.exact(&mut out)?;
        Ok(out)
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; length];
        self.exact(&mut out)?;
        Ok(out)
    }

    fn string(&mut self, limit: usize) -> Result<Vec<u8>> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > limit {
            return Err(self.bad(&format!("a name or a link of {length} bytes, where {limit} are allowed")));
        }
        self.bytes(length)
    }

    fn flag(&mut self) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.bad(&format!("{other} is not yes or no"))),
        }
    }

    fn int(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn long(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}
