//! Superblock and inode as they lie in the file: little-endian numbers at fixed places.

use super::crc32c::crc32c;
use super::tree::BLOCK;

pub(super) const BLOCK_SIZE: usize = BLOCK as usize;
pub(super) const BLOCK_BITS: u32 = 12;

/// An inode's number is its place in the metadata, in units of this many bytes.
pub(super) const SLOT: u64 = 32;
/// An inode of the long form.
pub(super) const INODE_SIZE: usize = 64;
pub(super) const DIRENT_SIZE: usize = 12;
pub(super) const NAME_MAX: usize = 255;
/// The target of a symbolic link, which the kernel reads as a C string of one page.
pub(super) const TARGET_MAX: usize = BLOCK_SIZE - 1;
/// In place of a chunk's block: it is a hole.
pub(super) const HOLE: u32 = u32::MAX;
pub(super) const CHUNK_INDEX_SIZE: u64 = 4;
/// How many bits a chunk may have more than a block.
pub(super) const CHUNK_BITS_MAX: u32 = 31;

/// Where the superblock begins in the file, in bytes; before it may be a boot sector.
pub const SUPER_OFFSET: usize = 1024;
/// The superblock's first four bytes as a little-endian number, by which an EROFS file of any kind is told from others.
pub const MAGIC: u32 = 0xE0F5_E1E2;
const COMPAT_CHECKSUM: u32 = 1;
const COMPAT_MTIME: u32 = 2;
const INCOMPAT_CHUNKED: u32 = 4;

/// What the superblock says of an image; everything else in it is the same in all of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    pub root: u16,
    pub inodes: u64,
    pub blocks: u32,
    pub metadata: u32,
    pub shared_xattrs: u32,
    pub uuid: [u8; 16],
    /// Whether there is a file in chunks: kernels before 5.15 cannot read those.
    pub chunked: bool,
}

impl Superblock {
    /// All of block 0.
    pub fn encode(&self) -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        let place = &mut block[SUPER_OFFSET..];
        put32(place, 0, MAGIC);
        put32(place, 8, COMPAT_CHECKSUM | COMPAT_MTIME);
        place[12] = BLOCK_BITS as u8;
        put16(place, 14, self.root);
        put64(place, 16, self.inodes);
        put32(place, 36, self.blocks);
        put32(place, 40, self.metadata);
        put32(place, 44, self.shared_xattrs);
        place[48..64].copy_from_slice(&self.uuid);
        put32(place, 80, if self.chunked { INCOMPAT_CHUNKED } else { 0 });
        put32(place, 4, crc32c(u32::MAX, place));
        block
    }

    /// `None`: a block 0 that [`Superblock::encode`] does not make.
    pub fn decode(block: &[u8; BLOCK_SIZE]) -> Option<Superblock> {
        let found = Superblock::parse(block);
        (found.encode() == *block).then_some(found)
    }

    pub fn parse(block: &[u8; BLOCK_SIZE]) -> Superblock {
        let place = &block[SUPER_OFFSET..];
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&place[48..64]);
        Superblock {
            root: get16(place, 14),
            inodes: get64(place, 16),
            blocks: get32(place, 36),
            metadata: get32(place, 40),
            shared_xattrs: get32(place, 44),
            uuid,
            chunked: get32(place, 80) == INCOMPAT_CHUNKED,
        }
    }
}

/// How an inode's data is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataLayout {
    /// In blocks that follow each other; what the inode says of data is the first of them.
    Flat = 0,
    /// The same, but the last, not full block lies right behind the inode and its extended attributes.
    Inline = 2,
    /// In chunks that lie anywhere, or are holes; the table of their first blocks lies behind the inode and its extended
    /// attributes. What the inode says of data is how many bits a chunk has more than a block.
    Chunked = 4,
}

/// An inode of the long form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawInode {
    pub layout: DataLayout,
    /// Bytes of extended attributes behind it: none, or 12 and a multiple of 4.
    pub xattr_size: u32,
    /// Type and permissions.
    pub mode: u16,
    pub size: u64,
    /// First block, chunk format or device, as layout and type have it.
    pub data: u32,
    /// What `stat` gives programs that know only 32 bits: the lower half of its number.
    pub short_number: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
    pub mtime_nsec: u32,
    pub links: u32,
}

/// What stands before an inode's extended attributes.
pub(super) const XATTR_HEADER: u32 = 12;
/// As many bytes of extended attributes can stand behind an inode.
pub(super) const XATTR_SIZE_MAX: u32 = XATTR_HEADER + 4 * (u16::MAX as u32 - 1);

impl RawInode {
    pub fn encode(&self) -> [u8; INODE_SIZE] {
        let mut place = [0; INODE_SIZE];
        put16(&mut place, 0, 1 | (self.layout as u16) << 1);
        let xattr_count = if self.xattr_size == 0 { 0 } else { (self.xattr_size - XATTR_HEADER) / 4 + 1 };
        put16(&mut place, 2, xattr_count as u16);
        put16(&mut place, 4, self.mode);
        put64(&mut place, 8, self.size);
        put32(&mut place, 16, self.data);
        put32(&mut place, 20, self.short_number);
        put32(&mut place, 24, self.uid);
        put32(&mut place, 28, self.gid);
        put64(&mut place, 32, self.mtime as u64);
        put32(&mut place, 40, self.mtime_nsec);
        put32(&mut place, 44, self.links);
        place
    }

