//! How snapshots of environments are referred to: `NAME@TAG`, `NAME@~2` (two before the newest that is not a job's changes) or by the first
//! digits of their ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::EnvName;

/// How many digits of an id are enough to mean one, if no other begins so.
pub const FEWEST_DIGITS: usize = 6;
/// An id has as many.
const ALL_DIGITS: usize = 64;
/// Between an environment's name and the reference to one of its snapshots.
pub const AT: char = '@';

/// The name that a user has given to a snapshot: as those of environments, but none that could be the beginning of an id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TagName(String);

/// One of an environment's snapshots, as a user refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revision {
    /// By a tag.
    Tag(TagName),
    /// So many before the newest, of those that are not a job's changes.
    Back(u32),
    /// By the first digits of its id.
    Digits(String),
}

/// An environment, or one of its snapshots: `[NAME][@REF]`. Without a name the one is meant in which the caller is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvRevision {
    /// Name of the environment.
    pub name: Option<EnvName>,
    /// Which snapshot; nothing for the environment as it is.
    pub revision: Option<Revision>,
}

/// A snapshot where the environment is named beside it: `REF`, `@REF` or `NAME@REF`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRef {
    /// Name of the environment, if another one is named.
    pub name: Option<EnvName>,
    /// Which snapshot.
    pub revision: Revision,
}

/// Why a reference was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RevisionError(String);

impl TagName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether it could be the beginning of an id.
fn is_digits(text: &str) -> bool {
    (FEWEST_DIGITS..=ALL_DIGITS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl FromStr for TagName {
    type Err = RevisionError;
    fn from_str(tag: &str) -> Result<Self, RevisionError> {
        let refuse = |reason: &str| Err(RevisionError(format!("tag {tag:?}: {reason}")));
        let plain = |c: char| c.is_ascii_alphanumeric();
        match tag {
            "" => refuse("is empty"),
            t if t.len() > 64 => refuse("is longer than 64 characters"),
            t if !t.starts_with(plain) => refuse("must begin with a letter (a-z, A-Z) or a digit"),
            t if !t.chars().all(|c| plain(c) || "._-".contains(c)) => {
                refuse("may hold only letters, digits, '.', '_' and '-'")
            }
            t if is_digits(t) => refuse("could be the beginning of a snapshot's id"),
            t => Ok(Self(t.into())),
        }
    }
}

impl TryFrom<String> for TagName {
    type Error = RevisionError;
    fn try_from(tag: String) -> Result<Self, RevisionError> {
        tag.parse()
    }
}

impl From<TagName> for String {
    fn from(tag: TagName) -> Self {
        tag.0
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Revision {
    type Err = RevisionError;
    fn from_str(text: &str) -> Result<Self, RevisionError> {
        if let Some(back) = text.strip_prefix('~') {
            let wrong = || RevisionError(format!("{text:?} is not a number of snapshots back, such as ~1"));
            let is_number = !back.is_empty() && back.bytes().all(|byte| byte.is_ascii_digit());
            return match is_number {
                true => back.parse().map(Self::Back).map_err(|_| wrong()),
                false => Err(wrong()),
            };
        }
        match is_digits(text) {
            true => Ok(Self::Digits(text.into())),
            false => text.parse().map(Self::Tag),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => tag.fmt(f),
            Self::Back(back) => write!(f, "~{back}"),
            Self::Digits(digits) => f.write_str(digits),
        }
    }
}

fn name(text: &str) -> Result<EnvName, RevisionError> {
    text.parse().map_err(|e: crate::name::NameError| RevisionError(e.to_string()))
}

impl From<EnvName> for EnvRevision {
    fn from(name: EnvName) -> Self {
        Self { name: Some(name), revision: None }
    }
}

impl FromStr for EnvRevision {
    type Err = RevisionError;
    fn from_str(text: &str) -> Result<Self, RevisionError> {
        match text.split_once(AT) {
            None => name(text).map(Self::from),
            Some((of, revision)) => {
                let of = (!of.is_empty()).then(|| name(of)).transpose()?;
                Ok(Self { name: of, revision: Some(revision.parse()?) })
            }
        }
    }
}

impl fmt::Display for EnvRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.iter().try_for_each(|name| name.fmt(f))?;
        self.revision.iter().try_for_each(|revision| write!(f, "{AT}{revision}"))
    }
}

impl FromStr for SnapshotRef {
    type Err = RevisionError;
    fn from_str(text: &str) -> Result<Self, RevisionError> {
        let (of, revision) = text.split_once(AT).unwrap_or(("", text));
        let name = (!of.is_empty()).then(|| name(of)).transpose()?;
        Ok(Self { name, revision: revision.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_come_back_as_they_were_typed() {
        for text in ["dev", "dev@v1", "dev@~2", "@~0", "@1a2b3c", "dev@abcde", "dev@ABCDEF", "dev@2026-11-25"]
        {
            let parsed: EnvRevision = text.parse().expect(text);
            assert_eq!(parsed.to_string(), text);
        }
        let revision = |text: &str| text.parse::<SnapshotRef>().expect(text).revision;
        assert_eq!(revision("~3"), Revision::Back(3));
        assert_eq!(revision("@~3"), Revision::Back(3));
        assert_eq!(revision("a1b2c3"), Revision::Digits("a1b2c3".into()));
        assert_eq!(revision("dev@a1b2c"), Revision::Tag(TagName("a1b2c".into())));
    }

    #[test]
    fn references_that_are_not() {
        for (text, reason) in [
            ("", "is empty"),
            ("@", "tag \"\": is empty"),
            ("dev@", "tag \"\": is empty"),
            ("dev@~", "is not a number of snapshots back"),
            ("dev@~x", "is not a number of snapshots back"),
            ("dev@~+1", "is not a number of snapshots back"),
            ("dev@~99999999999", "is not a number of snapshots back"),
            ("dev@a@b", "may hold only"),
            ("dev@../x", "must begin with"),
            ("dev@a\nb", "may hold only"),
            ("none@a", "is the word that switches environments off"),
            ("a/b@c", "holds a slash"),
        ] {
            let refused = text.parse::<EnvRevision>().expect_err(text).to_string();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
        for (tag, reason) in [("abcdef", "beginning of a snapshot's id"), ("~1", "must begin with")] {
            let refused = tag.parse::<TagName>().expect_err(tag).to_string();
            assert!(refused.contains(reason), "{tag}: {refused}");
        }
    }
}
