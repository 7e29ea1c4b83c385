#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod digest;
mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod hash;
pub mod manifest;
pub mod platform;
pub mod reference;

pub use error::{Error, Result};
