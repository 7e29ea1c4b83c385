//! Images of containers as plain data: what they are called, and what they are made of.

pub mod digest;
mod error;
pub mod hash;
pub mod manifest;
pub mod platform;
pub mod reference;

pub use error::{Error, Result};
