//! What process 1 of an environment says to its maker, before it serves.

use skiff_spec::fault::Fault;

/// What process 1 says when it is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Made { ids: u32, notes: Vec<String> },
    Failed(Fault),
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
                let notes = String::from_utf8_lossy(notes).lines().map(String::from).collect();
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
