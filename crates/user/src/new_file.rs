//! A file where the user wants it, which is there whole or not at all, and which only the user may read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, rename, unlink};
use rustix::io::Errno;
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::IgnoreError;

/// A file without a name until it is whole: one whose maker is killed leaves nothing. Where the file system has no such files (NFS), it has
/// another name until then. What is exported holds files that inside only root may read, or memory: others may not read it, whatever the umask
/// says, until the user gives them the right.
pub struct NewFile {
    fd: OwnedFd,
    path: PathBuf,
    /// The name until then, beside the other, if it needs one.
    temp: Option<PathBuf>,
}

impl NewFile {
    /// Creates it; nothing may have its name.
    ///
    /// # Errors
    /// Something has, or the directory cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(Fault::new(format!("{}: file exists", path.display()))
                .hint("remove it first, or name another file"));
        }
        let mode = Mode::RUSR | Mode::WUSR;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        if let Ok(fd) = openat(CWD, directory, flags, mode) {
            return Ok(Self { fd, path: path.into(), temp: None });
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temp = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, &temp, flags, mode).context(|| path.display().to_string())?;
        Ok(Self { fd, path: path.into(), temp: Some(temp) })
    }

    /// The name that it will have, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, unless another file has got that meanwhile.
    ///
    /// # Errors
    /// One has, or the directory cannot be written.
    pub fn publish(self) -> Result<()> {
        let done = match &self.temp {
            None => {
                let number = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                linkat(CWD, number, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(temp) => match linkat(CWD, temp, CWD, &self.path, AtFlags::empty()) {
                // The other name goes as this is dropped.
                done @ (Ok(()) | Err(Errno::EXIST)) => done,
                // A file system without links, and on NFS no rename refuses to replace one: that nothing was there has to do.
                Err(_) => rename(temp, &self.path),
            },
        };
        done.context(|| self.path.display().to_string())
    }
}

impl AsFd for NewFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            unlink(temp).ignore_error("it may have its name already");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_may_not_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        NewFile::create(&path).unwrap().publish().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn it_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        drop(NewFile::create(&path).unwrap());
        assert_eq!(names(), 0);
        let (new, late) = (NewFile::create(&path).unwrap(), dir.path().join("late"));
        assert_eq!(names(), 0, "one whose maker is killed would leave a file");
        rustix::io::write(&new, b"whole").unwrap();
        assert!(!path.exists());
        new.publish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names()), (b"whole".to_vec(), 1));
        assert!(NewFile::create(&path).is_err());
        let new = NewFile::create(&late).unwrap();
        std::fs::write(&late, "another's").unwrap();
        assert!(new.publish().is_err());
        assert_eq!((std::fs::read(&late).unwrap(), names()), (b"another's".to_vec(), 2));
    }
}
