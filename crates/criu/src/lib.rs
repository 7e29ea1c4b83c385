#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod conversation;
pub mod core_image;
mod error;
pub mod file_locks;
pub mod files_image;
mod image_format;
mod installation;
mod log;
mod message_fields;
pub mod page_protocol;
pub mod pagemap;
pub mod rpc;

pub use client::{CarryOutError, Criu};
pub use conversation::{CriuEvent, see_through, take_back};
pub use error::{Error, Result};
pub use installation::{CriuExec, Installation};

/// Entry points of the fuzz target: nothing else may call them.
#[doc(hidden)]
pub mod fuzz {
    /// The errors that are found in the bytes of a log.
    #[must_use]
    pub fn errors_of_log(log: &[u8]) -> Option<String> {
        super::log::errors(log)
    }
}
