//! The files of a checkpoint, each with its digest: none of them is read through a link.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, unlinkat};
use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Result};

use super::{FILE, IMAGES, TREES, open};

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
        let about = || dir.join(path).display().to_string();
        let mut file = open(dir, path)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        let mut size = 0;
        loop {
            match file.read(&mut buffer).context(about)? {
                0 => break,
                n => {
                    hasher.update(&buffer[..n]);
                    size += n as u64;
                }
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
    for part in [IMAGES, TREES] {
        File::open(dir.join(part)).and_then(|part| part.sync_all()).context(|| part.to_owned())?;
    }
    let flushed = |path: String| {
        open(dir, &path)?.sync_all().context(|| path.clone())?;
        FileDigest::of(dir, &path)
    };
    files(dir)?.into_iter().map(flushed).collect()
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
