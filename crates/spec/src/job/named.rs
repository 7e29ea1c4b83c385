//! Names of a job's containers, how a step comes to one, and which namespaces a container has of its own: in the words of Pyxis.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::{EnvName, NameError};

/// What a step wants of the container that it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachMode {
    /// To enter it where it runs, else to start it with the files that it has, else to make it.
    #[default]
    Auto,
    /// To make it: there must be none of that name.
    Create,
    /// To enter it: it must be running.
    Exec,
    /// To use its files, but not what another step has mounted in it.
    NoExec,
}

impl AttachMode {
    const WORDS: [(&'static str, Self); 4] =
        [("auto", Self::Auto), ("create", Self::Create), ("exec", Self::Exec), ("no_exec", Self::NoExec)];

    /// Whether it is what nobody needs to say.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// `NAME[:auto|create|exec|no_exec]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerName {
    /// The name.
    pub name: EnvName,
    /// What is wanted of it.
    pub mode: AttachMode,
}

/// Why a [`ContainerName`] was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerNameError {
    /// The name itself.
    #[error("{0}")]
    Name(String),
    /// What stands behind the colon.
    #[error("{0:?} is not auto, create, exec or no_exec")]
    Mode(String),
}

impl From<NameError> for ContainerNameError {
    fn from(e: NameError) -> Self {
        Self::Name(e.to_string().replacen("environment name", "container name", 1))
    }
}

impl FromStr for ContainerName {
    type Err = ContainerNameError;
    fn from_str(text: &str) -> Result<Self, ContainerNameError> {
        let (name, mode) = text.split_once(':').unwrap_or((text, ""));
        let is_it = |(word, _): &&(&str, AttachMode)| mode == *word;
        let mode = match AttachMode::WORDS.iter().find(is_it) {
            Some((_, mode)) => *mode,
            None if mode.is_empty() => AttachMode::Auto,
            None => return Err(ContainerNameError::Mode(mode.into())),
        };
        Ok(Self { name: name.parse()?, mode })
    }
}

/// A kind of namespace that a container can have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnsharedNamespace {
    /// The network: a loopback device and nothing else.
    Net,
    /// Semaphores, message queues and shared memory: every container has its own.
    Ipc,
    /// The host name.
    Uts,
}

/// Why an [`UnsharedNamespace`] was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown namespace {0:?}: there are net, ipc and uts")]
pub struct UnsharedNamespaceError(String);

impl FromStr for UnsharedNamespace {
    type Err = UnsharedNamespaceError;
    fn from_str(text: &str) -> Result<Self, UnsharedNamespaceError> {
        match text {
            "net" => Ok(Self::Net),
            "ipc" => Ok(Self::Ipc),
            "uts" => Ok(Self::Uts),
            other => Err(UnsharedNamespaceError(other.into())),
        }
    }
}

/// As a sentence names it.
impl fmt::Display for UnsharedNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Net => "network",
            Self::Ipc => "IPC",
            Self::Uts => "UTS",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_what_is_wanted_of_them() {
        for (text, want) in [
            ("work", Ok(("work", AttachMode::Auto))),
            ("work:", Ok(("work", AttachMode::Auto))),
            ("work:auto", Ok(("work", AttachMode::Auto))),
            ("work:create", Ok(("work", AttachMode::Create))),
            ("7.2:exec", Ok(("7.2", AttachMode::Exec))),
            ("work:no_exec", Ok(("work", AttachMode::NoExec))),
            ("work:no-exec", Err("\"no-exec\" is not auto, create, exec or no_exec")),
            ("work:exec:x", Err("\"exec:x\" is not auto")),
            (":exec", Err("container name \"\": is empty")),
            ("/tmp/x", Err("container name \"/tmp/x\": holds a slash")),
        ] {
            match (text.parse::<ContainerName>(), want) {
                (Ok(found), Ok((name, mode))) => assert_eq!((found.name.as_str(), found.mode), (name, mode)),
                (Err(e), Err(why)) => assert!(e.to_string().starts_with(why), "{text}: {e}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        for text in ["", "mnt", "Net"] {
            assert!(text.parse::<UnsharedNamespace>().is_err(), "{text}");
        }
    }
}
