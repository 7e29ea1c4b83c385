//! The units of the talk between two sides: messages, and bytes of a program's.

use serde::{Deserialize, Serialize};
use skiff_ipc::Message;
use skiff_sys::IgnoreError;

/// Where bytes come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// The program's standard input.
    Input,
    /// Standard output of the program.
    Output,
    /// Standard error of the program.
    Errors,
}

/// One unit of the talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message, as JSON.
    Message(Vec<u8>),
    /// Bytes of the program's.
    Data(Stream, Vec<u8>),
}

/// The longest message, and the most bytes of a program's in one frame.
pub const LONGEST: usize = 64 << 20;

impl Frame {
    /// A message.
    pub fn message<M: Message>(message: &M) -> Self {
        Self::Message(
            serde_json::to_vec(message).default_on_error("all our messages are plain data with text as keys"),
        )
    }

    /// Puts its bytes behind those that are there.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let (kind, bytes) = match self {
            Self::Message(bytes) => (b'm', bytes),
            Self::Data(Stream::Input, bytes) => (b'0', bytes),
            Self::Data(Stream::Output, bytes) => (b'1', bytes),
            Self::Data(Stream::Errors, bytes) => (b'2', bytes),
        };
        to.push(kind);
        to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        to.extend(bytes);
    }

    /// Takes one from the front; how many bytes it was. Nothing as long as it is not whole.
    ///
    /// # Errors
    /// When that is none of our talk.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, InvalidFrame> {
        let Some((head, rest)) = bytes.split_first_chunk::<5>() else { return Ok(None) };
        let [kind, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST || !b"m012".contains(&kind) {
            return Err(InvalidFrame);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let body = body.to_vec();
        let frame = match kind {
            b'0' => Self::Data(Stream::Input, body),
            b'1' => Self::Data(Stream::Output, body),
            b'2' => Self::Data(Stream::Errors, body),
            _ => Self::Message(body),
        };
        Ok(Some((frame, 5 + length)))
    }
}

/// What is no talk of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidFrame;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Noted(Vec<(String, Option<[u16; 2]>)>);

    impl Message for Noted {
        const LONGEST: usize = 100;
    }

    #[test]
    fn frames_come_back_as_they_went_whole_or_not_at_all() {
        let message = Noted(vec![("A".to_owned(), Some([24, 80]))]);
        for frame in [
            Frame::message(&message),
            Frame::Data(Stream::Input, vec![]),
            Frame::Data(Stream::Output, b"x\0y".to_vec()),
            Frame::Data(Stream::Errors, vec![b'm'; 300]),
        ] {
            let mut bytes = vec![];
            frame.encode(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(Frame::decode(&bytes[..end]), Ok(None), "{end}");
            }
            let length = bytes.len();
            bytes.extend(b"more");
            assert_eq!(Frame::decode(&bytes), Ok(Some((frame, length))));
        }
        let Frame::Message(text) = Frame::message(&message) else { panic!("a message") };
        assert_eq!(serde_json::from_slice(&text).ok(), Some(message));
        for nonsense in [&b"SSH-2.0-x"[..], b"m\xff\xff\xff\xff", b"x\0\0\0\0"] {
            assert_eq!(Frame::decode(nonsense), Err(InvalidFrame));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_take_the_reader_down(bytes: Vec<u8>) {
            if let Ok(Some((_, length))) = Frame::decode(&bytes) {
                assert!(length <= bytes.len());
            }
        }
    }
}
