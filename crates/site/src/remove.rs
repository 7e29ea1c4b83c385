//! Removes a tree, however deep it is, by descriptors: nothing outside of it can be reached, whatever links lie in it or are put there meanwhile.
//!
//! Programs inside make trees of as many levels as they like, for which there are neither descriptors nor paths enough. So only the lowest levels
//! are open; the way back leads by `..`, and goes on only if that is the directory that it came from.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, chmod, fstat, openat, openat2, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::walk::BENEATH;

/// So many levels are open at once.
const OPEN_LEVELS: usize = 16;
/// So often a directory is looked through in which something is still, as others put it there or the file system passed it over.
const PASSES: u8 = 10;
/// Not across a mount either: what is mounted is not part of the tree.
const HERE: ResolveFlags = BENEATH.union(ResolveFlags::NO_XDEV);
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The first that could not be removed of a tree.
#[derive(Debug, PartialEq, Eq)]
pub struct NotRemoved {
    /// The path, which begins with the tree's name.
    pub path: PathBuf,
    /// The system's reason.
    pub errno: Errno,
}

/// Removes `name` in `dir` with all that is in it; one that is gone is no error. What cannot be removed keeps nothing else from going.
///
/// # Errors
/// The first that stays.
pub fn remove_all(dir: BorrowedFd<'_>, name: &OsStr) -> std::result::Result<(), NotRemoved> {
    let all = || -> Result<Option<NotRemoved>> {
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        if is_removed(dir, &name, false)? {
            return Ok(None);
        }
        let mut removal = Removal { dir, levels: vec![], first: None };
        removal.enter(name)?;
        while !removal.levels.is_empty() {
            removal.go_on()?;
        }
        Ok(removal.first)
    };
    match all() {
        Ok(None) => Ok(()),
        Ok(Some(first)) => Err(first),
        Err(errno) => Err(NotRemoved { path: name.into(), errno }),
    }
}

struct Removal<'a> {
    /// Where the tree is.
    dir: BorrowedFd<'a>,
    /// From the tree itself to the directory that is being emptied.
    levels: Vec<Level>,
    first: Option<NotRemoved>,
}

struct Level {
    name: CString,
    /// Device and inode, by which it is known again.
    id: (u64, u64),
    /// Nothing while those below are at work.
    entries: Option<Dir>,
    /// What stays in it.
    stays: Vec<CString>,
    passes: u8,
}

impl Removal<'_> {
    /// Removes the next entry of the lowest directory, or that if there is none.
    ///
    /// # Errors
    /// When there is no way to go on.
    fn go_on(&mut self) -> Result<()> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let (name, is_directory) = match level.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.leave(),
            Err(errno) => {
                self.stays(c".".to_owned(), errno);
                return self.leave();
            }
        };
        let removed = match level.remove(&name, is_directory) {
            Ok(false) => self.enter(name.clone()),
            removed => removed.map(drop),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => self.stays(name, errno),
        }
        Ok(())
    }

    fn enter(&mut self, name: CString) -> Result<()> {
        let parent = self.levels.last().map_or(Ok(self.dir), Level::fd)?;
        let level = Level::open(parent, name)?;
        self.levels.push(level);
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS + 1) {
            self.levels[far].entries = None;
        }
        Ok(())
    }

    /// Goes back to the parent of the lowest directory, and removes that.
    fn leave(&mut self) -> Result<()> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        if let Some(parent) = self.levels.last_mut()
            && parent.entries.is_none()
        {
            parent.entries = Some(parent.again(level.fd()?)?);
        }
        if !level.stays.is_empty() {
            // Why is known.
            if let Some(parent) = self.levels.last_mut() {
                parent.stays.push(level.name);
            }
            return Ok(());
        }
        let removed = match self.levels.last_mut() {
            Some(parent) => parent.remove(&level.name, true),
            None => is_removed(self.dir, &level.name, true),
        };
        match removed {
            Ok(true) => {}
            Ok(false) if level.passes < PASSES => {
                level.passes += 1;
                level.rewind()?;
                self.levels.push(level);
            }
            Ok(false) => self.stays(level.name, Errno::NOTEMPTY),
            Err(errno) => self.stays(level.name, errno),
        }
        Ok(())
    }

    /// Notes that an entry of the lowest directory cannot be removed.
    fn stays(&mut self, name: CString, errno: Errno) {
        if self.first.is_none() {
            let names = self.levels.iter().map(|level| &level.name).chain([&name]);
            let path = names.map(|name| OsStr::from_bytes(name.to_bytes())).collect();
            self.first = Some(NotRemoved { path, errno });
        }
        if let Some(level) = self.levels.last_mut() {
            level.stays.push(name);
        }
    }
}

