//! Images once more as squashfs, for kernels that have no EROFS.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, renameat, statat};
use skiff_erofs as erofs;
use skiff_image::squashfs::hybrid;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::IgnoreError;

use super::{LOOK, Store, unique};
use crate::error::Result;
use skiff_sys::SystemContext;

/// So long whoever makes an image a squashfs is waited for: it may be another user's process, and frozen.
const PATIENCE: Duration = Duration::from_millis(700);

impl Store {
    /// Makes an image's file a squashfs as well, beside it, unless that has been done. Whoever does so at the moment is waited for.
    ///
    /// # Errors
    /// When the store cannot be written to, or for what no squashfs can hold.
    pub fn make_squashfs(&self, id: ImageId) -> Result<()> {
        let (done, aside) = (names::squashfs(id), unique(&format!("tmp/{id}.sqsh")));
        let is_there = || statat(&self.dir, &done, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if is_there() {
            return Ok(());
        }
        let _lock = self.wait_for_squashfs(id, &is_there)?;
        if is_there() {
            return Ok(());
        }
        let made = self.copy_as_squashfs(id, &aside);
        let placed = made.and_then(|()| {
            Ok(renameat(&self.dir, &aside, &self.dir, &done).on("rename", self.shown(&done))?)
        });
        placed.inspect_err(|_| self.remove(&aside).ignore_error("the first error is the one to tell"))
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

    fn copy_as_squashfs(&self, id: ImageId, name: &str) -> Result<()> {
        let shown = self.shown(name);
        let mut from = self.open_image(id)?;
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
