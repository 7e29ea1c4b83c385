//! A job with an environment: its directory on a node, and its descriptor.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::option::NONE;

/// Where `skiff slurm prolog` makes one directory for each job that has an environment.
pub const JOBS: &str = "/run/skiff/jobs";
/// What is written in there for a job that was submitted with one.
pub const DESCRIPTOR: &str = "descriptor";

/// A text in a descriptor (JSON, made by `skiff`), unless it would have to be unescaped.
pub fn text_of<'a>(key: &str, descriptor: &'a CStr) -> Option<&'a str> {
    let text = descriptor.to_str().ok()?;
    let value = text.split_once(&format!("\"{key}\":\""))?.1.split_once('"')?.0;
    (!value.contains('\\')).then_some(value)
}

/// Whether a variable says that there shall be none.
pub fn switched_off(value: Option<OsString>) -> bool {
    value.is_some_and(|value| value.as_bytes() == NONE.to_bytes())
}

/// Whether this node has prepared the job because it has an environment.
pub fn job_is_here(id: &OsString) -> bool {
    directory(id).is_some_and(|dir| dir.join(DESCRIPTOR).exists())
}

/// The job's directory, which a step that brought an environment may have been the reason for too.
pub fn directory(id: &OsString) -> Option<PathBuf> {
    let path = Path::new(JOBS).join(id);
    (id.as_bytes().iter().all(u8::is_ascii_digit) && path.is_dir()).then_some(path)
}
