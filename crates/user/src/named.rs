//! What a user has under names, environments for one: directories of their state, whole when a file is in them that is made last.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use rustix::process::getuid;
use skiff_site::TrustedDir;
use skiff_spec::fault::{Fault, Result};

/// The names in `dir` of those that are whole, that is, hold `mark`; in order.
pub fn all<N: FromStr + Display + Ord>(dir: &Path, mark: &str) -> Result<Vec<N>> {
    let Some(dir) = TrustedDir::find(dir, getuid().as_raw())? else { return Ok(vec![]) };
    let is_whole =
        |name: &str| dir.dir(name).and_then(|one| one.stat(mark)).is_ok_and(|found| found.is_some());
    let names = dir.names()?.into_iter().filter_map(|name| name.into_string().ok());
    let mut all: Vec<N> = names.filter(|name| is_whole(name)).filter_map(|name| name.parse().ok()).collect();
    all.sort();
    Ok(all)
}

/// What can be listed. What cannot is named on standard error: one broken record must not hide all others.
pub fn listable<T>(looked: impl IntoIterator<Item = Result<T>>) -> Vec<T> {
    looked.into_iter().filter_map(|one| one.map_err(|e| skiff_output::complain(&e)).ok()).collect()
}

/// The error for a name that does not exist. Its hint lists those that do, and the command that creates one.
pub fn no_such<N: Display>(
    what: &str,
    name: &N,
    names: impl IntoIterator<Item = impl Display>,
    making: Option<&str>,
) -> Fault {
    let making = making.map(|command| format!("; `{command}` makes it")).unwrap_or_default();
    Fault::new(format!("{what} {name}: there is no such {what}"))
        .hint(format!("{}{making}", there_are(names)))
}

/// Which there are, for whoever has asked for one that is not there.
pub fn there_are<N: Display>(names: impl IntoIterator<Item = N>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    if names.is_empty() { "there are none yet".into() } else { format!("there are: {}", names.join(", ")) }
}
