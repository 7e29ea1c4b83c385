//! Files outside an instance that its processes had open: a restore wants them as they were. Those that are written anywhere are copied into
//! the checkpoint; of others it is known how long they were, and of what content or when they were changed. What has been written since is
//! kept beside them, unless the user wants it otherwise.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use skiff_criu::files_image::{OpenFile, open_files};
use skiff_output as output;
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::small_file;

mod aside;
mod change;
mod copies;
mod fit;
mod opened;
mod rules;

use crate::notes::RestoreNotes;
use crate::parts::{self, TREES};
use aside::{AFTER, BEFORE};
use change::Was;
pub use copies::CopySettings;
pub(crate) use copies::{FoundFile, OpenedFiles, find};
use fit::fit;
pub use opened::ExpectedFiles;
use opened::{linked_directories, refuse_changed_modes};
pub use rules::FileRules;

/// Bytes that are read and compared at once.
const PIECE: usize = 1 << 17;
/// CRIU's images of them.
const FILES: &str = "files.img";
const REMAPPED: &str = "remap-fpath.img";
/// How often a file is copied that another process writes to meanwhile.
const COPIES: u32 = 3;
/// What becomes of a file that is too large for its content to be kept or compared.
const IF_WRITTEN_AGAIN: &str = "; if it is written to again a restore is refused, or with `--files keep` takes it as it is if its length is the same";
/// Nothing sane has more open files than fit into that, in bytes.
const LONGEST: u64 = 256 << 20;

/// A file that is open to be written, as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenFile {
    /// Path of the file inside.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Number in the file system: another file of this name is another file.
    pub number: u64,
    /// Where a copy of it is, below [`TREES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<String>,
    /// Owner, group and rights, with which a missing one is made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32, u32)>,
    /// The access control list, with which a missing file is made again: the bytes of `system.posix_acl_access` (`acl(5)`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acl: Vec<u8>,
    /// When it was changed last. Nothing of one that belongs to the instance, and of all in a checkpoint of an older Skiff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<FileTimes>,
    /// Digest (BLAKE3) of its content. Nothing of one that has a copy, that is opened to be appended to, or that is too large to be copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// When a file was changed last, in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileTimes {
    /// When the content was changed: the time that anybody can set who may write to the file.
    pub modified: (i64, i64),
    /// When content, name, owner or rights were changed, by the clock.
    pub changed: (i64, i64),
}

/// A file outside the instance that is open to be read only, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Path of the file inside.
    pub path: String,
    /// When its content was changed last, in seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// The files outside the instance that a checkpoint's record tells of.
#[derive(Clone, Copy)]
pub struct RecordedFiles<'a> {
    /// Files that are open to be written.
    pub written: &'a [WrittenFile],
    /// Files that are open to be read only.
    pub read: &'a [ReadFile],
}

/// Makes the files that the images in a checkpoint's directory name fit to be restored, or says why they do not; what the processes are to have
/// open then. `own_places` is where what is the instance's own is mounted.
///
/// # Errors
/// A file is not as it was, and may not or cannot be made so.
pub fn make_fit(
    inside: EnterTarget<'_>,
    (dir, images): (&Path, BorrowedFd<'_>),
    recorded: RecordedFiles<'_>,
    own_places: &[PathBuf],
    (rules, notes): (&FileRules, &RestoreNotes),
) -> Result<ExpectedFiles> {
    let opened = open_in(images)?;
    let paths = opened.iter().map(|file| file.path.clone()).collect();
    let wanted = wanted(&opened, recorded);
    let mut copies = BTreeMap::<&str, OwnedFd>::new();
    for file in recorded.written.iter().filter(|file| wanted.contains_key(&file.path)) {
        if let Some(copy) = &file.copy {
            copies.insert(&file.path, parts::open(dir, &format!("{TREES}/{copy}"))?.into());
        }
    }
    let kept: Vec<BorrowedFd<'_>> = copies.values().map(AsFd::as_fd).collect();
    let (said, numbers) = enter::run(inside, &kept, || {
        let linked = linked_directories(&opened, own_places)?;
        if !linked.is_empty() {
            return Err(Fault::new(format!("{}: reached by a symbolic link now", linked.join(", ")))
                .hint("give the former directory its name again"));
        }
        refuse_changed_modes(&opened)?;
        fit(&wanted, &copies, rules)
    })?;
    said.iter().for_each(|said| notes.add(said));
    Ok(ExpectedFiles { paths, numbers })
}

/// What a restore does with the files that are open to be written, a line each.
///
/// # Errors
/// The images are not there.
pub fn outlook(images: BorrowedFd<'_>, written: &[WrittenFile]) -> Result<Vec<String>> {
    let wanted = wanted(&open_in(images)?, RecordedFiles { written, read: &[] });
    let line = |file: &WrittenFile| {
        let what = match (&file.copy, wanted.get(&file.path)) {
            (Some(_), _) => "; a copy of it is kept",
            (None, Some(was)) if was.appended && !was.compared => "; opened to be appended to",
            (None, Some(was)) if was.appended && was.is_dated() => {
                "; written at its end; too large for what it had to be compared"
            }
            (None, Some(was)) if was.appended => "; written at its end",
            (None, Some(was)) if was.is_dated() => IF_WRITTEN_AGAIN,
            (None, _) => "",
        };
        format!("{}, of {} bytes then{what}", file.path, file.size)
    };
    Ok(written.iter().map(line).collect())
}

/// The files that earlier restores have set aside beside these, a line for each of these that has any.
#[must_use]
pub fn set_aside(written: &[WrittenFile]) -> Vec<String> {
    let mut lines = vec![];
    for path in written.iter().map(|file| Path::new(&file.path)) {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            continue;
        };
        // A directory that is mounted elsewhere inside, or gone, is not found.
        let entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
        for suffix in [AFTER, BEFORE] {
            let first = format!("{name}.{suffix}");
            let is_one = |entry: &&fs::DirEntry| {
                let found = entry.file_name();
                let rest = found.to_str().and_then(|found| found.strip_prefix(&*first));
                rest.is_some_and(|rest| {
                    rest.is_empty() || rest.strip_prefix('.').is_some_and(|n| n.parse::<u32>().is_ok())
                })
            };
            let sizes: Vec<u64> = entries
                .iter()
                .filter(is_one)
                .filter_map(|entry| entry.metadata().ok())
                .map(|of| of.len())
                .collect();
            let (number, bytes) = (sizes.len(), output::size(sizes.iter().sum()));
            match number {
                0 => {}
                1 => lines.push(format!("{}.{suffix} ({bytes})", path.display())),
                _ => lines.push(format!("{}.{suffix} and so on, {number} files ({bytes})", path.display())),
            }
        }
    }
    lines
}

