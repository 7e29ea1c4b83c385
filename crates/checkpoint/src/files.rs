//! Files outside an instance that its processes had open: a restore wants them as long as they were. What has been written to a log since a
//! checkpoint will be written again by the processes that are made of it.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, ftruncate, openat, stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skiff_cli::GrownFiles;
use skiff_criu::files_image::{OpenFile, open_files};
use skiff_sandbox::enter::{self, EnterTarget};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::small_file;

use crate::notes::Notes;

/// CRIU's images of them.
const FILES: &str = "files.img";
const REMAPPED: &str = "remap-fpath.img";
/// Nothing sane has more open files than fit into that, in bytes.
const LONGEST: u64 = 256 << 20;

/// A file that is only appended to, and the length that it had. CRIU notes and compares that of all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppendedFile {
    /// Path of the file inside.
    pub path: String,
    /// In bytes.
    pub size: u64,
}

/// A file as it was.
struct Was {
    size: u64,
    /// Whether somebody who had it open writes only behind what was its end.
    appended: bool,
    /// Whether CRIU takes it only as it was.
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

/// The files that are only appended to, in CRIU's images of processes that stand still.
///
/// # Errors
/// The images are not there.
pub fn appended(inside: EnterTarget<'_>, images: BorrowedFd<'_>) -> Result<Vec<AppendedFile>> {
    let mut paths: Vec<String> =
        open_in(images)?.into_iter().filter(|file| file.size.is_none()).map(|file| file.path).collect();
    paths.sort();
    paths.dedup();
    if paths.is_empty() {
        return Ok(vec![]);
    }
    enter::run(inside, &[], || {
        // What has no name any more, or another file has its name, comes back in another way.
        let length = |path: String| {
            let size = stat(path.as_str()).ok()?.st_size.cast_unsigned();
            Some(AppendedFile { path, size })
        };
        Ok(paths.into_iter().filter_map(length).collect())
    })
}

/// Makes the files that the images in the directory `images` name fit to be restored, or says why they do not.
///
/// # Errors
/// A file is of another length, and may not or cannot be cut.
pub fn make_fit(
    inside: EnterTarget<'_>,
    images: BorrowedFd<'_>,
    appended: &[AppendedFile],
    (way, notes): (GrownFiles, &Notes),
) -> Result<()> {
    let wanted = wanted(open_in(images)?, appended);
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

/// The files, by path.
fn wanted(open: Vec<OpenFile>, appended: &[AppendedFile]) -> BTreeMap<String, Was> {
    let mut wanted = BTreeMap::<String, Was>::new();
    for AppendedFile { path, size } in appended {
        wanted.insert(path.clone(), Was { size: *size, appended: true, compared: false });
    }
    for file in open {
        let Some(size) = file.size else { continue };
        let appended = is_appended(&file);
        let was = wanted.entry(file.path).or_insert(Was { size, appended, compared: true });
        (was.size, was.compared) = (size, true);
        was.appended |= appended;
    }
    wanted
}

fn is_appended(file: &OpenFile) -> bool {
    let flags = OFlags::from_bits_retain(file.flags);
    flags.contains(OFlags::APPEND) || flags & OFlags::RWMODE == OFlags::WRONLY
}

/// Inside: cuts those that have grown, if that is wanted and none is in the way; which they were.
fn fit(wanted: &BTreeMap<String, Was>, way: GrownFiles) -> Result<Vec<Grown>> {
    let (mut grown, mut opened, mut wrong, mut may_be_cut) = (vec![], vec![], vec![], false);
    for (path, was) in wanted {
        // One that is missing CRIU names, unless it was the name of another file.
        let Ok(is) = stat(path.as_str()) else { continue };
        let is = is.st_size.cast_unsigned();
        let longer = is > was.size && was.appended;
        let cut = longer && way == GrownFiles::Truncate;
        if is == was.size {
            continue;
        }
        if cut {
            match open(path) {
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
            false => "put them back as they were then",
        };
        return Err(Fault::new(format!("files have changed since: {}", wrong.join("; "))).hint(hint));
    }
    for (file, path, size) in opened {
        ftruncate(&file, size).context(|| path.clone())?;
    }
    Ok(grown)
}

fn open(path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
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
                (path(name), Was { size: 5, appended: *appended, compared: *compared })
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
    fn who_writes_only_at_the_end() {
        let of = |flags| is_appended(&OpenFile { path: "x".into(), flags, size: None });
        let (append, write, both) = (OFlags::APPEND.bits(), OFlags::WRONLY.bits(), OFlags::RDWR.bits());
        assert!(of(append | write) && of(append | both) && of(write));
        assert!(!of(both) && !of(OFlags::RDONLY.bits()));
    }
}
