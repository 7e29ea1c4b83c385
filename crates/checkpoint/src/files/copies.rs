//! Copies, in a checkpoint, of files outside the instance that processes have open to be written anywhere, as databases have; and digests of
//! the others that are not only appended to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Seek as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, PROC_SUPER_MAGIC, Stat, StatxFlags, fstat, fstatfs, lgetxattr, statx,
};
use serde::{Deserialize, Serialize};
use skiff_cli::GrownFiles;
use skiff_output as output;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Result};

use super::aside::ACL;
use super::{
    COPIES, FileRules, FileTimes, IF_WRITTEN_AGAIN, ReadFile, WrittenFile, access, digest, is_appended, open,
    open_in, stamp,
};
use crate::parts::TREES;

/// Of file systems. Source: `linux/magic.h`.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;
/// As the kernel limits any extended attribute, in bytes.
const LONGEST_ACL: usize = 64 << 10;

/// The rules by which files are copied.
#[derive(Clone, Debug)]
pub struct CopySettings {
    /// What becomes of them.
    pub rules: FileRules,
    /// No larger one is copied, in bytes.
    pub largest: u64,
    /// Whether the processes go on, and with them what they write.
    pub goes_on: bool,
}

/// A file as it is found inside.
#[derive(Serialize, Deserialize)]
pub(crate) struct FoundFile {
    file: WrittenFile,
    /// Whether it is none of the instance's own, which come back with it.
    is_outside: bool,
}

/// The files that are open, by CRIU's images.
pub(crate) struct OpenedFiles {
    /// Paths inside, each with whether it is open to be written.
    pub paths: BTreeMap<String, bool>,
    /// Paths of which more is done than to append.
    anywhere: BTreeSet<String>,
    /// Paths that are not opened to be appended to, so that a restore wants their length.
    compared: BTreeSet<String>,
}

/// What is kept of files outside the instance.
pub(crate) struct KeptFiles {
    /// Files that are open to be written.
    pub written: Vec<WrittenFile>,
    /// Files that are open to be read only.
    pub read: Vec<ReadFile>,
}

/// What has been found out about files while they were copied.
#[derive(Default, Serialize, Deserialize)]
struct ReadContents {
    /// Files that another process has written to meanwhile, each time.
    torn: Vec<String>,
    digests: BTreeMap<String, String>,
}

impl OpenedFiles {
    /// Of processes that stand still.
    ///
    /// # Errors
    /// The images are not there.
    pub fn of(images: BorrowedFd<'_>) -> Result<Self> {
        let (mut paths, mut anywhere, mut compared) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for file in open_in(images)?.into_iter().filter(|file| !file.is_directory) {
            let is_written = access(&file) != OFlags::RDONLY;
            *paths.entry(file.path.clone()).or_default() |= is_written;
            if is_written && !is_appended(&file) {
                anywhere.insert(file.path.clone());
            }
            if is_written && file.size.is_some() {
                compared.insert(file.path);
            }
        }
        Ok(Self { paths, anywhere, compared })
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
    ) -> Result<KeptFiles> {
        let (mut written, mut read, mut copies, mut compared) = (vec![], vec![], vec![], vec![]);
        for FoundFile { mut file, is_outside } in found {
            if !self.paths.get(&*file.path).is_some_and(|is_written| *is_written) {
                let modified = file.times.filter(|_| is_outside).map(|times| times.modified);
                read.extend(modified.map(|modified| ReadFile { path: file.path, modified }));
                continue;
            }
            if self.is_copied(&file, is_outside, settings) {
                let name = format!("file.{}", copies.len());
                copies.push((file.path.clone(), create(&dir.join(TREES).join(&name))?));
                file.copy = Some(name);
            } else {
                (file.owner, file.acl) = (None, vec![]);
                if is_outside && file.size <= settings.largest && self.compared.contains(&*file.path) {
                    compared.push(file.path.clone());
                }
            }
            file.times = file.times.filter(|_| is_outside);
            written.push(file);
        }
        settings.goes_on.then(|| self.tell_of_databases(&written));
        let mut contents = read_all(inside, &copies, &compared)?;
        for path in contents.torn {
            output::note(&format!(
                "{path}: another process has written to it while it was copied: the copy may be of no one moment"
            ));
        }
        written.iter_mut().for_each(|file| file.digest = contents.digests.remove(&file.path));
        Ok(KeptFiles { written, read })
    }

    /// Says what becomes of a database of several files that goes on: files that are not open are not put back.
    fn tell_of_databases(&self, written: &[WrittenFile]) {
        let outside: Vec<&str> =
            written.iter().filter(|file| file.times.is_some()).map(|file| &*file.path).collect();
        if let Some(note) = note_on_databases(&outside, &self.anywhere) {
            output::note(&note);
        }
    }

