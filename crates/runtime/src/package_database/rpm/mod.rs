//! RPM's database of an environment over the host, merged as dpkg's is: what has become of the host's is replayed in the user's own. RPM alone knows
//! its files, so both are read and the user's is changed by RPM's programs: the host's by the host's, outside, and the user's by the
//! environment's, inside and isolated.
//!
//! A program that a session has to wait for takes time, so an environment without a database of its own is left to the background, and one with its
//! own costs a session two looks at files while the host's database is as it was.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skiff_output as output;
use skiff_packages::PackageChange;
use skiff_packages::rpm::{RpmAncestor, differences};
use skiff_sandbox::inside::{act_inside, begin_isolated};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_user::dirs;

use super::own::{self as upper, UsersFiles};
use super::{PackageReport, ShadowedPackage};

mod base;
mod location;
mod own;
mod shadowed;

use base::BaseHeaders;
use location::Location;

/// In the environment's directory: the host's packages as they were at the last merge.
pub(super) const FILE: &str = "rpm-packages";
/// The file is no longer than this: each package takes some hundred bytes.
const LONGEST: u64 = 64 << 20;
/// How long a merge may take, and to read the host's database. Measured of 2,000 packages: 2 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// After which time the user is told what they wait for.
const SILENCE: Duration = Duration::from_secs(1);

/// Directories in which RPM has databases.
pub(crate) const DIRECTORIES: [&str; 2] = location::DIRECTORIES;

/// The host's database is not as it was at the last merge.
struct Due {
    location: &'static Location,
    mark: String,
}

/// Merges what has become of the host's database into the one of the environment in `dir`, whose process 1 is `init`, if it has its own.
pub(super) fn bring_up_to_date(dir: &Path, init: BorrowedFd<'_>) -> Result<PackageReport> {
    // Without this there was nothing to be noted, and no other file is looked at.
    let Some(record) = Record::read_head(dir) else { return Ok(PackageReport::default()) };
    match due(Some(&record)) {
        Some(due) if due.location.is_own(dir) => merge(dir, init, &due),
        _ => Ok(PackageReport::default()),
    }
}

/// Writes down what the host's packages are, for as long as the environment in `dir` has no database of its own; what has changed of them.
pub(super) fn note_base(dir: &Path) -> Result<Vec<PackageChange>> {
    let record = Record::read_head(dir);
    let Some(due) = due(record.as_ref()) else { return Ok(vec![]) };
    let before = ancestor(dir);
    if before.is_some() && due.location.is_own(dir) {
        return Ok(vec![]);
    }
    let Some(base) = BaseHeaders::read(due.location, &due.mark, None)? else { return Ok(vec![]) };
    let now = RpmAncestor::of(&base.packages, due.mark);
    let changes = before.map_or_else(Vec::new, |before| differences(&before, &now));
    write(dir, &now)?;
    Ok(changes)
}

/// Whether the host's database is as it was at the last merge into the environment in `dir`.
pub(super) fn is_up_to_date(dir: &Path) -> bool {
    due(Record::read_head(dir).as_ref()).is_none()
}

/// Has a copy of an environment know what was merged into the one in `from`.
pub(super) fn copy_ancestor(from: &Path, to: &Path) -> Result<()> {
    ancestor(from).map_or(Ok(()), |ancestor| write(to, &ancestor))
}

/// What is known of merges into the environment in `dir`, as text.
pub(super) fn ancestor_text(dir: &Path) -> Option<String> {
    ancestor(dir).map(|ancestor| ancestor.to_text())
}

/// Has an environment know what such a text says, if it is one.
pub(super) fn put_ancestor_text(dir: &Path, text: &str) -> Result<()> {
    RpmAncestor::from_text(text).map_or(Ok(()), |ancestor| write(dir, &ancestor))
}

/// A database of the user's that was not compared with the host's.
pub struct UncomparedDatabase {
    /// Path of the file.
    pub path: String,
    /// Whether it is merged: then it is compared when the environment runs.
    pub is_merged: bool,
}

