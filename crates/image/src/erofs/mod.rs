//! The file that holds an image: plain EROFS, which the kernel mounts as it is.
//!
//! ```text
//! block 0    superblock, and nothing else
//! block 1..  data: the full blocks of files, written while the layers stream in
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
//! What the kernel would take but [`finish`] never writes, [`verify`] refuses: other features and layouts, parts that overlap.
//!
//! Format: <https://docs.kernel.org/filesystems/erofs.html> and `fs/erofs/erofs_fs.h` of Linux.

mod area;
mod chunks;
mod crc32c;
mod dirents;
mod files;
mod format;
mod layout;
mod pack;
mod read;
mod read_xattrs;
mod seal;
mod shape;
mod source;
mod verify;
mod write;
mod xattr;

pub use files::{FileEntry, Files};
pub use read::{Extent, Node, NodeKind, Reader};
pub use source::Source;
pub use verify::{Verified, verify};
pub use write::{Summary, Tails, finish};
pub use xattr::is_storable;
