//! Where changes go that are not kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where a container's changes go. They go with it, wherever that is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScratchPlace {
    /// The host's directory for temporary files, if its file system can take them; else memory.
    #[default]
    Usual,
    /// Memory.
    Memory,
    /// This directory of each host.
    Directory(PathBuf),
}

impl std::str::FromStr for ScratchPlace {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            _ if text.starts_with('/') => Ok(Self::Directory(text.into())),
            _ => Err("it is `memory`, or the path of a directory from / on".into()),
        }
    }
}
