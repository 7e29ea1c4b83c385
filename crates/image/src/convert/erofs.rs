//! An EROFS file that someone gave us, as far as it is like ours: without compression, for one.

use skiff_erofs::tree::{Attributes, XattrsId};
use skiff_erofs::{MAGIC, Node, NodeKind, Reader, SUPER_OFFSET, Source};

use super::{Children, FilePiece, Foreign, ForeignFile, ForeignFileType};
use crate::transport::FilePart;
use crate::{Error, Result};

const BUFFER: u64 = 256 << 10;

impl<S: Source> Foreign for Reader<S> {
    type File = Node;

    fn root(&self) -> Result<ForeignFile<Node>> {
        found(self, Reader::root(self)?)
    }

    fn children(&self, directory: &Node) -> Result<Children<Node>> {
        let names = self.names(directory)?.into_iter();
        names.map(|(name, number)| Ok((name, found(self, self.node(number)?)?))).collect()
    }

    fn pieces(&self, file: &Node, each: &mut dyn FnMut(FilePiece<'_>) -> Result<()>) -> Result<()> {
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

fn found<S: Source>(reader: &Reader<S>, node: Node) -> Result<ForeignFile<Node>> {
    let kind = match node.kind {
        NodeKind::Directory => ForeignFileType::Directory,
        NodeKind::File => ForeignFileType::File,
        NodeKind::Symlink => ForeignFileType::Symlink(reader.target(&node)?.into()),
        NodeKind::CharDevice(major, minor) => ForeignFileType::CharDevice(major, minor),
        NodeKind::BlockDevice(major, minor) => ForeignFileType::BlockDevice(major, minor),
        NodeKind::Fifo => ForeignFileType::Fifo,
        NodeKind::Socket => ForeignFileType::Socket,
    };
    let Node { mode, uid, gid, mtime, mtime_nsec, .. } = node;
    let attributes = Attributes { mode, uid, gid, mtime, mtime_nsec, xattrs: XattrsId(0) };
    let xattrs = reader.xattrs(&node)?;
    Ok(ForeignFile { number: node.number, links: node.links, file: node, attributes, xattrs, kind })
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