fn open_in(images: BorrowedFd<'_>) -> Result<Vec<OpenFile>> {
    let files = small_file::read_below(images, FILES, LONGEST).context(|| FILES)?;
    let remapped = match small_file::read_below(images, REMAPPED, LONGEST) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.context(|| REMAPPED)?),
    };
    open_files(&files, remapped.as_deref())
        .ok_or_else(|| Fault::new(format!("{FILES}: it does not say which files were open")))
}

/// The files, by path. What the images do not name is not looked at, whatever a record says.
fn wanted(open: &[OpenFile], recorded: RecordedFiles<'_>) -> BTreeMap<String, Was> {
    let written: BTreeMap<&str, &WrittenFile> =
        recorded.written.iter().map(|file| (file.path.as_str(), file)).collect();
    let read: BTreeMap<&str, (i64, i64)> =
        recorded.read.iter().map(|file| (file.path.as_str(), file.modified)).collect();
    let mut wanted = BTreeMap::<String, Was>::new();
    for file in open.iter().filter(|file| !file.is_directory) {
        let (noted, compared) = (written.get(file.path.as_str()), file.size.is_some());
        let Some(size) = file.size.or(noted.map(|noted| noted.size)) else { continue };
        let (appended, read) = (is_appended(file), read.get(file.path.as_str()).copied());
        let noted = noted.map(|noted| (*noted).clone());
        let was = wanted.entry(file.path.clone()).or_insert(Was { size, noted, read, appended, compared });
        was.compared |= compared;
        was.appended &= appended;
    }
    wanted
}

fn access(file: &OpenFile) -> OFlags {
    OFlags::from_bits_retain(file.flags) & OFlags::RWMODE
}

/// Whether it is not written but at its end: who only reads it does not change that. Without `O_APPEND` only the place tells it where it is
/// written next; what is written elsewhere later shows by the digest.
fn is_appended(file: &OpenFile) -> bool {
    match access(file) {
        _ if file.flags & OFlags::APPEND.bits() != 0 => true,
        OFlags::RDONLY => true,
        OFlags::WRONLY => file.size == Some(file.position),
        _ => false,
    }
}

/// Length of a file, and when it was written to last, in seconds and nanoseconds: what differs after it was copied if somebody has written to it.
fn stamp(file: &File) -> io::Result<(u64, i64, i64)> {
    file.metadata().map(|of| (of.len(), of.mtime(), of.mtime_nsec()))
}

/// Digest of a file's first `length` bytes; nothing if it is shorter.
fn digest(file: &File, length: u64) -> io::Result<Option<String>> {
    let (mut hasher, mut piece, mut at) = (blake3::Hasher::new(), vec![0; PIECE], 0);
    while at < length {
        let wanted = usize::try_from(length - at).map_or(PIECE, |left| left.min(PIECE));
        match file.read_at(&mut piece[..wanted], at)? {
            0 => return Ok(None),
            read => {
                hasher.update(&piece[..read]);
                at += read as u64;
            }
        }
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

/// By no link: the processes had it under a path without any, and somebody may have put one in its place.
fn open(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_aside_is_named_with_its_number_and_size() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = |name: &str| temp.path().join(name).to_str().expect("UTF-8").to_owned();
        for name in [
            "log",
            "log.after-checkpoint",
            "log.after-checkpoint.2",
            "log.after-checkpoint.2x",
            "db.before-restore",
            "db.before",
        ] {
            fs::write(path(name), "12345").expect("written");
        }
        let file = |name| WrittenFile { path: path(name), size: 5, number: 1, ..WrittenFile::default() };
        let said = set_aside(&[file("log"), file("db"), file("none"), file("no/where")]);
        let wanted = [
            format!("{}.after-checkpoint and so on, 2 files (10 B)", path("log")),
            format!("{}.before-restore (5 B)", path("db")),
        ];
        assert_eq!(said, wanted);
    }

    #[test]
    fn who_writes_only_at_the_end() {
        let at = |flags, position| {
            let size = Some(7).filter(|_| flags & OFlags::APPEND.bits() == 0);
            is_appended(&OpenFile {
                path: "x".into(),
                flags,
                position,
                size,
                is_directory: false,
                mode: 0o100_644,
            })
        };
        let (append, write, both) = (OFlags::APPEND.bits(), OFlags::WRONLY.bits(), OFlags::RDWR.bits());
        assert!(at(append | write, 0) && at(append | both, 0) && at(OFlags::RDONLY.bits(), 0));
        assert!(at(write, 7) && !at(write, 0) && !at(write, 8) && !at(both, 7));
    }
}
