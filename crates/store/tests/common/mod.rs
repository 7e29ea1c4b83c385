//! What the tests of stores share: stores, and what the tests of images share.

#![allow(clippy::unwrap_used, dead_code)]

#[path = "../../../image/tests/common/mod.rs"]
mod images;
pub mod stores;

pub use images::*;
