//! The files of a checkpoint's directory, for what reads and writes single ones.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use skiff_spec::fault::{Context as _, Result};

/// Where directories are.
pub const TREES: &str = "trees";

/// Where the kernel shows the descriptors of a process.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A checkpoint's directory that is opened once. A save gives its name to a newer checkpoint at any time: who went by the name would read the record of
/// one and the files of the other.
pub struct CheckpointDir(OwnedFd);

impl CheckpointDir {
    /// Opens it.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(dir: &Path) -> Result<Self> {
        File::open(dir).map(|file| Self(file.into())).context(|| dir.display().to_string())
    }

    /// A path that leads to this directory, whatever its name is by now, in each process that has the descriptor under the same number.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(DESCRIPTORS).join(self.0.as_raw_fd().to_string())
    }

    /// Whether it still lies at this place.
    #[must_use]
    pub fn is_at(&self, place: &Path) -> bool {
        let number = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        number(&self.path()) == number(place)
    }

    /// The same directory by another descriptor.
    ///
    /// # Errors
    /// When descriptors are used up.
    pub fn another(&self) -> Result<Self> {
        self.0.try_clone().map(Self).context(|| "descriptor of a checkpoint")
    }

    /// The descriptor, which has to stay open as long as the path is to lead there.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

/// Where a checkpoint's directory lies, also of one that is named by its descriptor: for messages, and for what lies beside it.
#[must_use]
pub fn place_of(dir: &Path) -> PathBuf {
    let is_held = dir.starts_with(DESCRIPTORS);
    is_held.then(|| fs::read_link(dir).ok()).flatten().unwrap_or_else(|| dir.to_owned())
}

/// Opens a file of a checkpoint, and nothing that a link in it leads to.
///
/// # Errors
/// When it is not there.
pub fn open(dir: &Path, path: &str) -> Result<File> {
    let about = || place_of(dir).join(path).display().to_string();
    let top = File::open(dir).context(|| place_of(dir).display().to_string())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(&top, path, flags, Mode::empty(), resolve).map(File::from).context(about)
}
