//! Files outside an instance that its processes had open: a restore wants them as they were. Those that are written anywhere are copied into
//! the checkpoint; of others it is known how long they were. What has been written since is kept beside them, unless the user wants it otherwise.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use skiff_criu::files_image::{OpenFile, open_files};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::small_file;

mod copies;
mod fit;
mod rules;

use crate::notes::RestoreNotes;
use crate::parts::{self, TREES};
pub use copies::{CopySettings, written};
use fit::{Was, fit};
pub use rules::FileRules;

/// CRIU's images of them.
const FILES: &str = "files.img";
const REMAPPED: &str = "remap-fpath.img";
/// Nothing sane has more open files than fit into that, in bytes.
const LONGEST: u64 = 256 << 20;

/// A file that is open to be written, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// Makes the files that the images in a checkpoint's directory name fit to be restored, or says why they do not.
///
/// # Errors
/// A file is not as it was, and may not or cannot be made so.
pub fn make_fit(
    inside: EnterTarget<'_>,
    (dir, images): (&Path, BorrowedFd<'_>),
    written: &[WrittenFile],
    (rules, notes): (&FileRules, &RestoreNotes),
) -> Result<()> {
    let wanted = wanted(open_in(images)?, written);
    let mut copies = BTreeMap::<&str, OwnedFd>::new();
    for file in written.iter().filter(|file| wanted.contains_key(&file.path)) {
        if let Some(copy) = &file.copy {
            copies.insert(&file.path, parts::open(dir, &format!("{TREES}/{copy}"))?.into());
        }
    }
    let kept: Vec<BorrowedFd<'_>> = copies.values().map(AsFd::as_fd).collect();
    let said = enter::run(inside, &kept, || fit(&wanted, &copies, rules))?;
    said.iter().for_each(|said| notes.add(said));
    Ok(())
}

/// What a restore does with the files that are open to be written, a line each.
///
/// # Errors
/// The images are not there.
pub fn outlook(images: BorrowedFd<'_>, written: &[WrittenFile]) -> Result<Vec<String>> {
    let wanted = wanted(open_in(images)?, written);
    let line = |file: &WrittenFile| {
        let what = match (&file.copy, wanted.get(&file.path)) {
            (Some(_), _) => "; a copy of it is kept",
            (None, Some(was)) if was.appended && was.compared => "; written at its end",
            (None, Some(was)) if was.appended => "; opened to be appended to",
            (None, _) => "",
        };
        format!("{}, of {} bytes then{what}", file.path, file.size)
    };
    Ok(written.iter().map(line).collect())
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
fn wanted(open: Vec<OpenFile>, written: &[WrittenFile]) -> BTreeMap<String, Was> {
    let written: BTreeMap<&str, &WrittenFile> =
        written.iter().map(|file| (file.path.as_str(), file)).collect();
    let mut wanted = BTreeMap::<String, Was>::new();
    for file in open {
        let (noted, compared) = (written.get(file.path.as_str()), file.size.is_some());
        let Some(size) = file.size.or(noted.map(|noted| noted.size)) else { continue };
        let (number, appended) = (noted.map(|noted| noted.number), is_appended(&file));
        let owner = noted.and_then(|noted| noted.owner);
        let was = wanted.entry(file.path).or_insert(Was { size, number, owner, appended, compared });
        was.compared |= compared;
        was.appended &= appended;
    }
    wanted
}

fn access(file: &OpenFile) -> OFlags {
    OFlags::from_bits_retain(file.flags) & OFlags::RWMODE
}

/// Whether it is not written but at its end: who only reads it does not change that.
fn is_appended(file: &OpenFile) -> bool {
    file.flags & OFlags::APPEND.bits() != 0 || access(file) != OFlags::RDWR
}

/// By no link: the processes had it under a path without any, and somebody may have put one in its place.
fn open(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_only_at_the_end() {
        let of = |flags| is_appended(&OpenFile { path: "x".into(), flags, size: None });
        let (append, write, both) = (OFlags::APPEND.bits(), OFlags::WRONLY.bits(), OFlags::RDWR.bits());
        assert!(of(append | write) && of(append | both) && of(write) && of(OFlags::RDONLY.bits()));
        assert!(!of(both));
    }
}
