//! A job with an environment: its directory on a node.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use skiff_slurm_names::{JOB_SPEC_FILE, JOBS, NONE};

/// Whether a variable says that there shall be none.
pub fn switched_off(value: Option<OsString>) -> bool {
    value.is_some_and(|value| value == NONE)
}

/// Whether this node has prepared the job because it has an environment.
pub fn job_is_here(id: &OsString) -> bool {
    directory(id).is_some_and(|dir| dir.join(JOB_SPEC_FILE).exists())
}

/// The job's directory, which a step that brought an environment may have been the reason for too.
pub fn directory(id: &OsString) -> Option<PathBuf> {
    let path = Path::new(JOBS).join(id);
    (id.as_bytes().iter().all(u8::is_ascii_digit) && path.is_dir()).then_some(path)
}
