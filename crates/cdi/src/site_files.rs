//! Files of a site's by which it describes something: small texts in directories of their own. What lies there may be anything.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// More files than a site has in a directory.
const MOST_FILES: usize = 1000;

/// A file's text.
///
/// # Errors
/// The file cannot be read, is not a regular file or not text, or is longer than `mebibytes`.
pub fn read_text(path: &Path, mebibytes: u64) -> io::Result<String> {
    // A named pipe in the place of a file makes nobody wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let longest = mebibytes << 20;
    let mut bytes = vec![];
    if metadata.len() <= longest {
        file.take(longest + 1).read_to_end(&mut bytes)?;
    }
    if metadata.len().max(bytes.len() as u64) > longest {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("longer than {mebibytes} MiB")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8"))
}

/// The paths of a directory's files, by name, as far as their names are such as are wanted.
///
/// # Errors
/// The directory cannot be read.
pub fn files_in(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut paths = vec![];
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if paths.len() < MOST_FILES && name.to_str().is_some_and(&is_wanted) {
            paths.push(dir.join(name));
        }
    }
    paths.sort();
    Ok(paths)
}
