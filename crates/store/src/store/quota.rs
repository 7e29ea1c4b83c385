//! How much of a store one user may take up, so that room is left for the others.
//!
//! An image counts in full for everybody who may use it: nobody's share grows because somebody else has let go. What a user is about to
//! have counts as it grows, for all that work for this user at the same time.

use rustix::fs::{AtFlags, Mode, OFlags, fstat, fstatvfs, ftruncate, openat, statat};
use serde::{Deserialize, Serialize};
use skiff_registry::BlobDir;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::IgnoreError;

use super::unfinished::mark;
use super::{Store, UnfinishedImage, record_name};
use crate::error::{Error, Result};
use skiff_sys::SystemContext;

/// So many images one user has at most: each also takes names and, while it is used, a mount and perhaps a loop device.
const MOST_IMAGES: u64 = 1000;
/// Where nobody has said otherwise, one user may have this part of the file system.
const PART: u64 = 4;
/// But so much in any case, which is an image or two: on a small file system whoever comes first is served.
const LEAST: u64 = 4 << 30;

/// No more files of layers are kept for the next pull than one for each so many bytes of the quota: file systems have about so many inodes, of which
/// tiny layers could otherwise take all.
const BYTES_OF_INODE: u64 = 16 << 10;

/// What one user may have of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quota {
    /// As much as there is.
    #[default]
    Unlimited,
    /// A quarter of the file system, and 4 GiB in any case.
    Share,
    /// So many bytes.
    Bytes(u64),
}

/// What one user takes up, in bytes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserUsage {
    /// Who.
    pub uid: u32,
    /// How many images this user may use.
    pub count: u64,
    /// Bytes of the images' files and of what is noted of them, also of those that this user was the last to have and that are still in use.
    pub images: u64,
    /// Layers kept for the next pull.
    pub blobs: u64,
    /// What is being made for this user.
    pub unfinished: u64,
    /// How much it may be in all; nothing: as much as there is.
    pub quota: Option<u64>,
}

impl UserUsage {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.images + self.blobs + self.unfinished
    }
}

impl Store {
    /// The same store, with a limit to what each user may have of it.
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Store {
        Store { quota, ..self }
    }

