//! The environment's own database, read and written by a process inside under dpkg's locks.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, fsync, openat, openat2, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use skiff_packages::{Ancestor, Database, PackageChange, field, merge_records, paragraphs};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::lock::{self, Lock};

use super::base::{BaseDatabase, EXTENDED, LISTS};
use super::{PackageReport, read_whole};

const DPKG: &str = "/var/lib/dpkg";
const STATUS: &str = "status";
/// As apt and dpkg take them, in this order.
const LOCKS: [&str; 2] = ["lock-frontend", "lock"];
/// Behind the name of a file that is not whole yet.
const NEW: &str = ".skiff-new";
const LONGEST: u64 = 256 << 20;

/// The environment's upper layer.
pub(super) fn open(upper: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, upper, flags, Mode::empty()).context(|| upper.display().to_string())
}

/// Merges, inside. Gives what came of it and what has been merged by now; nothing if the database is in use.
pub(super) fn merge(
    upper: BorrowedFd<'_>,
    ancestor: Option<&Ancestor>,
    base: &BaseDatabase,
) -> Result<Option<(PackageReport, String)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dpkg = openat(CWD, DPKG, flags, Mode::empty()).context(|| DPKG)?;
    let locks = LOCKS.map(|name| take(dpkg.as_fd(), name));
    let mut held = vec![];
    for lock in locks {
        match lock? {
            Some(lock) => held.push(lock),
            None => return Ok(None),
        }
    }
    if is_interrupted(dpkg.as_fd())? {
        return Ok(None);
    }
    let own = read(dpkg.as_fd(), STATUS)?;
    let (user, bases) = (Database::parse(&own).map_err(of_own)?, base.database()?);
    let users = UsersFiles { upper };
    let merged = skiff_packages::merge(ancestor, &user, &bases, &|key| users.have(key));
    lists(dpkg.as_fd(), &users, ancestor, base)?;
    if let Some(text) = &merged.text {
        extended_states(&users, &base.extended, &merged.changes)?;
        // The last one: without it, all is done once more.
        replace(dpkg.as_fd(), STATUS, text)?;
    }
    // No program of the environment is started (`ldconfig`, say): this process has the network and the variables of whoever called from outside.
    drop(held);
    let report = PackageReport {
        packages: merged.changes,
        conflicts: merged.conflicts,
        unmet: merged.unmet,
        is_in_use: false,
    };
    Ok(Some((report, merged.ancestor.to_text())))
}

fn of_own(e: skiff_packages::Error) -> Error {
    Error::new(format!("{DPKG}/{STATUS} of the environment: {e}"))
}

/// Locks a file as dpkg does, until it is closed; nothing if somebody has.
fn take(dpkg: BorrowedFd<'_>, name: &str) -> Result<Option<OwnedFd>> {
    let about = || format!("{DPKG}/{name}");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dpkg, name, flags, Mode::from_raw_mode(0o640)).context(about)?;
    let is_free = lock::set(file.as_fd(), 0..i64::MAX as u64, Lock::Exclusive).context(about)?;
    Ok(is_free.then_some(file))
}

/// Whether dpkg has changes to its database beside the status file: it is at work on the host, or was killed.
fn is_interrupted(dpkg: BorrowedFd<'_>) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let updates = match openat(dpkg, "updates", flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        other => other.context(|| "updates of dpkg")?,
    };
    let entries = rustix::fs::Dir::new(updates).context(|| "updates of dpkg")?;
    let names = entries.flatten().map(|entry| entry.file_name().to_bytes().to_vec());
    Ok(names.into_iter().any(|name| name.iter().all(u8::is_ascii_digit)))
}

/// What the user has changed of the files of a base.
pub(super) struct UsersFiles<'a> {
    pub(super) upper: BorrowedFd<'a>,
}

