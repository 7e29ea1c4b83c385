//! What a store takes up, and what can go from it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, statat};
use serde::{Deserialize, Serialize};
use skiff_oci::digest::Digest;
use skiff_registry::BlobDir;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::IgnoreError;
use skiff_sys::SystemError;

use super::removed::NOBODY;
use super::{Store, UserUsage, resolved_digests};
use crate::error::Result;

/// What is being made without a lock has changed within this time; older remains are a crash's.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// How much room things take on the disk, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Images' files, those among them that are removed but still in use.
    pub images: u64,
    /// Layers kept for the next pull.
    pub blobs: u64,
    /// What is being made.
    pub unfinished: u64,
    /// What users take up of it: an image counts for each who may use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserUsage>,
}

/// What a collection removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Images.
    pub images: Vec<ImageId>,
    /// Other files: layers, remains of crashes.
    pub files: Vec<PathBuf>,
    /// Room regained, in bytes.
    pub bytes: u64,
}

impl Usage {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.images + self.blobs + self.unfinished
    }
}

impl Store {
    /// How much room it takes.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn usage(&self) -> Result<Usage> {
        let room = |dir: &str| -> Result<u64> { Ok(self.files(dir)?.iter().map(|file| file.bytes).sum()) };
        Ok(Usage {
            images: room("images")? + room("removed")?,
            blobs: self.blob_files()?.iter().map(|file| file.bytes).sum(),
            unfinished: room("tmp")?,
            users: vec![],
        })
    }

    /// Removes what nobody may use any more and what crashes have left; then, as long as it takes more than `budget` bytes: what users have
    /// beyond their quota, then layers and images, the longest unused first. With `dry_run` it only says what it would.
    ///
    /// # Errors
    /// When it cannot be read or written to.
    pub fn collect(&self, budget: Option<u64>, dry_run: bool) -> Result<Collected> {
        let mut done = Collected::default();
        if !dry_run {
            self.remove_freed()?;
        }
        // Of what is in use no more can go: others' images are not to go in its place.
        let removed: u64 = self.files("removed")?.iter().map(|file| file.bytes).sum();
        let mut left = self.usage()?.total().saturating_sub(removed);
        left = left.saturating_sub(self.take_unneeded(dry_run, &mut done)?);
        let Some(budget) = budget else { return Ok(done) };
        left = left.saturating_sub(self.take_excess(left, budget, dry_run, &mut done)?);
        for file in oldest_first(self.blob_files()?) {
            if left <= budget {
                return Ok(done);
            }
            if let (Some(digest), Some(dir)) = (digest_of(&file.path), file.path.parent())
                && (dry_run || BlobDir::open(dir)?.remove(&digest)?)
            {
                left = left.saturating_sub(self.take_file(file, dry_run, &mut done)?);
            }
        }
        let gone: BTreeSet<ImageId> = done.images.iter().copied().collect();
        let mut images: Vec<_> = self
            .images()?
            .into_iter()
            .filter(|id| !gone.contains(id))
            .map(|id| (self.last_use(id), id))
            .collect();
        images.sort();
        for (_, id) in images {
            if left <= budget {
                break;
            }
            left = left.saturating_sub(self.take_image(id, dry_run, &mut done)?);
        }
        Ok(done)
    }

    /// Takes what nobody may use any more, and what crashes have left. Gives how many bytes went that count as the store's.
    fn take_unneeded(&self, dry_run: bool, done: &mut Collected) -> Result<u64> {
        let mut gone = 0;
        for id in self.images()? {
            if self.users_of(id)?.is_empty() {
                gone += self.take_image(id, dry_run, done)?;
            }
        }
        // What was made of an image that was removed meanwhile.
        let orphan = |file: &StoredFile| {
            file.path.extension().is_some_and(|e| e == "sqsh") && !file.path.with_extension("erofs").exists()
        };
        for file in self.files("images")?.into_iter().filter(orphan) {
            gone += self.take_file(file, dry_run, done)?;
        }
        let lost = self.lost_resolved_digests()?;
        let is_lost = |file: &StoredFile| {
            file.path.file_name().and_then(|name| name.to_str()).is_some_and(|name| lost.contains(name))
        };
        for file in self.files(resolved_digests::DIR)?.into_iter().filter(is_lost) {
            self.take_file(file, dry_run, done)?;
        }
        let now = SystemTime::now();
        let old = |file: &StoredFile| now.duration_since(file.used).is_ok_and(|age| age > ABANDONED);
        for file in self.files("tmp")? {
            let abandoned = self.lock_abandoned(&file.path)?;
            if abandoned.is_some() || old(&file) {
                gone += self.take_file(file, dry_run, done)?;
            }
        }
        Ok(gone)
    }

    /// Takes from those who have more than their quota what they used longest ago, until each is within it or enough is gone. Gives how many
    /// bytes went; what others may use, too, stays.
    fn take_excess(&self, left: u64, budget: u64, dry_run: bool, done: &mut Collected) -> Result<u64> {
        let mut gone = 0;
        for user in self.usage_of_users()? {
            let mut excess = user.total().saturating_sub(user.quota.unwrap_or(u64::MAX));
            let mut images = self.images_of(user.uid)?;
            images.sort_by_key(|id| self.used_by(user.uid, *id));
            for id in images {
                if excess == 0 || left.saturating_sub(gone) <= budget {
                    break;
                }
                excess = excess.saturating_sub(self.image_bytes(id));
                let is_others = self.users_of(id)?.iter().any(|uid| *uid != user.uid);
                match (is_others, dry_run) {
                    (true, true) => {}
                    (true, false) => {
                        self.remove(&names::permit(user.uid, id))?;
                        self.forget(user.uid, id);
                    }
                    (false, _) => gone += self.take_image(id, dry_run, done)?,
                }
            }
        }
        Ok(gone)
    }

    pub(super) fn used_by(&self, uid: u32, id: ImageId) -> Option<(i64, i64)> {
        let stat = statat(&self.dir, names::permit(uid, id), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_mtime, stat.st_mtime_nsec as i64))
    }

    /// When somebody last pulled or started it.
    fn last_use(&self, id: ImageId) -> (i64, i64) {
        let time = |uid: u32| self.used_by(uid, id);
        self.users_of(id)
            .default_on_error("an image whose users cannot be listed counts as unused for longest")
            .into_iter()
            .filter_map(time)
            .max()
            .unwrap_or_default()
    }

    pub(super) fn take_image(&self, id: ImageId, dry_run: bool, done: &mut Collected) -> Result<u64> {
        let files = [names::image(id), names::squashfs(id)];
        let bytes = files.into_iter().map(|name| on_disk(&self.path.join(name))).sum();
        if !dry_run {
            let (users, layers) = (self.users_of(id)?, self.layers_of_image(id));
            let last = users.iter().copied().max_by_key(|uid| self.used_by(*uid, id)).unwrap_or(NOBODY);
            self.set_aside(id, last)?;
            for uid in users {
                self.remove(&names::permit(uid, id))?;
                self.forget(uid, id);
            }
            self.delete(id, last)?;
            for uid in self.list("blobs")?.iter().filter_map(|name| name.parse().ok()) {
                self.drop_layers_of(uid, &layers)?;
            }
        }
        done.images.push(id);
        done.bytes += bytes;
        Ok(bytes)
    }

    fn take_file(&self, file: StoredFile, dry_run: bool, done: &mut Collected) -> Result<u64> {
        if !dry_run {
            match std::fs::remove_file(&file.path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(SystemError::new("remove", file.path.display().to_string(), e).into());
                }
                _ => {}
            }
        }
        done.files.push(file.path);
        done.bytes += file.bytes;
        Ok(file.bytes)
    }

    fn blob_files(&self) -> Result<Vec<StoredFile>> {
        let mut all = vec![];
        for dir in self.all_blobs()? {
            all.extend(self.files(&dir)?);
        }
        Ok(all)
    }

    pub(super) fn files(&self, dir: &str) -> Result<Vec<StoredFile>> {
        let path = self.path.join(dir);
        let mut found = vec![];
        for name in self.list(dir)? {
            let path = path.join(name);
            // Gone meanwhile.
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_file() {
                found.push(StoredFile {
                    bytes: meta.blocks() * 512,
                    used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    path,
                });
            }
        }
        Ok(found)
    }
}

pub(super) struct StoredFile {
    path: PathBuf,
    pub(super) bytes: u64,
    used: SystemTime,
}

/// The digest of a blob, by the name of its file; its journal's name is none.
fn digest_of(path: &Path) -> Option<Digest> {
    path.file_name()?.to_str()?.replacen('-', ":", 1).parse().ok()
}

fn oldest_first(mut files: Vec<StoredFile>) -> Vec<StoredFile> {
    files.sort_by_key(|file| file.used);
    files
}

fn on_disk(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |meta| meta.blocks() * 512)
}
