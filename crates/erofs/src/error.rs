//! What can go wrong while an image is written, read or verified.

use std::io;

/// The result of everything in this crate that reads or writes.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an image file, or of the system while one was read or written.
///
/// Each message names the object and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {what} {object}: {source}")]
    Io {
        /// What was tried, as a verb: "read", "write to".
        what: &'static str,
        /// The image's name, as the caller gave it.
        object: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is one that an image cannot hold.
    #[error("cannot store {file} in an image: {why}")]
    Unstorable {
        /// Path of the file in the image.
        file: String,
        /// What about it is not possible.
        why: String,
    },
    /// An image is not one that [`finish`](super::finish) would have written.
    #[error("image file {file} is damaged: {why}")]
    BadImage {
        /// The image's name, as the caller gave it.
        file: String,
        /// What is wrong with it, and where.
        why: String,
    },
}

/// Adds what was tried, and on what, to a failed system call.
pub(crate) trait IoContext<T> {
    /// `what` is a verb, `object` the image's name.
    fn on(self, what: &'static str, object: &str) -> Result<T>;
}

impl<T, E: Into<io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn on(self, what: &'static str, object: &str) -> Result<T> {
        self.map_err(|source| Error::Io { what, object: object.into(), source: source.into() })
    }
}
