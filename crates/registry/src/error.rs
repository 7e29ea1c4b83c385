//! What can go wrong while registries are asked, and while their configuration is read.
//!
//! Every message says what was tried, on which object, and why it failed; [`Error::hint`] says how to mend it.

use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_sys::SystemError;
use skiff_sys::error::SPACE;
use skiff_sys::size::size;

use super::failure::{Failure, RegistryError};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a registry, a document, a configuration file, or of the system.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] SystemError),
    /// A manifest, index or configuration is not sound, or not for the platform wanted.
    #[error(transparent)]
    Document(#[from] skiff_oci::Error),
    /// A name is none of an image.
    #[error(transparent)]
    Reference(#[from] skiff_oci::reference::ReferenceError),
    /// A registry did not give what was asked for.
    #[error(transparent)]
    Registry(#[from] Box<RegistryError>),
    /// The process that asks registries for this one did not get what was asked for.
    #[error("{}", .0.message)]
    Told(Told),
    /// A configuration file is not what it should be.
    #[error("{file}: {why}")]
    Config {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// A program that keeps credentials did not do what it was asked.
    #[error("credential helper docker-credential-{name}: {why}")]
    CredentialHelper {
        /// How the file with logins names it.
        name: String,
        /// What went wrong.
        why: String,
    },
    /// registries.conf forbids it.
    #[error("{image} may not be pulled or pushed: registries.conf blocks {prefix}")]
    Blocked {
        /// The image.
        image: String,
        /// The entry that forbids it.
        prefix: String,
    },
    /// policy.json forbids it.
    #[error("{image} is refused by {policy}: {why}")]
    Refused {
        /// The image.
        image: String,
        /// The policy's file.
        policy: String,
        /// Which requirement it does not meet.
        why: String,
    },
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
    /// The bytes of a blob were wrong, and are fetched anew.
    #[error("blob {blob} was damaged on its way and is fetched again")]
    Restarted {
        /// The blob's digest.
        blob: String,
    },
    /// Nobody brings the blob any more.
    #[error("blob {blob} is not fetched any more")]
    Abandoned {
        /// The blob's digest.
        blob: String,
    },
    /// This program has an error.
    #[error("cannot {what}: the program failed: {why}")]
    Panicked {
        /// What was being done: "fetch blobs".
        what: String,
        /// The panic's message.
        why: String,
    },
    /// An error that several wait for.
    #[error(transparent)]
    Shared(Arc<Error>),
}

/// An error of another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// What, on which object, why.
    pub message: String,
    /// How to mend it.
    pub hint: Option<String>,
    /// Whether it says that layers are not to be had.
    pub is_refusal: bool,
}

impl Error {
    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Shared(error) => error.hint(),
            Error::Registry(error) => error.hint(),
            Error::Told(told) => told.hint.as_deref(),
            Error::Reference(error) => Some(error.hint()),
            Error::Config { .. } => Some(
                "mend the file: containers-registries.conf(5), containers-auth.json(5), containers-policy.json(5)",
            ),
            Error::CredentialHelper { .. } => Some(
                "your config.json or auth.json names it (credHelpers, credsStore): it must be in PATH; \
                 `docker-credential-NAME list` shows whether it works",
            ),
            Error::Blocked { .. } => Some("ask the site's administrator, or use another registry"),
            Error::Refused { .. } => {
                Some("the site demands signed images; ask its administrator, or the image's maker")
            }
            Error::NoSpace { .. } => Some(SPACE),
            Error::Io(error) => error.hint().or(match error.source {
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    Some("the directory must be writable to whoever fetches into it")
                }
                _ => None,
            }),
            Error::Panicked { .. } => {
                Some("this is an error of the program's own: report it, with this message")
            }
            Error::Document(_) | Error::Restarted { .. } | Error::Abandoned { .. } => None,
        }
    }

    /// Whether it says that layers are not to be had. That a network fails says nothing of that.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Shared(error) => error.is_refusal(),
            Error::Told(told) => told.is_refusal,
            Error::Registry(e) => !matches!(
                e.failure,
                Failure::Connection(_)
                    | Failure::Unresolved(_)
                    | Failure::Unanswered(_)
                    | Failure::Cancelled
                    | Failure::Status { status: 429 | 500.., .. }
            ),
            _ => false,
        }
    }

    /// Whether the work begun with a [`BlobReader`](super::BlobReader) is to be begun again, with a new one.
    pub fn is_restart(&self) -> bool {
        matches!(self, Error::Restarted { .. })
    }
}

impl Told {
    /// An error, for another process.
    #[must_use]
    pub fn of(error: &Error) -> Told {
        Told {
            message: error.to_string(),
            hint: error.hint().map(String::from),
            is_refusal: error.is_refusal(),
        }
    }
}

impl From<RegistryError> for Error {
    fn from(error: RegistryError) -> Error {
        Error::Registry(Box::new(error))
    }
}
