//! Unpacks a layer into a directory that an overlay takes as a lower one.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Attr, LayerReader, LayerRecord};
use crate::digest::LayerId;
use crate::error::{Error, Result};
use crate::tree::{DirStack, join, open_beneath, split};
use crate::xattr;
use skiff_sys::positional::write_all_at;
use skiff_sys::{SystemContext, SystemError};

/// The memory that the paths of files with several names may take.
const MAX_LINK_PATHS: usize = 256 << 20;
/// What an entry takes on disk besides its data, roughly.
const ENTRY: u64 = 512;
const BLOCK: u64 = 4096;

/// What was unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpacked {
    /// The layer's digest, as computed from what was read.
    pub id: LayerId,
    /// Records in it.
    pub entries: u64,
    /// Room on disk, roughly.
    pub bytes: u64,
}

/// Unpacks all of a layer into `target`, an empty directory of the caller, and checks each file's digest. Until the result's `id` is
/// compared with the digest asked for, what lies there is not to be used. Needs the right to give files to any id in the
/// layer, so it runs inside the environment's user namespace.
pub fn unpack<R: Read>(reader: LayerReader<R>, target: BorrowedFd<'_>) -> Result<Unpacked> {
    all(reader, target, (false, u64::MAX))
}

/// The same, of no more than `most` entries; nothing if there are more. What is there then is not to be used.
pub fn unpack_at_most<R: Read>(
    reader: LayerReader<R>,
    target: BorrowedFd<'_>,
    most: u64,
) -> Result<Option<Unpacked>> {
    let unpacked = all(reader, target, (false, most))?;
    Ok((unpacked.entries <= most).then_some(unpacked))
}

/// The same into a directory that may have some of the layer's directories.
pub fn unpack_over<R: Read>(reader: LayerReader<R>, target: BorrowedFd<'_>) -> Result<Unpacked> {
    all(reader, target, (true, u64::MAX))
}

/// Ends early, with one more than `most`, where there are more entries.
fn all<R: Read>(
    mut reader: LayerReader<R>,
    target: BorrowedFd<'_>,
    (over, most): (bool, u64),
) -> Result<Unpacked> {
    let mut unpacker = Unpacker {
        stack: DirStack::new(target)?,
        attrs: Vec::new(),
        links: Vec::new(),
        link_bytes: 0,
        over,
        done: Unpacked { id: LayerId([0; 32]), entries: 0, bytes: 0 },
    };
    while let Some(record) = reader.record()? {
        unpacker.done.entries += 1;
        unpacker.done.bytes += ENTRY;
        if unpacker.done.entries > most {
            return Ok(unpacker.done);
        }
        unpacker.take(record, &mut reader)?;
    }
    unpacker.done.id = reader.finish()?;
    Ok(unpacker.done)
}

struct Unpacker {
    stack: DirStack,
    /// Attributes of the directories from the root to the current one: set when all is in them.
    attrs: Vec<(Attr, bool)>,
    /// Paths of linked files, by number.
    links: Vec<Vec<u8>>,
    link_bytes: usize,
    /// Directories may be there.
    over: bool,
    done: Unpacked,
}

impl Unpacker {
    fn take<R: Read>(&mut self, record: LayerRecord, reader: &mut LayerReader<R>) -> Result<()> {
        match record {
            LayerRecord::Dir { name, attr, opaque } => self.dir(&name, attr, opaque),
            LayerRecord::File { name, attr, linked, size } => self.file(&name, &attr, linked, size, reader),
            LayerRecord::Symlink { name, attr, target } => {
                let made = rustix::fs::symlinkat(&target[..], self.stack.dir(), &name[..]);
                made.on("make the symbolic link", self.stack.child(&name))?;
                self.by_name(&name, &attr)
            }
            LayerRecord::Fifo { name, attr } => {
                let made = rustix::fs::mknodat(self.stack.dir(), &name[..], FileType::Fifo, owner_only(), 0);
                made.on("make the fifo", self.stack.child(&name))?;
                self.by_name(&name, &attr)?;
                // No link to follow: it was made just now in a directory of our own.
                let mode = Mode::from_raw_mode(attr.mode);
                Ok(rustix::fs::chmodat(self.stack.dir(), &name[..], mode, AtFlags::empty())
                    .on("change the mode of", self.stack.child(&name))?)
            }
            LayerRecord::Whiteout { name } => {
                let kind = FileType::CharacterDevice;
                Ok(rustix::fs::mknodat(self.stack.dir(), &name[..], kind, Mode::empty(), 0)
                    .on("make the whiteout", self.stack.child(&name))?)
            }
            LayerRecord::Link { name, number } => self.link(&name, number),
            LayerRecord::Up => {
                if let Some((attr, opaque)) = self.attrs.pop() {
                    finish_dir(self.stack.dir(), &attr, opaque, self.stack.path())?;
                }
                self.stack.leave()
            }
            LayerRecord::End { .. } => Ok(()),
        }
    }

