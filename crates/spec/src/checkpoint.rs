//! Names of checkpoints.

use std::fmt;
use std::str::FromStr;

use crate::name::EnvName;

/// In a checkpoint: where CRIU writes.
pub const IMAGES: &str = "images";

/// The name of a checkpoint: `NAME` for the newest, `NAME@1` for the one before, and so on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointName {
    /// The name.
    pub name: EnvName,
    /// How many there are that are newer.
    pub newer: u32,
}

impl CheckpointName {
    /// The newest of a name.
    #[must_use]
    pub fn newest(name: &EnvName) -> Self {
        Self { name: name.clone(), newer: 0 }
    }
}

impl FromStr for CheckpointName {
    type Err = String;
    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let (name, newer) = word.split_once('@').map_or((word, None), |(name, n)| (name, Some(n)));
        let name = name.parse().map_err(|e| format!("{e}"))?;
        let newer = match newer.map(str::parse::<u32>) {
            None => 0,
            Some(Ok(n)) if n > 0 && Some(n.to_string().as_str()) == newer => n,
            Some(_) => return Err(format!("{word:?}: behind the @ must be a number from 1 on")),
        };
        Ok(Self { name, newer })
    }
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.newer {
            0 => write!(f, "{}", self.name),
            n => write!(f, "{}@{n}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went_and_no_others_do() {
        for (word, newer) in [("a", 0), ("a@1", 1), ("a.b@12", 12)] {
            let name: CheckpointName = word.parse().expect(word);
            assert_eq!((name.newer, name.to_string().as_str()), (newer, word));
        }
        for bad in ["", "@1", "a@", "a@0", "a@01", "a@+1", "a@-1", "a@x", "../a", "a@1@2", "a@99999999999"] {
            assert!(bad.parse::<CheckpointName>().is_err(), "{bad}");
        }
    }
}
