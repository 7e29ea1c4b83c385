//! Which extended attributes travel, and what the overlay's own ones mean.
//!
//! Kept: `user.*`, file capabilities and ACLs (not those of fifos). The overlay's bookkeeping (`origin`, `uuid`, `impure`, ...) points into one
//! machine's file systems and must never leave it; of it only "opaque" has a meaning elsewhere, and is a flag of its own.

use std::os::fd::BorrowedFd;

use rustix::buffer::spare_capacity;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Names and values, sorted by name.
pub(crate) type XattrList = Vec<(Vec<u8>, Vec<u8>)>;

/// What an overlay mounted with `userxattr` writes and reads.
pub const OPAQUE: &[u8] = b"user.overlay.opaque";
const TRUSTED_OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// What fuse-overlayfs writes, beside files of the names in [`FUSE_MARKS`].
const FUSE_OPAQUE: &[u8] = b"user.fuseoverlayfs.opaque";
/// Entries that fuse-overlayfs puts into an opaque directory and never shows.
pub const FUSE_MARKS: [&[u8]; 2] = [b".wh..wh..opq", b".wh..opq"];
const CAPABILITY: &[u8] = b"security.capability";
/// The longest value the kernel takes.
pub(crate) const MAX_VALUE: usize = 64 * 1024;
/// The longest name the kernel takes.
pub(crate) const MAX_NAME: usize = 255;
/// More than the kernel's limit on a list of names (64 KiB) allows.
pub(crate) const MAX_COUNT: usize = 16 * 1024;

/// Whether an attribute of this name is shipped, and taken from a layer.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    // An attribute `user.overlay.x` that a program inside set is escaped by the kernel to `user.overlay.overlay.x`.
    let users = name.starts_with(b"user.")
        && !name.starts_with(b"user.fuseoverlayfs.")
        && (!name.starts_with(b"user.overlay.") || name.starts_with(b"user.overlay.overlay."));
    users || name == CAPABILITY || name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

/// An overlay attribute that says that an entry's content lies elsewhere, so that it cannot be shipped alone.
pub(crate) fn is_indirection(name: &[u8]) -> bool {
    let overlay = name.strip_prefix(b"user.overlay.").or_else(|| name.strip_prefix(b"trusted.overlay."));
    matches!(overlay, Some(b"redirect" | b"metacopy"))
}

/// Whether a directory hides the base's directory of the same name.
///
/// # Errors
/// Its attributes cannot be read.
pub fn is_opaque(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let marks = [OPAQUE, TRUSTED_OPAQUE, FUSE_OPAQUE];
    let mut listed = [0u8; 256];
    // One question instead of three for most directories, which have no attribute at all.
    if let Ok(length) = rustix::fs::flistxattr(dir, &mut listed[..])
        && !listed[..length].split(|byte| *byte == 0).any(|name| marks.contains(&name))
    {
        return Ok(false);
    }
    for name in marks {
        let mut value = [0u8; 8];
        match rustix::fs::fgetxattr(dir, name, &mut value[..]) {
            Ok(length) if &value[..length] == b"y" => return Ok(true),
            Ok(_) | Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}

/// All names on an open file or directory.
fn list(fd: BorrowedFd<'_>) -> rustix::io::Result<Vec<u8>> {
    let mut names = Vec::with_capacity(1024);
    loop {
        match rustix::fs::flistxattr(fd, spare_capacity(&mut names)) {
            Ok(_) => return Ok(names),
            Err(Errno::RANGE) if names.capacity() <= MAX_VALUE => {
                names = Vec::with_capacity(2 * MAX_VALUE);
            }
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        }
    }
}

/// The attributes of an open file or directory that travel. An overlay indirection on it is an error (EXDEV).
pub(crate) fn read(fd: BorrowedFd<'_>) -> rustix::io::Result<XattrList> {
    let mut kept = XattrList::new();
    for name in list(fd)?.split(|byte| *byte == 0) {
        if is_indirection(name) {
            return Err(Errno::XDEV);
        }
        if is_kept(name)
            && let Some(value) = get(fd, name)?
        {
            kept.push((name.to_vec(), value));
        }
    }
    kept.sort_unstable();
    Ok(kept)
}

/// One value; nothing if it went meanwhile, or is a capability for a user namespace that has no meaning here.
fn get(fd: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(256);
    loop {
        match rustix::fs::fgetxattr(fd, name, spare_capacity(&mut value)) {
            Ok(_) => return Ok(Some(value)),
            Err(Errno::RANGE) if value.capacity() <= MAX_VALUE => value = Vec::with_capacity(2 * MAX_VALUE),
            Err(Errno::NODATA) => return Ok(None),
            Err(Errno::OVERFLOW) if name == CAPABILITY => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

/// Sets attributes on an open file or directory.
pub(crate) fn write(fd: BorrowedFd<'_>, xattrs: &XattrList) -> rustix::io::Result<()> {
    xattrs
        .iter()
        .try_for_each(|(name, value)| rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_something_elsewhere_travels() {
        for (name, kept) in [
            ("user.note", true),
            ("user.overlay.origin", false),
            ("user.overlay.opaque", false),
            ("user.overlay.overlay.opaque", true),
            ("trusted.overlay.opaque", false),
            ("user.fuseoverlayfs.opaque", false),
            ("trusted.x", false),
            ("security.capability", true),
            ("security.selinux", false),
            ("system.posix_acl_access", true),
            ("system.nfs4_acl", false),
        ] {
            assert_eq!(is_kept(name.as_bytes()), kept, "{name}");
        }
        assert!(is_indirection(b"user.overlay.redirect") && is_indirection(b"trusted.overlay.metacopy"));
    }
}
