//! [`TrustedDir`]: the rule for whom a directory may belong to, and what can be done in one.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Gid, Mode, OFlags, Stat, Uid, chownat, flock, fstat, linkat, mkdirat,
    openat, openat2, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, On, Result};
use crate::remove::{NotRemoved, remove_all};
use crate::walk::{BENEATH, Step, Walk, check, enter, enter_without_fuse, proc_path, set_mode};

/// A directory, by descriptor, that no user but root and its owner can put anything else in the place of.
///
/// The rule, for the path from `/` on:
///
/// 1. Each directory belongs to root or to the owner.
/// 2. Nobody else may write to it. A sticky one (`/tmp`, a site's `/scratch`) is *shared*: others may make entries, but cannot rename or
///    remove those of root or the owner. So an entry that is there and belongs to them stays what it is; what is missing may be
///    another user's a moment later, and is made and examined by its descriptor before anybody relies on it. No FUSE file system
///    may be mounted on an entry of a shared directory.
/// 3. A symbolic link is followed only in a directory that is not shared, and only if it is root's or the owner's; where it leads,
///    the same rule holds.
///
/// A directory that its owner's group may write to passes as not shared if that group is the owner's alone by its number, and no ACL
/// adds others. ACLs of other kinds (NFSv4) do not show in a mode, and are not looked at.
///
/// As all of this holds at each step for what nobody else can change, a path that has been opened so can be given to another process of root's or
/// the owner's: it leads to the same directory as long as these two leave it there.
#[derive(Debug)]
pub struct TrustedDir {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
    shared: bool,
}

impl TrustedDir {
    /// Opens a directory by an absolute path. `owner`: the uid that it may belong to, apart from root.
    ///
    /// # Errors
    /// Says which component is not trusted, or cannot be opened.
    pub fn open(path: &Path, owner: u32) -> Result<Self> {
        let mut walk = Walk::begin(path, owner)?;
        match walk.go()? {
            true => Ok(Self::reached(walk, path, owner)),
            false => Err(Error::Io { what: "open", path: path.into(), source: Errno::NOENT }),
        }
    }

    /// The same; nothing if it is missing. Another user may make it a moment later, so what its path leads to then is looked at anew, by
    /// [`TrustedDir::open`] or [`TrustedDir::make`].
    ///
    /// # Errors
    /// As of [`TrustedDir::open`].
    pub fn find(path: &Path, owner: u32) -> Result<Option<Self>> {
        let mut walk = Walk::begin(path, owner)?;
        Ok(walk.go()?.then(|| Self::reached(walk, path, owner)))
    }

    /// The same; what is missing is made with this mode, whatever the umask.
    ///
    /// # Errors
    /// As of [`TrustedDir::open`], or that a directory cannot be made.
    pub fn make(path: &Path, owner: u32, mode: u32) -> Result<Self> {
        let mut walk = Walk::begin(path, owner)?;
        while !walk.go()? {
            walk.make(mode)?;
        }
        Ok(Self::reached(walk, path, owner))
    }

    /// One whose descriptor comes from whoever trusts the way to it. `path` is for messages.
    ///
    /// # Errors
    /// Says whose it is, if that is somebody else.
    pub fn from_fd(fd: OwnedFd, path: &Path, owner: u32) -> Result<Self> {
        let stat = fstat(&fd).on("look at", || path.into())?;
        match check(&stat, owner, false, &fd) {
            Ok(shared) => Ok(Self { fd, path: path.into(), owner, shared }),
            Err(()) => {
                Err(Error::Untrusted { path: path.into(), uid: stat.st_uid, mode: stat.st_mode, owner })
            }
        }
    }

    fn reached(walk: Walk, path: &Path, owner: u32) -> Self {
        let Step { fd, shared, .. } = walk.end();
        Self { fd, path: path.into(), owner, shared }
    }

    /// Refuses one that is not the owner's own, or that anybody else may write to.
    ///
    /// # Errors
    /// Says whose it is.
    pub fn private(self) -> Result<Self> {
        let stat = fstat(&self.fd).on("look at", || self.path.clone())?;
        if stat.st_uid == self.owner && stat.st_mode & 0o022 == 0 {
            return Ok(self);
        }
        Err(Error::Untrusted { path: self.path, uid: stat.st_uid, mode: stat.st_mode, owner: self.owner })
    }

