//! What can go wrong between a client and CRIU.

use std::io;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of CRIU, or of the talk with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {what} {object}: {source}")]
    Io {
        /// What was tried, as a verb: "open", "run".
        what: &'static str,
        /// What it was tried on.
        object: String,
        /// The system's reason.
        source: io::Error,
    },
    /// CRIU could not do what it was asked for.
    #[error("CRIU: {why}")]
    Failed {
        /// The first errors of its log, else what its answer says.
        why: String,
        /// The number of the system's error, where CRIU gives one.
        errno: Option<i32>,
    },
    /// CRIU exited, or closed the connection, before it had answered.
    #[error("CRIU has exited without an answer{}", said(log.as_deref()))]
    Exited {
        /// The first errors of its log.
        log: Option<String>,
    },
    /// The bytes of an answer are none of its protocol.
    #[error("CRIU sent an invalid answer: {0}")]
    InvalidAnswer(#[from] prost::DecodeError),
    /// An answer is valid, but not one to the request.
    #[error("CRIU's answer has no {0}")]
    Incomplete(&'static str),
    /// A message to a page server is none of its protocol.
    #[error("unknown page command {0:#x}")]
    UnknownCommand(u16),
    /// A message to a page server announces more bytes than 64 bits can count.
    #[error("{0} pages are more than there can be")]
    TooManyPages(u64),
    /// The path of the directory of images cannot be said in CRIU's protocol.
    #[error("path {0:?} is not UTF-8")]
    NotText(std::path::PathBuf),
}

fn said(log: Option<&str>) -> String {
    log.map_or_else(String::new, |log| format!("; its log says: {log}"))
}

/// Adds what was tried, and on what, to a failed system call.
pub(crate) trait WithObject<T> {
    /// `what` is a verb.
    fn on(self, what: &'static str, object: &str) -> Result<T>;
}

impl<T, E: Into<io::Error>> WithObject<T> for std::result::Result<T, E> {
    fn on(self, what: &'static str, object: &str) -> Result<T> {
        self.map_err(|source| Error::Io { what, object: object.into(), source: source.into() })
    }
}
