#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

//! # Layout
//!
//! ```text
//! block 0    superblock, and nothing else
//! block 1..  data: the full blocks of files, written by the caller
//!            copies: pieces of sparse files that had to be put together anew
//! metadata   table: inodes without a tail (directories, links, ...), directories and targets that fit beside them
//!            tails: inodes with the last, not full block of their file right behind them
//!            blocks: those of directories and link targets that do not fit beside their inode
//!            shared: extended attributes that several inodes have, or that are long
//! ```
//!
//! [`finish`] writes everything but the data. Nothing is compressed, all inodes are of the long form (the short one has no time),
//! and the order is that of a walk through the tree, so what is read together lies together: finding and listing reads the table
//! from its start to its end. The same tree gives the same bytes.
//!
//! What the kernel would take but [`finish`] never writes, [`verify()`] refuses: other features and layouts, parts that overlap.
//!
//! Format: <https://docs.kernel.org/filesystems/erofs.html> and `fs/erofs/erofs_fs.h` of Linux.

mod area;
mod chunks;
mod crc32c;
mod dirents;
mod error;
mod files;
mod format;
mod layout;
mod pack;
mod read;
mod read_xattrs;
mod seal;
mod shape;
mod source;
pub mod tree;
mod verify;
mod write;
mod xattr;

pub use error::{Error, Result};
pub use files::{FileEntry, Files};
pub use format::{MAGIC, SUPER_OFFSET};
pub use read::{Extent, InodeKind, Reader, StoredInode};
pub use source::ReadAt;
pub use verify::{Verified, check_seal, verify, verify_layer, verify_stored, verify_stored_unsealed};
pub use write::{SpaceCheck, Summary, Tails, finish};
pub use xattr::is_storable;

/// For fuzzing and tests of what others may forge: nothing else may call it.
#[doc(hidden)]
pub mod fuzz {
    use super::{InodeKind, Reader, verify};

    /// Makes the UUID and the checksum fit an image that was changed.
    pub fn reseal(image: &mut [u8]) {
        super::seal::reseal(image);
    }

    /// Verifies an image, and reads all of it but holes; `false` if it is not one of ours. What is verified can be read.
    pub fn read(image: &[u8]) -> bool {
        let Ok(reader) = Reader::open(image, "fuzzed") else { return false };
        let verified = verify(&reader);
        let mut names = 0;
        let mut read = |file: super::Result<super::FileEntry>| -> super::Result<()> {
            names += 1;
            let inode = file?.inode;
            reader.xattrs(&inode)?;
            if inode.kind == InodeKind::Symlink {
                reader.target(&inode)?;
            }
            let mut buffer = [0; 5000];
            for extent in reader.extents(&inode).take(10_000) {
                reader.read_at(&inode, &mut buffer, extent?.at)?;
            }
            Ok(())
        };
        let all = reader.files().try_for_each(&mut read);
        if let Ok(verified) = &verified {
            all.expect("what was verified can be read");
            assert_eq!(verified.names, names);
        }
        verified.is_ok()
    }
}
