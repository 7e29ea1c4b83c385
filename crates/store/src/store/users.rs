//! Which images users may use. Each user's permits lie in a directory of their own, which nobody else may look into.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags, fchmod, fsetxattr, fstat, openat,
    statat, utimensat,
};
use rustix::io::Errno;
use rustix::process::getuid;
use skiff_spec::image::{ImageId, store as names};

use super::{CLOSED, PASSABLE, Store};
use crate::error::Result;
use skiff_sys::SystemContext;

/// The attribute with a file's ACL, as the kernel takes it: a version and entries (`linux/posix_acl_xattr.h`).
const ACL: &str = "system.posix_acl_access";
const ACL_VERSION: u32 = 2;
/// An entry that names nobody.
const NOBODY: u32 = u32::MAX;
/// The right to open a name in a directory that one knows.
const PASS: u16 = 1;

impl Store {
    /// Notes that a user may use an image, and that they do now.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn permit(&self, uid: u32, id: ImageId) -> Result<()> {
        self.make_dir(&permits(uid), CLOSED)?;
        self.admit_only(uid)?;
        let name = names::permit(uid, id);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&self.dir, &name, flags, Mode::from_raw_mode(0o644)).on("create", self.shown(&name))?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(utimensat(&self.dir, &name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .on("set the time of", self.shown(&name))?)
    }

    /// Lets a user look for names in the directory of their permits, and nobody else but the store's owner: others would see who has which
    /// image. Where the file system has no ACLs, everybody who knows an image's id still may.
    fn admit_only(&self, uid: u32) -> Result<()> {
        let name = permits(uid);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = openat(&self.dir, &name, flags, Mode::empty()).on("open", self.shown(&name))?;
        let set_mode = |mode: Mode| fchmod(&dir, mode).on("set the mode of", self.shown(&name));
        if getuid().as_raw() == uid {
            return Ok(set_mode(CLOSED)?);
        }
        match fsetxattr(&dir, ACL, &acl_of(uid), XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => {
                let mode = fstat(&dir).on("look at", self.shown(&name))?.st_mode;
                if Mode::from_raw_mode(mode) != PASSABLE {
                    set_mode(PASSABLE)?;
                }
                Ok(())
            }
            set => Ok(set.on("set the ACL of", self.shown(&name))?),
        }
    }

    /// Closes directories of permits that an older version has made, into which everybody may look.
    pub(super) fn close_permits(&self) -> Result<()> {
        for uid in self.list("users")?.iter().filter_map(|name| name.parse().ok()) {
            let stat = statat(&self.dir, permits(uid), AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| stat.st_mode & 0o007 != 0) {
                self.admit_only(uid)?;
            }
        }
        Ok(())
    }

    /// Whether a user may use an image.
    #[must_use]
    pub fn permitted(&self, uid: u32, id: ImageId) -> bool {
        let is_roots = || users_for_root(&self.path).any(|user| self.has_permit(user, id));
        self.has_permit(uid, id) || (uid == 0 && is_roots())
    }

    pub(super) fn has_permit(&self, uid: u32, id: ImageId) -> bool {
        statat(&self.dir, names::permit(uid, id), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Takes that back; the image stays as long as somebody else may use it.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn forbid(&self, uid: u32, id: ImageId) -> Result<()> {
        if self.users_of(id)? == [uid] {
            // Before the permit goes, so that it counts for this user at every moment.
            self.set_aside(id, uid)?;
        }
        self.remove(&names::permit(uid, id))?;
        self.forget(uid, id);
        self.drop_layers_of(uid, &self.layers_of_image(id))?;
        if self.users_of(id)?.is_empty() { self.delete(id, uid) } else { Ok(()) }
    }
}

/// Users of a store whose permits root has, too, if this process is root and the store is its own: inside, users are root, and what they have
/// pulled outside into a store of their own has the permit of their uid there. What others have permitted in a store of theirs says nothing.
pub(crate) fn users_for_root(store: &Path) -> impl Iterator<Item = u32> {
    let is_own = || fs::metadata(store).is_ok_and(|store| store.uid() == 0);
    let names = (getuid().is_root() && is_own()).then(|| fs::read_dir(store.join("users")).ok()).flatten();
    names.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn permits(uid: u32) -> String {
    format!("users/{uid}")
}

/// An ACL by which the owner has all rights, this user may pass, and nobody else has any.
fn acl_of(uid: u32) -> Vec<u8> {
    let [user_object, user, group_object, mask, other] = [0x01, 0x02, 0x04, 0x10, 0x20];
    let entries: [(u16, u16, u32); 5] = [
        (user_object, 7, NOBODY),
        (user, PASS, uid),
        (group_object, 0, NOBODY),
        (mask, PASS, NOBODY),
        (other, 0, NOBODY),
    ];
    let mut bytes = ACL_VERSION.to_le_bytes().to_vec();
    for (tag, rights, who) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(who.to_le_bytes());
    }
    bytes
}
