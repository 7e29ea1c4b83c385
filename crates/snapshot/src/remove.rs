//! Removing a tree, with this crate's errors.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use skiff_site::NotRemoved;
use skiff_sys::SystemError;

use crate::error::Result;

/// Removes `name` in `dir` with all that is in it; nothing there is no error.
pub(crate) fn remove_all(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    skiff_site::remove_all(dir, OsStr::from_bytes(name)).map_err(|NotRemoved { path, errno }| {
        SystemError::new("remove", path.as_os_str().as_bytes(), errno).into()
    })
}
