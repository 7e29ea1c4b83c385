//! An image's files as files of a directory, for whoever may not have the kernel mount it.
//!
//! To be run as root of a user namespace, so that owners can be set as far as it has ids; what a user may not make at all
//! (devices, attributes of the kernel's own) is left out and counted.

mod changes;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fsetxattr, ftruncate, linkat, mkdirat, openat, openat2, symlinkat, utimensat,
};
use rustix::io::Errno;
use skiff_erofs::{FileEntry, InodeKind, ReadAt, Reader, StoredInode};

pub use changes::{change_texts, unpack_changes};

use crate::error::{Error, Result};
use skiff_sys::{SystemContext, SystemError};

/// Read and written at once, in bytes.
const PIECE: usize = 1 << 20;

/// What could not be. Files whose owner could not be set lack their setuid and setgid bits: those meant the other owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Devices.
    pub devices: u64,
    /// Sockets, of which only a program can make one that works.
    pub sockets: u64,
    /// Files whose owner has no id here, or whom this process may not give them; they belong to whoever unpacks.
    pub owners: u64,
    /// Extended attributes.
    pub xattrs: u64,
}

impl LeftOut {
    /// What a user is told of it.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let LeftOut { devices, sockets, xattrs, owners: _ } = *self;
        let parts = [(devices, "device"), (sockets, "socket"), (xattrs, "extended attribute")];
        let said = |(count, what): (u64, &str)| match count {
            0 => None,
            1 => Some(format!("1 {what} is left out")),
            _ => Some(format!("{count} {what}s are left out")),
        };
        parts.into_iter().filter_map(said).collect()
    }
}

/// Unpacks all of an image into `target`, an empty directory.
///
/// # Errors
/// The image is damaged, or the system refuses what it should not.
pub fn unpack<S: ReadAt>(reader: &Reader<S>, target: BorrowedFd<'_>) -> Result<LeftOut> {
    let mut unpacker = TreeUnpacker::new(reader, target);
    for file in reader.files() {
        unpacker.file(&file?)?;
    }
    unpacker.finish()
}

struct TreeUnpacker<'a, S> {
    reader: &'a Reader<S>,
    target: BorrowedFd<'a>,
    /// Files with several names: where the first one is.
    links: HashMap<u64, Vec<u8>>,
    times: Vec<(Vec<u8>, StoredInode)>,
    left_out: LeftOut,
}

impl<'a, S: ReadAt> TreeUnpacker<'a, S> {
    fn new(reader: &'a Reader<S>, target: BorrowedFd<'a>) -> Self {
        TreeUnpacker { reader, target, links: HashMap::new(), times: vec![], left_out: LeftOut::default() }
    }

    /// What was made in them has changed the times of directories, and a mode may keep even its owner out: those come last.
    fn finish(mut self) -> Result<LeftOut> {
        for (path, inode) in std::mem::take(&mut self.times).into_iter().rev() {
            self.seal(&path, &inode)?;
        }
        Ok(self.left_out)
    }

