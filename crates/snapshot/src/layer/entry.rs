//! What an open entry is: its attributes, where it has data, and the fingerprint of both.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::write::Extents;
use super::{Attr, BUFFER, LayerRecord};
use crate::error::{Error, Result};
use crate::tree::{NodeType, Stamp, TreeNode, open_beneath};
use crate::xattr;
use skiff_sys::SystemContext;
use skiff_sys::error::show;

/// Files below this size are asked for holes only if they take less room than they are long.
const SMALL: u64 = 64 * 1024;

/// What an entry is, attributes and content, for comparing where stamps cannot tell; nothing if it did not hold still or
/// is of a kind that is not compared so. Names do not count.
pub(crate) fn fingerprint(root: BorrowedFd<'_>, node: &TreeNode) -> Result<Option<[u8; 32]>> {
    let flags = match node.kind {
        NodeType::Dir { .. } => OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        NodeType::File => OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        NodeType::Symlink | NodeType::Fifo => OFlags::PATH | OFlags::NOFOLLOW,
        _ => return Ok(None),
    };
    let Ok(fd) = open_beneath(root, &node.path, flags) else { return Ok(None) };
    let stat = fstat(fd.as_fd(), &node.path)?;
    if Stamp::from(&stat) != node.stamp {
        return Ok(None);
    }
    let print = match node.kind {
        NodeType::Dir { .. } => {
            digest(&directory_record(&attr(fd.as_fd(), &stat, &node.path)?, node.kind), &[], None)
        }
        NodeType::Symlink => {
            let target = rustix::fs::readlinkat(&fd, c"", Vec::new()).on("read the link", &node.path)?;
            symlink_digest(&bare_attr(&stat), target.as_bytes())
        }
        NodeType::Fifo => fifo_digest(&bare_attr(&stat)),
        _ => {
            let extents = extents(fd.as_fd(), node.stamp.size, &stat).on("look for holes in", &node.path)?;
            let Some(data) = hash(fd.as_fd(), &extents).on("read", &node.path)? else { return Ok(None) };
            let attr = attr(fd.as_fd(), &stat, &node.path)?;
            digest(&file_record(attr, node.stamp.size), &extents, Some(data))
        }
    };
    let same = Stamp::from(&fstat(fd.as_fd(), &node.path)?) == node.stamp;
    Ok(same.then_some(print))
}

pub(super) fn directory_record(attr: &Attr, kind: NodeType) -> LayerRecord {
    LayerRecord::Dir { name: Vec::new(), attr: attr.clone(), opaque: kind == NodeType::Dir { opaque: true } }
}

pub(super) fn file_record(attr: Attr, size: u64) -> LayerRecord {
    LayerRecord::File { name: Vec::new(), attr, linked: false, size }
}

pub(super) fn symlink_digest(attr: &Attr, target: &[u8]) -> [u8; 32] {
    let record = LayerRecord::Symlink { name: Vec::new(), attr: attr.clone(), target: target.to_vec() };
    digest(&record, &[], None)
}

pub(super) fn fifo_digest(attr: &Attr) -> [u8; 32] {
    digest(&LayerRecord::Fifo { name: Vec::new(), attr: attr.clone() }, &[], None)
}

pub(super) fn digest(record: &LayerRecord, extents: &[(u64, u64)], data: Option<[u8; 32]>) -> [u8; 32] {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    for (offset, length) in extents {
        bytes.extend(offset.to_le_bytes());
        bytes.extend(length.to_le_bytes());
    }
    bytes.extend(data.unwrap_or_default());
    *blake3::hash(&bytes).as_bytes()
}

/// The digest of a file's data; nothing if it is shorter than its extents.
fn hash(file: BorrowedFd<'_>, extents: &Extents) -> rustix::io::Result<Option<[u8; 32]>> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER];
    for &(offset, length) in extents {
        let mut at = offset;
        while at < offset + length {
            let want = buffer.len().min(usize::try_from(offset + length - at).unwrap_or(usize::MAX));
            match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut buffer[..want], at))? {
                0 => return Ok(None),
                got => {
                    hasher.update(&buffer[..got]);
                    at += got as u64;
                }
            }
        }
    }
    Ok(Some(*hasher.finalize().as_bytes()))
}

/// Where the first `size` bytes of a file have data.
pub(super) fn extents(file: BorrowedFd<'_>, size: u64, stat: &Stat) -> rustix::io::Result<Extents> {
    let room = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    if size == 0 {
        return Ok(Extents::new());
    }
    if size < SMALL && room >= size {
        return Ok(vec![(0, size)]);
    }
    let (mut found, mut at) = (Extents::new(), 0);
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(vec![(0, size)]),
            Err(errno) => return Err(errno),
        };
        // ENXIO: the file was cut off just now; reading it will tell.
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        found.push((start, end - start));
        at = end;
    }
    Ok(found)
}

pub(super) fn fstat(fd: BorrowedFd<'_>, path: &[u8]) -> Result<Stat> {
    Ok(rustix::fs::fstat(fd).on("look at", path)?)
}

/// The attributes of an entry that holds no extended ones we keep.
pub(super) fn bare_attr(stat: &Stat) -> Attr {
    let stamp = Stamp::from(stat);
    Attr { mode: stamp.mode & 0o7777, uid: stamp.uid, gid: stamp.gid, mtime: stamp.mtime, xattrs: Vec::new() }
}

pub(super) fn attr(fd: BorrowedFd<'_>, stat: &Stat, path: &[u8]) -> Result<Attr> {
    let xattrs = match xattr::read(fd) {
        Err(Errno::XDEV) => {
            return Err(Error::Unsupported {
                object: show(path),
                why: "the overlay keeps its content elsewhere (redirect or metacopy); mount it with both off"
                    .into(),
            });
        }
        other => other.on("read the attributes of", path)?,
    };
    Ok(Attr { xattrs, ..bare_attr(stat) })
}
