//! Copies, in a checkpoint, of files outside the instance that processes have open to be written anywhere, as databases have.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Seek as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, fstat, statx};
use serde::{Deserialize, Serialize};
use skiff_cli::GrownFiles;
use skiff_output as output;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Result};

use super::{COPIES, FileRules, WrittenFile, access, is_appended, open, open_in, stamp};
use crate::parts::TREES;

/// The rules by which files are copied.
#[derive(Clone, Debug)]
pub struct CopySettings {
    /// What becomes of them.
    pub rules: FileRules,
    /// No larger one is copied, in bytes.
    pub largest: u64,
}

/// A file as it is found inside.
#[derive(Serialize, Deserialize)]
pub(crate) struct FoundFile {
    file: WrittenFile,
    /// Whether it is none of the instance's own, which come back with it.
    is_outside: bool,
}

/// The files that are open to be written, by CRIU's images.
pub(crate) struct OpenedFiles {
    /// Paths inside.
    pub paths: BTreeSet<String>,
    /// Paths of which more is done than to append.
    anywhere: BTreeSet<String>,
}

impl OpenedFiles {
    /// Of processes that stand still.
    ///
    /// # Errors
    /// The images are not there.
    pub fn of(images: BorrowedFd<'_>) -> Result<Self> {
        let opened: Vec<_> =
            open_in(images)?.into_iter().filter(|file| access(file) != OFlags::RDONLY).collect();
        let paths = opened.iter().map(|file| file.path.clone()).collect();
        let anywhere =
            opened.iter().filter(|file| !is_appended(file)).map(|file| file.path.clone()).collect();
        Ok(Self { paths, anywhere })
    }

    /// Copies into the checkpoint's directory those that are to be; all that have been found.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn copy(
        &self,
        inside: EnterTarget<'_>,
        dir: &Path,
        settings: &CopySettings,
        found: Vec<FoundFile>,
    ) -> Result<Vec<WrittenFile>> {
        let (mut files, mut copies) = (vec![], vec![]);
        for found in found {
            let copied = self.is_copied(&found, settings);
            let mut file = found.file;
            if copied {
                let name = format!("file.{}", copies.len());
                copies.push((file.path.clone(), create(&dir.join(TREES).join(&name))?));
                file.copy = Some(name);
            } else {
                file.owner = None;
            }
            files.push(file);
        }
        for path in copy_all(inside, &copies)? {
            output::note(&format!(
                "{path}: another process has written to it while it was copied: the copy may be of no one moment"
            ));
        }
        Ok(files)
    }

    fn is_copied(&self, found: &FoundFile, settings: &CopySettings) -> bool {
        let wanted = found.is_outside
            && self.anywhere.contains(&*found.file.path)
            && settings.rules.way(&found.file.path) == GrownFiles::Restore;
        if wanted && found.file.size > settings.largest {
            output::note(&format!(
                "{}: no copy of it is kept, as it is larger than checkpoint.copied_file_bytes",
                found.file.path
            ));
        }
        wanted && found.file.size <= settings.largest
    }
}

/// Inside: looks for these files. `own_places` is where what is the instance's own is mounted: that comes back with it.
pub(crate) fn find(paths: &BTreeSet<String>, own_places: &[PathBuf]) -> Vec<FoundFile> {
    let own: BTreeSet<u64> = own_places.iter().filter_map(|place| mount_of(place)).collect();
    paths.iter().filter_map(|path| look(path, &own)).collect()
}

/// Copies them; gives those that another process has written to meanwhile, each time.
fn copy_all(inside: EnterTarget<'_>, copies: &[(String, File)]) -> Result<Vec<String>> {
    if copies.is_empty() {
        return Ok(vec![]);
    }
    let into: Vec<BorrowedFd<'_>> = copies.iter().map(|(_, file)| file.as_fd()).collect();
    enter::run(inside, &into, || {
        let mut torn = vec![];
        for (path, into) in copies {
            let from = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
            let from = File::from(from.context(|| path.clone())?);
            if !copy(&from, into, || ()).context(|| format!("copy of {path}"))? {
                torn.push(path.clone());
            }
        }
        Ok(torn)
    })
}

/// Copies a file; whether nobody has written to it meanwhile, the last time that it was tried. `copied` is called after each.
fn copy(mut from: &File, mut into: &File, mut copied: impl FnMut()) -> std::io::Result<bool> {
    for _ in 0..COPIES {
        let was = stamp(from)?;
        from.rewind()?;
        into.rewind()?;
        into.set_len(0)?;
        // Blocks are shared where the file system can.
        std::io::copy(&mut from, &mut into)?;
        copied();
        if stamp(from)? == was {
            return Ok(true);
        }
    }
    Ok(false)
}

fn create(path: &Path) -> Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
    file.context(|| path.display().to_string())
}

/// What has no name any more, or another file has its name, comes back in another way.
fn look(path: &str, own: &BTreeSet<u64>) -> Option<FoundFile> {
    let fd = open(path, OFlags::PATH).ok()?;
    let of = fstat(&fd).ok()?;
    let is_regular = FileType::from_raw_mode(of.st_mode) == FileType::RegularFile;
    let mount = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let file = WrittenFile {
        path: path.to_owned(),
        size: of.st_size.cast_unsigned(),
        number: of.st_ino,
        copy: None,
        owner: Some((of.st_uid, of.st_gid, of.st_mode & 0o7777)),
    };
    Some(FoundFile { file, is_outside: is_regular && !own.contains(&mount) })
}

fn mount_of(place: &Path) -> Option<u64> {
    statx(CWD, place, AtFlags::empty(), StatxFlags::MNT_ID).ok().map(|of| of.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_to_is_copied_again_or_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&path, "one").expect("written");
        let (from, into) = (File::open(&path).expect("open"), create(&other).expect("made"));
        let mut texts = vec!["fourth"];
        let is_whole = copy(&from, &into, || {
            texts.pop().into_iter().for_each(|text| std::fs::write(&path, text).expect("written"));
        });
        assert!(is_whole.expect("copied"));
        assert_eq!(std::fs::read_to_string(&other).expect("read"), "fourth");
        let mut length = 10;
        let is_whole = copy(&from, &into, || {
            length += 1;
            std::fs::write(&path, "x".repeat(length)).expect("written");
        });
        assert!(!is_whole.expect("copied"));
    }
}
