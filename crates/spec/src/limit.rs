//! Resource limits of a command, as Docker's `--ulimit` has them: `NAME=SOFT[:HARD]`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Docker's word for a limit that there is not.
const UNLIMITED: [&str; 2] = ["-1", "unlimited"];

/// What is limited, by the names and in the units of setrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum LimitKind {
    Core,
    Cpu,
    Data,
    Fsize,
    Locks,
    Memlock,
    Msgqueue,
    Nice,
    Nofile,
    Nproc,
    Rss,
    Rtprio,
    Rttime,
    Sigpending,
    Stack,
}

/// The kinds by their names.
const KINDS: [(&str, LimitKind); 15] = [
    ("core", LimitKind::Core),
    ("cpu", LimitKind::Cpu),
    ("data", LimitKind::Data),
    ("fsize", LimitKind::Fsize),
    ("locks", LimitKind::Locks),
    ("memlock", LimitKind::Memlock),
    ("msgqueue", LimitKind::Msgqueue),
    ("nice", LimitKind::Nice),
    ("nofile", LimitKind::Nofile),
    ("nproc", LimitKind::Nproc),
    ("rss", LimitKind::Rss),
    ("rtprio", LimitKind::Rtprio),
    ("rttime", LimitKind::Rttime),
    ("sigpending", LimitKind::Sigpending),
    ("stack", LimitKind::Stack),
];

impl LimitKind {
    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// A limit. The soft one is never above the hard one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceLimit {
    kind: LimitKind,
    soft: Option<u64>,
    hard: Option<u64>,
}

/// Why a limit was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LimitError {
    /// There is no `=`.
    #[error("not NAME=SOFT[:HARD]")]
    Form,
    /// The name of the limit is not known.
    #[error(
        "{0:?} is not a limit; known are core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack"
    )]
    Kind(String),
    /// A value is not a number.
    #[error("{0:?} is not a number; -1 means unlimited")]
    Number(String),
    /// The limits are the wrong way round.
    #[error("soft limit {soft} is above hard limit {hard}")]
    Order {
        /// The first.
        soft: String,
        /// The second.
        hard: String,
    },
}

impl ResourceLimit {
    /// What is limited.
    #[must_use]
    pub fn kind(self) -> LimitKind {
        self.kind
    }

    /// The limit that counts, which the program may raise up to the hard one; `None` is no limit.
    #[must_use]
    pub fn soft(self) -> Option<u64> {
        self.soft
    }

    /// The limit that the program cannot raise.
    #[must_use]
    pub fn hard(self) -> Option<u64> {
        self.hard
    }

    /// The last of each kind: as everywhere, what is said later counts.
    #[must_use]
    pub fn last_of_each(all: &[Self]) -> Vec<Self> {
        let is_last = |at: usize| !all[at + 1..].iter().any(|later| later.kind == all[at].kind);
        (0..all.len()).filter(|at| is_last(*at)).map(|at| all[at]).collect()
    }
}

/// Whether a limit is above another, of which `None` is none.
#[must_use]
pub fn is_above(one: Option<u64>, other: Option<u64>) -> bool {
    other.is_some_and(|other| one.is_none_or(|one| one > other))
}

/// A limit as it is written.
#[must_use]
pub fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| UNLIMITED[0].into(), |limit| limit.to_string())
}

fn number(text: &str) -> Result<Option<u64>, LimitError> {
    if UNLIMITED.contains(&text) {
        return Ok(None);
    }
    // The kernel's largest number is its word for no limit.
    let limit = text.parse().ok().filter(|limit| *limit < u64::MAX);
    limit.map(Some).ok_or_else(|| LimitError::Number(text.into()))
}

impl FromStr for ResourceLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let (name, limits) = text.split_once('=').ok_or(LimitError::Form)?;
        let known = KINDS.iter().find(|(known, _)| *known == name);
        let (_, kind) = known.ok_or_else(|| LimitError::Kind(name.into()))?;
        let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
        let (soft, hard) = (number(soft)?, number(hard)?);
        if is_above(soft, hard) {
            return Err(LimitError::Order { soft: shown(soft), hard: shown(hard) });
        }
        Ok(Self { kind: *kind, soft, hard })
    }
}

impl TryFrom<String> for ResourceLimit {
    type Error = LimitError;
    fn try_from(text: String) -> Result<Self, LimitError> {
        text.parse()
    }
}

impl From<ResourceLimit> for String {
    fn from(limit: ResourceLimit) -> Self {
        limit.to_string()
    }
}

impl fmt::Display for ResourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}", self.kind.name(), shown(self.soft), shown(self.hard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_docker_writes_them() {
        for (text, want) in [
            ("nofile=4096", "nofile=4096:4096"),
            ("nofile=1024:4096", "nofile=1024:4096"),
            ("core=0", "core=0:0"),
            ("stack=-1", "stack=-1:-1"),
            ("memlock=8388608:unlimited", "memlock=8388608:-1"),
        ] {
            let limit: ResourceLimit = text.parse().expect(text);
            assert_eq!(limit.to_string(), want);
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        for (name, kind) in KINDS {
            assert_eq!(format!("{name}=1").parse::<ResourceLimit>().map(ResourceLimit::kind), Ok(kind));
            let why = LimitError::Kind("as".into()).to_string();
            assert!(why.contains(name), "{name} is not named");
        }
    }

    #[test]
    fn what_is_not_one() {
        for (text, why) in [
            ("", LimitError::Form),
            ("nofile", LimitError::Form),
            ("as=1", LimitError::Kind("as".into())),
            ("NOFILE=1", LimitError::Kind("NOFILE".into())),
            ("nofile=", LimitError::Number(String::new())),
            ("nofile=1k", LimitError::Number("1k".into())),
            ("nofile=1:2:3", LimitError::Number("2:3".into())),
            ("nofile=-2", LimitError::Number("-2".into())),
            ("nofile=18446744073709551615", LimitError::Number("18446744073709551615".into())),
            ("nofile=2:1", LimitError::Order { soft: "2".into(), hard: "1".into() }),
            ("nofile=-1:1", LimitError::Order { soft: "-1".into(), hard: "1".into() }),
        ] {
            assert_eq!(text.parse::<ResourceLimit>(), Err(why), "{text:?}");
        }
    }

    #[test]
    fn the_last_of_a_kind_counts() {
        let all = ["nofile=9", "core=0", "nofile=5"].map(|text| text.parse().expect(text));
        let left = ResourceLimit::last_of_each(&all).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(left, ["core=0:0", "nofile=5:5"]);
        assert!(is_above(None, Some(1)) && is_above(Some(2), Some(1)));
        assert!(!is_above(Some(1), Some(1)) && !is_above(None, None) && !is_above(Some(1), None));
    }
}
