//! The files of a checkpoint, each with its digest: none of them is read through a link.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, unlinkat};
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Result};

use super::{FILE, IMAGES, TREES, open, place_of};

/// A file and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// Relative to the checkpoint's directory.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// BLAKE3, hexadecimal.
    pub digest: String,
}

impl FileDigest {
    /// Reads a file of a checkpoint.
    ///
    /// # Errors
    /// When it is not there, or leads somewhere else.
    pub fn of(dir: &Path, path: &str) -> Result<Self> {
        let about = || place_of(dir).join(path).display().to_string();
        Self::of_copy(path, &mut open(dir, path)?, &mut std::io::sink()).context(about)
    }

    /// Copies all that comes; what it was. What is used is the copy, so that nobody can exchange it once it is checked.
    ///
    /// # Errors
    /// Of reading or writing.
    pub fn of_copy(path: &str, from: &mut impl Read, to: &mut impl Write) -> io::Result<Self> {
        let (mut hasher, mut size, mut buffer) = (blake3::Hasher::new(), 0, vec![0; 1 << 20]);
        loop {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&buffer[..n]);
                    to.write_all(&buffer[..n])?;
                    size += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self { path: path.into(), size, digest: hasher.finalize().to_hex().to_string() })
    }
}

/// The sums of all files of a checkpoint whose record is not written yet, flushed to the disk, the directories too.
///
/// # Errors
/// What reading says.
pub fn sums(dir: &Path) -> Result<Vec<FileDigest>> {
    [IMAGES, TREES].into_iter().try_for_each(|part| flush(&dir.join(part)))?;
    let flushed = |path: String| {
        open(dir, &path)?.sync_all().context(|| path.clone())?;
        FileDigest::of(dir, &path)
    };
    files(dir)?.into_iter().map(flushed).collect()
}

/// Flushes the names in a directory to the disk.
///
/// # Errors
/// The system's.
pub fn flush(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).context(|| place_of(dir).display().to_string())
}

/// The paths of all files of a checkpoint but its record, in order.
///
/// # Errors
/// What reading says.
pub fn files(dir: &Path) -> Result<Vec<String>> {
    let mut paths: Vec<String> = list(dir)?.into_iter().filter(|name| name != FILE).collect();
    for part in [IMAGES, TREES] {
        let names = list(&dir.join(part))?.into_iter().filter(|name| part != IMAGES || is_image(name));
        paths.extend(names.map(|name| format!("{part}/{name}")));
    }
    paths.sort();
    Ok(paths)
}

/// Whether CRIU reads it: what it writes of how long it took, at the very end, is nobody's concern.
pub(super) fn is_image(name: &str) -> bool {
    name.ends_with(".img")
}

/// Takes that away again.
///
/// # Errors
/// What removing says.
pub fn tidy(images: BorrowedFd<'_>) -> Result<()> {
    for name in ["stats-dump", "stats-restore"] {
        match unlinkat(images, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(e).context(|| name.to_owned()),
        }
    }
    Ok(())
}

/// The names of the files in a directory.
pub(super) fn list(dir: &Path) -> Result<Vec<String>> {
    let about = || dir.display().to_string();
    let mut names = vec![];
    for entry in fs::read_dir(dir).context(about)? {
        let entry = entry.context(about)?;
        if !entry.file_type().context(about)?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
