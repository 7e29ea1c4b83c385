//! Extended attributes of files that are read where they are.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use skiff_erofs::tree::Xattrs;

use crate::layer::is_kept;

/// The kernel's limit for a value, and for a list of names.
const MAX_XATTR: usize = 64 << 10;

/// The extended attributes of a file in a directory. (There are no calls for that which take a descriptor and a name.)
pub(super) fn xattrs(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<Xattrs> {
    let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
    let mut names = Vec::with_capacity(MAX_XATTR);
    match llistxattr(&path, spare_capacity(&mut names)) {
        Err(Errno::OPNOTSUPP) => return Ok(vec![]),
        listed => listed?,
    };
    let mut found = Xattrs::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_kept(name)) {
        let mut value = Vec::with_capacity(MAX_XATTR);
        match lgetxattr(&path, name, spare_capacity(&mut value)) {
            // It went meanwhile, is for others' eyes, or a capability of another user namespace, which means nothing here.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OVERFLOW | Errno::OPNOTSUPP) => {}
            got => {
                got?;
                found.push((name.into(), value.into()));
            }
        }
    }
    found.sort();
    Ok(found)
}
