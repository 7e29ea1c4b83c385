//! Where a build has files for which there is no room in memory: in the user's state, where what is made of them goes, too. Elsewhere a stranger's
//! Dockerfile could fill a disk of all users with some lines.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skiff_image::source::{free_bytes, temporary_in};
use skiff_spec::fault::{Context as _, Result};
use skiff_store::ours;

/// The directory of a build for what it fetches and inflates, with the limit of that.
#[derive(Debug, Clone)]
pub struct WorkRoom {
    path: PathBuf,
    /// How many bytes the files have there that the build has still.
    held: Arc<AtomicU64>,
}

impl Default for WorkRoom {
    fn default() -> Self {
        Self::new(&std::env::temp_dir())
    }
}

impl WorkRoom {
    /// In this directory.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), held: Arc::default() }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes the build has there. Layers may have to have as much yet.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// A file without a name, and how many bytes may be written to it: with all others no more than half of the room, since layers will have as much.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn file(&self) -> Result<(File, u64)> {
        let (file, room, _) = temporary_in(&self.path).map_err(ours)?;
        let free = free_bytes(&room).context(|| self.path.display().to_string())?;
        Ok((file, free.saturating_sub(self.held()) / 2))
    }

    /// A limit for a program that writes to the directory by itself: with all that the build has there, it gets as much as [`WorkRoom::file`]
    /// gives. What other programs write meanwhile counts as its own.
    ///
    /// # Errors
    /// The directory is not there.
    pub fn limit(&self) -> Result<RoomLimit> {
        let about = || self.path.display().to_string();
        let directory = File::open(&self.path).context(about)?;
        let free = free_bytes(&directory).context(about)?;
        let most = free.saturating_sub(self.held()) / 2;
        Ok(RoomLimit { directory, least: free - most })
    }

    /// Counts a file of so many bytes.
    #[must_use]
    pub fn hold(&self, bytes: u64) -> HeldRoom {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        HeldRoom { bytes, held: Arc::clone(&self.held) }
    }
}

/// What has to stay free where a program writes.
#[derive(Debug)]
pub struct RoomLimit {
    directory: File,
    /// In bytes.
    least: u64,
}

impl RoomLimit {
    /// Whether less than that is free.
    ///
    /// # Errors
    /// The system's.
    pub fn is_passed(&self) -> std::io::Result<bool> {
        Ok(free_bytes(&self.directory)? < self.least)
    }

    #[cfg(test)]
    pub fn of_nothing() -> Self {
        Self { directory: File::open(".").expect("a directory"), least: u64::MAX }
    }
}

/// Room that a file takes of the build's limit. Dropping it gives the room back.
#[derive(Debug)]
pub struct HeldRoom {
    bytes: u64,
    held: Arc<AtomicU64>,
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_a_build_take_no_more_than_half_of_the_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let room = WorkRoom::new(dir.path());
        let most = || room.clone().file().expect("a file").1;
        let first = most();
        assert!(first > 0);
        // Others write to the disk meanwhile, but no gigabyte.
        let held = room.hold(first);
        assert!(most() < first / 2 + (1 << 30), "{} of {first}", most());
        let others = room.hold(first);
        assert!(most() < 1 << 30, "{} of {first}", most());
        // A program may write no more, and nothing once all is held.
        assert!(room.limit().expect("a limit").is_passed().is_ok_and(|passed| !passed));
        let free = free_bytes(File::open(dir.path()).expect("a directory")).expect("its room");
        assert!(room.limit().expect("a limit").least > free - free / 4);
        drop((held, others));
        assert_eq!(room.held(), 0);
    }
}
