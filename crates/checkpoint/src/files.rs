//! Files outside an instance that its processes had open: a restore wants them as long as they were. What has been written to a log since a
//! checkpoint will be written again by the processes that are made of it.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, ftruncate, openat2, stat};
use serde::{Deserialize, Serialize};
use skiff_cli::GrownFiles;
use skiff_criu::files_image::{OpenFile, open_files};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::small_file;

use crate::notes::RestoreNotes;

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
}

/// A file that the processes want as it was.
struct Was {
    size: u64,
    number: Option<u64>,
    /// Whether all who had it open to be written write only behind what was its end.
    appended: bool,
    /// Whether CRIU takes it only with this length: not one that is opened to be appended to.
    compared: bool,
}

/// A file that is longer now.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Grown {
    path: String,
    was: u64,
    is: u64,
    /// Whether it has been cut.
    cut: bool,
}

/// The files that are open to be written, in CRIU's images of processes that stand still.
///
/// # Errors
/// The images are not there.
pub fn written(inside: EnterTarget<'_>, images: BorrowedFd<'_>) -> Result<Vec<WrittenFile>> {
    let is_written = |file: &OpenFile| access(file) != OFlags::RDONLY;
    let mut paths: Vec<String> =
        open_in(images)?.into_iter().filter(is_written).map(|file| file.path).collect();
    paths.sort();
    paths.dedup();
    if paths.is_empty() {
        return Ok(vec![]);
    }
    enter::run(inside, &[], || {
        // What has no name any more, or another file has its name, comes back in another way.
        let look = |path: String| {
            let found = fstat(&open(&path, OFlags::PATH).ok()?).ok()?;
            Some(WrittenFile { path, size: found.st_size.cast_unsigned(), number: found.st_ino })
        };
        Ok(paths.into_iter().filter_map(look).collect())
    })
}

/// Makes the files that the images in the directory `images` name fit to be restored, or says why they do not.
///
/// # Errors
/// A file is of another length, and may not or cannot be cut.
pub fn make_fit(
    inside: EnterTarget<'_>,
    images: BorrowedFd<'_>,
    written: &[WrittenFile],
    (way, notes): (GrownFiles, &RestoreNotes),
) -> Result<()> {
    let wanted = wanted(open_in(images)?, written);
    for Grown { path, was, is, cut } in enter::run(inside, &[], || fit(&wanted, way))? {
        let more = is - was;
        notes.add(&match cut {
            true => format!("{path}: cut to the {was} bytes that it had; {more} written since are gone"),
            false => format!("{path}: it has {more} bytes that were written since, and goes on behind them"),
        });
    }
    Ok(())
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
        let was = wanted.entry(file.path).or_insert(Was { size, number, appended, compared });
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

/// Inside: cuts those that have grown, if that is wanted and none is in the way; which they were.
fn fit(wanted: &BTreeMap<String, Was>, way: GrownFiles) -> Result<Vec<Grown>> {
    let (mut grown, mut opened, mut wrong, mut may_be_cut) = (vec![], vec![], vec![], false);
    for (path, was) in wanted {
        // One that is missing CRIU names, unless it was the name of another file.
        let Ok(found) = stat(path.as_str()) else { continue };
        let is = found.st_size.cast_unsigned();
        // Without its number nobody wrote to it.
        let longer = is > was.size && was.appended && was.number.is_some();
        let cut = longer && way == GrownFiles::Truncate;
        if is == was.size {
            continue;
        }
        if cut {
            match open_same(path, was.number) {
                Ok(file) => opened.push((file, path, was.size)),
                Err(e) => wrong.push(format!("{path} cannot be cut: {e}")),
            }
        } else if was.compared {
            wrong.push(format!("{path} has {is} bytes, and had {}", was.size));
            may_be_cut |= longer;
        }
        if longer {
            grown.push(Grown { path: path.clone(), was: was.size, is, cut });
        }
    }
    if !wrong.is_empty() {
        let hint = match may_be_cut {
            true => {
                "--files truncate cuts those that are only written at their end to the length that they had"
            }
            false => "restore these files to their former contents, or start the instance anew",
        };
        return Err(Fault::new(format!("files have changed since: {}", wrong.join("; "))).hint(hint));
    }
    for (file, path, size) in opened {
        ftruncate(&file, size).context(|| path.clone())?;
    }
    Ok(grown)
}

/// Opens a file to be cut, if it is the one that it was.
fn open_same(path: &str, number: Option<u64>) -> Result<OwnedFd> {
    let file = open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY).context(|| path.to_owned())?;
    let found = fstat(&file).context(|| path.to_owned())?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    match is_file && Some(found.st_ino) == number {
        true => Ok(file),
        false => Err(Fault::new("it is another file now")),
    }
}

