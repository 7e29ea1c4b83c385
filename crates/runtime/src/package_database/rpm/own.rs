//! The environment's own database: read and changed inside, by a process that is isolated and by RPM's programs there, which nobody trusts.
//!
//! What is changed is a copy, and the copy takes the database's place by one `rename`, under RPM's own lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Seek as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::time::Instant;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, fchmod, fsync, memfd_create, openat, renameat};
use serde::{Deserialize, Serialize};
use skiff_packages::rpm::{RpmAncestor, RpmHeader, RpmPackage, merge as merge_packages};
use skiff_packages::{Conflict, Hash};
use skiff_sandbox::program::run_program;
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::lock::{self, Lock};

use super::base::{BaseHeaders, LOCK, all_headers, export};
use super::location::{Location, RPM, RPMDB};
use crate::package_database::PackageReport;

/// The directory in which the database is changed, beside the database.
const WORK: &str = ".skiff-merge";
/// A hundred times what a large system has.
const LONGEST: u64 = 16 << 30;
/// The bytes of a database that SQLite locks: whoever has it open holds one of them, so that nobody has who can lock them all.
const SQLITE_LOCKS: std::ops::Range<u64> = 0x4000_0000..0x4000_0200;
/// The arguments of a command are no longer than the kernel takes.
const MOST_LABELS: usize = 500;

/// What came of a merge.
#[derive(Serialize, Deserialize)]
pub(super) struct MergeOutcome {
    pub(super) report: PackageReport,
    /// Conflicts of this merge and of earlier ones.
    pub(super) standing: BTreeMap<String, Conflict>,
}

/// Whether no package manager is at work inside.
pub(super) fn is_free(location: &Location) -> Result<bool> {
    let directory = open_directory(location)?;
    Ok(take(directory.as_fd())?.is_some())
}

/// Merges, inside; nothing if the database is in use.
pub(super) fn merge(
    location: &Location,
    known: &RpmAncestor,
    base: &BaseHeaders,
    until: Instant,
) -> Result<Option<MergeOutcome>> {
    let directory = open_directory(location)?;
    let Some(_lock) = take(directory.as_fd())? else { return Ok(None) };
    if has_log(location) {
        return Ok(None);
    }
    let work = Work::begin(location, until)?;
    let mut own = BTreeMap::new();
    let mut user = vec![];
    work.export(|RpmHeader { bytes, package }| {
        if !known.has(&package) {
            own.insert(package.hash, bytes);
        }
        user.push(package);
    })?;
    let merged = merge_packages(known, &user, &base.packages);
    if !merged.remove.is_empty() || !merged.add.is_empty() {
        work.remove(&merged.remove)?;
        let header = |hash: &Hash| base.fresh.get(hash).or_else(|| own.get(hash)).map(Vec::as_slice);
        work.add(merged.add.iter().filter_map(header))?;
        work.check(&merged.all)?;
        if !work.put_in_place(directory.as_fd())? {
            return Ok(None);
        }
    }
    let report = PackageReport {
        packages: merged.changes,
        conflicts: merged.conflicts,
        unmet: merged.unmet,
        is_in_use: false,
    };
    Ok(Some(MergeOutcome { report, standing: merged.standing }))
}

/// The packages of the user's database, inside.
pub(super) fn packages(location: &Location, until: Instant) -> Result<Vec<RpmPackage>> {
    let mut packages = vec![];
    export_of(location.directory, location, until, |header| packages.push(header.package))?;
    Ok(packages)
}

fn export_of(
    directory: &str,
    location: &Location,
    until: Instant,
    each: impl FnMut(RpmHeader),
) -> Result<()> {
    let options = export(directory, location.format);
    let argv: Vec<&str> = std::iter::once(RPMDB).chain(options.iter().map(String::as_str)).collect();
    run_program(&argv, None, until, |output| all_headers(output, each))
        .map_err(|e| e.about("packages of the environment"))
}

fn open_directory(location: &Location) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, location.directory, flags, Mode::empty()).context(|| location.directory)
}

/// RPM's lock, until it is closed; nothing if somebody has it.
fn take(directory: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, LOCK, flags, Mode::from_raw_mode(0o644)).context(|| LOCK)?;
    let is_free = lock::set(file.as_fd(), 0..i64::MAX as u64, Lock::Exclusive).context(|| LOCK)?;
    Ok(is_free.then_some(file))
}

/// Whether changes are not in the database yet: whoever has made them is at work, or was killed.
fn has_log(location: &Location) -> bool {
    let path = location.log.map(|log| format!("{}/{log}", location.directory));
    path.and_then(|path| fs::symlink_metadata(path).ok()).is_some_and(|log| log.len() > 0)
}

