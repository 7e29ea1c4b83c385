//! Reads extended attributes, those behind an inode and those that several share.

use super::Result;
use super::format::{INODE_SIZE, XATTR_HEADER, get16, get32};
use super::read::{Reader, StoredInode};
use super::source::ReadAt;
use super::tree::{BLOCK, Xattrs};
use super::xattr::join;

/// An attribute whose value was not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    pub name: Vec<u8>,
    value_at: u64,
    value_len: u16,
}

impl<S: ReadAt> Reader<S> {
    /// The extended attributes of a file, sorted by name.
    ///
    /// # Errors
    /// [`super::Error::BadImage`] if they are not as we write them, [`super::Error::Io`].
    pub fn xattrs(&self, inode: &StoredInode) -> Result<Xattrs> {
        let (shared, mut unread) = self.unread_xattrs(inode)?;
        for id in shared {
            unread.push(self.shared_xattr(inode, id)?);
        }
        unread.sort_by(|one, other| one.name.cmp(&other.name));
        let read = |xattr: Unread| {
            let mut value = vec![0; usize::from(xattr.value_len)];
            self.read_metadata(&mut value, xattr.value_at)?;
            Ok((xattr.name.into(), value.into()))
        };
        unread.into_iter().map(read).collect()
    }

    /// The places of shared attributes that a file has, and those behind it.
    pub(super) fn unread_xattrs(&self, inode: &StoredInode) -> Result<(Vec<u32>, Vec<Unread>)> {
        let bad = || self.bad(inode.number, "has extended attributes that are not what we write");
        if inode.xattr_size == 0 {
            return Ok((vec![], vec![]));
        }
        let mut at = self.place(inode) + INODE_SIZE as u64;
        let end = at + u64::from(inode.xattr_size);
        let mut header = [0; XATTR_HEADER as usize];
        self.read_metadata(&mut header, at)?;
        at += header.len() as u64;
        let count = header[4];
        header[4] = 0;
        let mut ids = vec![0; usize::from(count) * 4];
        if header != [0; XATTR_HEADER as usize] || at + ids.len() as u64 > end || at == end {
            return Err(bad());
        }
        self.read_metadata(&mut ids, at)?;
        at += ids.len() as u64;
        let ids = ids.chunks_exact(4).map(|id| get32(id, 0)).collect();
        let mut unread = vec![];
        while at < end {
            let (xattr, next) = self.unread_xattr(at, end)?.ok_or_else(bad)?;
            unread.push(xattr);
            at = next;
        }
        Ok((ids, unread))
    }

    /// A shared attribute.
    pub(super) fn shared_xattr(&self, inode: &StoredInode, id: u32) -> Result<Unread> {
        let at = u64::from(self.superblock.shared_xattrs) * BLOCK + u64::from(id) * 4;
        let found = self.unread_xattr(at, self.size())?;
        let bad = || self.bad(inode.number, "has an extended attribute that is not among the shared ones");
        found.map(|(xattr, _)| xattr).ok_or_else(bad)
    }

    /// The attribute at a place, and where the next one would be; `None` if there is none before the end.
    fn unread_xattr(&self, at: u64, end: u64) -> Result<Option<(Unread, u64)>> {
        let mut header = [0; 4];
        if at + header.len() as u64 > end {
            return Ok(None);
        }
        self.read_metadata(&mut header, at)?;
        let (name_len, value_len) = (u64::from(header[0]), get16(&header, 2));
        let name_at = at + header.len() as u64;
        let value_at = name_at + name_len;
        let value_end = value_at + u64::from(value_len);
        let next = value_end.next_multiple_of(4);
        if next > end {
            return Ok(None);
        }
        let mut rest = vec![0; name_len as usize];
        self.read_metadata(&mut rest, name_at)?;
        let mut padding = vec![0; (next - value_end) as usize];
        self.read_metadata(&mut padding, value_end)?;
        let Some(name) = join(header[1], &rest).filter(|_| padding.iter().all(|byte| *byte == 0)) else {
            return Ok(None);
        };
        Ok(Some((Unread { name, value_at, value_len }, next)))
    }
}