/// By no link: the processes had it under a path without any, and somebody may have put one in its place.
fn open(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn logs_are_cut_if_that_is_wanted_and_nothing_else_is_wrong() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
        let length = |name: &str| std::fs::metadata(path(name)).unwrap().len();
        for (name, size) in [("same", 5), ("log", 9), ("base", 9), ("short", 1)] {
            std::fs::write(path(name), vec![b'x'; size]).unwrap();
        }
        let was = |names: &[(&str, bool, bool)]| {
            let was = |(name, appended, compared): &(&str, bool, bool)| {
                let number = std::fs::metadata(path(name)).map_or(0, |found| found.ino());
                let (appended, compared) = (*appended, *compared);
                (path(name), Was { size: 5, number: Some(number), appended, compared })
            };
            names.iter().map(was).collect()
        };
        let why = |names: &[_], way| fit(&was(names), way).unwrap_err().to_string();
        let fine = [("same", false, true), ("log", true, true), ("absent", true, true)];
        assert!(why(&fine, GrownFiles::Keep).contains("log has 9 bytes, and had 5"));
        for other in [("base", false, true), ("short", true, true)] {
            let wrong = why(&[fine[0], fine[1], other], GrownFiles::Truncate);
            assert!(wrong.contains(other.0) && !wrong.contains("log"), "{wrong}");
            assert_eq!((length("log"), length(other.0)), (9, if other.0 == "base" { 9 } else { 1 }));
        }
        // CRIU goes on behind the end of these.
        let shared = [("log", true, false), ("short", true, false)];
        let grown = |cut| [Grown { path: path("log"), was: 5, is: 9, cut }];
        assert_eq!(fit(&was(&shared), GrownFiles::Keep).unwrap(), grown(false));
        assert_eq!(length("log"), 9);
        assert_eq!(fit(&was(&fine), GrownFiles::Truncate).unwrap(), grown(true));
        assert_eq!((length("log"), length("same")), (5, 5));
        assert_eq!(fit(&was(&fine), GrownFiles::Keep).unwrap(), []);
    }

    #[test]
    fn only_the_file_that_it_was_is_cut() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("log"), "longer than it was").unwrap();
        let number = Some(std::fs::metadata(path("log")).unwrap().ino());
        std::os::unix::fs::symlink("log", path("link")).unwrap();
        let was = |name, number| {
            BTreeMap::from([(path(name), Was { size: 5, number, appended: true, compared: true })])
        };
        for (name, number) in [("link", number), ("log", Some(0)), ("log", None)] {
            fit(&was(name, number), GrownFiles::Truncate).unwrap_err();
            assert_eq!(std::fs::metadata(path("log")).unwrap().len(), 18);
        }
        fit(&was("log", number), GrownFiles::Truncate).unwrap();
        assert_eq!(std::fs::metadata(path("log")).unwrap().len(), 5);
    }

    #[test]
    fn who_writes_only_at_the_end() {
        let of = |flags| is_appended(&OpenFile { path: "x".into(), flags, size: None });
        let (append, write, both) = (OFlags::APPEND.bits(), OFlags::WRONLY.bits(), OFlags::RDWR.bits());
        assert!(of(append | write) && of(append | both) && of(write) && of(OFlags::RDONLY.bits()));
        assert!(!of(both));
    }
}
