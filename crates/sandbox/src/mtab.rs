//! `/etc/mtab`, which programs read to find out what is mounted: `fusermount` of a second user fails without. Images seldom have one, as Docker
//! and Podman make it in each container.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::symlinkat;
use rustix::io::Errno;
use skiff_spec::plan::inside;

use crate::mounts::resolve_or_make;

/// Makes the link, unless the root has something of that name.
///
/// # Errors
/// Of the system.
pub(crate) fn make(root: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let path = Path::new(inside::MTAB);
    let dir = path.parent().and_then(|dir| dir.strip_prefix("/").ok()).ok_or(Errno::INVAL)?;
    let name = path.file_name().ok_or(Errno::INVAL)?;
    match symlinkat(inside::MOUNTS, resolve_or_make(root, dir, true)?, name) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}
