//! The host's database, as anybody may read it.

use std::os::unix::fs::MetadataExt as _;

use skiff_packages::{Database, Records};
use skiff_spec::fault::{Context as _, Fault as Error, Result};

use super::read_whole;

/// What is installed.
pub(super) const STATUS: &str = "/var/lib/dpkg/status";
/// The file in which apt notes the packages that were installed only as dependencies.
pub(super) const EXTENDED: &str = "/var/lib/apt/extended_states";
/// Lists in dpkg's directory.
pub(super) const LISTS: [(&str, Records); 2] =
    [("diversions", Records::Diversions), ("triggers/File", Records::Lines)];
/// A hundred times what a large system has.
const LONGEST: u64 = 256 << 20;

/// Files of the host's database.
pub(super) struct BaseDatabase {
    status: Vec<u8>,
    pub(super) extended: Vec<u8>,
    pub(super) lists: [Vec<u8>; LISTS.len()],
}

impl BaseDatabase {
    pub(super) fn read() -> Result<Self> {
        let [diversions, triggers] = LISTS.map(|(name, _)| optional(&format!("/var/lib/dpkg/{name}")));
        let lists = [diversions?, triggers?];
        Ok(Self { status: read(STATUS).context(|| STATUS)?, extended: optional(EXTENDED)?, lists })
    }

    pub(super) fn database(&self) -> Result<Database<'_>> {
        Database::parse(&self.status).map_err(|e| Error::new(format!("{STATUS}: {e}")))
    }

    pub(super) fn lists(&self) -> Vec<(&'static str, Records, &[u8])> {
        LISTS.iter().zip(&self.lists).map(|((name, kind), text)| (*name, *kind, &text[..])).collect()
    }
}

/// By what the status file is known again: dpkg puts another one in its place whenever it has changed.
pub(super) fn mark() -> Option<String> {
    let found = std::fs::metadata(STATUS).ok()?;
    Some(format!("{} {} {} {} {}", found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

fn optional(path: &str) -> Result<Vec<u8>> {
    match read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        other => other.context(|| path.to_owned()),
    }
}

fn read(path: &str) -> std::io::Result<Vec<u8>> {
    read_whole(std::fs::File::open(path)?, LONGEST)
}
