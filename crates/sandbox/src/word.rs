//! What process 1 of an environment says to its maker, before it serves.

use skiff_ipc::{Codec, Framing, Protocol, Unanswered};
use skiff_spec::fault::Fault;

use crate::child::LONGEST;

/// What process 1 says when it is done.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// The root is made.
    Made {
        /// How many ids there are inside.
        ids: u32,
        /// What the user is told, though it goes on; each a line.
        notes: Vec<String>,
    },
    /// The root could not be made.
    Failed(Fault),
}

impl Codec for Word {
    const LONGEST: usize = LONGEST;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        Some(self.encode()).filter(|bytes| bytes.len() <= LONGEST)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (word, rest) = Self::decode(bytes).filter(|_| bytes.len() <= LONGEST)?;
        rest.is_empty().then_some(word)
    }
}

impl Protocol for Word {
    type Answer = Unanswered;
    const NAME: &'static str = "Process 1";
    const SIDES: [&'static str; 2] = ["process 1 of an environment", "its maker"];
    const FRAMING: Framing =
        Framing::Own("It is on the way of every start, by a pipe that also tells of an end without a word.");
}

impl Word {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Made { ids, notes } => {
                let notes = notes.join("\n").into_bytes();
                let length = u32::try_from(notes.len()).unwrap_or(0);
                [b"+", &ids.to_le_bytes()[..], &length.to_le_bytes(), &notes[..length as usize]].concat()
            }
            Self::Failed(e) => [b"-", &e.to_bytes()[..]].concat(),
        }
    }

    /// The word, and what follows it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        match bytes.split_first()? {
            (b'+', rest) => {
                let (ids, rest) = rest.split_first_chunk()?;
                let (length, rest) = rest.split_first_chunk()?;
                let (notes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                let notes = String::from_utf8_lossy(notes);
                let notes = notes.split('\n').filter(|_| !notes.is_empty()).map(String::from).collect();
                Some((Self::Made { ids: u32::from_le_bytes(*ids), notes }, rest))
            }
            (b'-', why) => Some((Self::Failed(Fault::from_bytes(why)), &[])),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_process_1_come_back_as_they_went() {
        for notes in [vec![], vec!["one".to_owned(), "two: no".to_owned()]] {
            let word = Word::Made { ids: 65536, notes };
            let bytes = [word.encode(), b"rest".to_vec()].concat();
            assert_eq!(Word::decode(&bytes), Some((word, &b"rest"[..])));
        }
        let word = Word::Failed(Fault::new("overlay: no").hint("do"));
        assert!(skiff_ipc::check::<Word>(b"+\x07\0\0\0\x05\0\0\0a\r\r\nb"));
        assert_eq!(Word::decode(&word.encode()), Some((word, &b""[..])));
    }

    #[test]
    fn half_a_word_is_none() {
        let whole = Word::Made { ids: 7, notes: vec!["note".into()] }.encode();
        for end in 0..whole.len() {
            assert_eq!(Word::decode(&whole[..end]), None, "{end} bytes");
        }
    }
}
