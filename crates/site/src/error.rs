//! Why a directory is not trusted, and how to mend that.

use std::path::PathBuf;

use rustix::io::Errno;
use skiff_spec::fault::Fault;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A directory that cannot be trusted, or a system call that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another user owns this component of a path, or may write to it.
    #[error("{}: belongs to uid {uid} with mode {:o}", path.display(), mode & 0o7777)]
    Untrusted {
        /// The component.
        path: PathBuf,
        /// Who owns it.
        uid: u32,
        /// File mode, as in `stat(2)`.
        mode: u32,
        /// Whose it may be, apart from root.
        owner: u32,
    },
    /// A symbolic link that another user has made, or can exchange.
    #[error("{}: a symbolic link that another user can exchange (it belongs to uid {uid})", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Who owns it.
        uid: u32,
    },
    /// A FUSE file system, mounted in a directory that everybody may write to. Whoever serves it says who owns its files.
    #[error("{}: a FUSE file system is mounted on it, in a directory that others may write to", path.display())]
    Mounted {
        /// The mount point.
        path: PathBuf,
    },
    /// Something else than a directory.
    #[error("{}: not a directory", path.display())]
    NotADirectory {
        /// What it is instead of.
        path: PathBuf,
    },
    /// Something else than a name of one component.
    #[error("{name:?} is not a file name")]
    Name {
        /// The text.
        name: String,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: Errno,
    },
}

impl Error {
    /// What to do about it; empty if there is nothing to say.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Untrusted { path, uid, mode, owner } => {
                let path = path.display();
                let who = if *uid == *owner && *owner != 0 { "" } else { "administrator: " };
                match *uid == 0 || uid == owner {
                    true if mode & 0o002 != 0 => format!("{who}chmod o-w,g-w {path}"),
                    true => format!("{who}chmod g-w {path}"),
                    false if *owner == 0 => format!(
                        "every directory of this path must belong to root, and nobody else may write to it; if user {uid} does not \
                         use {path}, administrator: remove {path}, then install -d -m 755 {path}"
                    ),
                    false => format!(
                        "every directory of this path must be root's or yours (uid {owner}): choose another; or, if user \
                         {uid} does not use it, administrator: remove {path}, then install -d -m 700 -o {owner} {path}"
                    ),
                }
            }
            Self::Link { path, .. } => format!(
                "name the directory itself in the configuration; administrator: remove {} if it is not what you want",
                path.display()
            ),
            Self::Mounted { path } => {
                format!("choose a directory that does not lie below {}", path.display())
            }
            Self::NotADirectory { path } => {
                format!("remove {}, or choose another directory in the configuration", path.display())
            }
            Self::Name { .. } | Self::Io { .. } => String::new(),
        }
    }

    /// Makes one of an error of the standard library's.
    pub(crate) fn system(what: &'static str, path: PathBuf) -> impl FnOnce(std::io::Error) -> Self {
        move |e| {
            // Only a short write has no number.
            let source = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            Self::Io { what, path, source }
        }
    }

    /// The system's reason, if a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } => Some(*source),
            _ => None,
        }
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::new(e.to_string()).hint(e.hint())
    }
}

/// Adds what was tried, and on which path.
pub(crate) trait On<T> {
    fn on(self, what: &'static str, path: impl FnOnce() -> PathBuf) -> Result<T>;
}

impl<T> On<T> for rustix::io::Result<T> {
    fn on(self, what: &'static str, path: impl FnOnce() -> PathBuf) -> Result<T> {
        self.map_err(|source| Error::Io { what, path: path(), source })
    }
}
