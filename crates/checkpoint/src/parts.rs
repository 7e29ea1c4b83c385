//! The files of a checkpoint's directory, for what reads and writes single ones.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use skiff_spec::fault::{Context as _, Result};

/// Where directories are.
pub const TREES: &str = "trees";

/// Opens a file of a checkpoint, and nothing that a link in it leads to.
///
/// # Errors
/// When it is not there.
pub fn open(dir: &Path, path: &str) -> Result<File> {
    let about = || dir.join(path).display().to_string();
    let top = File::open(dir).context(|| dir.display().to_string())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(&top, path, flags, Mode::empty(), resolve).map(File::from).context(about)
}
