//! Files in a directory, read whole; and such as root writes for one user.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;

use rustix::fs::{Gid, Mode, OFlags, XattrFlags, fchmod, fchown, fsetxattr};
use rustix::io::Errno;

use super::TrustedDir;
use crate::error::{Error, On as _, Result};

/// The access control list's name as an attribute, of `acl(5)`.
const ACL: &str = "system.posix_acl_access";

/// No file is longer that is read whole, in bytes.
const LONGEST: u64 = 64 << 20;

impl TrustedDir {
    /// What is in a regular file; nothing if there is none.
    ///
    /// # Errors
    /// The system's; when it is another kind of file, or longer than 64 MiB.
    pub fn read(&self, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        let path = || self.path_of(name);
        // A FIFO without a writer is not waited for, nor is a lease.
        let file = match self.file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0) {
            Err(e) if e.errno() == Some(Errno::NOENT) => return Ok(None),
            file => File::from(file?),
        };
        if !file.metadata().map_err(Error::system("read", path()))?.is_file() {
            return Err(Errno::INVAL).on("read what is not a regular file,", path);
        }
        let mut bytes = vec![];
        file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(Error::system("read", path()))?;
        match bytes.len() as u64 > LONGEST {
            true => Err(Errno::FBIG).on("read", path),
            false => Ok(Some(bytes)),
        }
    }

    /// Puts a file in it, in place of one that has this name, that only root can change, and only root and this user can read. The group could be
    /// all users', so it is by an access control list; where the file system has none, the group can read it.
    ///
    /// # Errors
    /// The system's.
    pub fn write_for(&self, name: impl AsRef<OsStr>, bytes: &[u8], (uid, gid): (u32, u32)) -> Result<()> {
        let name = name.as_ref();
        self.write(name, bytes, 0o600)?;
        let file = self.file(name, OFlags::RDONLY, 0)?;
        match fsetxattr(&file, ACL, &readable_by(uid), XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => fchown(&file, None, Some(Gid::from_raw(gid)))
                .and_then(|()| fchmod(&file, Mode::from_raw_mode(0o640)))
                .on("give", || self.path_of(name)),
            set => set.on("set the access control list of", || self.path_of(name)),
        }
    }
}

/// As the kernel's `posix_acl_xattr.h` has it: a version, then tag, rights and id of each entry.
fn readable_by(uid: u32) -> Vec<u8> {
    const USER_OBJ: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    const NONE: u32 = u32::MAX;
    let entries =
        [(USER_OBJ, 6u16, NONE), (USER, 4, uid), (GROUP_OBJ, 0, NONE), (MASK, 4, NONE), (OTHER, 0, NONE)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