    /// What a user takes up.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn usage_of(&self, uid: u32) -> Result<UserUsage> {
        let mut usage = UserUsage { uid, quota: self.quota_of(uid)?, ..UserUsage::default() };
        // Before the images: what is published meanwhile is then counted twice, and not missed.
        let of_user = format!("for.{uid}.");
        let unfinished = self.list("tmp")?;
        let unfinished = unfinished.iter().filter_map(|name| name.strip_prefix(&of_user));
        usage.unfinished = unfinished.map(|name| self.unfinished_bytes(uid, name)).sum();
        for id in self.images_of(uid)? {
            usage.count += 1;
            usage.images += self.image_bytes(id);
        }
        usage.images += self.removed_of(uid)?.bytes + self.resolved_digests_bytes(uid);
        usage.blobs = match self.all_blobs()?.contains(&format!("blobs/{uid}")) {
            true => self.files(&format!("blobs/{uid}"))?.iter().map(|file| file.bytes).sum(),
            false => 0,
        };
        Ok(usage)
    }

    /// What each user takes up who has anything.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn usage_of_users(&self) -> Result<Vec<UserUsage>> {
        let lists = [self.list("users")?, self.list("blobs")?, self.list("removed")?];
        let uid = |name: &String| name.split('.').next()?.parse().ok();
        let mut uids: Vec<u32> = lists.iter().flatten().filter_map(uid).collect();
        uids.sort();
        uids.dedup();
        let all: Vec<UserUsage> = uids.into_iter().map(|uid| self.usage_of(uid)).collect::<Result<_>>()?;
        Ok(all.into_iter().filter(|usage| usage.total() > 0).collect())
    }

    /// Whether a user may have so many bytes more. Blobs that are only kept make room first, then layers of environments, which depots have.
    ///
    /// # Errors
    /// [`Error::Quota`] where not.
    pub(crate) fn check_room(&self, uid: u32, bytes: u64) -> Result<()> {
        self.make_room(uid, bytes, &[]).map(drop)
    }

    /// The same; layers that are among these stay. Says how many went.
    pub(super) fn make_room(&self, uid: u32, bytes: u64, but_for: &[ImageId]) -> Result<usize> {
        let Some(quota) = self.quota_of(uid)? else { return Ok(0) };
        let usage = self.usage_of(uid)?;
        let mut gone = 0;
        if bytes > 0 && usage.count + self.removed_of(uid)?.count >= MOST_IMAGES {
            gone = self.give_up_layers(uid, (0, 1), but_for)?;
            if gone == 0 {
                return Err(Error::TooManyImages { most: MOST_IMAGES });
            }
        }
        if usage.total().saturating_add(bytes) <= quota {
            return Ok(gone);
        }
        let usage = self.usage_without_removed(usage, quota.saturating_sub(bytes))?;
        if usage.total().saturating_add(bytes) <= quota {
            return Ok(gone);
        }
        if usage.blobs > 0 && (usage.total() - usage.blobs).saturating_add(bytes) <= quota {
            // What is read still is open, and goes when that is closed.
            self.drop_blobs(uid)?;
        }
        let wanted = self.usage_of(uid)?.total().saturating_add(bytes);
        if wanted > quota {
            gone += self.give_up_layers(uid, (wanted - quota, 0), but_for)?;
        }
        let used = self.usage_without_removed(self.usage_of(uid)?, quota.saturating_sub(bytes))?.total();
        if used.saturating_add(bytes) <= quota {
            return Ok(gone);
        }
        Err(Error::Quota { used, more: bytes, quota })
    }

    /// What a user takes up when images that are removed are let go of, where they are only kept mounted; if no more than `most` is left then.
    fn usage_without_removed(&self, usage: UserUsage, most: u64) -> Result<UserUsage> {
        let removed = self.removed_of(usage.uid)?.bytes;
        let others = usage.total().saturating_sub(removed);
        if usage.total() <= most || others > most {
            return Ok(usage);
        }
        self.let_go_for_room(usage.uid, most - others)?;
        self.usage_of(usage.uid)
    }

    /// Whether a user, with all that is being made for this one, is within the quota still. Layers that are only kept make room.
    ///
    /// # Errors
    /// [`Error::Quota`] where not.
    pub(crate) fn check_quota(&self, uid: u32) -> Result<()> {
        let Some(quota) = self.quota_of(uid)? else { return Ok(()) };
        let usage = self.usage_of(uid)?;
        let are_many =
            usage.blobs > 0 && self.list(&format!("blobs/{uid}"))?.len() as u64 > quota / BYTES_OF_INODE;
        if are_many || (usage.total() > quota && usage.blobs > 0) {
            // What is read still is open, and goes when that is closed.
            self.drop_blobs(uid)?;
        }
        self.make_room(uid, 0, &[]).map(drop)
    }

    /// An image that is there becomes one of this user's.
    ///
    /// # Errors
    /// [`Error::Quota`], or when the store cannot be written to.
    pub(crate) fn permit_more(&self, uid: u32, id: ImageId) -> Result<()> {
        if self.permitted(uid, id) {
            return self.permit(uid, id);
        }
        self.check_room(uid, self.image_bytes(id))?;
        self.permit(uid, id)?;
        // Once more now that it counts: of several at the same time, each has found room for itself alone.
        self.check_quota(uid).inspect_err(|_| {
            self.forbid(uid, id)
                .ignore_error("otherwise it stays one of those that go first when room is made");
        })
    }

    /// How much an image takes on the disk, with its record, which holds the image's whole configuration.
    pub(super) fn image_bytes(&self, id: ImageId) -> u64 {
        [names::image(id), names::squashfs(id), record_name(id)].iter().map(|name| self.bytes_of(name)).sum()
    }

    /// How much a file that is being made takes, or what was announced of it.
    fn unfinished_bytes(&self, uid: u32, name: &str) -> u64 {
        let name = format!("tmp/{name}");
        let announced = statat(&self.dir, mark(uid, &name), AtFlags::SYMLINK_NOFOLLOW);
        let announced = announced.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        self.bytes_of(&name).max(announced)
    }

    pub(super) fn images_of(&self, uid: u32) -> Result<Vec<ImageId>> {
        let user = uid.to_string();
        if !self.list("users")?.contains(&user) {
            return Ok(vec![]);
        }
        Ok(self.list(&format!("users/{user}"))?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Root and the store's owner have none: they set it.
    pub(super) fn quota_of(&self, uid: u32) -> Result<Option<u64>> {
        match self.quota {
            _ if uid == 0 || uid == rustix::process::getuid().as_raw() => Ok(None),
            Quota::Unlimited => Ok(None),
            Quota::Bytes(bytes) => Ok(Some(bytes)),
            Quota::Share => {
                let fs = fstatvfs(&self.dir).on("look at the file system of", self.shown(""))?;
                Ok(Some((fs.f_blocks.saturating_mul(fs.f_frsize) / PART).max(LEAST)))
            }
        }
    }

    /// Removes the layers that are kept for a user's next pull, but for those that are being fetched.
    fn drop_blobs(&self, uid: u32) -> Result<()> {
        let dir = self.blobs(uid)?;
        let blobs = BlobDir::open(&dir)?;
        let names = self.list(&format!("blobs/{uid}"))?;
        let digests = names.iter().filter_map(|name| name.replacen('-', ":", 1).parse().ok());
        Ok(digests.into_iter().try_for_each(|digest| blobs.remove(&digest).map(drop))?)
    }
}

impl UnfinishedImage<'_> {
    /// From now on it counts as one of this user's, with as many bytes as are announced of it even before they are written.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub(crate) fn count_for(&mut self, uid: u32, announced: u64) -> Result<()> {
        let mark = mark(uid, &self.name);
        let shown = || self.store.shown(&mark);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.store.dir, &mark, flags, Mode::from_raw_mode(0o600)).on("create", shown())?;
        self.mark = Some(mark.clone());
        // A hole, which takes no room.
        Ok(ftruncate(&file, announced).on("set the length of", shown())?)
    }

    /// Counts so many bytes more from now on, by which the file is to grow, for a user for whom it [counts](Self::count_for). `check` says whether the user is
    /// within the quota with them.
    ///
    /// # Errors
    /// Those of `check`; where the quota is exceeded, with these bytes as those needed besides. The store cannot be written to.
    pub(crate) fn announce(&self, uid: u32, bytes: u64, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let there = fstat(self.file()).on("look at", self.name())?.st_blocks.unsigned_abs() * 512;
        let mark = mark(uid, &self.name);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let shown = || self.store.shown(&mark);
        let file = openat(&self.store.dir, &mark, flags, Mode::empty()).on("open", shown())?;
        ftruncate(&file, there.saturating_add(bytes)).on("set the length of", shown())?;
        check().map_err(|error| match error {
            Error::Quota { used, more, quota } => {
                Error::Quota { used: used.saturating_sub(bytes), more: more.saturating_add(bytes), quota }
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Begun, Patience};

    #[test]
    fn what_is_being_made_counts() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap().with_quota(Quota::Bytes(1 << 20));
        store.check_room(7, 1 << 20).unwrap();
        assert!(matches!(store.check_room(7, (1 << 20) + 1), Err(Error::Quota { used: 0, .. })));
        let id = ImageId([1; 32]);
        let Begun::New(mut making) = store.begin((id, 7), Patience::default(), &mut || ()).unwrap() else {
            panic!("it is not there")
        };
        making.count_for(7, 0).unwrap();
        let half = vec![1; 512 << 10];
        rustix::io::pwrite(making.file(), &half, 0).unwrap();
        assert_eq!(store.usage_of(7).unwrap().unfinished, 512 << 10);
        assert_eq!(store.usage_of(8).unwrap().total(), 0, "another's");
        assert!(store.check_room(7, 600 << 10).is_err() && store.check_room(8, 600 << 10).is_ok());
        rustix::io::pwrite(making.file(), &vec![1; 1 << 20], 512 << 10).unwrap();
        assert!(matches!(store.check_quota(7), Err(Error::Quota { .. })));
        drop(making);
        store.check_quota(7).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_announced_counts_before_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap().with_quota(Quota::Bytes(1 << 20));
        let announce = |number| {
            let begun = store.begin((ImageId([number; 32]), 7), Patience::default(), &mut || ()).unwrap();
            let Begun::New(mut making) = begun else { panic!("it is not there") };
            making.count_for(7, 600 << 10).unwrap();
            making
        };
        let first = announce(1);
        assert_eq!(store.usage_of(7).unwrap().unfinished, 600 << 10);
        store.check_quota(7).unwrap();
        let _second = announce(2);
        assert!(matches!(store.check_quota(7), Err(Error::Quota { .. })), "both have been announced");
        store.check_quota(8).unwrap();
        drop(first);
        store.check_quota(7).unwrap();
    }

    #[test]
    fn tiny_layers_do_not_take_all_inodes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap().with_quota(Quota::Bytes(1 << 20));
        let blobs = store.blobs(7).unwrap();
        let left = || std::fs::read_dir(&blobs).unwrap().count();
        for (count, kept) in [(64, 64), (65, 0)] {
            for number in 0..count {
                std::fs::write(blobs.join(format!("sha256-{number:064}")), "1").unwrap();
            }
            store.check_quota(7).unwrap();
            assert_eq!(left(), kept);
        }
    }

    #[test]
    fn kept_layers_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap().with_quota(Quota::Bytes(1 << 20));
        let blob = store.blobs(7).unwrap().join(format!("sha256-{}", "0".repeat(64)));
        std::fs::write(&blob, vec![1; 800 << 10]).unwrap();
        store.check_room(7, 100 << 10).unwrap();
        assert!(blob.exists());
        assert!(store.check_room(7, 2 << 20).is_err() && blob.exists(), "in vain it is not removed");
        store.check_room(7, 900 << 10).unwrap();
        assert!(!blob.exists());
    }
}
