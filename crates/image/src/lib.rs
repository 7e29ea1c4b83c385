//! Images: pulled from registries or read from archives, and kept as one plain EROFS file each.
//!
//! Layers stream in: each is inflated and its tar stream parsed while it arrives; whole blocks of its files go straight to
//! their final place in the image file. What the layers say is merged in memory into a [`skiff_erofs::tree::Tree`], from which the
//! file's metadata is written at the end.

mod ahead;
pub mod assemble;
pub mod blob;
pub mod convert;
mod error;
pub mod export;
pub mod fetcher;
pub mod first_run;
pub mod fuzz;
mod gate;
mod hashing;
pub mod import;
mod inflate;
mod layer;
mod merge;
mod panics;
pub mod pull;
mod punch;
mod records;
mod sif;
pub mod source;
mod space;
pub mod spill;
pub mod squashfs;
pub mod store;
pub mod sum;
pub mod tar;
mod threads;
pub mod transport;
pub mod unpack;

pub use error::{Error, Result};
