//! Inodes, of which each kind has a short form and a long one.

use skiff_erofs::tree::{Attributes, Xattrs, XattrsId};

use crate::convert::{ForeignFile, ForeignFileType};

use super::metadata::{Bad, Cursor};

/// Linux has no longer targets of symbolic links.
const LONGEST_TARGET: usize = 4095;

/// A file's inode.
pub(crate) struct SquashfsInode {
    permissions: u16,
    /// Owner and group, as indexes of the table of ids.
    pub(super) uid: u16,
    pub(super) gid: u16,
    mtime: u32,
    number: u32,
    links: u32,
    /// Index of its extended attributes; all ones for none.
    pub(super) xattrs: u32,
    pub(super) kind: InodeType,
}

pub(super) enum InodeType {
    Directory(DirLocation),
    File(DataLocation),
    Symlink(Box<[u8]>),
    BlockDevice(u32),
    CharDevice(u32),
    Fifo,
    Socket,
}

/// Where a directory's entries are.
pub(super) struct DirLocation {
    pub block: u32,
    pub offset: u16,
    /// Three more than there are bytes.
    pub size: u32,
}

/// Where a file's content is.
pub(super) struct DataLocation {
    pub size: u64,
    /// First block of the file in the image.
    pub start: u64,
    pub fragment: u32,
    /// Where in the fragment its end begins.
    pub offset: u32,
    /// Where the lengths of its blocks stand.
    pub lengths: u64,
}

impl SquashfsInode {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<SquashfsInode, Bad> {
        let (form, permissions) = (cursor.u16()?, cursor.u16()?);
        let (uid, gid, mtime, number) = (cursor.u16()?, cursor.u16()?, cursor.u32()?, cursor.u32()?);
        let (links, xattrs, kind) = match form {
            1 => directory(cursor)?,
            2 => file(cursor)?,
            8 => long_directory(cursor)?,
            9 => long_file(cursor)?,
            3..=7 | 10..=14 => other(cursor, form)?,
            _ => return Err(Bad::new(format!("an inode is of kind {form}, which does not exist"))),
        };
        Ok(SquashfsInode { permissions, uid, gid, mtime, number, links, xattrs, kind })
    }

    /// As whoever converts it needs it.
    pub fn found(self, uid: u32, gid: u32, xattrs: Xattrs) -> ForeignFile<SquashfsInode> {
        let device = |number: u32| (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
        let kind = match &self.kind {
            InodeType::Directory(_) => ForeignFileType::Directory,
            InodeType::File(_) => ForeignFileType::File,
            InodeType::Symlink(target) => ForeignFileType::Symlink(target.clone()),
            InodeType::BlockDevice(number) => {
                ForeignFileType::BlockDevice(device(*number).0, device(*number).1)
            }
            InodeType::CharDevice(number) => {
                ForeignFileType::CharDevice(device(*number).0, device(*number).1)
            }
            InodeType::Fifo => ForeignFileType::Fifo,
            InodeType::Socket => ForeignFileType::Socket,
        };
        let attributes = Attributes {
            mode: self.permissions & 0o7777,
            uid,
            gid,
            mtime: self.mtime.into(),
            mtime_nsec: 0,
            xattrs: XattrsId(0),
        };
        ForeignFile { number: self.number.into(), links: self.links, attributes, xattrs, kind, file: self }
    }
}

/// How many names it has, its extended attributes, and what it is.
type Rest = (u32, u32, InodeType);

fn directory(cursor: &mut Cursor<'_>) -> Result<Rest, Bad> {
    let (block, links) = (cursor.u32()?, cursor.u32()?);
    let (size, offset) = (cursor.u16()?.into(), cursor.u16()?);
    Ok((links, u32::MAX, InodeType::Directory(DirLocation { block, offset, size })))
}

fn long_directory(cursor: &mut Cursor<'_>) -> Result<Rest, Bad> {
    let (links, size, block) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
    let (_parent, _index, offset, xattrs) = (cursor.u32()?, cursor.u16()?, cursor.u16()?, cursor.u32()?);
    Ok((links, xattrs, InodeType::Directory(DirLocation { block, offset, size })))
}

/// The short form has one name.
fn file(cursor: &mut Cursor<'_>) -> Result<Rest, Bad> {
    let (start, fragment) = (cursor.u32()?.into(), cursor.u32()?);
    let (offset, size) = (cursor.u32()?, cursor.u32()?.into());
    Ok((
        1,
        u32::MAX,
        InodeType::File(DataLocation { size, start, fragment, offset, lengths: cursor.reference() }),
    ))
}

fn long_file(cursor: &mut Cursor<'_>) -> Result<Rest, Bad> {
    let (start, size, _sparse) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let (links, fragment) = (cursor.u32()?, cursor.u32()?);
    let (offset, xattrs) = (cursor.u32()?, cursor.u32()?);
    Ok((
        links,
        xattrs,
        InodeType::File(DataLocation { size, start, fragment, offset, lengths: cursor.reference() }),
    ))
}

/// Reads inodes whose long form only has extended attributes behind it.
fn other(cursor: &mut Cursor<'_>, form: u16) -> Result<Rest, Bad> {
    let (is_long, form) = (form > 7, if form > 7 { form - 7 } else { form });
    let links = cursor.u32()?;
    let kind = match form {
        3 => {
            let len = cursor.u32()? as usize;
            InodeType::Symlink(cursor.bytes(len, LONGEST_TARGET, "a symbolic link's target")?)
        }
        4 => InodeType::BlockDevice(cursor.u32()?),
        5 => InodeType::CharDevice(cursor.u32()?),
        6 => InodeType::Fifo,
        _ => InodeType::Socket,
    };
    let xattrs = if is_long { cursor.u32()? } else { u32::MAX };
    Ok((links, xattrs, kind))
}
