//! The digest of a file's content, the same wherever it has holes and in whatever pieces it comes.

use std::os::fd::OwnedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Contents are compared by blocks of this size: blocks of zeros do not count.
const BLOCK: usize = 4096;
const PIECE: usize = 1 << 20;

/// A digest in the making.
pub(crate) struct ContentHash {
    hasher: blake3::Hasher,
    block: Vec<u8>,
    at: u64,
}

impl ContentHash {
    pub(crate) fn new() -> ContentHash {
        ContentHash { hasher: blake3::Hasher::new(), block: vec![0; BLOCK], at: 0 }
    }

    pub(crate) fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (block, within) = (offset / BLOCK as u64, (offset % BLOCK as u64) as usize);
            if block != self.at {
                self.end_block();
                self.at = block;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - within));
            self.block[within..within + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            bytes = rest;
        }
    }

    fn end_block(&mut self) {
        if self.block.iter().any(|byte| *byte != 0) {
            self.hasher.update(&self.at.to_le_bytes());
            self.hasher.update(&self.block);
            self.block.fill(0);
        }
    }

    pub(crate) fn finish(mut self) -> [u8; 32] {
        self.end_block();
        *self.hasher.finalize().as_bytes()
    }
}

/// Of an open file.
pub(crate) fn content_on_disk(file: &OwnedFd) -> rustix::io::Result<[u8; 32]> {
    let (mut hash, mut buffer, mut at) = (ContentHash::new(), vec![0; PIECE], 0);
    loop {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // The file system has no holes.
            Err(Errno::INVAL) => at,
            Err(Errno::NXIO) => return Ok(hash.finish()),
            Err(errno) => return Err(errno),
        };
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut buffer[..], at))? {
            0 => return Ok(hash.finish()),
            got => {
                hash.add(at, &buffer[..got]);
                at += got as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_pieces_make_no_difference_to_a_content() {
        let digest = |pieces: &[(u64, &[u8])]| {
            let mut hash = ContentHash::new();
            pieces.iter().for_each(|(at, bytes)| hash.add(*at, bytes));
            hash.finish()
        };
        let zeros = [0u8; 9000];
        let mut long = vec![7u8; 5000];
        long[4096..].fill(0);
        for (a, b, same) in [
            (vec![(0, &b"text"[..])], vec![(0, &b"te"[..]), (2, b"xt")], true),
            (vec![(0, &zeros[..]), (9000, b"x")], vec![(9000, &b"x"[..])], true),
            (vec![(0, &long[..])], vec![(0, &long[..4096])], true),
            (vec![(0, &b"x"[..])], vec![(1, &b"x"[..])], false),
            (vec![(0, &b"x"[..])], vec![(4096, &b"x"[..])], false),
            (vec![], vec![(5, &zeros[..])], true),
        ] {
            assert_eq!(digest(&a) == digest(&b), same, "{a:?} {b:?}");
        }
    }
}
