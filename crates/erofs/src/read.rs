//! Reads an image that anyone may have made: whatever it says is checked before it is believed, one inode at a time.
//!
//! What can only be told from several inodes together is for [`super::verify()`].

use super::error::IoContext;
use super::format::{
    BLOCK_BITS, BLOCK_SIZE, CHUNK_BITS_MAX, CHUNK_INDEX_SIZE, DataLayout, HOLE, INODE_SIZE, RawInode, SLOT,
    Superblock, TARGET_MAX, decode_device, encode_device, file_type, get32,
};
use super::source::{Cached, ReadAt};
use super::tree::BLOCK;
use super::{Error, Result};

/// An image that is open.
pub struct Reader<S> {
    source: Cached<S>,
    name: String,
    pub(super) superblock: Superblock,
}

/// A file of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredInode {
    /// Inode number in the image, which `stat` gives too.
    pub number: u64,
    /// What it is.
    pub kind: InodeKind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub mtime_nsec: u32,
    /// How many names it has; for a directory, as usual, two and one for each directory in it.
    pub links: u32,
    /// Length in bytes.
    pub size: u64,
    pub(super) layout: DataLayout,
    pub(super) xattr_size: u32,
    /// First block or chunk bits.
    data: u32,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A character device, with major and minor number.
    CharDevice(u32, u32),
    /// A block device, with major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Bytes of a file that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file they begin.
    pub at: u64,
    /// How many.
    pub length: u64,
    /// Where in the image file they lie; zeros that lie nowhere if `None`.
    pub place: Option<u64>,
}

impl InodeKind {
    /// How a mode and a directory entry call it.
    pub(super) fn type_of(self) -> (u16, u8) {
        match self {
            InodeKind::Directory => file_type::DIRECTORY,
            InodeKind::File => file_type::REGULAR,
            InodeKind::Symlink => file_type::SYMLINK,
            InodeKind::CharDevice(..) => file_type::CHAR_DEVICE,
            InodeKind::BlockDevice(..) => file_type::BLOCK_DEVICE,
            InodeKind::Fifo => file_type::FIFO,
            InodeKind::Socket => file_type::SOCKET,
        }
    }

    fn of(raw: &RawInode) -> Option<InodeKind> {
        let device = decode_device(raw.data);
        let kinds = [
            InodeKind::Directory,
            InodeKind::File,
            InodeKind::Symlink,
            InodeKind::CharDevice(device.0, device.1),
            InodeKind::BlockDevice(device.0, device.1),
            InodeKind::Fifo,
            InodeKind::Socket,
        ];
        kinds.into_iter().find(|kind| kind.type_of().0 == raw.mode & 0o17_0000)
    }
}

impl<S: ReadAt> Reader<S> {
    /// Opens an image; `name` is for messages.
    ///
    /// # Errors
    /// [`Error::BadImage`] if its superblock is not one of ours, or says that the image is longer or shorter than it is.
    pub fn open(source: S, name: impl Into<String>) -> Result<Reader<S>> {
        let name = name.into();
        let source = Cached::new(source).on("find the length of", &name)?;
        let bad = |why: &str| Error::BadImage { file: name.clone(), why: why.to_owned() };
        let mut block = [0; BLOCK_SIZE];
        if source.size() < BLOCK {
            return Err(bad("it is shorter than a superblock"));
        }
        source.read(&mut block, 0).on("read", &name)?;
        let superblock =
            Superblock::decode(&block).ok_or_else(|| bad("its superblock is not one that we write"))?;
        if u64::from(superblock.blocks) * BLOCK != source.size() {
            return Err(bad("its length is not what its superblock says"));
        }
        let places = [1, superblock.metadata, superblock.shared_xattrs, superblock.blocks];
        if !places.is_sorted() {
            return Err(bad("its areas are out of order"));
        }
        Ok(Reader { source, name, superblock })
    }

