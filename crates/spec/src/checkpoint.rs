//! Names of checkpoints, and how often they are made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

/// How often a running instance is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CheckpointInterval {
    /// As often as costs least, by what saving takes and how often nodes fail.
    Auto,
    /// After so many seconds.
    Seconds(u64),
}

/// Units of an interval, in seconds.
const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
/// Saved more often than that, an instance would do nothing else.
const SHORTEST: u64 = 1;
/// Nobody waits longer, in seconds.
const LONGEST: u64 = 365 * 86_400;

impl FromStr for CheckpointInterval {
    type Err = String;
    fn from_str(word: &str) -> std::result::Result<Self, String> {
        if word == "auto" {
            return Ok(Self::Auto);
        }
        let read = || {
            let (digits, unit) = UNITS.iter().find_map(|(unit, n)| Some((word.strip_suffix(*unit)?, n)))?;
            let number: u64 = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
            number.checked_mul(*unit).filter(|seconds| (SHORTEST..=LONGEST).contains(seconds))
        };
        read()
            .map(Self::Seconds)
            .ok_or_else(|| format!("{word:?}: a time as 30s, 10m, 2h or 1d, of a year at most, or auto"))
    }
}

impl TryFrom<String> for CheckpointInterval {
    type Error = String;
    fn try_from(word: String) -> std::result::Result<Self, String> {
        word.parse()
    }
}

impl From<CheckpointInterval> for String {
    fn from(interval: CheckpointInterval) -> Self {
        interval.to_string()
    }
}

impl fmt::Display for CheckpointInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Seconds(seconds) = self else { return f.write_str("auto") };
        let fits = UNITS.iter().rev().find(|(_, unit)| seconds % unit == 0);
        let (unit, length) = fits.copied().unwrap_or(UNITS[0]);
        write!(f, "{}{unit}", seconds / length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_come_back_as_they_went_and_no_others_do() {
        for (word, seconds) in [("1s", 1), ("90s", 90), ("10m", 600), ("24h", 86_400), ("365d", LONGEST)] {
            let interval: CheckpointInterval = word.parse().expect(word);
            assert_eq!(interval, CheckpointInterval::Seconds(seconds));
            assert_eq!(interval.to_string().parse(), Ok(interval), "{word}");
        }
        assert_eq!("auto".parse(), Ok(CheckpointInterval::Auto));
        for bad in ["", "0s", "10", "m", "-1m", "+1m", "1w", "366d", "1.5h", "99999999999999999999d", "Auto"]
        {
            assert!(bad.parse::<CheckpointInterval>().is_err(), "{bad}");
        }
    }

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
