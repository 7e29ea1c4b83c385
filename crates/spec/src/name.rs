//! Names of environments and of hosts: these become directory names and lines of files, so what they may hold is decided once, here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of an environment: 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EnvName(String);

/// Why a name was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("environment name {name:?}: {reason}")]
pub struct NameError {
    name: String,
    /// What is wrong with the name: the rest of a sentence about it.
    pub reason: String,
}

impl EnvName {
    /// The environment that is made on first use when none is named.
    #[must_use]
    pub fn default_name() -> Self {
        Self("default".into())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What to say of `NAME@REF` where an environment is wanted.
fn of_snapshot(name: &str) -> String {
    let clone = format!("`skiff env clone {} NEW`", name.escape_debug());
    format!("an environment is needed, not a snapshot; {clone} makes an environment of it")
}

impl FromStr for EnvName {
    type Err = NameError;
    fn from_str(name: &str) -> Result<Self, NameError> {
        let refuse = |reason: &str| Err(NameError { name: name.into(), reason: reason.into() });
        let plain = |c: char| c.is_ascii_alphanumeric();
        match name {
            "" => refuse("is empty"),
            "none" => refuse("is the word that switches environments off"),
            n if n.len() > 64 => refuse("is longer than 64 characters"),
            n if n.contains('/') => refuse("holds a slash"),
            n if n.contains('@') => refuse(&of_snapshot(n)),
            n if !n.starts_with(plain) => refuse("must begin with a letter (a-z, A-Z) or a digit"),
            n if !n.chars().all(|c| plain(c) || "._-".contains(c)) => {
                refuse("may hold only letters, digits, '.', '_' and '-'")
            }
            n => Ok(Self(n.into())),
        }
    }
}

impl TryFrom<String> for EnvName {
    type Error = NameError;
    fn try_from(name: String) -> Result<Self, NameError> {
        name.parse()
    }
}

impl From<EnvName> for String {
    fn from(name: EnvName) -> Self {
        name.0
    }
}

impl fmt::Display for EnvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host name: labels of letters, digits and hyphens (RFC 1123) with dots between, at most 64 bytes, as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

/// Why a host name was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("host name {name:?}: {reason}")]
pub struct HostNameError {
    name: String,
    reason: &'static str,
}

impl HostName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = HostNameError;
    fn from_str(name: &str) -> Result<Self, HostNameError> {
        let refuse = |reason| Err(HostNameError { name: name.into(), reason });
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.chars().all(is_plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        match name {
            n if n.len() > 64 => refuse("is longer than 64 bytes"),
            "localhost" => refuse("means the host itself"),
            n if !n.split('.').all(is_label) => refuse(
                "may hold only letters, digits and hyphens, in parts with dots between that begin and end with a letter or digit",
            ),
            n => Ok(Self(n.into())),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = HostNameError;
    fn try_from(name: String) -> Result<Self, HostNameError> {
        name.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_taken() {
        for good in ["a", "dev", "gcc-13.2_x", "0", "Default"] {
            assert_eq!(good.parse::<EnvName>().map(String::from), Ok(good.to_owned()));
        }
    }

    #[test]
    fn host_names() {
        let (label, most) = ("x".repeat(63), format!("{}.y", "x".repeat(62)));
        for good in ["n1", "0", "a-b", "node.example.org", "N1", &label, &most] {
            assert_eq!(good.parse::<HostName>().map(String::from), Ok(good.to_owned()));
        }
        let (long, label) = ("x.".repeat(32) + "x", "x".repeat(64));
        for bad in
            ["", ".", "a.", ".a", "a..b", "-a", "a-", "a_b", "a b", "a\nb", "ü", "localhost", &long, &label]
        {
            bad.parse::<HostName>().expect_err(bad);
        }
    }

    #[test]
    fn names_that_are_not() {
        let long = "x".repeat(65);
        let (first, slash, other) = ("must begin with", "holds a slash", "may hold only");
        for (bad, reason) in [
            ("", "is empty"),
            (".", first),
            ("..", first),
            ("-rf", first),
            (".hidden", first),
            ("ü", first),
            ("a/b", slash),
            ("../x", slash),
            ("/abs", slash),
            ("a b", other),
            ("a\nb", other),
            ("aü", other),
            ("none", "is the word that switches environments off"),
            (&long, "is longer than 64"),
        ] {
            let refused = bad.parse::<EnvName>().expect_err(bad);
            assert!(refused.name == bad && refused.reason.starts_with(reason), "{refused}");
        }
    }
}
