//! Images once more as squashfs, for kernels that have no EROFS.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, ftruncate, openat, renameat, statat};
use skiff_erofs as erofs;
use skiff_image::squashfs::hybrid;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::IgnoreError;

use super::unfinished::mark;
use super::{LOOK, Store, unique};
use crate::error::Result;
use skiff_sys::SystemContext;

/// So long whoever makes an image a squashfs is waited for: it may be another user's process, and frozen.
const PATIENCE: Duration = Duration::from_millis(700);

impl Store {
    /// Makes an image's file a squashfs as well, beside it, unless that has been done. Whoever does so at the moment is waited for. It counts for the
    /// user who needs it from the beginning, with the length of the image: a copy has no holes.
    ///
    /// # Errors
    /// [`Error::Quota`](crate::Error::Quota); when the store cannot be written to, or for what no squashfs can hold.
    pub fn make_squashfs(&self, id: ImageId, uid: u32) -> Result<()> {
        let (done, aside) = (names::squashfs(id), unique(&format!("tmp/{id}.sqsh")));
        let is_there = || statat(&self.dir, &done, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if is_there() {
            return Ok(());
        }
        let _lock = self.wait_for_squashfs(id, &is_there)?;
        if is_there() {
            return Ok(());
        }
        let counted = mark(uid, &aside);
        let made = self.make_within_quota(id, uid, &aside);
        let placed = made.and_then(|()| {
            Ok(renameat(&self.dir, &aside, &self.dir, &done).on("rename", self.shown(&done))?)
        });
        self.remove(&counted).ignore_error("what stays is collected");
        placed.inspect_err(|_| self.remove(&aside).ignore_error("the first error is the one to tell"))
    }

    fn make_within_quota(&self, id: ImageId, uid: u32, name: &str) -> Result<()> {
        let image = self.open_image(id)?;
        let size = fstat(&image).on("look at", self.shown(&names::image(id)))?.st_size;
        let mark = mark(uid, name);
        let shown = || self.shown(&mark);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let announced = openat(&self.dir, &mark, flags, Mode::from_raw_mode(0o600)).on("create", shown())?;
        ftruncate(&announced, size.unsigned_abs()).on("set the length of", shown())?;
        self.make_room(uid, 0, &[id])?;
        self.copy_as_squashfs(id, image, name)?;
        // With its tables, which nobody has announced.
        self.make_room(uid, 0, &[id]).map(drop)
    }

    /// Whoever makes it is waited for, but not for long: that one may have been stopped, and two make the same.
    fn wait_for_squashfs(&self, id: ImageId, is_there: &dyn Fn() -> bool) -> Result<OwnedFd> {
        let name = format!("tmp/{id}.lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock =
            openat(&self.dir, &name, flags, Mode::from_raw_mode(0o600)).on("open", self.shown(&name))?;
        let until = Instant::now() + PATIENCE;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() && !is_there() {
            if Instant::now() > until {
                break;
            }
            std::thread::sleep(LOOK);
        }
        Ok(lock)
    }

    fn copy_as_squashfs(&self, id: ImageId, mut from: File, name: &str) -> Result<()> {
        let shown = self.shown(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let to = openat(&self.dir, name, flags, Mode::from_raw_mode(0o600)).on("create", &*shown)?;
        let mut to = File::from(to);
        // Where the file system can share blocks between files, the kernel has it do so.
        std::io::copy(&mut from, &mut to).on("write to", &shown)?;
        let reader = erofs::Reader::open(from, id.to_string())?;
        hybrid::add(&reader, to.as_fd(), &shown)?;
        drop(to);
        self.seal(self.open_to_read(name)?.as_fd(), &names::squashfs(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::Quota;
    use crate::store::layers::tests::add;

    #[test]
    fn a_copy_for_kernels_without_erofs_asks_the_quota_before_it_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let id = add(&store, 1, false);
        let store = store.with_quota(Quota::Bytes(400 << 10));
        let refused = store.make_squashfs(id, 7).expect_err("an image and its copy are more than that");
        assert!(matches!(refused, Error::Quota { quota: 409_600, .. }), "{refused}");
        let left: Vec<_> =
            store.list("tmp").expect("listed").into_iter().filter(|n| !n.ends_with(".lock")).collect();
        assert_eq!(left, [""; 0], "nothing is left of it, and nothing counts");
        // Here the quota is not what is in the way: the file is no image.
        let store = store.with_quota(Quota::Bytes(1 << 20));
        let other = store.make_squashfs(id, 7).expect_err("it is not an image");
        assert!(!matches!(other, Error::Quota { .. }), "{other}");
        assert!(store.usage_of(7).expect("usage").unfinished == 0);
    }
}
