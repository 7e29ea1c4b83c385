//! What this host and its CRIU can do, found out by trying: versions say little, as kernels are configured and patched.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use skiff_criu::Installation;
use skiff_criu::rpc::{Options, RequestType};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Fault, Result};

use crate::criu::{self, CriuProcess, OLDEST, fault};

/// What was found.
#[derive(Clone, Debug)]
pub struct CriuFeatures {
    /// CRIU's version.
    pub version: String,
    /// Pages that were written can be told, so that a dump can begin while the processes run.
    pub dirty_pages: bool,
    /// Pages can be brought when they are needed.
    pub lazy_pages: bool,
}

/// The version of a CRIU, if it is new enough.
///
/// # Errors
/// When it is too old or does not answer.
pub fn version(criu: &CriuProcess) -> Result<String> {
    new_enough(criu.talk())
}

/// The same of an installation, whose CRIU is asked outside of any environment.
///
/// # Errors
/// When it cannot be run, is too old or does not answer.
pub fn version_of(installation: &Installation) -> Result<String> {
    new_enough(&skiff_criu::Criu::spawn(installation, None).map_err(fault)?)
}

fn new_enough(criu: &skiff_criu::Criu) -> Result<String> {
    let version = criu.version().map_err(fault)?;
    let (major, minor) = OLDEST;
    if !version.is_at_least(major, minor) {
        return Err(Fault::new(format!("CRIU {version}: too old, it must be {major}.{minor} or newer"))
            .hint("administrator: packaging/get-criu makes a folder with a newer one"));
    }
    Ok(version.to_string())
}

/// Whether a CRIU is of this version or newer.
///
/// # Errors
/// When it does not answer.
pub fn is_at_least(criu: &CriuProcess, (major, minor): (i32, i32)) -> Result<bool> {
    criu.talk().version().map(|version| version.is_at_least(major, minor)).map_err(fault)
}

/// Asks CRIU in the environment where `inside` is, then has it dump a process there and make it again: `scratch` is an empty directory for
/// its images.
///
/// # Errors
/// What does not work.
pub fn probe(installation: &Installation, inside: EnterTarget<'_>, scratch: &Path) -> Result<CriuFeatures> {
    let criu = CriuProcess::start(installation, inside, None)?;
    let version = version(&criu)?;
    let features = criu.talk().features().map_err(fault)?;
    // It may say what it likes of its end: it has answered.
    criu.end();
    dump_and_restore(installation, inside, scratch)?;
    Ok(CriuFeatures {
        version,
        dirty_pages: features.mem_track.unwrap_or_default(),
        lazy_pages: features.lazy_pages.unwrap_or_default(),
    })
}

/// Numbers that nothing has in an environment just made: of the process and of the CRIU that makes it again.
const NUMBERS: (i32, i32) = (77, 200);

fn dump_and_restore(installation: &Installation, inside: EnterTarget<'_>, scratch: &Path) -> Result<()> {
    let images =
        std::fs::File::open(scratch).map_err(|e| Fault::new(format!("{}: {e}", scratch.display())))?;
    let numbered = |number| EnterTarget { number: Pid::from_raw(number), ..inside };
    let patient = enter::start_patient(numbered(NUMBERS.0))?;
    let options = Options { pid: Some(NUMBERS.0), ..criu::options(inside.net) };
    let criu = CriuProcess::start(installation, inside, Some(images.as_fd()))?;
    criu.carry_out(RequestType::Dump, options, |_| Ok(()))?;
    criu.end();
    // CRIU has ended it.
    enter::wait_for(&patient);
    let criu = CriuProcess::start(installation, numbered(NUMBERS.1), Some(images.as_fd()))?;
    let restored = criu.carry_out(RequestType::Restore, criu::options(inside.net), |_| Ok(()))?;
    criu.end();
    match restored.restored.map(|r| r.pid) {
        Some(pid) if pid == NUMBERS.0 => {}
        other => return Err(Fault::new(format!("CRIU: made process {other:?} in place of {}", NUMBERS.0))),
    }
    enter::run(inside, &[], || {
        let pid = Pid::from_raw(NUMBERS.0).ok_or_else(|| Fault::new("no number"))?;
        kill_process(pid, Signal::KILL)
            .map_err(|e| Fault::new(format!("the process made again is not there: {e}")))
    })
}
