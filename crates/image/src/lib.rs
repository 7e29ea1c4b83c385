//! Image files: made of the layers of an image, or of another file system, as one plain EROFS file each; and exported again.
//!
//! Layers stream in: each is inflated and its tar stream parsed while it arrives; whole blocks of its files go straight to
//! their final place in the image file. What the layers say is merged in memory into a [`skiff_erofs::tree::Tree`], from which the
//! file's metadata is written at the end.

pub mod assemble;
pub mod blob;
pub mod changes;
pub mod convert;
mod error;
pub mod export;
pub mod first_run;
pub mod fuzz;
mod hashing;
mod inflate;
mod layer;
mod layer_entries;
mod merge;
mod panics;
mod preallocation;
mod punch;
mod sif;
pub mod source;
mod space;
pub mod spill;
pub mod squashfs;
pub mod sum;
pub mod trailer;
pub mod transport;
pub mod unpack;
mod work_slots;

pub use error::{Error, Result, document_hint, io_hint};