    /// The image's UUID, which follows from its files.
    pub fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`Reader::inode`]; and if it is no directory.
    pub fn root(&self) -> Result<StoredInode> {
        let inode = self.inode(u64::from(self.superblock.root))?;
        if inode.kind == InodeKind::Directory {
            Ok(inode)
        } else {
            Err(self.bad(inode.number, "is the root, and no directory"))
        }
    }

    /// The file of this number.
    ///
    /// # Errors
    /// [`Error::BadImage`] if there is none, or one that we do not write; [`Error::Io`].
    pub fn inode(&self, number: u64) -> Result<StoredInode> {
        let place = number.checked_mul(SLOT).and_then(|place| place.checked_add(self.metadata_start()));
        let place = place.filter(|place| place.saturating_add(INODE_SIZE as u64) <= self.source.size());
        let place = place.ok_or_else(|| self.bad(number, "lies outside the image"))?;
        let mut bytes = [0; INODE_SIZE];
        self.read_metadata(&mut bytes, place)?;
        let raw =
            RawInode::decode(&bytes).ok_or_else(|| self.bad(number, "is of a form that we do not write"))?;
        let kind = InodeKind::of(&raw).ok_or_else(|| self.bad(number, "is of no type"))?;
        let inode = StoredInode {
            number,
            kind,
            mode: raw.mode & 0o7777,
            uid: raw.uid,
            gid: raw.gid,
            mtime: raw.mtime,
            mtime_nsec: raw.mtime_nsec,
            links: raw.links,
            size: raw.size,
            layout: raw.layout,
            xattr_size: raw.xattr_size,
            data: raw.data,
        };
        self.check(&inode, &raw).map_err(|why| self.bad(number, why))?;
        Ok(inode)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`Reader::read_at`]; and if it is not a path.
    pub fn target(&self, inode: &StoredInode) -> Result<Vec<u8>> {
        let mut target = vec![0; inode.size.min(TARGET_MAX as u64) as usize];
        self.read_at(inode, &mut target, 0)?;
        if target.is_empty() || target.contains(&0) {
            return Err(self.bad(inode.number, "has a target that is not a path"));
        }
        Ok(target)
    }

    /// Fills as much of the buffer as the file has bytes from `at` on; gives how many.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadImage`] where the file's table leads out of the data.
    pub fn read_at(&self, inode: &StoredInode, mut buffer: &mut [u8], mut at: u64) -> Result<usize> {
        let mut total = 0;
        while let Some(extent) = self.extent(inode, at)?.filter(|_| !buffer.is_empty()) {
            let skip = at - extent.at;
            let count = (extent.length - skip).min(buffer.len() as u64) as usize;
            let (here, rest) = buffer.split_at_mut(count);
            match extent.place {
                None => here.fill(0),
                Some(place) if place < self.metadata_start() => {
                    self.read_unkept(here, place + skip)?;
                }
                Some(place) => self.read_metadata(here, place + skip)?,
            }
            buffer = rest;
            at += count as u64;
            total += count;
        }
        Ok(total)
    }

    /// Where the bytes of a file lie, from its start to its end.
    pub fn extents<'a>(&'a self, inode: &'a StoredInode) -> impl Iterator<Item = Result<Extent>> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            let next = self.extent(inode, at).transpose()?;
            // After an error: the end.
            at = next.as_ref().map_or(u64::MAX, |extent| extent.at + extent.length);
            Some(next)
        })
    }

    /// The extent in which a byte of a file lies; none behind its end.
    fn extent(&self, inode: &StoredInode, at: u64) -> Result<Option<Extent>> {
        if at >= inode.size {
            return Ok(None);
        }
        let full = inode.size / BLOCK * BLOCK;
        let flat = |length| Extent { at: 0, length, place: Some(u64::from(inode.data) * BLOCK) };
        Ok(Some(match inode.layout {
            DataLayout::Flat => flat(inode.size),
            DataLayout::Inline if at < full => flat(full),
            DataLayout::Inline => {
                Extent { at: full, length: inode.size - full, place: Some(self.behind(inode)) }
            }
            DataLayout::Chunked => self.chunk(inode, at)?,
        }))
    }

    fn chunk(&self, inode: &StoredInode, at: u64) -> Result<Extent> {
        let bits = BLOCK_BITS + inode.data;
        let number = at >> bits;
        let mut entry = [0; CHUNK_INDEX_SIZE as usize];
        self.read_metadata(&mut entry, self.behind(inode) + number * CHUNK_INDEX_SIZE)?;
        let start = number << bits;
        let length = (inode.size - start).min(1 << bits);
        let block = get32(&entry, 0);
        if block != HOLE && !self.is_data(block, length.div_ceil(BLOCK)) {
            return Err(self.bad(inode.number, "has a piece that does not lie among the data"));
        }
        let place = (block != HOLE).then_some(u64::from(block) * BLOCK);
        Ok(Extent { at: start, length, place })
    }

    /// What can be told of an inode alone.
    fn check(&self, inode: &StoredInode, raw: &RawInode) -> std::result::Result<(), &'static str> {
        let StoredInode { size, layout, .. } = *inode;
        let head = self.place(inode) % BLOCK + INODE_SIZE as u64 + u64::from(inode.xattr_size);
        let behind = self.behind(inode);
        let end = behind.saturating_add(self.length_behind(inode));
        let tail = size % BLOCK;
        if raw.short_number != inode.number as u32 {
            return Err("calls itself by another number");
        }
        if inode.uid == u32::MAX
            || inode.gid == u32::MAX
            || inode.mtime_nsec >= 1_000_000_000
            || inode.links == 0
        {
            return Err("has no owner, no time or no name");
        }
        if size > i64::MAX as u64 || end > u64::from(self.superblock.shared_xattrs) * BLOCK {
            return Err("reaches beyond the end of the inodes");
        }
        if layout == DataLayout::Inline && (tail == 0 || behind % BLOCK + tail > BLOCK) {
            return Err("has a tail across the end of a block");
        }
        let sound = match inode.kind {
            InodeKind::File => match layout {
                DataLayout::Flat => tail == 0 && self.is_data_or_none(inode.data, size / BLOCK),
                DataLayout::Inline => self.is_data_or_none(inode.data, size / BLOCK),
                DataLayout::Chunked => size > 0 && self.superblock.chunked && inode.data <= CHUNK_BITS_MAX,
            },
            InodeKind::Directory => size > 0 && self.has_own_blocks(inode),
            InodeKind::Symlink => {
                let beside = layout != DataLayout::Inline || head + size <= BLOCK;
                (1..=TARGET_MAX as u64).contains(&size) && beside && self.has_own_blocks(inode)
            }
            InodeKind::CharDevice(major, minor) | InodeKind::BlockDevice(major, minor) => {
                size == 0 && layout == DataLayout::Flat && encode_device(major, minor) == Some(inode.data)
            }
            InodeKind::Fifo | InodeKind::Socket => size == 0 && layout == DataLayout::Flat && inode.data == 0,
        };
        if sound { Ok(()) } else { Err("has data that does not lie where it must") }
    }

    /// Whether these blocks are of the data region.
    fn is_data(&self, first: u32, count: u64) -> bool {
        first > 0 && u64::from(first).saturating_add(count) <= u64::from(self.superblock.metadata)
    }

    fn is_data_or_none(&self, first: u32, count: u64) -> bool {
        if count == 0 { first == 0 } else { self.is_data(first, count) }
    }

    /// Whether a directory's or link's blocks are of the metadata.
    fn has_own_blocks(&self, inode: &StoredInode) -> bool {
        let count = self.own_blocks(inode);
        let end = u64::from(inode.data).saturating_add(count);
        match inode.layout {
            DataLayout::Chunked => false,
            _ if count == 0 => inode.data == 0,
            _ => inode.data >= self.superblock.metadata && end <= u64::from(self.superblock.shared_xattrs),
        }
    }

    /// How many blocks of metadata a directory or link has for itself.
    pub(super) fn own_blocks(&self, inode: &StoredInode) -> u64 {
        match inode.layout {
            _ if !matches!(inode.kind, InodeKind::Directory | InodeKind::Symlink) => 0,
            DataLayout::Flat => inode.size.div_ceil(BLOCK),
            _ => inode.size / BLOCK,
        }
    }

    /// How many bytes stand behind an inode and its extended attributes.
    pub(super) fn length_behind(&self, inode: &StoredInode) -> u64 {
        match inode.layout {
            DataLayout::Flat => 0,
            DataLayout::Inline => inode.size % BLOCK,
            DataLayout::Chunked => {
                let bits = BLOCK_BITS + inode.data.min(CHUNK_BITS_MAX);
                inode.size.div_ceil(1 << bits) * CHUNK_INDEX_SIZE
            }
        }
    }

    /// Where an inode lies.
    pub(super) fn place(&self, inode: &StoredInode) -> u64 {
        self.metadata_start() + inode.number * SLOT
    }

    fn behind(&self, inode: &StoredInode) -> u64 {
        self.place(inode) + INODE_SIZE as u64 + u64::from(inode.xattr_size)
    }

    /// Where the files' data ends and the metadata begins, in bytes from the start of the image.
    pub fn metadata_start(&self) -> u64 {
        u64::from(self.superblock.metadata) * BLOCK
    }

    /// Length of the image in bytes.
    pub fn size(&self) -> u64 {
        self.source.size()
    }

    pub(super) fn read_metadata(&self, buffer: &mut [u8], place: u64) -> Result<()> {
        self.source.read(buffer, place).on("read", &self.name)
    }

    /// The same for much that is read once.
    pub(super) fn read_unkept(&self, buffer: &mut [u8], place: u64) -> Result<()> {
        self.source.read_directly(buffer, place).on("read", &self.name)
    }

    /// The error that says what is wrong with an inode, for those who read more into an image than [`Reader`] does. `why` is the end of a
    /// sentence: "is in itself".
    pub fn bad(&self, number: u64, why: &str) -> Error {
        Error::BadImage { file: self.name.clone(), why: format!("inode {number} {why}") }
    }

    /// What is wrong with the image.
    pub(super) fn bad_image(&self, why: impl Into<String>) -> Error {
        Error::BadImage { file: self.name.clone(), why: why.into() }
    }
}