    /// `None`: one that [`RawInode::encode`] does not make.
    pub fn decode(place: &[u8; INODE_SIZE]) -> Option<RawInode> {
        let layout = match get16(place, 0) >> 1 {
            0 => DataLayout::Flat,
            2 => DataLayout::Inline,
            4 => DataLayout::Chunked,
            _ => return None,
        };
        let xattr_size = match u32::from(get16(place, 2)) {
            0 => 0,
            count => XATTR_HEADER + 4 * (count - 1),
        };
        let found = RawInode {
            layout,
            xattr_size,
            mode: get16(place, 4),
            size: get64(place, 8),
            data: get32(place, 16),
            short_number: get32(place, 20),
            uid: get32(place, 24),
            gid: get32(place, 28),
            mtime: get64(place, 32) as i64,
            mtime_nsec: get32(place, 40),
            links: get32(place, 44),
        };
        (found.encode() == *place).then_some(found)
    }
}

/// A device's number as the kernel's `new_encode_dev` writes it, or `None` if it is too large for that.
pub(super) fn encode_device(major: u32, minor: u32) -> Option<u32> {
    (major < 1 << 12 && minor < 1 << 20).then_some(minor & 0xFF | major << 8 | (minor & !0xFF) << 12)
}

/// Major and minor.
pub(super) fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xFFF, device & 0xFF | (device >> 12) & 0xF_FF00)
}

/// Types of files in the upper bits of a mode, and as directory entries have them.
pub(super) mod file_type {
    pub const FIFO: (u16, u8) = (0o01_0000, 5);
    pub const CHAR_DEVICE: (u16, u8) = (0o02_0000, 3);
    pub const DIRECTORY: (u16, u8) = (0o04_0000, 2);
    pub const BLOCK_DEVICE: (u16, u8) = (0o06_0000, 4);
    pub const REGULAR: (u16, u8) = (0o10_0000, 1);
    pub const SYMLINK: (u16, u8) = (0o12_0000, 7);
    pub const SOCKET: (u16, u8) = (0o14_0000, 6);
}

pub(super) fn put16(place: &mut [u8], at: usize, number: u16) {
    place[at..at + 2].copy_from_slice(&number.to_le_bytes());
}

pub(super) fn put32(place: &mut [u8], at: usize, number: u32) {
    place[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(super) fn put64(place: &mut [u8], at: usize, number: u64) {
    place[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

pub(super) fn get16(place: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([place[at], place[at + 1]])
}

pub(super) fn get32(place: &[u8], at: usize) -> u32 {
    u32::from(get16(place, at)) | u32::from(get16(place, at + 2)) << 16
}

pub(super) fn get64(place: &[u8], at: usize) -> u64 {
    u64::from(get32(place, at)) | u64::from(get32(place, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_back() {
        for (major, minor) in [(0, 0), (8, 1), (259, 255), (4095, (1 << 20) - 1), (1, 256), (136, 65_536)] {
            let device = encode_device(major, minor).expect("it fits");
            assert_eq!(decode_device(device), (major, minor));
            assert_eq!(u64::from(device), u64::from(device) & 0xFFFF_FFFF);
        }
        assert_eq!(encode_device(4096, 0), None);
        assert_eq!(encode_device(0, 1 << 20), None);
    }

    #[test]
    fn every_bit_of_the_superblock_counts() {
        let superblock = Superblock {
            root: 2,
            inodes: 5,
            blocks: 70_000,
            metadata: 69_000,
            shared_xattrs: 69_999,
            uuid: *b"sixteen bytes ..",
            chunked: true,
        };
        let block = superblock.encode();
        assert_eq!(Superblock::decode(&block), Some(superblock));
        for at in 0..BLOCK_SIZE {
            for bit in 0..8 {
                let mut damaged = block;
                damaged[at] ^= 1 << bit;
                assert_eq!(Superblock::decode(&damaged), None, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn inodes_come_back() {
        let inode = RawInode {
            layout: DataLayout::Inline,
            xattr_size: XATTR_SIZE_MAX,
            mode: 0o10_4755,
            size: u64::MAX / 3,
            data: 7,
            short_number: 8,
            uid: u32::MAX - 1,
            gid: 3,
            mtime: -1,
            mtime_nsec: 999_999_999,
            links: 70_000,
        };
        assert_eq!(RawInode::decode(&inode.encode()), Some(inode));
        let mut other = inode.encode();
        other[50] = 1;
        assert_eq!(RawInode::decode(&other), None, "reserved bytes");
        other = inode.encode();
        other[0] = 0b0101;
        other[0] &= !1;
        assert_eq!(RawInode::decode(&other), None, "the short form");
        other[0] = 0b0011;
        assert_eq!(RawInode::decode(&other), None, "compressed");
    }
}
