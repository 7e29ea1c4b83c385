//! What can go wrong between an environment's upper, the depot and a node's cache.
//!
//! Every message says what was tried, on which object, and the system's reason; [`Error::hint`] says how to mend it.

use rustix::io::Errno;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a walk, a snapshot, the depot or the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {what} {object}: {source}")]
    Io {
        /// What was tried, as a verb: "open", "write to".
        what: &'static str,
        /// The path it was tried on; bytes that are not UTF-8 are escaped.
        object: String,
        /// The system's reason.
        source: Errno,
    },
    /// A layer file is not what its name and its format promise.
    #[error("layer {layer} is damaged or hostile: {why}")]
    BadLayer {
        /// The layer's digest, or the name of what was read.
        layer: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A snapshot manifest is not what its name promises, or of a version unknown here.
    #[error("snapshot {snapshot} is damaged: {why}")]
    BadManifest {
        /// The snapshot asked for.
        snapshot: String,
        /// What is wrong with it.
        why: String,
    },
    /// The depot does not hold what was asked for.
    #[error("{what} is not in the depot {depot}")]
    Missing {
        /// "snapshot 12ab..." or "layer 12ab...".
        what: String,
        /// The depot's path.
        depot: String,
    },
    /// Something changed each time it was read.
    #[error("{object} kept changing while it was read ({tries} tries)")]
    Busy {
        /// The path in the environment.
        object: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The upper holds something that cannot be carried to another node.
    #[error("cannot take {object} into a snapshot: {why}")]
    Unsupported {
        /// The path in the environment.
        object: String,
        /// Why not.
        why: String,
    },
    /// A directory that other users could exchange.
    #[error(transparent)]
    Untrusted(#[from] skiff_site::Error),
    /// What was to be read changed its kind or went: the snapshot is begun again. Never leaves this crate.
    #[error("{object} changed its kind during the snapshot")]
    #[doc(hidden)]
    Moved {
        /// The path in the environment.
        object: String,
    },
}

impl Error {
    /// How to mend it, where that is known: one sentence without a full stop.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Io { source: Errno::NOSPC | Errno::DQUOT, .. } => {
                Some("free some space or quota there; nothing half made was left behind")
            }
            Error::Io { what: "change the owner of", source: Errno::INVAL | Errno::PERM, .. } => {
                Some("the id range of the user namespace is too small or absent; see `skiff doctor`")
            }
            Error::Io { what: "set an extended attribute of", source: Errno::OPNOTSUPP, .. } => {
                Some("the file system there has no extended attributes; use ext4, xfs or a recent tmpfs")
            }
            Error::Io { source: Errno::FBIG, .. } => {
                Some("the file system there cannot hold so large a file")
            }
            Error::BadLayer { .. } | Error::BadManifest { .. } => {
                Some("remove that file from the depot and submit again: a new snapshot will be made")
            }
            Error::Missing { .. } => {
                Some("it was pruned or the depot is not the same directory on this node; submit again")
            }
            Error::Busy { .. } => {
                Some("stop the program that writes it, or move the file to the home directory")
            }
            Error::Untrusted(_) => {
                Some("name a directory of your own, in directories that only root and you can write to")
            }
            _ => None,
        }
    }

    /// The system's error number, where a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Io { source, .. } => Some(*source),
            Error::Untrusted(e) => e.errno(),
            _ => None,
        }
    }
}

/// Adds what was tried, and on what, to a failed system call.
pub(crate) trait Context<T> {
    /// `what` is a verb, `object` the path as bytes.
    fn on(self, what: &'static str, object: impl AsRef<[u8]>) -> Result<T>;
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn on(self, what: &'static str, object: impl AsRef<[u8]>) -> Result<T> {
        self.map_err(|source| Error::Io { what, object: show(object.as_ref()), source })
    }
}

/// A path for a message: as it is when it is UTF-8 without control characters, else escaped.
pub(crate) fn show(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok("") => "/".into(),
        Ok(text) if !text.chars().any(char::is_control) => text.into(),
        _ => path.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_what_object_and_reason() {
        let error = Err::<(), _>(Errno::NOSPC).on("write to", b"a\xff\n").unwrap_err();
        assert_eq!(error.to_string(), "cannot write to a\\xff\\n: No space left on device (os error 28)");
        assert!(error.hint().is_some_and(|hint| hint.contains("space")));
    }
}
