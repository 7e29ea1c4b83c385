//! A directory of an environment as one file, in the format of layers: for checkpoints, which hold what no snapshot does (all of an
//! upper as it was at one moment, and file systems in memory).

use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::digest::LayerId;
use crate::error::Result;
use crate::layer::{FileSink, LayerReader, LayerWriter, expect, pack, unpack, unpack_over};
use crate::plan::full;
use crate::tree::{NodeType, TreeNode};
use crate::walk::walk;

/// Length of the file of an empty directory without extended attributes, in bytes.
pub const EMPTY: u64 = 64;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// The file's digest.
    pub id: LayerId,
    /// Length in bytes.
    pub bytes: u64,
    /// Paths that it does not hold: sockets and devices.
    pub skipped: Vec<Vec<u8>>,
}

/// Writes all of `dir` to `file` (called `name` in errors), but for paths, relative to it, for which `left_out` is true, and what is below
/// them. Nobody should change it meanwhile. Runs where all of it can be read.
pub fn keep(
    dir: BorrowedFd<'_>,
    file: OwnedFd,
    name: &str,
    left_out: impl Fn(&[u8]) -> bool,
) -> Result<Whole> {
    let mut nodes = walk(dir)?;
    let mut skipped = vec![];
    let parents = |path: &[u8]| -> Vec<usize> { (1..path.len()).filter(|at| path[*at] == b'/').collect() };
    nodes.retain(|node: &TreeNode| {
        let path = &node.path[..];
        if left_out(path) || parents(path).into_iter().any(|end| left_out(&path[..end])) {
            return false;
        }
        if node.kind == NodeType::Other {
            skipped.push(path.to_vec());
        }
        node.kind != NodeType::Other
    });
    let items = full(&nodes);
    let mut writer = LayerWriter::new(FileSink { file, name: name.as_bytes().to_vec() })?;
    pack(dir, &items, &mut nodes, &mut writer)?;
    let sealed = writer.finish()?;
    Ok(Whole { id: sealed.id, bytes: sealed.size, skipped })
}

/// Writes back to `target` what [`keep`] read. It must be empty, unless `over` allows for directories that are there already. What is
/// there after an error is not to be used.
pub fn put_back(file: impl Read, name: &str, id: &LayerId, target: BorrowedFd<'_>, over: bool) -> Result<()> {
    let reader = LayerReader::new(file, name.into())?;
    let done = if over { unpack_over(reader, target) } else { unpack(reader, target) }?;
    expect(&done, id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::path::Path;

    fn dir(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("it opens")
    }

    #[test]
    fn of_an_empty_directory_the_length_is_known() {
        let temp = tempfile::tempdir().expect("a directory");
        let (from, file) = (temp.path().join("from"), temp.path().join("file"));
        fs::create_dir(&from).expect("made");
        let keep = || keep(dir(&from).as_fd(), File::create(&file).expect("made").into(), "file", |_| false);
        assert_eq!(keep().expect("kept").bytes, EMPTY);
        fs::create_dir(from.join("a")).expect("made");
        assert!(keep().expect("kept").bytes > EMPTY);
    }

    #[test]
    fn a_directory_comes_back_as_it_was_but_for_what_is_left_out() {
        let temp = tempfile::tempdir().expect("a directory");
        let (from, to, file) = (temp.path().join("from"), temp.path().join("to"), temp.path().join("file"));
        for place in ["kept/deep", "left/deep", "there"] {
            fs::create_dir_all(from.join(place)).expect("made");
        }
        for (place, text) in [("kept/deep/a", "A"), ("left/deep/b", "B"), ("there/c", "C")] {
            fs::write(from.join(place), text).expect("written");
        }
        fs::hard_link(from.join("there/c"), from.join("c")).expect("linked");
        let whole =
            keep(dir(&from).as_fd(), File::create(&file).expect("made").into(), "file", |p| p == b"left");
        let whole = whole.expect("kept");
        assert_eq!(whole.bytes, fs::metadata(&file).expect("there").len());
        let back =
            |over| put_back(File::open(&file).expect("there"), "file", &whole.id, dir(&to).as_fd(), over);
        fs::create_dir_all(to.join("there")).expect("made");
        assert_eq!(back(false).expect_err("there is something").errno(), Some(rustix::io::Errno::EXIST));
        fs::remove_dir_all(&to).expect("gone");
        fs::create_dir_all(to.join("there")).expect("made");
        back(true).expect("put back");
        assert_eq!(fs::read(to.join("kept/deep/a")).expect("there"), b"A");
        assert_eq!(fs::read(to.join("c")).expect("there"), b"C");
        assert!(!to.join("left").exists());
        let other = LayerId([0; 32]);
        fs::remove_dir_all(&to).expect("gone");
        fs::create_dir_all(&to).expect("made");
        let refused = put_back(File::open(&file).expect("there"), "file", &other, dir(&to).as_fd(), false)
            .expect_err("another digest");
        assert!(matches!(refused, crate::error::Error::BadLayer { .. }), "{refused}");
    }
}
