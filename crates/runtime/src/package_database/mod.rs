//! The package database of an environment over the host, dpkg's and RPM's: once the user has installed a package it is the user's own, and
//! hides what the administrator installs later. So what has become of the host's since is merged into it, by `skiff_packages`.
//!
//! See docs/decisions/024-the-hosts-changes-show-by-themselves.md.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use serde::{Deserialize, Serialize};
use skiff_packages::{Ancestor, Conflict, PackageChange, Unmet, summary};
use skiff_sandbox::inside::act_inside;
use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::dirs;

mod base;
mod own;
pub(crate) mod rpm;
mod shadowed;

use base::BaseDatabase;
use own::UsersFiles;
pub use rpm::{UncomparedDatabase, shadowed_rpm};
pub use shadowed::{ShadowedPackage, shadowed};

/// In the environment's directory: the host's database as it was at the last merge.
const FILE: &str = "packages";

/// The file is no longer than this: each package takes some hundred bytes.
const LONGEST: u64 = 64 << 20;

/// The directories of the host's package databases: dpkg puts another file in the place of its own, RPM writes into its own.
pub(crate) const DATABASES: [&str; 3] = ["/var/lib/dpkg", rpm::DIRECTORIES[0], rpm::DIRECTORIES[1]];

/// What a merge has brought.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PackageReport {
    /// What the host has installed, upgraded or removed.
    pub packages: Vec<PackageChange>,
    /// What both have changed: the user's stays.
    pub conflicts: Vec<Conflict>,
    /// Packages of the user's that need one which the host has removed.
    pub unmet: Vec<Unmet>,
    /// Whether nothing was merged, since a package manager is at work inside or was interrupted there.
    #[serde(skip)]
    pub is_in_use: bool,
}

/// Brings the database of the environment in `dir` up to date, whose process 1 is `init`, if the host's has changed since that was last done.
///
/// # Errors
/// When one of the two cannot be read, or the environment's not be written.
pub fn bring_up_to_date(dir: &Path, init: BorrowedFd<'_>) -> Result<PackageReport> {
    let dpkg = match due(dir) {
        None => PackageReport::default(),
        Some(mark) if has_own(dir) => merge(dir, init, mark)?,
        Some(mark) => note(dir, mark)?,
    };
    Ok(dpkg.and(rpm::bring_up_to_date(dir, init)?))
}

/// The same, also of what a session leaves to the background.
///
/// # Errors
/// As [`bring_up_to_date`].
pub fn bring_all_up_to_date(dir: &Path, init: BorrowedFd<'_>) -> Result<PackageReport> {
    let noted = rpm::note_base(dir)?;
    let mut report = bring_up_to_date(dir, init)?;
    report.packages.extend(noted);
    Ok(report)
}

impl PackageReport {
    fn and(mut self, other: Self) -> Self {
        self.packages.extend(other.packages);
        self.conflicts.extend(other.conflicts);
        self.unmet.extend(other.unmet);
        Self { is_in_use: self.is_in_use || other.is_in_use, ..self }
    }
}

/// Brings the database of an environment that has just begun up to date, if it is the user's own. If not, there is no hurry: see [`note_base`].
///
/// # Errors
/// As [`bring_up_to_date`].
pub fn bring_own_up_to_date(dir: &Path, init: BorrowedFd<'_>) -> Result<PackageReport> {
    if due(dir).is_none() || !has_own(dir) {
        return rpm::bring_up_to_date(dir, init);
    }
    bring_up_to_date(dir, init)
}

/// Writes down what the host's database is, for as long as the environment in `dir` has none of its own.
///
/// # Errors
/// As [`bring_up_to_date`].
pub fn note_base(dir: &Path) -> Result<()> {
    if let Some(mark) = due(dir).filter(|_| !has_own(dir)) {
        note(dir, mark)?;
    }
    rpm::note_base(dir).map(drop)
}

/// Whether the host's database is as it was at the last merge into the environment in `dir`.
pub(crate) fn is_up_to_date(dir: &Path) -> bool {
    due(dir).is_none() && rpm::is_up_to_date(dir)
}

/// What was merged last into the environment in `dir`.
pub fn ancestor(dir: &Path) -> Option<Ancestor> {
    let mut text = String::new();
    let file = skiff_sys::small_file::open(&dir.join(FILE)).ok()?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, LONGEST), &mut text).ok()?;
    Ancestor::from_text(&text).ok()
}

