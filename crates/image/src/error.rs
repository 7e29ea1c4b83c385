//! What can go wrong while an image is fetched, made or read.
//!
//! Every message says what was tried, on which object, and why it failed; [`Error::hint`] says how to mend it.

use rustix::io::Errno;
use skiff_oci::Error as Document;
use skiff_registry as registry;
use skiff_spec::image::ImageId;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
    /// A layer's bytes do not have its digest.
    #[error("layer {layer} is not what its digest promises")]
    WrongDigest {
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
    /// A store was made by a later version of this program.
    #[error("store {store}: its layout is version {version}, which this program does not know")]
    Newer {
        /// The store's path.
        store: String,
        /// What it says of itself.
        version: String,
    },
    /// A registry did not give what was asked for, or a configuration file does not let it be asked.
    #[error(transparent)]
    Registry(registry::Error),
    /// Another process has made the same image meanwhile.
    #[error("image {0}: made by another process meanwhile")]
    Overtaken(ImageId),
    /// A name is none of an image.
    #[error(transparent)]
    Reference(#[from] skiff_oci::reference::ReferenceError),
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
    /// There is not enough room.
    #[error("no space for {object}: it needs at least {needed} bytes, {free} are free")]
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

    /// From an error of the standard library, which stands for a system call's.
    pub(crate) fn io(what: &'static str, object: String, e: &std::io::Error) -> Error {
        Error::Io { what, object, source: Errno::from_io_error(e).unwrap_or(Errno::IO) }
    }

    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Registry(error) => error.hint(),
            Error::Reference(error) => Some(error.hint()),
            Error::NoSpace { .. } => {
                Some("free some space or quota there; nothing half made was left behind")
            }
            Error::Quota { .. } | Error::TooManyImages { .. } => Some(
                "`skiff rmi IMAGE` gives up what you need no longer; `skiff store du` shows what you have; \
                 administrator: store_user_quota in /etc/skiff/helper.conf",
            ),
            Error::RefusedTooOften { .. } => Some(
                "`skiff login SERVER` for the registry that the image is private in; after an hour you are heard again",
            ),
            Error::Io { what: "lock", source: Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP, .. } => {
                Some("the file system there has no locks; mount it with them (Lustre: -o flock, NFS: lockd)")
            }
            Error::Io { source: Errno::NOSPC | Errno::DQUOT, .. } => {
                Some("free some space or quota there; nothing half made was left behind")
            }
            Error::Io { what: "import", .. } => Some("it must be there, and readable to you"),
            Error::Io { what: "write", source: Errno::ACCESS | Errno::PERM | Errno::ROFS, .. } => {
                Some("name a place that you may write to")
            }
            Error::Io { source: Errno::ACCESS | Errno::PERM | Errno::ROFS, .. } => {
                Some("the store must be writable to whoever fills it; `skiff doctor` says whose it is")
            }
            Error::NotInside { .. } => {
                Some("which one is said by docker-archive:FILE:NAME, oci-archive:FILE:NAME or oci:DIR:NAME")
            }
            Error::Foreign { hint, .. } => {
                Some(hint.unwrap_or("copy it again, or have the program that wrote it write it anew"))
            }
            Error::Panicked { .. } => Some("this is an error of skiff's own: report it, with this message"),
            Error::Newer { .. } => Some("use the newer skiff, or another store"),
            Error::WrongDigest { .. } => {
                Some("what the registry or the archive has is damaged there: push or save the image again")
            }
            Error::TooLarge { .. } => {
                Some("it may be a bomb; if it is to be trusted, make several images of it")
            }
            Error::Document(Document::BadManifest { .. })
            | Error::BadLayer { .. }
            | Error::Unstorable { .. } => {
                Some("the image must be made, and pushed or saved, anew: it cannot be used as it is")
            }
            Error::BadImage { .. } => Some("remove the image and pull it again"),
            Error::Document(Document::OldSchema { .. }) => {
                Some("push the image again with a Docker of this decade, or ask its maker to")
            }
            Error::Document(Document::NoPlatform { .. }) => {
                Some("--arch takes another platform's image, to look at or to export")
            }
            _ => None,
        }
    }

    /// Whether it says that layers are not to be had. That a network fails says nothing of that.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Error::WrongDigest { .. } => true,
            Error::Registry(error) => error.is_refusal(),
            _ => false,
        }
    }

    /// Whether the work begun with a [`registry::Reader`] is to be begun again, with a new one.
    pub fn is_restart(&self) -> bool {
        matches!(self, Error::Registry(error) if error.is_restart())
    }
}

impl From<registry::Error> for Error {
    fn from(error: registry::Error) -> Error {
        match error {
            registry::Error::Io { what, object, source } => Error::io(what, object, &source),
            registry::Error::Document(error) => error.into(),
            registry::Error::Reference(error) => error.into(),
            registry::Error::NoSpace { object, needed, free } => Error::NoSpace { object, needed, free },
            registry::Error::Panicked { what, why } => Error::Panicked { what, why },
            error => Error::Registry(error),
        }
    }
}

impl From<skiff_erofs::Error> for Error {
    fn from(error: skiff_erofs::Error) -> Error {
        match error {
            skiff_erofs::Error::Io { what, object, source } => Error::io(what, object, &source),
            skiff_erofs::Error::Unstorable { file, why } => Error::Unstorable { file, why },
            skiff_erofs::Error::BadImage { file, why } => Error::BadImage { file, why },
        }
    }
}

/// Adds what was tried, and on what, to a failed system call.
pub(crate) trait Context<T> {
    /// `what` is a verb, `object` the path.
    fn on(self, what: &'static str, object: impl Into<String>) -> Result<T>;
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn on(self, what: &'static str, object: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io { what, object: object.into(), source })
    }
}