    fn dir(&mut self, name: &[u8], attr: Attr, opaque: bool) -> Result<()> {
        self.done.bytes += BLOCK - ENTRY;
        self.attrs.push((attr, opaque));
        if name.is_empty() {
            return Ok(());
        }
        let made = match rustix::fs::mkdirat(self.stack.dir(), name, Mode::RWXU) {
            Err(Errno::EXIST) if self.over => Ok(()),
            other => other,
        };
        made.on("make the directory", self.stack.child(name))?;
        Ok(self.stack.enter(name)?.on("open", name)?)
    }

    fn file<R: Read>(
        &mut self,
        name: &[u8],
        attr: &Attr,
        linked: bool,
        size: u64,
        reader: &mut LayerReader<R>,
    ) -> Result<()> {
        let path = self.stack.child(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.stack.dir(), name, flags, owner_only()).on("create", &path)?;
        let mut end = 0;
        while let Some((offset, length)) = reader.extent()? {
            let mut at = offset;
            while let Some(piece) = reader.piece()? {
                write_all_at(file.as_fd(), piece, at).on("write to", &path)?;
                at += piece.len() as u64;
            }
            end = offset + length;
            self.done.bytes += length.next_multiple_of(BLOCK);
        }
        if end < size {
            rustix::fs::ftruncate(&file, size).on("set the size of", &path)?;
        }
        if linked {
            self.link_bytes += path.len() + size_of::<Vec<u8>>();
            if self.link_bytes > MAX_LINK_PATHS {
                return Err(SystemError::new("keep in mind the names of", &path, Errno::NOMEM).into());
            }
            self.links.push(path.clone());
        }
        finish(file.as_fd(), attr, &path)
    }

    fn link(&mut self, name: &[u8], number: u32) -> Result<()> {
        let path = self.stack.child(name);
        let Some(first) = self.links.get(number as usize) else {
            return Err(SystemError::new("link", path, Errno::NOENT).into());
        };
        let (parent, first_name) = split(first);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let parent: OwnedFd = open_beneath(self.stack.root(), parent, flags).on("open", parent)?;
        Ok(rustix::fs::linkat(parent, first_name, self.stack.dir(), name, AtFlags::empty())
            .on("link", path)?)
    }

    /// Owner and time of what cannot be opened.
    fn by_name(&self, name: &[u8], attr: &Attr) -> Result<()> {
        let (dir, nofollow) = (self.stack.dir(), AtFlags::SYMLINK_NOFOLLOW);
        rustix::fs::chownat(
            dir,
            name,
            Some(Uid::from_raw(attr.uid)),
            Some(Gid::from_raw(attr.gid)),
            nofollow,
        )
        .on("change the owner of", join(self.stack.path(), name))?;
        Ok(rustix::fs::utimensat(dir, name, &times(attr), nofollow)
            .on("set the time of", join(self.stack.path(), name))?)
    }
}

/// Directories get their attributes last: times, so that nothing changes them again; default ACLs, so that nothing inherits them.
fn finish_dir(dir: BorrowedFd<'_>, attr: &Attr, opaque: bool, path: &[u8]) -> Result<()> {
    if opaque {
        rustix::fs::fsetxattr(dir, xattr::OPAQUE, b"y", XattrFlags::empty())
            .on("set an extended attribute of", path)?;
    }
    finish(dir, attr, path)
}

/// Owner before the rest: changing it drops capabilities and setuid bits. ACL before mode: they share bits.
fn finish(fd: BorrowedFd<'_>, attr: &Attr, path: &[u8]) -> Result<()> {
    rustix::fs::fchown(fd, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)))
        .on("change the owner of", path)?;
    xattr::write(fd, &attr.xattrs).on("set an extended attribute of", path)?;
    rustix::fs::fchmod(fd, Mode::from_raw_mode(attr.mode)).on("change the mode of", path)?;
    Ok(rustix::fs::futimens(fd, &times(attr)).on("set the time of", path)?)
}

fn times(attr: &Attr) -> Timestamps {
    let mtime = Timespec { tv_sec: attr.mtime.0, tv_nsec: i64::from(attr.mtime.1) };
    Timestamps { last_access: mtime, last_modification: mtime }
}

fn owner_only() -> Mode {
    Mode::RUSR | Mode::WUSR
}

/// Refuses a layer that is not the one asked for.
pub(crate) fn expect(done: &Unpacked, id: &LayerId) -> Result<()> {
    if done.id == *id {
        return Ok(());
    }
    Err(Error::BadLayer { layer: id.to_string(), why: format!("its digest is {}", done.id) })
}
