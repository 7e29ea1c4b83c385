//! What the tests of images share: layers, programs of others, and the trees that the tests of EROFS make.

#![allow(clippy::unwrap_used, dead_code)] // each test binary uses a part of it; a test may panic

pub mod fated;
pub mod layers;
pub mod tools;
#[path = "../../../erofs/tests/common/mod.rs"]
mod trees;

pub use trees::*;
