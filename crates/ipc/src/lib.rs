//! How Skiff's processes talk to each other: messages of serde types with descriptors, and children that report how they went. One place
//! says how long a message may be, what happens to descriptors that nobody asked for, and what a child's silence means, so that no caller
//! has to remember it.

mod by_hand;
mod child;
mod error;
mod packet;
mod protocol;
mod stream;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use child::{Descriptors, Reporter, ReportingChild};
pub use error::{Error, Result};
pub use packet::{receive_packet, send_packet};
pub use protocol::{Codec, Framing, Protocol, Unanswered, check};
pub use stream::{Until, receive, receive_descriptors, send, send_descriptors};

/// A message of a protocol. The limits belong to the type, so that the two sides cannot differ in them.
pub trait Message: Serialize + DeserializeOwned {
    /// The longest JSON text of one message, in bytes. A receiver refuses a longer one before it has memory for it.
    const LONGEST: usize;
    /// How many descriptors may come with one message.
    const DESCRIPTORS: usize = 0;
}

/// A message as JSON, behind `room` bytes of zero.
fn to_json<M: Message>(message: &M, room: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    serde_json::to_writer(&mut bytes, message).map_err(Error::Invalid)?;
    match bytes.len() - room > M::LONGEST {
        true => Err(Error::TooLong { longest: M::LONGEST }),
        false => Ok(bytes),
    }
}

/// The message that a JSON text is.
///
/// # Errors
/// [`Error::TooLong`] before anything of it is read, [`Error::Invalid`] when it is not a message of this protocol.
pub fn from_json<M: Message>(text: &[u8]) -> Result<M> {
    match text.len() > M::LONGEST {
        true => Err(Error::TooLong { longest: M::LONGEST }),
        false => serde_json::from_slice(text).map_err(Error::Invalid),
    }
}

/// Whether so many descriptors may come with one message.
fn check_descriptors<M: Message>(count: usize) -> Result<()> {
    match count > M::DESCRIPTORS {
        true => Err(Error::Descriptors { wanted: M::DESCRIPTORS, came: count }),
        false => Ok(()),
    }
}
