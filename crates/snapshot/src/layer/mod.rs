//! A layer: what one snapshot adds, as a stream of records. In the depot it is cut into chunks (`chunk`); in a checkpoint it is a file.
//!
//! ```text
//! layer   = "SKIFFLAY" version:u32 0:u32 record*            all numbers little-endian
//! record  = 1 name attr opaque:u8                           directory; its entries follow, then `7`
//!         | 2 name attr linked:u8 size:u64 content          file; linked ones are counted from 0 for `6`
//!         | 3 name attr length:u16 target                   symbolic link
//!         | 4 name attr                                     fifo
//!         | 5 name                                          whiteout
//!         | 6 name number:u32                               another name of a linked file that came before
//!         | 7                                               end of a directory
//!         | 8 records:u64 data:u64                          end of the layer: nothing follows
//! name    = length:u16 bytes                                one name, never a path; empty for the root only
//! attr    = mode:u32 uid:u32 gid:u32 seconds:i64 nanoseconds:u32 count:u16 (length:u16 name length:u32 value)*
//! content = (offset:u64 length:u64 data)* 0xffff_ffff_ffff_ffff:u64 digest:[u8; 32]
//! ```
//!
//! The first record is the root directory. Names in a directory ascend, so none comes twice; nesting is by records, so no
//! entry can lie under a file or outside the root. Contents are without their holes, and each carries the BLAKE3 digest of its
//! data. The layer's own digest, which is its name, is over everything except file data: data is hashed once. So it is the same in one file and in chunks.
//! Ids are the ones seen inside the user namespace, so a layer means the same on every node.

mod entry;
mod pack;
mod paths;
mod read;
mod unpack;
mod write;

pub(crate) use entry::fingerprint;
pub(crate) use pack::{Item, pack};
pub(crate) use paths::{LayerPath, paths};
pub use read::LayerReader;
pub(crate) use unpack::{expect, unpack, unpack_at_most, unpack_over};
pub(crate) use write::{FileSink, FinishedLayer, LayerSink, LayerWriter};

use crate::xattr::XattrList;

pub(crate) const MAGIC: &[u8; 8] = b"SKIFFLAY";
pub(crate) const VERSION: u32 = 1;
/// How a layer begins.
pub const HEADER: [u8; 16] = *b"SKIFFLAY\x01\0\0\0\0\0\0\0";
/// In place of an extent's offset: no more extents.
pub const NO_EXTENT: u64 = u64::MAX;
/// File data is read, hashed and written through buffers of this size.
pub(crate) const BUFFER: usize = 1 << 20;

pub(crate) mod tag {
    pub(crate) const DIR: u8 = 1;
    pub(crate) const FILE: u8 = 2;
    pub(crate) const SYMLINK: u8 = 3;
    pub(crate) const FIFO: u8 = 4;
    pub(crate) const WHITEOUT: u8 = 5;
    pub(crate) const LINK: u8 = 6;
    pub(crate) const UP: u8 = 7;
    pub(crate) const END: u8 = 8;
}

/// Owner, mode, time and extended attributes of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attr {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner, as seen inside.
    pub uid: u32,
    /// Group, as seen inside.
    pub gid: u32,
    /// Seconds and nanoseconds of the last change of the content.
    pub mtime: (i64, u32),
    /// Extended attributes, sorted by name.
    pub xattrs: XattrList,
}

/// One record of a layer. A file's content is read apart, before the next record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the format above says what each field is
pub enum LayerRecord {
    Dir { name: Vec<u8>, attr: Attr, opaque: bool },
    File { name: Vec<u8>, attr: Attr, linked: bool, size: u64 },
    Symlink { name: Vec<u8>, attr: Attr, target: Vec<u8> },
    Fifo { name: Vec<u8>, attr: Attr },
    Whiteout { name: Vec<u8> },
    Link { name: Vec<u8>, number: u32 },
    Up,
    End { records: u64, data: u64 },
}

impl LayerRecord {
    /// Appends the record's bytes, without a file's content. Names and values longer than the kernel allows do not come from a file system.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            LayerRecord::Dir { name, attr, opaque } => {
                head(out, tag::DIR, name);
                attr.encode(out);
                out.push(u8::from(*opaque));
            }
            LayerRecord::File { name, attr, linked, size } => {
                head(out, tag::FILE, name);
                attr.encode(out);
                out.push(u8::from(*linked));
                out.extend(size.to_le_bytes());
            }
            LayerRecord::Symlink { name, attr, target } => {
                head(out, tag::SYMLINK, name);
                attr.encode(out);
                short(out, target);
            }
            LayerRecord::Fifo { name, attr } => {
                head(out, tag::FIFO, name);
                attr.encode(out);
            }
            LayerRecord::Whiteout { name } => head(out, tag::WHITEOUT, name),
            LayerRecord::Link { name, number } => {
                head(out, tag::LINK, name);
                out.extend(number.to_le_bytes());
            }
            LayerRecord::Up => out.push(tag::UP),
            LayerRecord::End { records, data } => {
                out.push(tag::END);
                out.extend(records.to_le_bytes());
                out.extend(data.to_le_bytes());
            }
        }
    }
}

impl Attr {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.mode.to_le_bytes());
        out.extend(self.uid.to_le_bytes());
        out.extend(self.gid.to_le_bytes());
        out.extend(self.mtime.0.to_le_bytes());
        out.extend(self.mtime.1.to_le_bytes());
        out.extend((self.xattrs.len() as u16).to_le_bytes());
        for (name, value) in &self.xattrs {
            short(out, name);
            out.extend((value.len() as u32).to_le_bytes());
            out.extend(value);
        }
    }
}

fn head(out: &mut Vec<u8>, tag: u8, name: &[u8]) {
    out.push(tag);
    short(out, name);
}

fn short(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend(bytes);
}
