//! A digest of all blocks of an image's metadata, which is kept as its UUID: so damage shows, and the same image has the same.
//!
//! Blocks are written in no order, so what is added up is their digests, each times a number that its place gives. That is
//! against failing disks, not against people: they can make the digest fit what they forged, and [`super::verify()`] trusts it in nothing.

use super::crc32c::crc32c;
use super::format::{BLOCK_SIZE, SUPER_OFFSET, Superblock, put32};

/// The sum so far.
#[derive(Default)]
pub(super) struct Seal(u128);

impl Seal {
    /// Adds whole blocks that begin with the block of this number in the file.
    pub fn add(&mut self, first: u64, blocks: &[u8]) {
        debug_assert_eq!(blocks.len() % BLOCK_SIZE, 0);
        for (number, block) in (first..).zip(blocks.chunks_exact(BLOCK_SIZE)) {
            let digest = *blake3::hash(block).as_bytes();
            let half = digest.first_chunk().expect("a digest has 32 bytes");
            let odd = u128::from(number) * 2 + 1;
            self.0 = self.0.wrapping_add(u128::from_le_bytes(*half).wrapping_mul(odd));
        }
    }

    /// Adds what another one has.
    pub fn merge(&mut self, other: Seal) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// As a UUID of the kind whose bits mean nothing to others (RFC 9562, version 8).
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = self.0.to_le_bytes();
        uuid[6] = uuid[6] & 0x0F | 0x80;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        uuid
    }
}

/// Makes UUID and checksum fit what the image says, as whoever forges one would.
pub(super) fn reseal(image: &mut [u8]) {
    let Some((block, _)) = image.split_first_chunk() else { return };
    let mut superblock = Superblock { uuid: [0; 16], ..Superblock::parse(block) };
    let mut seal = Seal::default();
    seal.add(0, &superblock.encode());
    let metadata = superblock.metadata as usize;
    let blocks = metadata..(superblock.blocks as usize).min(image.len() / BLOCK_SIZE);
    if let Some(metadata_bytes) = image.get(blocks.start * BLOCK_SIZE..blocks.end * BLOCK_SIZE) {
        seal.add(metadata as u64, metadata_bytes);
    }
    superblock.uuid = seal.uuid();
    let place = &mut image[SUPER_OFFSET..BLOCK_SIZE];
    place[48..64].copy_from_slice(&superblock.uuid);
    put32(place, 4, 0);
    put32(place, 4, crc32c(u32::MAX, place));
}
