//! Images that were removed while somebody still uses them: a mount or an open file keeps their room taken, so they go on counting for whoever
//! had them last, until they are free. Nobody could otherwise be held to a quota: what runs on an image keeps it, whoever has given it up.
//!
//! Whether a file is in use the kernel says, for this host and where the file system is a local one. Elsewhere a file is removed at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fstatfs, openat, renameat};
use rustix::io::Errno;
use skiff_spec::image::{ImageId, store as names};
use skiff_sys::{IgnoreError, SystemContext, SystemError, lease};

use super::{Store, unique};
use crate::error::Result;

/// File systems of which the kernel of this host knows all users of a file: ext4, XFS, Btrfs, F2FS, ZFS, bcachefs, tmpfs, ramfs, overlayfs.
const LOCAL: [u64; 9] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0xF2F5_2010,
    0x2FC1_2FC1,
    0xCA45_1A4E,
    0x0102_1994,
    0x8584_58F6,
    0x794C_7630,
];
/// The uid noted for a removed file that nobody could use: it counts for nobody.
pub(super) const NOBODY: u32 = 0;
/// How long the user's process may take to have what is only kept mounted let go of: where room depends on that, and where not.
const LETTING_GO: Duration = Duration::from_secs(1);
const LETTING_GO_MEANWHILE: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(10);

/// What has been removed and is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RemovedFiles {
    pub count: u64,
    pub bytes: u64,
}

impl Store {
    /// The same store; `let_go` asks whoever can for the unmounting of images that are gone and only kept mounted.
    pub(crate) fn with_release(self, let_go: impl Fn() + Send + Sync + 'static) -> Store {
        Store { let_go: Some(Box::new(let_go)), ..self }
    }

    /// Takes an image's files from where they can be opened. As long as they are in use they count for this user.
    pub(super) fn set_aside(&self, id: ImageId, uid: u32) -> Result<()> {
        for name in [names::image(id), names::squashfs(id)] {
            if !self.is_local()? {
                self.remove(&name)?;
                continue;
            }
            let aside = unique(&format!("removed/{uid}"));
            match renameat(&self.dir, &name, &self.dir, &aside) {
                Err(Errno::NOENT) => {}
                moved => {
                    moved.on("rename", self.shown(&name))?;
                    self.remove_unless_used(&aside)?;
                }
            }
        }
        Ok(())
    }

    /// Removes what has been set aside and is free by now, whoever had it.
    pub(crate) fn remove_freed(&self) -> Result<()> {
        self.list("removed")?
            .iter()
            .try_for_each(|name| self.remove_unless_used(&format!("removed/{name}")).map(drop))
    }

    /// What this user has removed that is still in use; what is free by now goes.
    pub(super) fn removed_of(&self, uid: u32) -> Result<RemovedFiles> {
        self.removed(&format!("{uid}."))
    }

    /// The same of those whose names begin like this.
    fn removed(&self, beginning: &str) -> Result<RemovedFiles> {
        let mut found = RemovedFiles::default();
        for name in self.list("removed")?.iter().filter(|name| name.starts_with(beginning)) {
            let name = format!("removed/{name}");
            if !self.remove_unless_used(&name)? {
                found.count += 1;
                found.bytes += self.bytes_of(&name);
            }
        }
        Ok(found)
    }

    /// Has images that this user has removed let go of where they are only kept mounted, and waits for that: no longer than it takes until
    /// no more than `enough` bytes of them are left.
    pub(super) fn let_go_for_room(&self, uid: u32, enough: u64) -> Result<()> {
        self.let_go(&format!("{uid}."), enough, LETTING_GO)
    }

    /// The same with all that this user, or anybody, has removed, so that the room is free at once if it can be.
    pub(crate) fn let_go_of_removed(&self, uid: Option<u32>) -> Result<()> {
        let beginning = uid.map_or(String::new(), |uid| format!("{uid}."));
        self.let_go(&beginning, 0, LETTING_GO_MEANWHILE)
    }

    fn let_go(&self, beginning: &str, enough: u64, patience: Duration) -> Result<()> {
        let Some(let_go) = &self.let_go else { return Ok(()) };
        if self.removed(beginning)?.bytes <= enough {
            return Ok(());
        }
        let_go();
        let until = Instant::now() + patience;
        while self.removed(beginning)?.bytes > enough && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Removes a file that nobody can open by its name any more, but for those who do this; says whether it is gone.
    fn remove_unless_used(&self, name: &str) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(true),
            // Another process that does this has a lease on it.
            Err(Errno::AGAIN) => return Ok(false),
            opened => opened.on("open", self.shown(name))?,
        };
        match lease::is_alone(file.as_fd()) {
            Ok(false) => Ok(false),
            Ok(true) => self.remove(name).map(|()| true),
            // A file system that does not say so, against its kind, or a site that has turned leases off.
            Err(e) => {
                Err::<(), _>(SystemError::new("lease", self.shown(name), e))
                    .ignore_error("then it goes, as where file systems never say so");
                self.remove(name).map(|()| true)
            }
        }
    }

    fn is_local(&self) -> Result<bool> {
        let kind = fstatfs(&self.dir).on("look at the file system of", self.shown(""))?.f_type as u64;
        // A magic number of 32 bits, which some kernels show with its sign.
        Ok(LOCAL.contains(&(kind & 0xFFFF_FFFF)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::error::Error;
    use crate::store::Quota;
    use crate::store::layers::tests::add;

    #[test]
    fn what_is_removed_while_it_is_used_counts_until_it_is_free() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store").with_quota(Quota::Bytes(600 << 10));
        let left = || std::fs::read_dir(dir.path().join("removed")).expect("listed").count();
        let mut open = vec![];
        for number in [1, 2] {
            let id = add(&store, number, false);
            open.push(store.open_image(id).expect("opened"));
            store.forbid(7, id).expect("removed");
        }
        assert!(store.images().expect("listed").is_empty());
        assert_eq!(store.usage_of(7).expect("usage").images, 512 << 10);
        assert_eq!(store.usage_of_users().expect("usage").len(), 1);
        assert_eq!(store.usage().expect("usage").images, 512 << 10);
        assert_eq!(store.usage_of(70).expect("usage").total(), 0);
        assert!(matches!(store.check_room(7, 200 << 10), Err(Error::Quota { .. })));
        open.pop();
        store.check_room(7, 200 << 10).expect("what is free goes");
        assert_eq!(left(), 1);
        open.pop();
        store.collect(None, false).expect("collected");
        assert_eq!(left(), 0);
        let id = add(&store, 3, false);
        store.forbid(7, id).expect("removed");
        assert_eq!(left(), 0, "what nobody uses goes at once");
    }

    #[test]
    fn what_is_only_kept_mounted_is_let_go_of_where_room_is_needed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (kept, asked) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (held, count) = (kept.clone(), asked.clone());
        let store = Store::open(dir.path()).expect("store").with_quota(Quota::Bytes(300 << 10)).with_release(
            move || {
                count.fetch_add(1, Ordering::Relaxed);
                *held.lock().expect("a lock") = None::<std::fs::File>;
            },
        );
        let asked = || asked.load(Ordering::Relaxed);
        let layer = add(&store, 1, true);
        *kept.lock().expect("a lock") = Some(store.open_image(layer).expect("opened"));
        store.check_room(7, 20 << 10).expect("there is room");
        assert_eq!(asked(), 0);
        store.check_room(7, 200 << 10).expect("a layer goes, and its mount");
        assert_eq!((asked(), store.usage_of(7).expect("usage").total()), (1, 0));
    }
}
