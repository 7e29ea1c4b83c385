//! Where the base of an environment is seen, to compare with it.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use skiff_plan::base;
use skiff_spec::fault::{Context as _, Result};
use skiff_spec::plan::Base;
use skiff_user::context::UserContext;

/// Where a base is to be seen without the helper: the host as the user sees it, an image unpacked.
pub(crate) fn own_view(context: &UserContext, base: Base) -> Result<PathBuf> {
    Ok(base::unpacked(context, base)?.unwrap_or_else(|| "/".into()))
}

/// The base to compare with: the helper's view of it where there is one.
pub(crate) fn view_of_base(view: Option<OwnedFd>, own: &Path) -> Result<OwnedFd> {
    view.map_or_else(|| open_dir(own), Ok)
}

pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path.as_os_str().as_bytes(), flags, Mode::empty()).context(|| path.display().to_string())
}