/// A copy of the database, which is changed.
struct Work<'a> {
    location: &'a Location,
    directory: String,
    until: Instant,
    /// The database when it was copied.
    original: fs::Metadata,
}

impl<'a> Work<'a> {
    fn begin(location: &'a Location, until: Instant) -> Result<Self> {
        let directory = format!("{}/{WORK}", location.directory);
        // One that was killed has left it.
        remove(&directory)?;
        fs::DirBuilder::new().mode(0o700).create(&directory).context(|| directory.clone())?;
        let about = || location.path();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, location.path(), flags, Mode::empty()).context(about)?);
        let original = file.metadata().context(about)?;
        let work = Self { location, directory, until, original };
        if !work.original.is_file() || work.original.len() > LONGEST {
            return Err(Error::new(format!("{}: not a database", about())));
        }
        let copy = File::create_new(work.path()).context(|| work.path())?;
        let copied = std::io::copy(&mut std::io::Read::take(file, LONGEST), &mut &copy);
        copied.context(|| format!("{}: copying it", about()))?;
        Ok(work)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.directory, self.location.file)
    }

    fn export(&self, each: impl FnMut(RpmHeader)) -> Result<()> {
        export_of(&self.directory, self.location, self.until, each)
    }

    /// Takes packages out of the copy. No file of theirs is touched, and no script runs.
    fn remove(&self, labels: &BTreeSet<String>) -> Result<()> {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let options = [
            "-e",
            "--justdb",
            "--nodeps",
            "--noscripts",
            "--notriggers",
            "--noplugins",
            "--allmatches",
            "--",
        ];
        labels.chunks(MOST_LABELS).try_for_each(|labels| {
            let define = format!("_db_backend {}", self.location.format);
            let database = [RPM, "--dbpath", &self.directory, "--define", &define];
            let argv = [&database[..], &options, labels].concat();
            run_program(&argv, None, self.until, drain)
        })
    }

    /// Puts headers into the copy.
    fn add<'h>(&self, headers: impl Iterator<Item = &'h [u8]>) -> Result<()> {
        let about = || "headers to be imported";
        let mut list = File::from(memfd_create("headers", MemfdFlags::CLOEXEC).context(about)?);
        for header in headers {
            std::io::Write::write_all(&mut list, header).context(about)?;
        }
        list.rewind().context(about)?;
        let define = format!("_db_backend {}", self.location.format);
        let argv = [RPMDB, "--dbpath", &self.directory, "--define", &define, "--importdb"];
        run_program(&argv, Some(list.as_fd()), self.until, drain)
    }

    /// Whether RPM has made of the copy what was wanted.
    fn check(&self, wanted: &BTreeSet<Hash>) -> Result<()> {
        let mut found = BTreeSet::new();
        self.export(|header| {
            found.insert(header.package.hash);
        })?;
        match found == *wanted {
            true => Ok(()),
            false => {
                Err(Error::new("RPM inside has made another database than was asked for, which is not used")
                    .hint("`rpm --version` and `rpm -qa` inside show whether it works"))
            }
        }
    }

    /// Puts the copy in the place of the database, with its mode: whoever is killed leaves the one or the other. False if somebody has the database open,
    /// or has changed it without the lock.
    fn put_in_place(&self, directory: BorrowedFd<'_>) -> Result<bool> {
        let about = || self.path();
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let copy = openat(CWD, self.path(), flags, Mode::empty()).context(about)?;
        fchmod(&copy, Mode::from_raw_mode(self.original.mode() & 0o777)).context(about)?;
        fsync(&copy).context(about)?;
        let own = File::from(openat(directory, self.location.file, flags, Mode::empty()).context(about)?);
        let is_free = lock::set(own.as_fd(), SQLITE_LOCKS, Lock::Exclusive).context(about)?;
        let stamp = |file: &fs::Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec());
        let is_same = stamp(&own.metadata().context(about)?) == stamp(&self.original);
        if !is_free || !is_same || has_log(self.location) {
            return Ok(false);
        }
        renameat(CWD, self.path(), directory, self.location.file).context(about)?;
        fsync(directory).context(|| self.location.directory)?;
        Ok(true)
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if remove(&self.directory).is_err() {
            // The next merge tries again, and says so.
        }
    }
}

fn remove(directory: &str) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context(|| directory.to_owned()),
        _ => Ok(()),
    }
}

/// What is printed does not matter.
fn drain(output: &mut impl std::io::Read) -> Result<()> {
    std::io::copy(output, &mut std::io::sink()).map(drop).context(|| "output of RPM inside")
}
