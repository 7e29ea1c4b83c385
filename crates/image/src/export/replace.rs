//! A file that takes its name when it is whole.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use skiff_sys::IgnoreError;
use skiff_sys::{SystemContext, SystemError};

use crate::error::{Error, Result};

/// Dropped before [`Replacement::publish`], nothing of it is left. Where the file system can have files without names, nothing is
/// left of a process that is killed either.
pub(super) struct Replacement {
    pub file: File,
    path: PathBuf,
    /// The name that it gets first, beside the other one.
    aside: PathBuf,
    has_name: bool,
}

impl Replacement {
    /// Begins a file that will replace whatever file stands under that name.
    pub fn new(path: &Path) -> Result<Replacement> {
        let object = || path.display().to_string();
        let Some(name) = path.file_name() else {
            return Err(SystemError::new("write", object(), rustix::io::Errno::ISDIR).into());
        };
        // A device or pipe is not a name for something else.
        if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file() && !there.is_symlink()) {
            return Err(Error::Foreign {
                object: object(),
                why: "it is there, and no regular file".into(),
                hint: Some("write to another name"),
            });
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let aside = path.with_file_name(hidden);
        // What an earlier process of this number left.
        if let Err(error) = std::fs::remove_file(&aside)
            && !matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        {
            return Err(SystemError::new("write", aside.display().to_string(), error).into());
        }
        let (file, has_name) = match nameless(path) {
            Some(file) => (file, false),
            None => {
                let file = File::options().read(true).write(true).create_new(true).open(&aside);
                (file.on("write", object())?, true)
            }
        };
        Ok(Replacement { file, path: path.into(), aside, has_name })
    }

    /// Puts it in its place, on the disk for good.
    pub fn publish(self) -> Result<()> {
        let path = self.path.clone();
        self.publish_as(&path)
    }

    /// The same under a name that was not known before.
    pub fn publish_as(mut self, path: &Path) -> Result<()> {
        let object = || path.display().to_string();
        self.file.sync_all().on("write to the disk", object())?;
        if !self.has_name {
            let number = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, number, CWD, &self.aside, AtFlags::SYMLINK_FOLLOW).on("write", object())?;
            self.has_name = true;
        }
        std::fs::rename(&self.aside, path).on("write", object())?;
        self.has_name = false;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if self.has_name {
            std::fs::remove_file(&self.aside)
                .ignore_error("best effort: the error that led here is the one to be told");
        }
    }
}

/// A file in the directory of `path`; nothing if its file system has no such files, or more is wrong.
fn nameless(path: &Path) -> Option<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    open(directory, flags, Mode::from_raw_mode(0o666)).ok().map(File::from)
}
