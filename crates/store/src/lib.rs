//! Images kept and got: pulled from registries or imported from files, checked, and held in a store that users may share.
//!
//! The store has a writer, and users' programs a way to it; which names a user has for images is the user's own.

pub mod client;
pub mod copies;
mod error;
pub mod fetcher;
pub mod file;
pub mod fuzz;
pub mod import;
pub mod index;
mod layer;
mod listing;
mod names;
pub mod protocol;
pub mod pull;
mod store;
mod threads;
pub mod unpacked;
pub mod writer;

pub use error::{Error, Result, ours};
pub use layer::StoredLayer;
pub use names::{PREFIX, find, known};
pub use skiff_image::source::ImageSource;
pub use store::{
    Begun, Collected, ImageLayer, ImageMetadata, Patience, Quota, Store, UnfinishedImage, Usage, UserUsage,
};
