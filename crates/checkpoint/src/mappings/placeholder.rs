//! Files that stand for System V segments, which CRIU does not map.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use rustix::fs::ftruncate;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::inside;
use skiff_sys::IgnoreError;
use skiff_sys::memory::page_size;

/// A file with a name that stands for a System V segment while CRIU saves or restores the processes that have it attached.
pub(crate) fn placeholder(id: i32) -> PathBuf {
    PathBuf::from(format!("{}/sysv.{id}", inside::DIR))
}

/// Makes it, as long as the segment.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn make_placeholder(id: i32, length: u64) -> Result<File> {
    let path = placeholder(id);
    let about = || path.display().to_string();
    fs::remove_file(&path).ignore_error("it is there only if one was killed that made it");
    let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file = made.context(about)?;
    ftruncate(&file, length.next_multiple_of(page_size() as u64)).context(about)?;
    Ok(file)
}