/// Packages of the environment in `dir` that hide newer ones of the host's, or that both have changed; of all packages if it runs, and `init` is its process 1.
/// Otherwise what is known from the last merge, and the database of which the rest is not known.
///
/// # Errors
/// When one of the two databases cannot be read.
pub fn shadowed_rpm(
    dir: &Path,
    init: Option<BorrowedFd<'_>>,
) -> Result<(Vec<ShadowedPackage>, Option<UncomparedDatabase>)> {
    if let Some(path) = location::own_that_is_not_merged(dir) {
        return Ok((vec![], Some(UncomparedDatabase { path, is_merged: false })));
    }
    let Some(location) = Location::of_host().filter(|location| location.is_own(dir)) else {
        return Ok((vec![], None));
    };
    let known = ancestor(dir).unwrap_or_default();
    match init {
        Some(init) => Ok((shadowed::compared(location, init, &known)?, None)),
        None => {
            let uncompared = UncomparedDatabase { path: location.path(), is_merged: true };
            Ok((shadowed::recorded(&known), Some(uncompared)))
        }
    }
}

fn merge(dir: &Path, init: BorrowedFd<'_>, due: &Due) -> Result<PackageReport> {
    let begun = Instant::now();
    let in_use = || Ok(PackageReport { is_in_use: true, ..PackageReport::default() });
    let Some(known) = ancestor(dir) else { return Ok(PackageReport::default()) };
    // Before the host's is read, which takes longer.
    if !act_inside(init, || own::is_free(due.location))? {
        return in_use();
    }
    let Some(base) = BaseHeaders::read(due.location, &due.mark, Some(&known))? else { return in_use() };
    let now = RpmAncestor::of(&base.packages, due.mark.clone());
    if now.has_same_packages(&known) {
        write(dir, &now.with_conflicts(known.conflicts))?;
        return Ok(PackageReport::default());
    }
    let until = begun + PATIENCE;
    let child = begin_isolated(init, &[], || own::merge(due.location, &known, &base, until))?;
    tell_if_slow(dir, child.news(), begun)?;
    let merged = child.end_by(until)?.ok_or_else(|| {
        Error::new(format!("RPM inside has not answered within {} s", PATIENCE.as_secs()))
            .hint("`rpm -qa` inside shows whether its database is sound")
    })?;
    let Some(own::MergeOutcome { report, standing }) = merged else { return in_use() };
    write(dir, &now.with_conflicts(standing))?;
    Ok(report)
}

/// Says what the user waits for, if it takes long.
fn tell_if_slow(dir: &Path, news: BorrowedFd<'_>, begun: Instant) -> Result<()> {
    let left = SILENCE.saturating_sub(begun.elapsed());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let ready = poll(&mut [PollFd::from_borrowed_fd(news, PollFlags::IN)], Some(&timeout));
    if ready.context(|| "poll")? == 0 {
        let name = dir.file_name().unwrap_or_default().display();
        output::note(&format!(
            "environment {name}: the host's RPM packages have changed and are being merged"
        ));
    }
    Ok(())
}

/// The beginning of what was merged last.
struct Record {
    mark: String,
}

impl Record {
    fn read_head(dir: &Path) -> Option<Self> {
        let mut head = [0; 512];
        let length = std::io::Read::read(&mut std::fs::File::open(dir.join(FILE)).ok()?, &mut head).ok()?;
        // What another version has written, or nobody, is written anew.
        let text = String::from_utf8_lossy(&head[..length]);
        Some(Self { mark: RpmAncestor::mark_of(&text).unwrap_or_default().to_owned() })
    }
}

fn due(record: Option<&Record>) -> Option<Due> {
    let location = Location::of_host()?;
    let mark = location.mark()?;
    (record.is_none_or(|record| record.mark != mark)).then_some(Due { location, mark })
}

/// What was merged last into the environment in `dir`.
fn ancestor(dir: &Path) -> Option<RpmAncestor> {
    let mut text = String::new();
    let file = std::fs::File::open(dir.join(FILE)).ok()?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, LONGEST), &mut text).ok()?;
    RpmAncestor::from_text(&text).ok()
}

fn write(dir: &Path, ancestor: &RpmAncestor) -> Result<()> {
    Ok(dirs::open(dir)?.write(FILE, ancestor.to_text().as_bytes(), 0o600)?)
}

/// Whether a file is the user's own in the environment in `dir`.
fn is_own_file(dir: &Path, path: &str) -> bool {
    upper::open(&dir.join("upper")).is_ok_and(|upper| UsersFiles { upper: upper.as_fd() }.has(path))
}