    fn is_copied(&self, file: &WrittenFile, is_outside: bool, settings: &CopySettings) -> bool {
        let is_put_back = settings.rules.way(&file.path) == GrownFiles::Restore;
        let is_anywhere = is_outside && self.anywhere.contains(&*file.path);
        if is_anywhere && file.size > settings.largest {
            output::note(&format!(
                "{}: no copy of it is kept, as it is larger than checkpoint.copied_file_bytes{IF_WRITTEN_AGAIN}",
                file.path
            ));
        }
        is_anywhere && is_put_back && file.size <= settings.largest
    }
}

/// Nothing of a single file with its logs, as SQLite has: all of them are open, and put back.
fn note_on_databases(outside: &[&str], anywhere: &BTreeSet<String>) -> Option<String> {
    let in_place: Vec<&str> = outside.iter().copied().filter(|path| anywhere.contains(*path)).collect();
    let belongs = |path: &str| {
        in_place.iter().any(|of| path.strip_prefix(*of).is_some_and(|rest| rest.starts_with('-')))
    };
    let single: Vec<&str> = in_place.iter().copied().filter(|path| !belongs(path)).collect();
    let ([first, second], more) = (single.first_chunk::<2>()?, single.len() - 2);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Some(format!(
        "{first}, {second}{more}: files outside of the instance that are written in place. A database of several files cannot be restored once it has gone on: keep it inside the instance, or save without --leave-running"
    ))
}

/// Inside: looks for these files, each with whether it is open to be written. `own_places` is where what is the instance's own is mounted: that
/// comes back with it.
pub(crate) fn find(paths: &BTreeMap<String, bool>, own_places: &[PathBuf]) -> Vec<FoundFile> {
    let own: BTreeSet<u64> = own_places.iter().filter_map(|place| mount_of(place)).collect();
    let found = paths.iter().filter_map(|(path, is_written)| Some((look(path, &own)?, is_written)));
    found.filter(|(found, is_written)| **is_written || found.is_outside).map(|(found, _)| found).collect()
}

/// Copies the first, and makes digests of the second.
fn read_all(inside: EnterTarget<'_>, copies: &[(String, File)], compared: &[String]) -> Result<ReadContents> {
    if copies.is_empty() && compared.is_empty() {
        return Ok(ReadContents::default());
    }
    let into: Vec<BorrowedFd<'_>> = copies.iter().map(|(_, file)| file.as_fd()).collect();
    let open = |path: &String| -> Result<File> {
        let from = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        Ok(File::from(from.context(|| path.clone())?))
    };
    enter::run(inside, &into, || {
        let mut read = ReadContents::default();
        for (path, into) in copies {
            if !copy(&open(path)?, into, || ()).context(|| format!("copy of {path}"))? {
                read.torn.push(path.clone());
            }
        }
        for path in compared {
            let file = open(path);
            // It may be open by who may not read it any more: then its times tell.
            let Ok(file) = file else { continue };
            let length = file.metadata().context(|| path.clone())?.len();
            if let Some(digest) = digest(&file, length).context(|| path.clone())? {
                read.digests.insert(path.clone(), digest);
            }
        }
        Ok(read)
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
        acl: acl_of(path),
        times: Some(FileTimes::of(&of)),
        digest: None,
    };
    Some(FoundFile { file, is_outside: is_regular && has_lasting_content(&fd) && !own.contains(&mount) })
}

/// Nothing of a file that has none, or whose file system knows none.
fn acl_of(path: &str) -> Vec<u8> {
    let mut acl = vec![0; LONGEST_ACL];
    let length = lgetxattr(path, ACL, &mut acl[..]).unwrap_or(0);
    acl.truncate(length);
    acl
}

impl FileTimes {
    pub(super) fn of(of: &Stat) -> Self {
        Self {
            modified: (of.st_mtime, of.st_mtime_nsec.cast_signed()),
            changed: (of.st_ctime, of.st_ctime_nsec.cast_signed()),
        }
    }
}

/// Whether the file system is none whose content the kernel makes as it is read.
pub(super) fn has_lasting_content(file: &OwnedFd) -> bool {
    fstatfs(file).is_ok_and(|of| of.f_type != PROC_SUPER_MAGIC && of.f_type != SYSFS_MAGIC)
}

pub(super) fn mount_of(place: &Path) -> Option<u64> {
    statx(CWD, place, AtFlags::empty(), StatxFlags::MNT_ID).ok().map(|of| of.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_files_that_are_written_in_place_are_told_of() {
        let note =
            |paths: &[&str]| note_on_databases(paths, &paths.iter().map(|path| (*path).to_owned()).collect());
        assert_eq!(note(&["/a.db", "/a.db-shm", "/a.db-wal"]), None);
        assert!(
            note(&["/base/1", "/base/2", "/base/3"])
                .is_some_and(|note| note.starts_with("/base/1, /base/2 and 1 more: "))
        );
        assert_eq!(note_on_databases(&["/base/1", "/base/2"], &BTreeSet::from(["/base/1".into()])), None);
    }

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