    /// The path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, for messages.
    #[must_use]
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A descriptor by which it can be read, locked and synced. (Its own is only a place.)
    ///
    /// # Errors
    /// The system's.
    pub fn readable(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.fd, ".", flags, Mode::empty()).on("open", || self.path.clone())
    }

    /// A directory in it.
    ///
    /// # Errors
    /// As of [`TrustedDir::open`].
    pub fn dir(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        self.enter(plain(name.as_ref())?)
    }

    fn enter(&self, name: &OsStr) -> Result<Self> {
        let path = || self.path_of(name);
        let fd = match enter(&self.fd, self.shared, name) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Error::NotADirectory { path: path() }),
            Err(Errno::XDEV) => return Err(Error::Mounted { path: path() }),
            opened => opened.on("open", path)?,
        };
        let stat = fstat(&fd).on("look at", path)?;
        let shared = check(&stat, self.owner, self.shared, &fd).map_err(|()| self.untrusted(name, &stat))?;
        Ok(Self { fd, path: path(), owner: self.owner, shared })
    }

    fn untrusted(&self, name: &OsStr, stat: &Stat) -> Error {
        Error::Untrusted { path: self.path_of(name), uid: stat.st_uid, mode: stat.st_mode, owner: self.owner }
    }

    /// Makes a directory in it unless it is there.
    ///
    /// # Errors
    /// As of [`TrustedDir::dir`].
    pub fn make_dir(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<Self> {
        match self.new_dir(name.as_ref(), mode) {
            Err(e) if e.errno() == Some(Errno::EXIST) => self.dir(name),
            made => made,
        }
    }

    /// Makes a directory in it, which must not be there.
    ///
    /// # Errors
    /// `EEXIST` if it is; as of [`TrustedDir::dir`].
    pub fn new_dir(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<Self> {
        let name = plain(name.as_ref())?;
        mkdirat(&self.fd, name, Mode::from_raw_mode(mode)).on("make directory", || self.path_of(name))?;
        let dir = self.enter(name)?;
        set_mode(&dir.fd, mode).on("set the mode of", || dir.path.clone())?;
        Ok(dir)
    }

    /// As root, in a directory that only root can write to: makes one for a user alone. One that is there must be that user's; or
    /// root's, if an earlier call was interrupted. A FUSE file system that its user has mounted there is unmounted: its server could
    /// let whoever looks at it wait for ever. What the site has mounted there stays.
    ///
    /// # Errors
    /// Says whose it is; the system's.
    pub fn give_dir(&self, name: impl AsRef<OsStr>, user: (u32, u32)) -> Result<()> {
        self.give_dir_with(name, user, &[])
    }

    /// The same with sticky directories in it that all of the user's ids can write to. They are made while nobody but root can come to them.
    ///
    /// # Errors
    /// As of [`TrustedDir::give_dir`].
    pub fn give_dir_with(
        &self,
        name: impl AsRef<OsStr>,
        (uid, gid): (u32, u32),
        parts: &[&str],
    ) -> Result<()> {
        let name = plain(name.as_ref())?;
        let path = || self.path_of(name);
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            made => made.on("make directory", path)?,
        }
        let dir = match enter_without_fuse(&self.fd, name) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Error::NotADirectory { path: path() }),
            opened => opened.on("open", path)?,
        };
        let stat = fstat(&dir).on("look at", path)?;
        let give_as = |dir: &OwnedFd, mode| {
            chownat(dir, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
            rustix::fs::chmod(proc_path(dir), mode)
        };
        let give = || {
            for part in parts {
                match mkdirat(&dir, *part, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    made => made?,
                }
                give_as(&enter_without_fuse(&dir, OsStr::new(part))?, Mode::from_raw_mode(0o1777))?;
            }
            give_as(&dir, Mode::RWXU)
        };
        match stat.st_uid {
            // Of root's own it does not show whether an earlier call was interrupted.
            0 if !self.shared => give().on("give", path),
            found if found == uid => Ok(()),
            _ => Err(Error::Untrusted { path: path(), uid: stat.st_uid, mode: stat.st_mode, owner: uid }),
        }
    }

    /// Opens a file in it, never by a link. `mode` is for one that this makes.
    ///
    /// # Errors
    /// The system's.
    pub fn file(&self, name: impl AsRef<OsStr>, flags: OFlags, mode: u32) -> Result<OwnedFd> {
        let name = plain(name.as_ref())?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
        openat2(&self.fd, name, flags, mode, BENEATH).on("open", || self.path_of(name))
    }

    /// Puts a file in it, in place of one that has this name: nobody ever sees half of it. Whoever is killed as they replace one may leave
    /// `.new.PID.NUMBERS@HOST`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, name: impl AsRef<OsStr>, bytes: &[u8], mode: u32) -> Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = plain(name.as_ref())?;
        let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Processes of several PID namespaces may have one number.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let new = format!(".new.{}.{count}.{:x}{:08x}@{host}", std::process::id(), now.tv_sec, now.tv_nsec);
        let written = self.make_file((&new, name), bytes, mode).and_then(|is_named| match is_named {
            true => Ok(()),
            false => self.rename(&new, self, name),
        });
        if written.is_err() {
            // The first error is the one to tell.
            let (Ok(()) | Err(_)) = self.remove_file(&new);
        }
        written
    }

    /// Makes a file, `name` if there is none (then it says true), else `new`. Where that can be it has no name at all until it is whole.
    fn make_file(&self, (new, name): (&str, &OsStr), bytes: &[u8], mode: u32) -> Result<bool> {
        let fill = |file: &OwnedFd| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let written = rustix::io::retry_on_intr(|| rustix::io::write(file, rest));
                rest = &rest[written.on("write", || self.path_of(name))?..];
            }
            Ok(())
        };
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        if let Ok(file) = openat2(&self.fd, ".", flags, Mode::from_raw_mode(mode), BENEATH) {
            fill(&file)?;
            let link =
                |name: &OsStr| linkat(CWD, proc_path(&file), &self.fd, name, AtFlags::SYMLINK_FOLLOW).is_ok();
            if link(name) {
                return Ok(true);
            }
            if link(OsStr::new(new)) {
                return Ok(false);
            }
        }
        fill(&self.file(new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?).map(|()| false)
    }

    /// Gives an entry another name, or another place.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&self, name: impl AsRef<OsStr>, to: &Self, new: impl AsRef<OsStr>) -> Result<()> {
        let (name, new) = (plain(name.as_ref())?, plain(new.as_ref())?);
        renameat(&self.fd, name, &to.fd, new).on("rename", || self.path_of(name))
    }

    /// Removes an entry that is no directory; one that is gone is no error.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let name = plain(name.as_ref())?;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => done.on("remove", || self.path_of(name)),
        }
    }

    /// Removes a directory, however deep, with all that is in it and that this process may remove; one that is gone is no error.
    ///
    /// # Errors
    /// Of the first that stays.
    pub fn remove_tree(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let name = plain(name.as_ref())?;
        remove_all(self.fd.as_fd(), name).map_err(|NotRemoved { path, errno }| Error::Io {
            what: "remove",
            path: self.path_of(path),
            source: errno,
        })
    }

    /// The names of all entries.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self) -> Result<Vec<OsString>> {
        let path = || self.path.clone();
        let entries = Dir::new(self.readable()?).on("list", path)?;
        let names = entries.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
        let is_entry =
            |name: &rustix::io::Result<OsString>| !name.as_ref().is_ok_and(|n| n == "." || n == "..");
        names.filter(is_entry).collect::<rustix::io::Result<_>>().on("list", path)
    }

    /// An entry's properties, a link's own if it is one; nothing if there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> Result<Option<Stat>> {
        let name = plain(name.as_ref())?;
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(Some).on("look at", || self.path_of(name)),
        }
    }

    /// Makes a symbolic link in it.
    ///
    /// # Errors
    /// The system's.
    pub fn symlink(&self, target: &Path, name: impl AsRef<OsStr>) -> Result<()> {
        let name = plain(name.as_ref())?;
        symlinkat(target, &self.fd, name).on("make link", || self.path_of(name))
    }

    /// Where a symbolic link in it leads; nothing if it is none.
    ///
    /// # Errors
    /// The system's.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> Result<Option<PathBuf>> {
        let name = plain(name.as_ref())?;
        match readlinkat(&self.fd, name, vec![]) {
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            text => {
                let text = text.on("read link", || self.path_of(name))?;
                Ok(Some(OsString::from_vec(text.into_bytes()).into()))
            }
        }
    }

    /// Makes a file that only its owner can open, and locks it; nothing if it is locked and is not to be waited for.
    ///
    /// # Errors
    /// The system's.
    pub fn lock(&self, name: impl AsRef<OsStr>, operation: FlockOperation) -> Result<Option<OwnedFd>> {
        let name = plain(name.as_ref())?;
        let file = self.file(name, OFlags::RDWR | OFlags::CREATE, 0o600)?;
        match rustix::io::retry_on_intr(|| flock(&file, operation)) {
            Err(Errno::AGAIN) => Ok(None),
            locked => locked.map(|()| Some(file)).on("lock", || self.path_of(name)),
        }
    }
}

impl AsFd for TrustedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name that leads nowhere else than to an entry.
fn plain(name: &OsStr) -> Result<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(name),
        _ => Err(Error::Name { name: name.display().to_string() }),
    }
}

mod files;
#[cfg(test)]
mod tests;
