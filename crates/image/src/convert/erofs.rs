//! An EROFS file that someone gave us, as far as it is like ours: without compression, for one.

use skiff_erofs::tree::{Attributes, XattrsId};
use skiff_erofs::{MAGIC, Node, NodeKind, Reader, SUPER_OFFSET, Source};

use super::{Children, Foreign, Found, FoundKind, Piece};
use crate::transport::Part;
use crate::{Error, Result};

const BUFFER: u64 = 256 << 10;

impl<S: Source> Foreign for Reader<S> {
    type File = Node;

    fn root(&self) -> Result<Found<Node>> {
        found(self, Reader::root(self)?)
    }

    fn children(&self, directory: &Node) -> Result<Children<Node>> {
        let names = self.names(directory)?.into_iter();
        names.map(|(name, number)| Ok((name, found(self, self.node(number)?)?))).collect()
    }

    fn pieces(&self, file: &Node, each: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; BUFFER.min(file.size) as usize];
        for extent in self.extents(file) {
            let extent = extent?;
            if extent.place.is_none() {
                each(Piece::Hole(extent.length))?;
                continue;
            }
            let mut done = 0;
            while done < extent.length {
                let wanted = (extent.length - done).min(BUFFER) as usize;
                let count = self.read_at(file, &mut buffer[..wanted], extent.at + done)?;
                if count == 0 {
                    return Err(self.bad(file.number, "is cut off").into());
                }
                each(Piece::Data(&buffer[..count]))?;
                done += count as u64;
            }
        }
        Ok(())
    }
}

fn found<S: Source>(reader: &Reader<S>, node: Node) -> Result<Found<Node>> {
    let kind = match node.kind {
        NodeKind::Directory => FoundKind::Directory,
        NodeKind::File => FoundKind::File,
        NodeKind::Symlink => FoundKind::Symlink(reader.target(&node)?.into()),
        NodeKind::CharDevice(major, minor) => FoundKind::CharDevice(major, minor),
        NodeKind::BlockDevice(major, minor) => FoundKind::BlockDevice(major, minor),
        NodeKind::Fifo => FoundKind::Fifo,
        NodeKind::Socket => FoundKind::Socket,
    };
    let Node { mode, uid, gid, mtime, mtime_nsec, .. } = node;
    let attributes = Attributes { mode, uid, gid, mtime, mtime_nsec, xattrs: XattrsId(0) };
    let xattrs = reader.xattrs(&node)?;
    Ok(Found { number: node.number, links: node.links, file: node, attributes, xattrs, kind })
}

/// Whether it begins like one.
pub(crate) fn is_one(part: &Part) -> bool {
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
