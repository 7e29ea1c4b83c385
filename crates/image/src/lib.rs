//! Images: pulled from registries or read from archives, and kept as one plain EROFS file each.
//!
//! Layers stream in: each is inflated and its tar stream parsed while it arrives; whole blocks of its files go straight to
//! their final place in the image file. What the layers say is merged in memory into a [`tree::Tree`], from which the
//! file's metadata is written at the end.

pub mod auth;
pub mod erofs;
mod error;
pub mod hash;
mod io;
pub mod manifest;
mod places;
pub mod policy;
pub mod registries_conf;
pub mod registry;
pub mod store;
pub mod tree;

pub use error::{Error, Result};
