//! What a user has under names, environments for one: directories of his state, whole when a file is in them that is made last.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;

use skiff_sandbox::{Context as _, Result};

/// The names in `dir` of those that are whole, that is, hold `mark`; in order.
pub fn all<N: FromStr + Display + Ord>(dir: &Path, mark: &str) -> Result<Vec<N>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        other => other.context(|| dir.display().to_string())?,
    };
    let mut all: Vec<N> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|name: &N| dir.join(name.to_string()).join(mark).exists())
        .collect();
    all.sort();
    Ok(all)
}

/// Which there are, for whoever has asked for one that is not there.
pub fn there_are<N: Display>(names: impl IntoIterator<Item = N>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    if names.is_empty() { "there are none yet".into() } else { format!("there are: {}", names.join(", ")) }
}
