//! What can go wrong while an image file is made, read or exported.
//!
//! Every message says what was tried, on which object, and why it failed; [`Error::hint`] says how to mend it.

use rustix::io::Errno;
use skiff_oci::Error as Document;
use skiff_sys::SystemError;
use skiff_sys::error::SPACE;
use skiff_sys::size::size;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a layer, an image file, or a file or directory with an image in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] SystemError),
    /// A layer's bytes are not what its digest or its format promises.
    #[error("layer {layer} is damaged or hostile: {why}")]
    BadLayer {
        /// The layer's digest, or the name of what was read.
        layer: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A layer's bytes do not have its digest.
    #[error("layer {layer} is not what its digest promises")]
    WrongDigest {
        /// The layer's digest.
        layer: String,
    },
    /// A layer does not arrive. Whoever brings it says why.
    #[error(transparent)]
    Blob(Box<dyn std::error::Error + Send + Sync>),
    /// What has been read of a layer was wrong, and it arrives anew.
    #[error("layer {layer} was damaged on its way and is fetched again")]
    Restarted {
        /// The layer's digest.
        layer: String,
    },
    /// The layers together are larger than allowed.
    #[error("image {image} {why}")]
    TooLarge {
        /// The image's name.
        image: String,
        /// What it has too much of.
        why: String,
    },
    /// The work was given up, as was asked for, or because of something that failed beside it.
    #[error("cancelled")]
    Cancelled,
    /// A manifest, index or configuration is not sound, or not for the platform wanted.
    #[error(transparent)]
    Document(#[from] Document),
    /// A file is one that an image file cannot hold.
    #[error("cannot store {file} in an image: {why}")]
    Unstorable {
        /// Path of the file in the image.
        file: String,
        /// What about it is not possible.
        why: String,
    },
    /// A file or directory has several images, or not the one wanted.
    #[error("{object} has {what}; it has: {offered}")]
    NotInside {
        /// The file or directory.
        object: String,
        /// What about the image wanted.
        what: String,
        /// The names of those there are.
        offered: String,
    },
    /// A file or directory to import from, or to export to, is not what it should be.
    #[error("{object}: {why}")]
    Foreign {
        /// The file or directory.
        object: String,
        /// What is wrong with it, or not understood of it.
        why: String,
        /// How to mend it.
        hint: Option<&'static str>,
    },
    /// A name is none of an image.
    #[error(transparent)]
    Reference(#[from] skiff_oci::reference::ReferenceError),
    /// There is not enough room.
    #[error("no space for {object}: it needs at least {}, {} are free", size(*needed), size(*free))]
    NoSpace {
        /// The file.
        object: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// This program has an error.
    #[error("cannot {what}: the program failed: {why}")]
    Panicked {
        /// What was being done: "unpack layer ...".
        what: String,
        /// The panic's message.
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
    /// A document of an image is not what its digest, its descriptor or its format promises.
    pub(crate) fn unsound(object: impl Into<String>, why: impl Into<String>) -> Self {
        Document::BadManifest { object: object.into(), why: why.into() }.into()
    }

    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Reference(error) => Some(error.hint()),
            Error::NoSpace { .. } => Some(SPACE),
            Error::NotInside { .. } => {
                Some("which one is said by docker-archive:FILE:NAME, oci-archive:FILE:NAME or oci:DIR:NAME")
            }
            Error::Foreign { hint, .. } => {
                Some(hint.unwrap_or("copy it again, or have the program that wrote it write it anew"))
            }
            Error::Panicked { .. } => Some("this is an error of skiff's own: report it, with this message"),
            Error::WrongDigest { .. } => {
                Some("what the registry or the archive has is damaged there: push or save the image again")
            }
            Error::TooLarge { .. } => {
                Some("it may be a bomb; if it is to be trusted, make several images of it")
            }
            Error::Document(error) => document_hint(error),
            Error::BadLayer { .. } | Error::Unstorable { .. } => Some(ANEW),
            Error::Io(error) => io_hint(error),
            Error::BadImage { .. } => Some("remove the image and pull it again"),
            Error::Blob(_) | Error::Restarted { .. } | Error::Cancelled => None,
        }
    }

    /// Whether what was read of a [`Blob`](crate::blob::Blob) is to be read again, from its beginning.
    pub fn is_restart(&self) -> bool {
        matches!(self, Error::Restarted { .. })
    }
}

const ANEW: &str = "the image must be made, and pushed or saved, anew: it cannot be used as it is";

/// How to mend what a manifest, index or configuration lacks.
#[must_use]
pub fn document_hint(error: &Document) -> Option<&'static str> {
    match error {
        Document::BadManifest { .. } => Some(ANEW),
        Document::OldSchema { .. } => {
            Some("push the image again with a Docker of this decade, or ask its maker to")
        }
        Document::NoPlatform { .. } => Some("--arch takes another platform's image, to look at or to export"),
    }
}

/// How to mend what kept a system call from being done.
#[must_use]
pub fn io_hint(error: &SystemError) -> Option<&'static str> {
    error.hint().or(match (error.what, error.source) {
        ("import", _) => Some("it must be there, and readable to you"),
        ("write", Errno::ACCESS | Errno::PERM | Errno::ROFS) => Some("name a place that you may write to"),
        _ => None,
    })
}

impl From<skiff_erofs::Error> for Error {
    fn from(error: skiff_erofs::Error) -> Error {
        match error {
            skiff_erofs::Error::Io { what, object, source } => SystemError::new(what, object, source).into(),
            skiff_erofs::Error::Unstorable { file, why } => Error::Unstorable { file, why },
            skiff_erofs::Error::BadImage { file, why } => Error::BadImage { file, why },
        }
    }
}
