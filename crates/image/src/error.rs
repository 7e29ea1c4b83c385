//! What can go wrong while an image is fetched, made or read.
//!
//! Every message says what was tried, on which object, and why it failed; [`Error::hint`] says how to mend it.

use rustix::io::Errno;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a registry, a layer, an image file or the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {what} {object}: {source}")]
    Io {
        /// What was tried, as a verb: "open", "write to".
        what: &'static str,
        /// The path it was tried on.
        object: String,
        /// The system's reason.
        source: Errno,
    },
    /// A layer's bytes are not what its digest or its format promises.
    #[error("layer {layer} is damaged or hostile: {why}")]
    BadLayer {
        /// The layer's digest, or the name of what was read.
        layer: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// An image file is not one that we would have written.
    #[error("image file {file} is damaged: {why}")]
    BadImage {
        /// The file's name.
        file: String,
        /// What is wrong with it, and where.
        why: String,
    },
}

impl Error {
    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Io { source: Errno::NOSPC | Errno::DQUOT, .. } => {
                Some("free some space or quota there; nothing half made was left behind")
            }
            Error::BadImage { .. } => Some("remove the image and pull it again"),
            _ => None,
        }
    }
}

/// Adds what was tried, and on what, to a failed system call.
#[allow(dead_code)] // until the first module is here
pub(crate) trait Context<T> {
    /// `what` is a verb, `object` the path.
    fn on(self, what: &'static str, object: impl Into<String>) -> Result<T>;
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn on(self, what: &'static str, object: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io { what, object: object.into(), source })
    }
}
