//! A file that takes its name when it is whole.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Dropped before [`Replacement::publish`], nothing of it is left.
pub(super) struct Replacement {
    pub file: File,
    path: PathBuf,
    /// Its name until then; empty when it has the other one.
    aside: PathBuf,
}

impl Replacement {
    /// Begins a file that will replace whatever file stands under that name.
    pub fn new(path: &Path) -> Result<Replacement> {
        let object = || path.display().to_string();
        let Some(name) = path.file_name() else {
            return Err(Error::Io { what: "create", object: object(), source: rustix::io::Errno::ISDIR });
        };
        // A device or pipe is not a name for something else.
        if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file() && !there.is_symlink()) {
            return Err(Error::Foreign {
                object: object(),
                why: "it is there, and no regular file".into(),
                hint: None,
            });
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let aside = path.with_file_name(hidden);
        // What an earlier process of this number left.
        if let Err(error) = std::fs::remove_file(&aside)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(Error::io("remove", aside.display().to_string(), &error));
        }
        let file = File::options().read(true).write(true).create_new(true).open(&aside);
        let file = file.map_err(|e| Error::io("create", object(), &e))?;
        Ok(Replacement { file, path: path.into(), aside })
    }

    /// Puts it in its place, on the disk for good.
    pub fn publish(self) -> Result<()> {
        let path = self.path.clone();
        self.publish_as(&path)
    }

    /// The same under a name that was not known before.
    pub fn publish_as(mut self, path: &Path) -> Result<()> {
        let object = || path.display().to_string();
        self.file.sync_all().map_err(|e| Error::io("write to the disk", object(), &e))?;
        std::fs::rename(&self.aside, path).map_err(|e| Error::io("rename", object(), &e))?;
        self.aside.clear();
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.aside.as_os_str().is_empty() {
            // Best effort: the error that led here is the one to be told.
            std::fs::remove_file(&self.aside).unwrap_or_default();
        }
    }
}
