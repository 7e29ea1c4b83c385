//! Which images users may use.

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, openat, statat, utimensat};
use skiff_spec::image::{ImageId, store as names};

use super::{PASSABLE, Store};
use crate::error::Result;
use skiff_sys::SystemContext;

impl Store {
    /// Notes that a user may use an image, and that they do now.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn permit(&self, uid: u32, id: ImageId) -> Result<()> {
        let user = format!("users/{uid}");
        self.make_dir(&user, PASSABLE)?;
        let name = names::permit(uid, id);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&self.dir, &name, flags, Mode::from_raw_mode(0o644)).on("create", self.shown(&name))?;
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(utimensat(&self.dir, &name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .on("set the time of", self.shown(&name))?)
    }

    /// Whether a user may use an image.
    #[must_use]
    pub fn permitted(&self, uid: u32, id: ImageId) -> bool {
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
