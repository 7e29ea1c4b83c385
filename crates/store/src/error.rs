//! What can go wrong while an image is got or kept.
//!
//! Every message says what was tried, on which object, and why it failed; [`Error::hint`] says how to mend it.

use rustix::io::Errno;
use skiff_image::{document_hint, io_hint};
use skiff_spec::fault::Fault;
use skiff_spec::image::ImageId;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a registry, an image file or the store.
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
    /// An image cannot be made, or is not what it should be.
    #[error(transparent)]
    Image(skiff_image::Error),
    /// A registry did not give what was asked for, or a configuration file does not let it be asked.
    #[error(transparent)]
    Registry(skiff_registry::Error),
    /// A manifest, index or configuration is not sound, or not for the platform wanted.
    #[error(transparent)]
    Document(#[from] skiff_oci::Error),
    /// A name is none of an image.
    #[error(transparent)]
    Reference(#[from] skiff_oci::reference::ReferenceError),
    /// A store was made by a later version of this program.
    #[error("store {store}: its layout is version {version}, which this program does not know")]
    Newer {
        /// The store's path.
        store: String,
        /// What it says of itself.
        version: String,
    },
    /// Another process has made the same image meanwhile.
    #[error("image {0}: made by another process meanwhile")]
    Overtaken(ImageId),
    /// A user has failed too often to show that they can have images that others have.
    #[error("image access refused for {wait} s: {times} failed proofs of access within an hour")]
    RefusedTooOften {
        /// How often.
        times: usize,
        /// Seconds until the next one is heard.
        wait: u64,
    },
    /// One user would have too much of a store that others use, too.
    #[error("store quota exceeded: {used} bytes used, {more} more needed, {quota} allowed")]
    Quota {
        /// Bytes that this user has.
        used: u64,
        /// Bytes that are needed besides, as far as is known.
        more: u64,
        /// The quota.
        quota: u64,
    },
    /// One user has too many images.
    #[error("store quota exceeded: {most} images used, {most} allowed")]
    TooManyImages {
        /// How many.
        most: u64,
    },
}

impl Error {
    /// A document of an image is not what its digest, its descriptor or its format promises.
    pub(crate) fn unsound(object: impl Into<String>, why: impl Into<String>) -> Self {
        skiff_oci::Error::BadManifest { object: object.into(), why: why.into() }.into()
    }

    /// From an error of the standard library, which stands for a system call's.
    pub(crate) fn io(what: &'static str, object: String, e: &std::io::Error) -> Error {
        Error::Io { what, object, source: Errno::from_io_error(e).unwrap_or(Errno::IO) }
    }

    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Io { what, source, .. } => io_hint(what, *source).or(match *source {
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    Some("the store must be writable to whoever fills it; `skiff doctor` says whose it is")
                }
                _ => None,
            }),
            Error::Image(error) => error.hint(),
            Error::Registry(error) => error.hint(),
            Error::Document(error) => document_hint(error),
            Error::Reference(error) => Some(error.hint()),
            Error::Newer { .. } => Some("use the newer skiff, or another store"),
            Error::Overtaken(_) => None,
            Error::RefusedTooOften { .. } => Some(
                "`skiff login SERVER` for the registry that the image is private in; after an hour you are heard again",
            ),
            Error::Quota { .. } | Error::TooManyImages { .. } => Some(
                "`skiff rmi IMAGE` gives up what you need no longer; `skiff store du` shows what you have; \
                 administrator: store_user_quota in /etc/skiff/helper.conf",
            ),
        }
    }

    /// Whether it says that layers are not to be had. That a network fails says nothing of that.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Error::Image(skiff_image::Error::WrongDigest { .. }) => true,
            Error::Registry(error) => error.is_refusal(),
            _ => false,
        }
    }
}

impl From<skiff_image::Error> for Error {
    fn from(error: skiff_image::Error) -> Error {
        use skiff_image::Error as Image;
        match error {
            Image::Io { what, object, source } => Error::Io { what, object, source },
            Image::Document(error) => error.into(),
            Image::Reference(error) => error.into(),
            // Which says what one of our blobs has met.
            Image::Blob(error) => {
                error.downcast().map_or_else(|error| Error::Image(Image::Blob(error)), |ours| *ours)
            }
            error => Error::Image(error),
        }
    }
}

/// What one of our blobs has met, for whoever reads it.
impl From<Error> for skiff_image::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { what, object, source } => Self::Io { what, object, source },
            Error::Image(error) => error,
            Error::Registry(skiff_registry::Error::Restarted { blob }) => Self::Restarted { layer: blob },
            error => Self::Blob(Box::new(error)),
        }
    }
}

impl From<skiff_registry::Error> for Error {
    fn from(error: skiff_registry::Error) -> Error {
        match error {
            skiff_registry::Error::Io { what, object, source } => Error::io(what, object, &source),
            skiff_registry::Error::Document(error) => error.into(),
            skiff_registry::Error::Reference(error) => error.into(),
            error => Error::Registry(error),
        }
    }
}

impl From<skiff_erofs::Error> for Error {
    fn from(error: skiff_erofs::Error) -> Error {
        skiff_image::Error::from(error).into()
    }
}

/// An error of this library, or of those below it, for people.
pub fn ours(e: impl Into<Error>) -> Fault {
    let e: Error = e.into();
    let hint = e.hint().unwrap_or_default().to_owned();
    Fault::new(e.to_string()).hint(hint)
}

/// What is plain data cannot fail to become JSON; if it does, that is said.
pub(crate) fn json(e: serde_json::Error) -> Fault {
    Fault::new(format!("JSON: {e}"))
}

/// Why the other process of the store was not understood, or not heard.
pub(crate) fn talk(e: skiff_ipc::Error) -> Fault {
    Fault::from(e).about("the store's writer")
}

/// Adds what was tried, and on what, to a failed system call.
pub(crate) trait StoreContext<T> {
    /// `what` is a verb, `object` the path.
    fn on(self, what: &'static str, object: impl Into<String>) -> Result<T>;
}

impl<T> StoreContext<T> for rustix::io::Result<T> {
    fn on(self, what: &'static str, object: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io { what, object: object.into(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_blob_has_met_comes_back_through_the_image_that_is_made_of_it() {
        let denied = || skiff_registry::Error::Abandoned { blob: "sha256:0".into() };
        let told = skiff_image::Error::from(Error::from(denied()));
        assert!(matches!(told, skiff_image::Error::Blob(_)), "{told:?}");
        assert_eq!(told.to_string(), denied().to_string());
        let back = Error::from(told);
        assert!(matches!(back, Error::Registry(skiff_registry::Error::Abandoned { .. })), "{back:?}");
        // By these a full disk and a layer that comes anew are known.
        let full = Error::Io { what: "write to", object: "x".into(), source: Errno::NOSPC };
        let told = skiff_image::Error::from(full);
        assert!(matches!(told, skiff_image::Error::Io { source: Errno::NOSPC, .. }), "{told:?}");
        let anew = skiff_registry::Error::Restarted { blob: "sha256:0".into() };
        assert!(skiff_image::Error::from(Error::from(anew)).is_restart());
    }
}
