//! Where RPM's databases are, and in which formats.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::is_own_file;

/// Where distributions have it: the newer place first, as the older one may lead there.
pub(super) const DIRECTORIES: [&str; 2] = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];

/// A database.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) directory: &'static str,
    /// The file in which all packages are.
    pub(super) file: &'static str,
    /// What RPM calls the format.
    pub(super) format: &'static str,
    /// A file whose changes belong to the database until they are in `file`, too.
    pub(super) log: Option<&'static str>,
}

/// The file of SQLite's format, and its log of changes.
const SQLITE: [&str; 2] = ["rpmdb.sqlite", "rpmdb.sqlite-wal"];
/// Files of formats in which several files are exchanged at once: these databases are not merged.
const NOT_MERGED: [&str; 2] = ["Packages.db", "Packages"];

const LOCATIONS: [Location; 2] = [sqlite(DIRECTORIES[0]), sqlite(DIRECTORIES[1])];

const fn sqlite(directory: &'static str) -> Location {
    Location { directory, file: SQLITE[0], format: "sqlite", log: Some(SQLITE[1]) }
}

/// RPM's programs, on the host and in environments.
pub(super) const RPMDB: &str = "/usr/bin/rpmdb";
pub(super) const RPM: &str = "/usr/bin/rpm";

impl Location {
    /// The one of the host's database, if there is one and RPM to read it.
    pub(super) fn of_host() -> Option<&'static Self> {
        let location = LOCATIONS.iter().find(|location| Path::new(&location.path()).exists())?;
        Path::new(RPMDB).exists().then_some(location)
    }

    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.directory, self.file)
    }

    /// Whether the environment in `dir` has a database of its own here.
    pub(super) fn is_own(&self, dir: &Path) -> bool {
        is_own_file(dir, self.path().trim_start_matches('/'))
    }

    /// By what the database is known again: where it is, and all that a change of it changes.
    pub(super) fn mark(&self) -> Option<String> {
        let found = std::fs::metadata(self.path()).ok()?;
        let log = self.log.and_then(|log| std::fs::metadata(format!("{}/{log}", self.directory)).ok());
        // Whoever reads may make the file, or set its times.
        let log = log.filter(|log| log.len() > 0).map(|log| (log.len(), log.ctime(), log.ctime_nsec()));
        let (size, seconds, nanoseconds) = log.unwrap_or_default();
        Some(format!(
            "{} {} {} {} {} {} {size} {seconds} {nanoseconds}",
            self.path(),
            found.dev(),
            found.ino(),
            found.size(),
            found.ctime(),
            found.ctime_nsec()
        ))
    }
}

/// A database of the environment in `dir` that hides the host's, in a format that is not merged.
pub(super) fn own_that_is_not_merged(dir: &Path) -> Option<String> {
    let paths = DIRECTORIES.iter().flat_map(|at| NOT_MERGED.map(|file| format!("{at}/{file}")));
    paths.into_iter().find(|path| is_own_file(dir, path.trim_start_matches('/')) && Path::new(path).exists())
}
