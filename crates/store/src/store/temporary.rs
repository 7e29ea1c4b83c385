//! Temporary files of those who work for a user: copies of files that are imported, inflated archives, ends of layers' files. They have no names, so
//! that they go with their process, and nobody else sees how large they are. Each process that has some says so by the length of a mark, which it holds
//! locked. All of a user's together may take as much as the user may have in the store: without a limit a small file that inflates to
//! a terabyte would fill the disk of all users.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, ftruncate, openat};
use rustix::io::Errno;
use rustix::process::getuid;
use skiff_sys::unnamed::unnamed_bytes;
use skiff_sys::{IgnoreError as _, SystemContext};

use super::{Store, unique};
use crate::error::{Error, Result};

/// The temporary files of this process, which works for one user.
pub(crate) struct TemporaryFiles<'a> {
    store: &'a Store,
    uid: u32,
    mark: OwnedFd,
    name: String,
}

impl Store {
    /// Begins to say how much the temporary files of this process take.
    ///
    /// # Errors
    /// The store cannot be written to.
    pub(crate) fn temporary_files(&self, uid: u32) -> Result<TemporaryFiles<'_>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        loop {
            let name = unique(&mark_of(uid));
            let mark = openat(&self.dir, &name, flags, Mode::from_raw_mode(0o600));
            let mark = mark.on("create", self.shown(&name))?;
            let files = TemporaryFiles { store: self, uid, mark, name };
            flock(&files.mark, FlockOperation::LockExclusive).on("lock", self.shown(&files.name))?;
            // Before it was locked, another process of this user's may have taken it for a killed one's.
            if fstat(&files.mark).on("look at", self.shown(&files.name))?.st_nlink > 0 {
                return Ok(files);
            }
        }
    }

    /// How much the temporary files of a user's other processes take. What a killed one has left says nothing, and goes.
    fn other_temporary_bytes(&self, uid: u32, own: &str) -> Result<u64> {
        let mut bytes = 0_u64;
        for name in self.list("tmp")?.into_iter().map(|name| format!("tmp/{name}")) {
            if name == own || !name.starts_with(&mark_of(uid)) {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mark = match openat(&self.dir, &name, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                opened => opened.on("open", self.shown(&name))?,
            };
            match flock(&mark, FlockOperation::NonBlockingLockShared) {
                Ok(()) => self.remove(&name)?,
                Err(_) => {
                    let size = fstat(&mark).on("look at", self.shown(&name))?.st_size;
                    bytes = bytes.saturating_add(size.unsigned_abs());
                }
            }
        }
        Ok(bytes)
    }
}

fn mark_of(uid: u32) -> String {
    format!("tmp/temporary.{uid}.")
}

impl TemporaryFiles<'_> {
    /// Looks how much they take by now.
    ///
    /// # Errors
    /// [`Error::TooMuchTemporary`], or the store cannot be read or written to.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(quota) = self.store.quota_of(self.uid)? else { return Ok(()) };
        let device = fstat(&self.mark).on("look at", self.store.shown(&self.name))?.st_dev;
        let own = unnamed_bytes(getuid().as_raw(), device);
        ftruncate(self.mark.as_fd(), own).on("set the length of", self.store.shown(&self.name))?;
        let bytes = own.saturating_add(self.store.other_temporary_bytes(self.uid, &self.name)?);
        if bytes > quota { Err(Error::TooMuchTemporary { bytes, quota }) } else { Ok(()) }
    }
}

impl Drop for TemporaryFiles<'_> {
    fn drop(&mut self) {
        self.store
            .remove(&self.name)
            .ignore_error("whoever counts next removes a mark that nobody has locked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Quota;

    #[test]
    fn each_process_counts_and_a_killed_one_does_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(dir.path()).expect("store").with_quota(Quota::Bytes(1 << 40));
        let (first, second) =
            (store.temporary_files(7).expect("begun"), store.temporary_files(7).expect("begun"));
        let others = |of: &TemporaryFiles<'_>| store.other_temporary_bytes(of.uid, &of.name).expect("known");
        assert_eq!(others(&first), 0);
        ftruncate(&second.mark, 300).expect("as if it had so much");
        assert_eq!(others(&first), 300);
        assert_eq!(others(&store.temporary_files(8).expect("begun")), 0, "another's");
        first.check().expect("within the quota");
        ftruncate(&second.mark, 1 << 40).expect("as if it had so much");
        // Other tests of this process have such files, too.
        let mut file = tempfile::tempfile_in(dir.path()).expect("a file");
        std::io::Write::write_all(&mut file, b"x").expect("written");
        assert!(matches!(first.check(), Err(Error::TooMuchTemporary { .. })));
        flock(&second.mark, FlockOperation::Unlock).expect("as if it were killed");
        first.check().expect("within the quota");
        assert_eq!(store.list("tmp").expect("listed").len(), 1);
        drop((first, second));
        assert_eq!(store.list("tmp").expect("listed"), [""; 0]);
        let unlimited = Store::open(dir.path()).expect("store");
        unlimited.temporary_files(7).expect("begun").check().expect("no quota");
    }
}
