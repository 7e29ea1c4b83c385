//! The host's packages, as anybody may read them: by the host's RPM.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use skiff_packages::Hash;
use skiff_packages::rpm::{HeaderReader, RpmAncestor, RpmHeader, RpmPackage};
use skiff_sandbox::program::{ProgramOutput, VARIABLES};
use skiff_spec::fault::{Context as _, Fault as Error, Result};
use skiff_sys::lock::{self, Lock};
use skiff_sys::signal::{SignalMask, start_with};

use super::PATIENCE;
use super::location::{Location, RPMDB};

/// The file that RPM locks as long as it changes packages.
pub(super) const LOCK: &str = ".rpm.lock";

/// What RPM locks when it reads for us: a file of this process. To export a database it takes the lock for changes, which no user may take, and
/// which must not hold up the administrator.
const LOCK_OF_READER: &str = "/proc/self/fd/0";

/// What is installed on the host.
pub(super) struct BaseHeaders {
    pub(super) packages: Vec<RpmPackage>,
    /// By their hashes the headers that were not known: all others are in the user's database, if they are wanted there.
    pub(super) fresh: BTreeMap<Hash, Vec<u8>>,
}

impl BaseHeaders {
    /// Reads the host's database, which had this mark; nothing if the administrator's RPM is at work: the next session sees what it has done.
    pub(super) fn read(location: &Location, mark: &str, known: Option<&RpmAncestor>) -> Result<Option<Self>> {
        if is_locked(location) {
            return Ok(None);
        }
        let mut command = Command::new(RPMDB);
        command.args(["--define", &format!("_rpmlock_path {LOCK_OF_READER}")]);
        command.args(export(location.directory, location.format));
        command.env_clear().envs(VARIABLES).current_dir("/");
        let lock = memfd_create("lock", MemfdFlags::CLOEXEC).context(|| "file for RPM to lock")?;
        command.stdin(lock).stdout(Stdio::piped()).stderr(Stdio::piped());
        start_with(&mut command, SignalMask::from_bits(0));
        let mut child = command.spawn().context(|| RPMDB)?;
        let read = match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), Some(stderr)) => {
                let mut output = ProgramOutput::new(stdout.into(), stderr.into(), Instant::now() + PATIENCE);
                headers(&mut output, known)
            }
            _ => Err(Error::new(format!("{RPMDB}: no pipes"))),
        };
        if read.is_err() {
            child.kill().context(|| RPMDB)?;
        }
        let status = child.wait().context(|| RPMDB)?;
        let read = read.map_err(|e| e.about("packages of the host"))?;
        if !status.success() {
            return Err(Error::new(format!("{RPMDB} --exportdb: {status}"))
                .hint("`rpm -qa` shows whether the host's database is sound"));
        }
        let is_same = !is_locked(location) && location.mark().as_deref() == Some(mark);
        Ok(is_same.then_some(read))
    }
}

/// The arguments by which `rpmdb` prints the database in a directory.
pub(super) fn export(directory: &str, format: &str) -> [String; 5] {
    let [dbpath, define, export] = ["--dbpath", "--define", "--exportdb"].map(str::to_owned);
    [dbpath, directory.into(), define, format!("_db_backend {format}"), export]
}

/// Reads what `rpmdb` prints.
pub(super) fn all_headers(output: &mut ProgramOutput, mut each: impl FnMut(RpmHeader)) -> Result<()> {
    for header in HeaderReader::new(&mut *output) {
        each(header.map_err(|e| Error::new(format!("list of RPM's headers: {e}")))?);
    }
    // It leaves out headers that it finds damaged, says so, and ends well. A merge would take them for removed.
    let errors = output.errors();
    match errors.lines().find(|line| line.starts_with("error:")) {
        None => Ok(()),
        Some(line) => Err(Error::new(format!("rpmdb: {line}"))
            .hint("`rpm -qa` shows the same; `rpmdb --rebuilddb` makes a database without what is damaged")),
    }
}

fn headers(output: &mut ProgramOutput, known: Option<&RpmAncestor>) -> Result<BaseHeaders> {
    let mut base = BaseHeaders { packages: vec![], fresh: BTreeMap::new() };
    all_headers(output, |RpmHeader { bytes, package }| {
        if known.is_some_and(|known| !known.has(&package)) {
            base.fresh.insert(package.hash, bytes);
        }
        base.packages.push(package);
    })?;
    Ok(base)
}

/// Whether the administrator's RPM changes packages right now.
fn is_locked(location: &Location) -> bool {
    // RPM makes the file when it first changes something.
    let Ok(file) = File::open(format!("{}/{LOCK}", location.directory)) else { return false };
    lock::set(file.as_fd(), 0..i64::MAX as u64, Lock::Shared).is_ok_and(|is_free| !is_free)
}
