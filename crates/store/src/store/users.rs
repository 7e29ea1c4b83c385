//! Which images users may use, and what digests in registries have led to.

use std::collections::BTreeSet;

use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, openat, renameat, statat, utimensat,
};
use skiff_oci::digest::Digest;
use skiff_oci::platform::Platform;
use skiff_spec::image::{ImageId, store as names};

use super::{PASSABLE, Store, unique};
use crate::error::Result;
use skiff_sys::SystemContext;

impl Store {
    /// The image that a digest in a registry, of an index perhaps, stands for on such machines; as far as it was ever pulled.
    #[must_use]
    pub fn known(&self, digest: &Digest, platform: &Platform) -> Option<ImageId> {
        std::fs::read_to_string(self.path.join(meaning(digest, platform))).ok()?.trim().parse().ok()
    }

    /// Notes that.
    ///
    /// # Errors
    /// When the store cannot be written to.
    pub fn remember(&self, digest: &Digest, platform: &Platform, id: ImageId) -> Result<()> {
        let name = meaning(digest, platform);
        if self.known(digest, platform) == Some(id) {
            return Ok(());
        }
        let new = unique("tmp/meaning");
        self.write_new(&new, format!("{id}\n").as_bytes())?;
        Ok(renameat(&self.dir, &new, &self.dir, &name).on("rename", self.shown(&name))?)
    }

    /// Files that note what a digest means, the image of which is gone.
    pub(super) fn lost_meanings(&self) -> Result<Vec<String>> {
        let images: BTreeSet<ImageId> = self.images()?.into_iter().collect();
        let is_lost = |name: &String| match std::fs::read_to_string(self.path.join(name)) {
            Ok(text) => text.trim().parse().map_or(true, |id: ImageId| !images.contains(&id)),
            // Gone meanwhile, or for the next one to look at.
            Err(_) => false,
        };
        let names = self.list("meanings")?.into_iter().map(|name| format!("meanings/{name}"));
        Ok(names.filter(is_lost).collect())
    }

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
        if self.users_of(id)?.is_empty() { self.delete(id, uid) } else { Ok(()) }
    }
}

fn meaning(digest: &Digest, platform: &Platform) -> String {
    let variant = platform.variant.as_deref().map_or(String::new(), |v| format!("-{v}"));
    let machine = format!("{}-{}{variant}", platform.os, platform.architecture).replace('/', "_");
    format!("meanings/{}.{machine}", digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::layers::tests::add;

    #[test]
    fn what_a_digest_means_goes_with_its_image() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store");
        let platform = Platform::linux("amd64", None);
        let (first, second) = (add(&store, 1, false), add(&store, 2, false));
        for (digest, id) in [(1, first), (2, second), (3, first)] {
            store.remember(&Digest::Sha256([digest; 32]), &platform, id).expect("noted");
        }
        let known = |digest| store.known(&Digest::Sha256([digest; 32]), &platform);
        store.forbid(7, first).expect("removed");
        assert_eq!([known(1), known(2), known(3)], [None, Some(second), None]);
        // One of an image that went before it was noted.
        store.remember(&Digest::Sha256([4; 32]), &platform, first).expect("noted");
        assert_eq!(store.collect(None, true).expect("looked").files.len(), 1);
        assert_eq!(known(4), Some(first));
        store.collect(None, false).expect("collected");
        assert_eq!([known(2), known(4)], [Some(second), None]);
        assert_eq!(std::fs::read_dir(dir.path().join("meanings")).expect("listed").count(), 1);
    }
}
