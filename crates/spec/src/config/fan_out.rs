//! How what a job needs gets to its nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How what a job needs gets to its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FanOut {
    /// As is faster for so many nodes, so many bytes, and the file system that the depot is on.
    #[default]
    Auto,
    /// Each node reads the depot, and asks the registry.
    Depot,
    /// Depot and registry are read once for all nodes, which pass on what they have.
    Relay,
}

/// Ports, `FIRST-LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Text that is no [`PortRange`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a range of ports: FIRST-LAST, from 1024 on, eight at least")]
pub struct PortRangeError(String);

/// A job's nodes look for each other at so many ports.
const FEWEST: u16 = 8;

impl Default for PortRange {
    /// Behind those that Linux gives to whoever asks for any.
    fn default() -> Self {
        Self { first: 61_001, last: 64_999 }
    }
}

impl PortRange {
    /// Where a job's nodes look for each other, each in this order: not all at the port of another job's.
    #[must_use]
    pub fn of_job(self, job: u32) -> Vec<u16> {
        let begin = u64::from(job) * u64::from(FEWEST);
        let all: Vec<u16> = (self.first..=self.last).collect();
        let port = |at: u16| all[((begin + u64::from(at)) % all.len() as u64) as usize];
        (0..FEWEST).map(port).collect()
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;
    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port >= 1024);
        let range = text.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
        match range {
            Some((first, last)) if last >= first && last - first >= FEWEST - 1 => Ok(Self { first, last }),
            _ => Err(PortRangeError(text.into())),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl TryFrom<String> for PortRange {
    type Error = PortRangeError;
    fn try_from(text: String) -> Result<Self, PortRangeError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_users_may_have_are_taken() {
        for text in ["61001-64999", "1024-1031", "65528-65535"] {
            assert_eq!(text.parse::<PortRange>().map(String::from), Ok(text.into()));
        }
        for text in [
            "",
            "-",
            "5000",
            "80-90",
            "1023-2000",
            "5000-5006",
            "6000-5000",
            "70000-70010",
            "a-b",
            "5000-5010-5020",
        ] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn jobs_have_ports_of_their_own_within_the_range() {
        let range: PortRange = "5000-5019".parse().expect("a range");
        let mut last = vec![];
        for job in [0, 1, 2, 3, u32::MAX] {
            let mut ports = range.of_job(job);
            assert!(ports.iter().all(|port| (5000..=5019).contains(port)));
            assert_ne!(ports.first(), last.first());
            last.clone_from(&ports);
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), 8);
        }
    }
}