/// Has a copy of an environment know what was merged into the one in `from`.
///
/// # Errors
/// When it cannot be written.
pub fn copy_ancestor(from: &Path, to: &Path) -> Result<()> {
    ancestor(from).map_or(Ok(()), |ancestor| write(to, &ancestor))?;
    rpm::copy_ancestor(from, to)
}

/// What is known of merges into the environment in `dir`, as texts by name.
pub fn ancestor_texts(dir: &Path) -> BTreeMap<String, String> {
    let rpm = rpm::ancestor_text(dir).map(|text| (rpm::FILE.to_owned(), text));
    let dpkg = ancestor(dir).map(|ancestor| (FILE.to_owned(), ancestor.to_text()));
    rpm.into_iter().chain(dpkg).collect()
}

/// Has an environment know what such texts say; they may be anybody's.
///
/// # Errors
/// When they cannot be written.
pub fn put_ancestor_texts(dir: &Path, texts: &BTreeMap<String, String>) -> Result<()> {
    let dpkg = texts.get(FILE).and_then(|text| Ancestor::from_text(text).ok());
    dpkg.map_or(Ok(()), |ancestor| write(dir, &ancestor))?;
    texts.get(rpm::FILE).map_or(Ok(()), |text| rpm::put_ancestor_text(dir, text))
}

/// Forgets what was merged into the environment in `dir`, for one whose database is to be an older one: what is the user's is then told by what
/// they have unpacked (docs/decisions/024-the-hosts-changes-show-by-themselves.md), and the next session merges all else anew.
///
/// # Errors
/// When it cannot be removed.
pub fn forget_ancestor(dir: &Path) -> Result<()> {
    Ok(dirs::open(dir)?.remove_file(FILE)?)
}

/// Whether an environment has a database of its own.
pub fn has_own(dir: &Path) -> bool {
    let status = base::STATUS.trim_start_matches('/');
    own::open(&dir.join("upper")).is_ok_and(|upper| UsersFiles { upper: upper.as_fd() }.has(status))
}

/// By what the host's database is known again, if it is another one than at the last merge.
fn due(dir: &Path) -> Option<String> {
    let mark = base::mark()?;
    // The beginning is enough.
    let mut head = [0; 256];
    let known = skiff_sys::small_file::open(&dir.join(FILE))
        .and_then(|mut file| std::io::Read::read(&mut file, &mut head));
    let known =
        known.ok().and_then(|length| std::str::from_utf8(&head[..length]).ok()).and_then(Ancestor::mark_of);
    (known != Some(&mark)).then_some(mark)
}

fn note(dir: &Path, mark: String) -> Result<PackageReport> {
    let files = BaseDatabase::read()?;
    let database = files.database()?;
    let now = Ancestor::of(&database, mark, &files.lists());
    let packages = ancestor(dir).map_or_else(Vec::new, |before| summary(&before, &now));
    write(dir, &now)?;
    Ok(PackageReport { packages, ..PackageReport::default() })
}

fn merge(dir: &Path, init: BorrowedFd<'_>, mark: String) -> Result<PackageReport> {
    let base = BaseDatabase::read()?;
    let before = ancestor(dir);
    let upper = own::open(&dir.join("upper"))?;
    let merged = act_inside(init, || own::merge(upper.as_fd(), before.as_ref(), &base))?;
    let Some((report, merged)) = merged else {
        return Ok(PackageReport { is_in_use: true, ..PackageReport::default() });
    };
    let merged = Ancestor::from_text(&merged).map_err(|e| Error::new(e.to_string()))?;
    write(dir, &merged.of_base(mark, &base.lists()))?;
    Ok(report)
}

/// Reads a file of a package database, which has at most `longest` bytes: one that is cut would be merged, and written back shorter.
fn read_whole(file: File, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    file.take(longest + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > longest {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {longest} bytes"))),
        false => Ok(bytes),
    }
}

fn write(dir: &Path, ancestor: &Ancestor) -> Result<()> {
    Ok(dirs::open(dir)?.write(FILE, ancestor.to_text().as_bytes(), 0o600)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_not_cut() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&path, "12345").unwrap();
        let read = |longest| read_whole(File::open(&path).unwrap(), longest);
        assert_eq!(read(5).unwrap(), b"12345");
        assert_eq!(read(4).unwrap_err().to_string(), "longer than 4 bytes");
    }
}
