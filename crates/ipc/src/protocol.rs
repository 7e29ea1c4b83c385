//! Protocols, each declared once beside its messages. `cargo xtask protocols` reads the declarations and writes docs/protocols.md; the fuzz
//! target `protocols` reads any bytes as each of them, by [`check`].

use crate::stream::receive_text;
use crate::{Message, from_json, to_json};

/// How a message becomes bytes, and is read from bytes of anybody.
pub trait Codec: Sized {
    /// The longest message, in bytes.
    const LONGEST: usize;

    /// The message as bytes; `None` if they are too many.
    fn to_bytes(&self) -> Option<Vec<u8>>;

    /// The message that these bytes are, if they are one.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl<M: Message> Codec for M {
    const LONGEST: usize = M::LONGEST;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        to_json(self, 0).ok()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        from_json(bytes).ok()
    }
}

/// Nothing is answered.
#[derive(Debug)]
pub enum Unanswered {}

impl Codec for Unanswered {
    const LONGEST: usize = 0;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        match *self {}
    }

    fn from_bytes(_: &[u8]) -> Option<Self> {
        None
    }
}

/// How the messages of a protocol are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// JSON behind its length, by a stream: [`send`](crate::send) and [`receive`](crate::receive).
    Stream,
    /// JSON, each message a packet: [`send_packet`](crate::send_packet) and [`receive_packet`](crate::receive_packet).
    Packets,
    /// In another way, for this reason.
    Own(&'static str),
}

/// A protocol, declared for the type of its first message. Its description is the documentation of the module that declares that type.
pub trait Protocol: Codec {
    /// The other side's messages.
    type Answer: Codec;
    /// Name of the protocol, as the page and the fuzz target call it.
    const NAME: &'static str;
    /// Who begins, and who answers.
    const SIDES: [&'static str; 2];
    /// How messages are told apart.
    const FRAMING: Framing;
}

/// Reads bytes as a message of either side, and panics unless what was read is what its sender could have meant: no longer than allowed,
/// and the same when it is written and read again. Whether it was read. For the fuzz target and for tests.
///
/// # Panics
/// That one of these does not hold.
pub fn check<P: Protocol>(bytes: &[u8]) -> bool {
    let is_question = check_codec::<P>(P::NAME, bytes);
    check_codec::<P::Answer>(P::NAME, bytes) || is_question
}

fn check_codec<C: Codec>(name: &str, bytes: &[u8]) -> bool {
    if let Ok(Some(text)) = receive_text(&mut &bytes[..], C::LONGEST) {
        assert!(text.len() <= C::LONGEST, "{name}: a message of {} bytes was received", text.len());
    }
    let Some(message) = C::from_bytes(bytes) else { return false };
    assert!(bytes.len() <= C::LONGEST, "{name}: a message of {} bytes was read", bytes.len());
    // With what a sender may leave out it can become longer than any that is sent.
    if let Some(written) = message.to_bytes() {
        let again = C::from_bytes(&written).and_then(|message| message.to_bytes());
        assert_eq!(
            again,
            Some(written),
            "{name}: a message that was read is not the same when it is written"
        );
    }
    true
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    enum Ask {
        Add(u32, #[serde(default)] u32),
    }

    impl Message for Ask {
        const LONGEST: usize = 32;
    }

    impl Protocol for Ask {
        type Answer = Unanswered;
        const NAME: &'static str = "adding";
        const SIDES: [&'static str; 2] = ["one", "another"];
        const FRAMING: Framing = Framing::Stream;
    }

    /// A message that is written otherwise than it was read.
    struct Changing(u8);

    impl Codec for Changing {
        const LONGEST: usize = 1;

        fn to_bytes(&self) -> Option<Vec<u8>> {
            Some(vec![self.0.wrapping_add(1)])
        }

        fn from_bytes(bytes: &[u8]) -> Option<Self> {
            bytes.first().map(|byte| Self(*byte))
        }
    }

    #[test]
    fn messages_are_read_within_their_limits() {
        assert!(Ask::from_bytes(br#"{"Add":[1,2]}"#).is_some());
        let long = format!(r#"{{"Add":[1,{}2]}}"#, " ".repeat(32));
        for refused in [&b""[..], b"{}", br#"{"Add":["a"]}"#, long.as_bytes()] {
            assert!(Ask::from_bytes(refused).is_none(), "{}", String::from_utf8_lossy(refused));
            assert!(!check::<Ask>(refused));
        }
        assert!(Unanswered::from_bytes(b"").is_none());
    }

    #[test]
    fn what_does_not_come_back_as_it_went_is_found() {
        assert!(check::<Ask>(br#"{"Add":[ 1, 2 ]}"#));
        let found = std::panic::catch_unwind(|| check_codec::<Changing>("changing", b"a"));
        assert!(found.is_err(), "a message that changes");
        let found = std::panic::catch_unwind(|| check_codec::<Changing>("changing", b"ab"));
        assert!(found.is_err(), "a message that is too long");
    }
}