impl Level {
    fn open(parent: BorrowedFd<'_>, name: CString) -> Result<Self> {
        let open = || openat2(parent, &name, DIR, Mode::empty(), HERE);
        let fd = match open() {
            // Its owner may still let themselves in.
            Err(Errno::ACCESS) => {
                let place = openat2(parent, &name, DIR.union(OFlags::PATH), Mode::empty(), HERE)?;
                let_in(place.as_fd())?;
                open()
            }
            opened => opened,
        }?;
        let id = id(fd.as_fd())?;
        Ok(Self { name, id, entries: Some(Dir::new(fd)?), stays: vec![], passes: 1 })
    }

    /// Opens it again, from one below.
    fn again(&self, below: BorrowedFd<'_>) -> Result<Dir> {
        let fd = openat(below, c"..", DIR, Mode::empty())?;
        // Somebody has moved it away.
        if id(fd.as_fd())? == self.id { Dir::new(fd) } else { Err(Errno::STALE) }
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.entries.as_ref().ok_or(Errno::BADF)?.fd()
    }

    fn rewind(&mut self) -> Result<()> {
        self.entries.as_mut().ok_or(Errno::BADF)?.rewind();
        Ok(())
    }

    /// The next entry that is to go, and whether it is a directory.
    fn next(&mut self) -> Result<Option<(CString, bool)>> {
        let entries = self.entries.as_mut().ok_or(Errno::BADF)?;
        loop {
            match entries.read() {
                // What another has removed meanwhile cannot be read any more.
                None | Some(Err(Errno::NOENT)) => return Ok(None),
                Some(Err(errno)) => return Err(errno),
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    let is_kept = || self.stays.iter().any(|stays| stays.as_c_str() == name);
                    if !matches!(name.to_bytes(), b"." | b"..") && !is_kept() {
                        return Ok(Some((name.to_owned(), entry.file_type() == FileType::Directory)));
                    }
                }
            }
        }
    }

    /// Removes an entry; not a directory in which something is.
    fn remove(&self, name: &CStr, is_directory: bool) -> Result<bool> {
        let dir = self.fd()?;
        match is_removed(dir, name, is_directory) {
            Err(Errno::ACCESS) if let_in(dir).is_ok() => is_removed(dir, name, is_directory),
            removed => removed,
        }
    }
}

/// Removes a file or an empty directory; not one in which something is.
fn is_removed(dir: BorrowedFd<'_>, name: &CStr, is_directory: bool) -> Result<bool> {
    let removed = match is_directory {
        true => Err(Errno::ISDIR),
        false => unlinkat(dir, name, AtFlags::empty()),
    };
    let removed = match removed {
        Err(file @ (Errno::ISDIR | Errno::PERM)) => match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) if is_directory => unlinkat(dir, name, AtFlags::empty()),
            Err(Errno::NOTDIR) => Err(file),
            removed => removed,
        },
        removed => removed,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Lets the owner of a directory change it, which is about to go.
fn let_in(dir: BorrowedFd<'_>) -> Result<()> {
    chmod(format!("/proc/self/fd/{}", dir.as_raw_fd()), Mode::RWXU)
}

fn id(dir: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let stat = fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}
