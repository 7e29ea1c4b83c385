//! Where a build has files for which there is no room in memory: in the user's state, where what is made of them goes, too. Elsewhere a stranger's
//! Dockerfile could fill a disk of all users with some lines.

use std::fs::File;
use std::path::{Path, PathBuf};

use skiff_image::source::{free_bytes, temporary_in};
use skiff_spec::fault::{Context as _, Result};
use skiff_store::ours;

/// Such a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRoom(PathBuf);

impl Default for WorkRoom {
    fn default() -> Self {
        Self(std::env::temp_dir())
    }
}

impl WorkRoom {
    /// In this directory.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(path.into())
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file without a name, and how many bytes may be written to it: half of what is free, since the layer will have as much.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn file(&self) -> Result<(File, u64)> {
        let (file, room, _) = temporary_in(&self.0).map_err(ours)?;
        let free = free_bytes(&room).context(|| self.0.display().to_string())?;
        Ok((file, free / 2))
    }
}
