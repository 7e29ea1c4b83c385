//! What can be wrong with a document.

/// The result of everything in this crate that reads documents.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a manifest, an index or a configuration is not taken. Each message begins with the object's name, as the caller gave it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A manifest, index or configuration is not what its digest, its descriptor or its format promises.
    #[error("{object} is not sound: {why}")]
    BadManifest {
        /// What it is, and where it came from.
        object: String,
        /// What is wrong with it.
        why: String,
    },
    /// A manifest of the format that preceded digests of layers.
    #[error("{object} is of Docker's old schema 1, which is not supported")]
    OldSchema {
        /// The image.
        object: String,
    },
    /// The image is not there for the machine wanted.
    #[error("{object} is not there for {wanted}, only for: {offered}")]
    NoPlatform {
        /// The image.
        object: String,
        /// The platform asked for.
        wanted: String,
        /// Those there are.
        offered: String,
    },
}