impl UsersFiles<'_> {
    /// Whether the user has unpacked or removed a package: dpkg writes its list of files anew, or removes it.
    pub(super) fn have(&self, key: &str) -> bool {
        self.stat(&format!("var/lib/dpkg/info/{key}.list")).is_some()
    }

    /// Whether a file is the user's own.
    pub(super) fn has(&self, path: &str) -> bool {
        self.stat(path).is_some_and(|kind| kind == FileType::RegularFile)
    }

    /// What is in a file of the user's, read from outside: whatever has been put in its place inside, nothing else is opened or waited for.
    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>> {
        let about = || format!("/{path} of the environment");
        let file = File::from(self.open(path, OFlags::RDONLY | OFlags::NONBLOCK).context(about)?);
        if !file.metadata().context(about)?.is_file() {
            return Err(Error::new(format!("{}: not a regular file", about())));
        }
        read_whole(file, LONGEST).context(about)
    }

    fn stat(&self, path: &str) -> Option<FileType> {
        let file = self.open(path, OFlags::PATH).ok()?;
        Some(FileType::from_raw_mode(fstat(&file).ok()?.st_mode))
    }

    fn open(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(self.upper, path, flags, Mode::empty(), resolve)
    }
}

/// Merges the lists that are the user's own. Without an ancestor nobody knows what of them the user has removed.
fn lists(
    dpkg: BorrowedFd<'_>,
    users: &UsersFiles<'_>,
    ancestor: Option<&Ancestor>,
    base: &BaseDatabase,
) -> Result<()> {
    for ((name, kind), bases) in LISTS.iter().zip(&base.lists) {
        let Some(known) = ancestor.and_then(|ancestor| ancestor.records.get(*name)) else { continue };
        if !users.has(&format!("var/lib/dpkg/{name}")) {
            continue;
        }
        let own = read(dpkg, name)?;
        let merged = merge_records(*kind, known, &own, bases);
        if merged != own {
            replace(dpkg, name, &merged)?;
        }
    }
    Ok(())
}

/// Takes over from apt's notes which of the packages that came and went only others needed.
fn extended_states(users: &UsersFiles<'_>, base: &[u8], changes: &[PackageChange]) -> Result<()> {
    if !users.has(EXTENDED.trim_start_matches('/')) {
        return Ok(());
    }
    let own = read(CWD, EXTENDED)?;
    let is_about = |paragraph: &[u8], change: &PackageChange| {
        let (name, architecture) = change.name.split_once(':').unwrap_or((&change.name, ""));
        field(paragraph, "Package") == Some(name.as_bytes())
            && (architecture.is_empty() || field(paragraph, "Architecture") == Some(architecture.as_bytes()))
    };
    let fresh = |paragraph: &&[u8]| {
        changes
            .iter()
            .any(|change| (change.was.is_none() || change.now.is_none()) && is_about(paragraph, change))
    };
    let came = |paragraph: &&[u8]| {
        changes
            .iter()
            .any(|change| change.was.is_none() && change.now.is_some() && is_about(paragraph, change))
    };
    let kept = paragraphs(&own).filter(|paragraph| !fresh(paragraph));
    let mut merged = vec![];
    for paragraph in kept.chain(paragraphs(base).filter(came)) {
        merged.extend_from_slice(paragraph);
        merged.extend_from_slice(b"\n\n");
    }
    replace(CWD, EXTENDED, &merged)
}

fn read(dir: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::empty()).context(|| name.to_owned())?;
    read_whole(File::from(file), LONGEST).context(|| name.to_owned())
}

/// Puts a file in the place of another one, with its mode: whoever is killed leaves the one or the other.
fn replace(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<()> {
    let about = || name.to_owned();
    let mode = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).context(about)?.st_mode & 0o777;
    let new = format!("{name}{NEW}");
    // Whatever was left or put there: to open a named pipe would wait for its reader.
    match unlinkat(dir, &new, AtFlags::empty()) {
        Err(Errno::NOENT) => {}
        removed => removed.context(about)?,
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(dir, &new, flags, Mode::from_raw_mode(0o600)).context(about)?);
    (&file).write_all(bytes).context(about)?;
    fchmod(&file, Mode::from_raw_mode(mode)).context(about)?;
    fsync(&file).context(about)?;
    renameat(dir, &new, dir, name).context(about)
}