    fn file(&mut self, FileEntry { path, inode }: &FileEntry) -> Result<()> {
        if path.is_empty() {
            self.times.push((vec![], *inode));
            return self.own(path, inode).map(drop);
        }
        if inode.links > 1 && inode.kind != InodeKind::Directory {
            if let Some(first) = self.links.get(&inode.number) {
                let ((from, old), (to, new)) = (self.parent(first)?, self.parent(path)?);
                return Ok(linkat(&from, old, &to, new, AtFlags::empty()).on("link", shown(path))?);
            }
            self.links.insert(inode.number, path.clone());
        }
        let (dir, name) = self.parent(path)?;
        match inode.kind {
            InodeKind::Directory => {
                mkdirat(&dir, name, Mode::from_raw_mode(0o700)).on("make", shown(path))?;
                self.times.push((path.clone(), *inode));
                return self.own(path, inode).map(drop);
            }
            InodeKind::File => self.content(&dir, name, path, inode)?,
            InodeKind::Symlink => {
                let link = self.reader.target(inode)?;
                symlinkat(&link[..], &dir, name).on("make", shown(path))?;
            }
            InodeKind::Fifo => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(&dir, name, kind, Mode::from_raw_mode(0o600), 0)
                    .on("make", shown(path))?;
            }
            InodeKind::CharDevice(..) | InodeKind::BlockDevice(..) => {
                self.left_out.devices += 1;
                return Ok(());
            }
            InodeKind::Socket => {
                self.left_out.sockets += 1;
                return Ok(());
            }
        }
        let mut inode = *inode;
        if !self.own(path, &inode)? && inode.kind == InodeKind::File {
            inode.mode &= !0o6000;
        }
        self.seal(path, &inode)
    }

    /// The directory that a path's last part is in. Only directories that were made here are gone through.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8])> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = openat2(self.target, parent, flags, Mode::empty(), resolve).on("open", shown(parent))?;
        Ok((dir, name))
    }

    fn content(&self, dir: &OwnedFd, name: &[u8], path: &[u8], inode: &StoredInode) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::from_raw_mode(0o600)).on("create", shown(path))?;
        ftruncate(&file, inode.size).on("write to", shown(path))?;
        let mut piece = vec![0; PIECE.min(inode.size as usize)];
        for extent in self.reader.extents(inode) {
            let extent = extent?;
            let end = extent.at + extent.length;
            let mut at = if extent.place.is_some() { extent.at } else { end };
            while at < end {
                let wanted = (end - at).min(piece.len() as u64) as usize;
                let got = self.reader.read_at(inode, &mut piece[..wanted], at)?;
                if got == 0 {
                    return Err(Error::BadImage { file: shown(path), why: "it ends too early".into() });
                }
                skiff_sys::positional::write_all_at(file.as_fd(), &piece[..got], at)
                    .on("write to", shown(path))?;
                at += got as u64;
            }
        }
        Ok(())
    }

    /// Gives a file its owner; whether that could be.
    fn own(&mut self, path: &[u8], inode: &StoredInode) -> Result<bool> {
        let (uid, gid) = (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)));
        let set = match path {
            [] => chownat(self.target, ".", uid, gid, AtFlags::SYMLINK_NOFOLLOW),
            _ => {
                let (dir, name) = self.parent(path)?;
                chownat(&dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        };
        match set {
            // No such id in this namespace.
            Err(Errno::INVAL | Errno::PERM) => {
                self.left_out.owners += 1;
                Ok(false)
            }
            other => Ok(other.on("change the owner of", shown(path)).map(|()| true)?),
        }
    }

    /// Attributes, mode and time, which nothing changes after.
    fn seal(&mut self, path: &[u8], inode: &StoredInode) -> Result<()> {
        let (dir, name) = match path {
            [] => self.parent(b".")?,
            path => self.parent(path)?,
        };
        if inode.kind != InodeKind::Symlink {
            self.xattrs(&dir, name, path, inode)?;
            chmodat(&dir, name, Mode::from_raw_mode(inode.mode.into()), AtFlags::empty())
                .on("set the mode of", shown(path))?;
        }
        let time = Timespec { tv_sec: inode.mtime, tv_nsec: inode.mtime_nsec.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).on("set the time of", shown(path))?)
    }

    fn xattrs(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8], inode: &StoredInode) -> Result<()> {
        let xattrs = self.reader.xattrs(inode)?;
        if xattrs.is_empty() || !matches!(inode.kind, InodeKind::File | InodeKind::Directory) {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(dir, name, flags, Mode::empty()).on("open", shown(path))?;
        for (key, value) in &xattrs {
            match fsetxattr(&file, &key[..], value, XattrFlags::empty()) {
                Ok(()) => {}
                // Too long ones too: ext4 says that of them with the words for a full disk.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL | Errno::TOOBIG | Errno::NOSPC) => {
                    self.left_out.xattrs += 1
                }
                Err(e) => return Err(SystemError::new("set an extended attribute of", shown(path), e).into()),
            }
        }
        Ok(())
    }
}

fn shown(path: &[u8]) -> String {
    format!("/{}", path.escape_ascii())
}
