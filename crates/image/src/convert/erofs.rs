//! An EROFS file that someone gave us, as far as it is like ours: without compression, for one.

use skiff_erofs::tree::{Attributes, XattrsId};
use skiff_erofs::{InodeKind, MAGIC, ReadAt, Reader, SUPER_OFFSET, StoredInode};

use super::{Children, FilePiece, Foreign, ForeignFile, ForeignFileType};
use crate::transport::FilePart;
use crate::{Error, Result};

const BUFFER: u64 = 256 << 10;

impl<S: ReadAt> Foreign for Reader<S> {
    type File = StoredInode;

    fn root(&self) -> Result<ForeignFile<StoredInode>> {
        found(self, Reader::root(self)?)
    }

    fn children(&self, directory: &StoredInode) -> Result<Children<StoredInode>> {
        let names = self.names(directory)?.into_iter();
        names.map(|(name, number)| Ok((name, found(self, self.inode(number)?)?))).collect()
    }

    fn pieces(&self, file: &StoredInode, each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; BUFFER.min(file.size) as usize];
        for extent in self.extents(file) {
            let extent = extent?;
            if extent.place.is_none() {
                each(FilePiece::Hole(extent.length))?;
                continue;
            }
            let mut done = 0;
            while done < extent.length {
                let wanted = (extent.length - done).min(BUFFER) as usize;
                let count = self.read_at(file, &mut buffer[..wanted], extent.at + done)?;
                if count == 0 {
                    return Err(self.bad(file.number, "is cut off").into());
                }
                each(FilePiece::Data(&buffer[..count]))?;
                done += count as u64;
            }
        }
        Ok(())
    }
}

fn found<S: ReadAt>(reader: &Reader<S>, inode: StoredInode) -> Result<ForeignFile<StoredInode>> {
    let kind = match inode.kind {
        InodeKind::Directory => ForeignFileType::Directory,
        InodeKind::File => ForeignFileType::File,
        InodeKind::Symlink => ForeignFileType::Symlink(reader.target(&inode)?.into()),
        InodeKind::CharDevice(major, minor) => ForeignFileType::CharDevice(major, minor),
        InodeKind::BlockDevice(major, minor) => ForeignFileType::BlockDevice(major, minor),
        InodeKind::Fifo => ForeignFileType::Fifo,
        InodeKind::Socket => ForeignFileType::Socket,
    };
    let StoredInode { mode, uid, gid, mtime, mtime_nsec, .. } = inode;
    let attributes = Attributes { mode, uid, gid, mtime, mtime_nsec, xattrs: XattrsId(0) };
    let xattrs = reader.xattrs(&inode)?;
    Ok(ForeignFile { number: inode.number, links: inode.links, file: inode, attributes, xattrs, kind })
}

/// Whether it begins like one.
pub(crate) fn is_one(part: &FilePart) -> bool {
    let mut magic = [0; 4];
    part.read(&mut magic, SUPER_OFFSET as u64).is_ok() && u32::from_le_bytes(magic) == MAGIC
}

/// What to say of an image file that our reader does not take: most are sound, but made with other options.
pub(crate) fn not_understood(file: &str, error: Error) -> Error {
    match error {
        Error::BadImage { why, .. } => Error::Foreign {
            object: file.into(),
            why,
            hint: Some(
                "only plain EROFS files as skiff writes them are read; import a tar archive or squashfs of it",
            ),
        },
        error => error,
    }
}
