//! Why a message did not arrive.

use std::io;

use skiff_spec::fault::Fault;

/// The result of sending or receiving.
pub type Result<T> = std::result::Result<T, Error>;

/// A message that could not be sent or received. What the other side is, only the caller knows, and says it in front.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The other side is gone, perhaps in the middle of a message.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side took longer than it may.
    #[error("no whole message in time")]
    TimedOut,
    /// A message, or the claim of one, beyond [`Message::LONGEST`](crate::Message::LONGEST).
    #[error("message longer than {longest} bytes")]
    TooLong {
        /// The limit of this protocol.
        longest: usize,
    },
    /// Text that is not JSON, or not a message of this protocol.
    #[error("invalid message: {0}")]
    Invalid(#[source] serde_json::Error),
    /// Fewer descriptors than were announced, or more.
    #[error("{came} descriptors came where {wanted} were expected")]
    Descriptors {
        /// How many were asked for.
        wanted: usize,
        /// How many came, or one more than any message can carry.
        came: usize,
    },
    /// A system call failed.
    #[error("{0}")]
    Io(#[source] io::Error),
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::WriteZero => Self::Closed,
            // The second is what a socket's own time limit gives.
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            _ => Self::Io(e),
        }
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Self::new(e.to_string())
    }
}
